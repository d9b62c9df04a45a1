//! Answers of `/v1/messages`, in the shape of the Anthropic API.

use crate::answer::{Answer, Record, quoted};
use crate::generation::Generation;
use crate::sse;

pub(crate) fn answer(generation: &Generation) -> Answer {
    match generation.ask.stream {
        true => generation.stream(records(generation)),
        false => generation.whole(format!(
            r#"{{"id":{},"type":"message","role":"assistant","content":[{{"type":"text","text":{}}}],"model":{},"stop_reason":"max_tokens","usage":{}}}"#,
            id(generation),
            quoted(&generation.text(0)),
            generation.model(),
            usage(generation, generation.usage.completion)
        )),
    }
}

fn id(generation: &Generation) -> String {
    quoted(&format!("chatcmpl-{}", generation.id))
}

fn usage(generation: &Generation, output: u64) -> String {
    let cached = generation.usage.cached.unwrap_or(0);
    format!(
        r#"{{"input_tokens":{},"output_tokens":{output},"cache_creation_input_tokens":0,"cache_read_input_tokens":{cached}}}"#,
        generation.usage.prompt.saturating_sub(cached),
    )
}

fn records(generation: &Generation) -> Vec<Record> {
    let record = |token, kind: &str, rest: String| {
        let json = format!(r#"{{"type":"{kind}"{rest}}}"#);
        Record { token, bytes: sse::event(kind, &json) }
    };
    let message = format!(
        r#","message":{{"id":{},"type":"message","role":"assistant","content":[],"model":{},"stop_reason":null,"stop_sequence":null,"usage":{}}}"#,
        id(generation),
        generation.model(),
        usage(generation, 0)
    );
    let mut records = vec![
        record(1, "message_start", message),
        record(
            1,
            "content_block_start",
            r#","index":0,"content_block":{"type":"text","text":""}"#.to_owned(),
        ),
    ];
    records.extend(generation.tokens().filter(|token| token.choice == 0).map(|token| {
        let delta = format!(r#","index":0,"delta":{{"type":"text_delta","text":{}}}"#, quoted(token.word));
        record(token.count, "content_block_delta", delta)
    }));
    let last = generation.ask.max_tokens;
    let usage = usage(generation, generation.usage.completion);
    records.push(record(last, "content_block_stop", r#","index":0"#.to_owned()));
    records.push(record(
        last,
        "message_delta",
        format!(r#","delta":{{"stop_reason":"max_tokens"}},"usage":{usage}"#),
    ));
    records.push(record(last, "message_stop", String::new()));
    records
}
