//! Answers of `/v1/completions` and of the demo server's `/generate`.

use crate::answer::{Answer, Record, quoted};
use crate::generation::{Generation, Token};
use crate::prompt::Prompt;
use crate::sse;

pub(crate) fn answer(generation: &Generation) -> Answer {
    match generation.ask.stream {
        true => generation.stream(records(generation)),
        false => generation.whole(whole(generation)),
    }
}

/// `{"text":[prompt and output]}`, whole or as a stream of growing texts.
pub(crate) fn plain(generation: &Generation) -> Answer {
    let prompt = match generation.ask.prompts.first() {
        Some(Prompt::Text(text)) => text.as_str(),
        _ => "",
    };
    let texts = |words: usize| {
        let texts: Vec<_> = generation
            .outputs
            .iter()
            .map(|all| quoted(&(prompt.to_owned() + &all[..words].concat())))
            .collect();
        format!(r#"{{"text":[{}]}}"#, texts.join(","))
    };
    match generation.ask.stream {
        false => generation.whole(texts(generation.ask.max_tokens as usize)),
        true => generation.stream(
            (1..=generation.ask.max_tokens)
                .map(|token| Record { token, bytes: format!("{}\n", texts(token as usize)).into_bytes() })
                .collect(),
        ),
    }
}

fn id(generation: &Generation) -> String {
    quoted(&format!("cmpl-{}", generation.id))
}

fn whole(generation: &Generation) -> String {
    let choices: Vec<_> = (0..generation.outputs.len())
        .map(|index| {
            format!(
                r#"{{"index":{index},"text":{},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}"#,
                quoted(&generation.text(index))
            )
        })
        .collect();
    format!(
        r#"{{"id":{},"object":"text_completion","created":{},"model":{},"choices":[{}],"service_tier":null,"system_fingerprint":{},"usage":{},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#,
        id(generation),
        generation.created,
        generation.model(),
        choices.join(","),
        quoted(&generation.fingerprint),
        generation.usage.whole(),
    )
}

fn records(generation: &Generation) -> Vec<Record> {
    let start = format!(
        r#"{{"id":{},"object":"text_completion","created":{},"model":{},"choices":["#,
        id(generation),
        generation.created,
        generation.model()
    );
    let mut records: Vec<_> = generation.tokens().map(|token| content(&start, generation, &token)).collect();
    records.extend(generation.ending(&start));
    records
}

fn content(start: &str, generation: &Generation, token: &Token<'_>) -> Record {
    let finish = if token.last { r#""length""# } else { "null" };
    let fingerprint = generation.fingerprint_with(token);
    let json = format!(
        r#"{start}{{"index":{},"text":{},"logprobs":null,"finish_reason":{finish},"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}]{}{fingerprint}}}"#,
        token.choice,
        quoted(token.word),
        generation.usage_so_far(token.total),
    );
    Record { token: token.count, bytes: sse::data(&json) }
}
