//! Answers of `/inference/v1/generate`: token ids in, token ids out.

use crate::answer::{Answer, Record, quoted};
use crate::generation::Generation;
use crate::prompt::word_id;
use crate::sse;

pub(crate) fn answer(generation: &Generation) -> Answer {
    match generation.ask.stream {
        true => generation.stream(records(generation)),
        false => generation.whole(whole(generation)),
    }
}

fn id(generation: &Generation) -> String {
    quoted(&format!("generate-tokens-{}", generation.id))
}

fn versions(generation: &Generation) -> String {
    format!(r#"[{{"version":"default","start":0,"end":{}}}]"#, generation.ask.max_tokens)
}

fn whole(generation: &Generation) -> String {
    let choices: Vec<_> = generation
        .outputs
        .iter()
        .enumerate()
        .map(|(index, words)| {
            let ids: Vec<_> = words.iter().map(|word| word_id(word).to_string()).collect();
            format!(
                r#"{{"index":{index},"finish_reason":"length","stop_reason":null,"token_ids":[{}],"routed_experts":null,"sampling_mask":null,"weight_versions":{},"logprobs":null}}"#,
                ids.join(","),
                versions(generation)
            )
        })
        .collect();
    format!(
        r#"{{"request_id":{},"model":{},"created":{},"usage":{},"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":null,"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":[{}]}}"#,
        id(generation),
        generation.model(),
        generation.created,
        generation.usage.whole(),
        choices.join(",")
    )
}

fn records(generation: &Generation) -> Vec<Record> {
    let id = id(generation);
    let mut records: Vec<_> = generation
        .tokens()
        .map(|token| {
            let (finish, versions) = match token.last {
                true => (r#""length""#, versions(generation)),
                false => ("null", "null".to_owned()),
            };
            let json = format!(
                r#"{{"request_id":{id},"usage":null,"output_mode":"tokens","choices":[{{"index":{},"finish_reason":{finish},"stop_reason":null,"token_ids":[{}],"routed_experts":null,"sampling_mask":null,"weight_versions":{versions},"logprobs":null}}]}}"#,
                token.choice,
                word_id(token.word)
            );
            Record { token: token.count, bytes: sse::data(&json) }
        })
        .collect();
    let token = generation.ask.max_tokens;
    if generation.ask.include_usage {
        let usage = generation.usage.streamed();
        let json = format!(r#"{{"request_id":{id},"usage":{usage},"output_mode":"tokens","choices":[]}}"#);
        records.push(Record { token, bytes: sse::data(&json) });
    }
    records.push(Record { token, bytes: sse::done() });
    records
}
