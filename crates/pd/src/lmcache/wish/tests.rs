use super::*;
use Bypass::{List, Options, Reasoning, Route, Tools};
use Endpoint::{Chat, Completions};

fn read(endpoint: Endpoint, body: &str) -> Result<Wish, Bypass> {
    Wish::read(&Bytes::copy_from_slice(body.as_bytes()), endpoint)
}

#[test]
fn how_many_tokens_are_wanted_is_read_as_engines_do() {
    let of_32 = Tokens::read(&Bytes::from(r#"{"max_model_len":32,"tokens":[1,2]}"#)).unwrap();
    let rest = |endpoint, more: &str| {
        let prompt = if endpoint == Chat { r#""messages":[]"# } else { r#""prompt":"x""# };
        read(endpoint, &format!("{{{prompt}{more}}}")).map(|wish| wish.rest(&of_32))
    };
    assert_eq!(rest(Completions, ""), Ok(Some(15)));
    assert_eq!(rest(Completions, r#","max_tokens":5"#), Ok(Some(4)));
    assert_eq!(rest(Completions, r#","max_tokens":5,"max_tokens":7"#), Ok(Some(6)), "the last one counts");
    assert_eq!(rest(Completions, r#","max_tok\u0065ns":9"#), Ok(Some(8)));
    assert_eq!(rest(Completions, r#","max_tokens":1"#), Ok(None));
    assert_eq!(rest(Completions, r#","max_tokens":null"#), Err(Options), "as many as there is room for");
    assert_eq!(rest(Chat, ""), Ok(Some(29)));
    assert_eq!(rest(Chat, r#","max_tokens":null"#), Ok(Some(29)));
    assert_eq!(rest(Chat, r#","max_tokens":5"#), Ok(Some(4)));
    assert_eq!(rest(Chat, r#","max_tokens":5,"max_completion_tokens":8"#), Ok(Some(7)));
    assert_eq!(rest(Chat, r#","max_completion_tokens":null,"max_tokens":5"#), Ok(Some(4)));
    for odd in ["0", "-1", "1.5", "\"5\"", "true"] {
        assert_eq!(rest(Chat, &format!(r#","max_tokens":{odd}"#)), Err(Options), "{odd}");
    }
    let of_none = Tokens::of_list(&Bytes::from("[1]")).unwrap();
    assert_eq!(read(Chat, r#"{"messages":[]}"#).unwrap().rest(&of_none), None, "nobody knows");
    assert!(read(Chat, r#"{"messages":[],"max_tokens":1}"#).unwrap().is_for_one_token());
    assert!(!read(Chat, r#"{"messages":[]}"#).unwrap().is_for_one_token());
}

#[test]
fn what_a_first_token_from_elsewhere_would_not_be_right_for_goes_to_a_decode_worker() {
    let cases = [
        (Chat, r#""tools":[{"type":"function"}]"#, Tools),
        (Chat, r#""reasoning_effort":"low""#, Reasoning),
        (Chat, r#""include_reasoning":false"#, Reasoning),
        (Chat, r#""chat_template_kwargs":{"enable_thinking":false}"#, Reasoning),
        (Chat, r#""logprobs":true"#, Options),
        (Completions, r#""logprobs":0"#, Options),
        (Chat, r#""stop":["x"]"#, Options),
        (Chat, r#""response_format":{"type":"json_object"}"#, Options),
        (Chat, r#""presence_penalty":0.5"#, Options),
        (Chat, r#""stream_options":{"continuous_usage_stats":true}"#, Options),
        (Chat, r#""prompt":"x""#, Options),
        (Chat, r#""n":2"#, Options),
        (Chat, r#""stream":"true""#, Options),
        (Completions, r#""echo":true"#, Options),
        (Completions, r#""suffix":"x""#, Options),
        (Completions, r#""messages":[1]"#, Options),
        (Completions, r#""prompt":["x"]"#, List),
        (Completions, r#""prompt":[[1]]"#, List),
        (Completions, r#""prompt":7"#, Options),
        (
            Chat,
            r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]"#,
            Options,
        ),
        (Chat, r#""messages":[{"role":"assistant","tool_calls":[{}]}]"#, Tools),
        (Chat, r#""messages":[{"role":"tool","content":"x"}]"#, Tools),
        (Chat, r#""messages":[{"role":"assistant","content":"x","reasoning_content":"y"}]"#, Reasoning),
        (Chat, r#""messages":"x""#, Options),
    ];
    for (endpoint, more, why) in cases {
        let prompt = if endpoint == Chat { r#""messages":[]"# } else { r#""prompt":"x""# };
        assert_eq!(read(endpoint, &format!("{{{prompt},{more}}}")), Err(why), "{more}");
    }
    assert_eq!(read(Chat, r#"{"max_tokens":5}"#), Err(Options), "there is nothing to prefill");
    assert_eq!(read(Chat, "{"), Err(Options));
    for endpoint in [Endpoint::Responses, Endpoint::Messages, Endpoint::Generate] {
        assert_eq!(read(endpoint, r#"{"messages":[],"prompt":"x"}"#), Err(Route));
    }
}

#[test]
fn what_says_nothing_or_what_is_usual_keeps_nobody_from_being_a_pair() {
    let usual = r#""model":"m","temperature":0.0,"top_p":0.9,"seed":1,"stop":null,"logprobs":null,"tools":[],"tool_choice":"auto","repetition_penalty":1.0,"presence_penalty":0,"n":1,"user":"u","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":false},"min_tokens":3,"response_format":{"type":"text"},"echo":false"#;
    let text = r#"[{"role":"system","content":"x","name":"y"},{"role":"user","content":[{"type":"text","text":"z"}]}]"#;
    let chat = read(Chat, &format!(r#"{{"messages":{text},{usual}}}"#)).unwrap();
    assert_eq!((chat.streamed, chat.include_usage, chat.min_tokens), (true, true, 3));
    let ids = read(Completions, &format!(r#"{{"prompt":[1,2,3],{usual}}}"#)).unwrap();
    assert_eq!(ids.tokens().map(Tokens::count), Some(3));
}

#[test]
fn a_tokenizer_is_asked_for_what_the_prompt_is_made_of_as_it_came() {
    let chat = Bytes::from(
        r#"{ "max_tokens":5,"messages" : [{"role":"user","content":"h\u00e9"}],"model":"m","add_generation_prompt":false,"temperature":1}"#,
    );
    assert_eq!(
        read(Chat, std::str::from_utf8(&chat).unwrap()).unwrap().tokenize(&chat).unwrap(),
        r#"{"messages" : [{"role":"user","content":"h\u00e9"}],"model":"m","add_generation_prompt":false}"#
    );
    let text = Bytes::from(r#"{"model":"m","prompt":"hi","stream":true,"add_special_tokens":false}"#);
    assert_eq!(
        read(Completions, std::str::from_utf8(&text).unwrap()).unwrap().tokenize(&text).unwrap(),
        r#"{"model":"m","prompt":"hi","add_special_tokens":false}"#
    );
}
