//! Answers of `/v1/chat/completions`.

use crate::answer::{Answer, Record, quoted};
use crate::generation::{Generation, Token};
use crate::sse;

pub(crate) fn answer(generation: &Generation) -> Answer {
    match generation.ask.stream {
        true => generation.stream(records(generation)),
        false => generation.whole(whole(generation)),
    }
}

fn whole(generation: &Generation) -> String {
    let choices: Vec<_> = (0..generation.outputs.len())
        .map(|index| {
            format!(
                r#"{{"index":{index},"message":{{"role":"assistant","content":{},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}}"#,
                quoted(&generation.text(index))
            )
        })
        .collect();
    format!(
        r#"{{"id":{},"object":"chat.completion","created":{},"model":{},"choices":[{}],"service_tier":null,"system_fingerprint":{},"usage":{},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#,
        id(generation),
        generation.created,
        generation.model(),
        choices.join(","),
        quoted(&generation.fingerprint),
        generation.usage.whole(),
    )
}

fn id(generation: &Generation) -> String {
    quoted(&format!("chatcmpl-{}", generation.id))
}

fn records(generation: &Generation) -> Vec<Record> {
    let start = format!(
        r#"{{"id":{},"object":"chat.completion.chunk","created":{},"model":{},"choices":["#,
        id(generation),
        generation.created,
        generation.model()
    );
    let mut records = Vec::with_capacity(generation.outputs.len() + generation.usage.completion as usize + 2);
    for choice in 0..generation.outputs.len() {
        let usage = generation.usage_so_far(0);
        let json = format!(
            r#"{start}{{"index":{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null{usage}}}"#
        );
        records.push(Record { token: 1, bytes: sse::data(&json) });
    }
    records.extend(generation.tokens().map(|token| content(&start, generation, &token)));
    records.extend(generation.ending(&start));
    records
}

fn content(start: &str, generation: &Generation, token: &Token<'_>) -> Record {
    let finish = match token.last {
        true => r#""length","stop_reason":null"#,
        false => "null",
    };
    let fingerprint = generation.fingerprint_with(token);
    let json = format!(
        r#"{start}{{"index":{},"delta":{{"content":{}}},"logprobs":null,"finish_reason":{finish},"token_ids":null}}]{}{fingerprint}}}"#,
        token.choice,
        quoted(token.word),
        generation.usage_so_far(token.total),
    );
    Record { token: token.count, bytes: sse::data(&json) }
}
