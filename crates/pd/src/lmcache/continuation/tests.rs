use super::*;
use crate::lmcache::Wish;

/// Of a prefill worker: the first token is `He`.
const PREFILLED: &str = r#"{"id":"cmpl-a","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":" He","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}},"kv_transfer_params":{"first_tok":42}}"#;

fn first(answer: &str) -> First {
    First::read(&Bytes::copy_from_slice(answer.as_bytes())).unwrap().unwrap()
}

fn continued(endpoint: Endpoint) -> Continuation {
    Continuation::new(first(PREFILLED), endpoint)
}

#[test]
fn a_whole_answer_has_the_first_token_in_front_and_the_counts_of_a_single_worker() {
    let answer = Bytes::from_static(
        br#"{"id":"cmpl-b","object":"text_completion","created":8,"model":"m","choices":[{"index":0,"text":"llo \"w\"","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":null}"#,
    );
    assert_eq!(
        continued(Endpoint::Completions).of_answer(&answer).unwrap(),
        r#"{"id":"cmpl-b","object":"text_completion","created":8,"model":"m","choices":[{"index":0,"text":" Hello \"w\"","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"total_tokens":8,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}"#
    );
    assert_eq!(
        continued(Endpoint::Chat).of_answer(&answer).unwrap(),
        r#"{"id":"chatcmpl-b","object":"chat.completion","created":8,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":" Hello \"w\""},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"total_tokens":8,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}"#
    );
    assert!(continued(Endpoint::Chat).of_answer(&Bytes::from("{}")).is_none());
}

const STREAM: [&str; 4] = [
    "data: {\"id\":\"cmpl-b\",\"object\":\"text_completion\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"llo\",\"finish_reason\":null}]}\n\n",
    ": keep-alive\n\n",
    "data: {\"id\":\"cmpl-b\",\"object\":\"text_completion\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"!\",\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"id\":\"cmpl-b\",\"object\":\"text_completion\",\"created\":8,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"total_tokens\":6,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
];

fn streamed(endpoint: Endpoint, records: &[&'static str]) -> String {
    let mut continuation = continued(endpoint);
    let gone = records.iter().map(|record| continuation.of_records(&Bytes::from_static(record.as_bytes())));
    gone.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
}

#[test]
fn a_stream_begins_with_the_first_token_once_in_the_clients_dialect() {
    assert_eq!(
        streamed(Endpoint::Completions, &STREAM),
        [
            "data: {\"id\":\"cmpl-b\",\"object\":\"text_completion\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" He\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}\n\n",
            STREAM[0],
            STREAM[1],
            STREAM[2],
            "data: {\"id\":\"cmpl-b\",\"object\":\"text_completion\",\"created\":8,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":6,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
        ]
        .concat()
    );
    assert_eq!(
        streamed(Endpoint::Chat, &STREAM),
        [
            "data: {\"id\":\"chatcmpl-b\",\"object\":\"chat.completion.chunk\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            "data: {\"id\":\"chatcmpl-b\",\"object\":\"chat.completion.chunk\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" He\"},\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}\n\n",
            "data: {\"id\":\"chatcmpl-b\",\"object\":\"chat.completion.chunk\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"llo\"},\"finish_reason\":null}]}\n\n",
            ": keep-alive\n\n",
            "data: {\"id\":\"chatcmpl-b\",\"object\":\"chat.completion.chunk\",\"created\":8,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"!\"},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"id\":\"chatcmpl-b\",\"object\":\"chat.completion.chunk\",\"created\":8,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":6,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
        ]
        .concat()
    );
}

#[test]
fn a_stream_of_nothing_has_the_first_token_all_the_same_and_one_of_an_error_has_not() {
    let gone = streamed(Endpoint::Completions, &["data: [DONE]\n\n"]);
    assert_eq!(
        gone,
        "data: {\"id\":\"cmpl-a\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" He\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}\n\ndata: [DONE]\n\n"
    );
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    assert_eq!(streamed(Endpoint::Chat, &[error]), error);
}

#[test]
fn the_counts_of_a_stream_are_told_whole() {
    let told = Usage { prompt_tokens: Some(4), completion_tokens: Some(2), cached_tokens: Some(4) };
    let wanted = Usage { prompt_tokens: Some(3), completion_tokens: Some(3), cached_tokens: Some(2) };
    assert_eq!(continued(Endpoint::Chat).counts(told), wanted);
    assert_eq!(continued(Endpoint::Chat).counts(Usage::default()).completion_tokens, None);
}

#[test]
fn a_first_token_that_is_the_last_is_all_of_the_answer() {
    let ended = PREFILLED.replace("\"length\"", "\"stop\"");
    let alone = |endpoint, more: &str| {
        let prompt = if endpoint == Endpoint::Chat { r#""messages":[]"# } else { r#""prompt":"x""# };
        let wish = Wish::read(&Bytes::from(format!("{{{prompt}{more}}}")), endpoint).unwrap();
        let first = first(&ended);
        assert!(first.is_all());
        String::from_utf8(first.alone(&wish).unwrap().to_vec()).unwrap()
    };
    assert_eq!(
        alone(Endpoint::Chat, ""),
        r#"{"id":"chatcmpl-a","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":" He"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}}"#
    );
    assert_eq!(
        alone(Endpoint::Completions, r#","stream":true,"stream_options":{"include_usage":true}"#),
        "data: {\"id\":\"cmpl-a\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" He\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\ndata: {\"id\":\"cmpl-a\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":4,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n"
    );
    let chat = alone(Endpoint::Chat, r#","stream":true"#);
    assert!(chat.contains(r#""finish_reason":"stop","stop_reason":null}]}"#), "{chat}");
    assert_eq!((chat.matches("data: ").count(), chat.matches("usage").count()), (3, 0), "{chat}");
}

#[test]
fn a_stop_token_that_ends_the_answer_at_once_is_told_in_a_stream_too() {
    let ended = PREFILLED.replace("\"length\",\"stop_reason\":null", "\"stop\",\"stop_reason\":42");
    for (endpoint, prompt) in
        [(Endpoint::Chat, r#""messages":[]"#), (Endpoint::Completions, r#""prompt":"x""#)]
    {
        for streamed in [false, true] {
            let body = format!(r#"{{{prompt},"stream":{streamed},"stop_token_ids":[42]}}"#);
            let wish = Wish::read(&Bytes::from(body), endpoint).unwrap();
            let alone = first(&ended).alone(&wish).unwrap();
            let told = br#""finish_reason":"stop","stop_reason":42}]"#;
            assert!(alone.windows(told.len()).any(|part| part == told), "{alone:?}");
        }
    }
}

#[test]
fn a_first_token_may_end_inside_a_character() {
    let is_part = |text: &str| first(&PREFILLED.replace("\" He\"", text)).is_part();
    for part in [r#""""#, "\"a\u{fffd}\"", r#""a\ufffd""#, r#""\uFFFD""#] {
        assert!(is_part(part), "{part}");
    }
    for whole in [r#"" ""#, r#""\\ufffd""#, "\"\u{fffd}a\"", r#""\ufffda""#, "\"\u{20ac}\""] {
        assert!(!is_part(whole), "{whole}");
    }
}

#[test]
fn what_does_not_tell_a_first_token_is_none() {
    for (told, other) in [
        (r#"{"first_tok":42}"#, "null"),
        (r#"{"first_tok":42}"#, "{}"),
        ("42", "null"),
        ("42", "\"42\""),
        ("\" He\"", "null"),
        ("\"length\"", "\"abort\""),
        ("\"length\"", "null"),
    ] {
        let answer = Bytes::from(PREFILLED.replace(told, other));
        assert_eq!(First::read(&answer), Ok(None), "{told} -> {other}");
    }
    assert!(First::read(&Bytes::from("[]")).is_err());
}
