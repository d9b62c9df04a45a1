use super::*;
use crate::endpoint::Endpoint::{self, Chat, Completions};

/// Client's body, prefill leg, decode leg. The prompt has the ids 5, 6 and 7, and the first token is 42; `@` stands for the
/// order to write the blocks.
type Row = (Endpoint, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (Completions,
     r#"{"model":"m","prompt":"hi","max_tokens":30}"#,
     r#"{"kv_transfer_params":@,"model":"m","prompt":[5,6,7],"max_tokens":1}"#,
     r#"{"model":"m","prompt":[5,6,7,42],"max_tokens":29}"#),
    (Completions,
     r#"{"prompt":[5,6,7],"temperature":0.70,"stream":true,"stream_options":{"include_usage":true},"min_tokens":9}"#,
     r#"{"max_tokens":1,"kv_transfer_params":@,"prompt":[5,6,7],"temperature":0.70,"stream":false,"min_tokens":1}"#,
     r#"{"max_tokens":15,"prompt":[5,6,7,42],"temperature":0.70,"stream":true,"stream_options":{"include_usage":true},"min_tokens":8}"#),
    (Completions,
     r#"{"prompt":"hi","min_tokens":1,"seed":3}"#,
     r#"{"max_tokens":1,"kv_transfer_params":@,"prompt":[5,6,7],"min_tokens":1,"seed":3}"#,
     r#"{"max_tokens":15,"prompt":[5,6,7,42],"min_tokens":0,"seed":1592647171}"#),
    (Completions,
     r#"{"prompt":"hi","max_tokens":3,"seed":-1}"#,
     r#"{"kv_transfer_params":@,"prompt":[5,6,7],"max_tokens":1,"seed":-1}"#,
     r#"{"prompt":[5,6,7,42],"max_tokens":2,"seed":-1}"#),
    (Chat,
     r#"{"messages":[],"max_tokens":4,"seed":null,"temperature":1}"#,
     r#"{"prompt":[5,6,7],"kv_transfer_params":@,"max_tokens":1,"seed":null,"temperature":1}"#,
     r#"{"prompt":[5,6,7,42],"max_tokens":3,"seed":null,"temperature":1}"#),
    (Chat,
     r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":30,"stream":false}"#,
     r#"{"prompt":[5,6,7],"max_tokens":1,"kv_transfer_params":@,"model":"m","stream":false}"#,
     r#"{"prompt":[5,6,7,42],"max_tokens":29,"model":"m","stream":false}"#),
    (Chat,
     r#"{"messages":[],"max_tokens":4,"max_completion_tokens":null,"stream":true,"add_generation_prompt":true,"chat_template":"x","user":"u"}"#,
     r#"{"prompt":[5,6,7],"kv_transfer_params":@,"max_tokens":1,"stream":false,"user":"u"}"#,
     r#"{"prompt":[5,6,7,42],"max_tokens":3,"stream":true,"user":"u"}"#),
    (Chat,
     r#"{"messages":[]}"#,
     r#"{"prompt":[5,6,7],"max_tokens":1,"kv_transfer_params":@}"#,
     r#"{"prompt":[5,6,7,42],"max_tokens":96}"#),
];

const ORDER: &str = r#"{"ret_first_tok":true,"disagg_spec":{"req_id":"00ff","receiver_host":"10.0.0.9","receiver_init_port":[7300,7301],"receiver_alloc_port":[7400,7401]}}"#;

#[test]
fn both_legs_of_each_endpoint_are_these_bytes() {
    let receiver = Receiver::new("10.0.0.9", vec![7300, 7301], vec![7400, 7401]).unwrap();
    let tokens = Tokens::read(&Bytes::from(r#"{"max_model_len":100,"tokens":[5,6,7]}"#)).unwrap();
    let answer =
        r#"{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"first_tok":42}}"#;
    let first = First::read(&Bytes::from(answer)).unwrap().unwrap();
    for (endpoint, client, prefill, decode) in ROWS {
        let body = Bytes::from_static(client.as_bytes());
        let wish = Wish::read(&body, *endpoint).unwrap();
        assert_eq!(
            wish.prefill(&body, &tokens, (&receiver, "00ff")).unwrap(),
            prefill.replace('@', ORDER),
            "{client}"
        );
        let rest = wish.rest(&tokens).unwrap();
        assert_eq!(wish.decode(&body, &tokens, (&first, rest)).unwrap(), *decode, "{client}");
    }
}
