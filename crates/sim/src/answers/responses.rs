//! Answers of `/v1/responses`.

use crate::answer::{Answer, Record, quoted};
use crate::generation::Generation;
use crate::sse;

pub(crate) fn answer(generation: &Generation) -> Answer {
    match generation.ask.stream {
        true => generation.stream(records(generation)),
        false => generation.whole(object(generation, true)),
    }
}

/// The id by which a stored answer is asked for.
pub(crate) fn id(generation: &Generation) -> String {
    match &generation.ask.request_id {
        Some(id) => id.clone(),
        None => format!("resp_{}", generation.id),
    }
}

/// The response object: finished, or as it is before the first token.
pub(crate) fn object(generation: &Generation, finished: bool) -> String {
    let (status, details, output, usage) = match finished {
        true => (
            "incomplete",
            r#"{"reason":"max_output_tokens"}"#,
            format!("[{}]", item(generation, Some(&generation.text(0)))),
            usage(generation),
        ),
        false => ("in_progress", "null", "[]".to_owned(), "null".to_owned()),
    };
    format!(
        r#"{{"id":{},"created_at":{},"incomplete_details":{details},"instructions":null,"metadata":null,"model":{},"object":"response","output":{output},"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":{},"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#,
        quoted(&id(generation)),
        generation.created,
        generation.model(),
        generation.ask.max_tokens,
    )
}

fn usage(generation: &Generation) -> String {
    let counts = generation.usage;
    format!(
        r#"{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":{}}}"#,
        counts.prompt,
        counts.cached.unwrap_or(0),
        counts.completion,
        counts.prompt + counts.completion
    )
}

fn item_id(generation: &Generation) -> String {
    quoted(&format!("msg_{}", generation.id))
}

fn part(text: &str) -> String {
    format!(r#"{{"annotations":[],"text":{},"type":"output_text","logprobs":null}}"#, quoted(text))
}

fn item(generation: &Generation, text: Option<&str>) -> String {
    let (content, status) = match text {
        Some(text) => (part(text), "completed"),
        None => (String::new(), "in_progress"),
    };
    format!(
        r#"{{"id":{},"content":[{content}],"role":"assistant","status":"{status}","type":"message","phase":null}}"#,
        item_id(generation)
    )
}

/// An event before it has its number: the token that brings it, its type, its fields.
type Event = (u64, &'static str, String);

fn records(generation: &Generation) -> Vec<Record> {
    let place = format!(r#""item_id":{},"output_index":0,"content_index":0"#, item_id(generation));
    let deltas = generation.tokens().filter(|token| token.choice == 0).map(|token| {
        let delta = format!(r#"{place},"delta":{},"logprobs":[]"#, quoted(token.word));
        (token.count, "response.output_text.delta", delta)
    });
    let events = opening(generation, &place).into_iter().chain(deltas).chain(closing(generation, &place));
    let numbered = events.enumerate();
    numbered
        .map(|(number, (token, kind, fields))| {
            let json = format!(r#"{{{fields},"sequence_number":{number},"type":"{kind}"}}"#);
            Record { token, bytes: sse::event(kind, &json) }
        })
        .collect()
}

fn opening(generation: &Generation, place: &str) -> [Event; 4] {
    let response = format!(r#""response":{}"#, object(generation, false));
    let item = item(generation, None);
    [
        (1, "response.created", response.clone()),
        (1, "response.in_progress", response),
        (1, "response.output_item.added", format!(r#""item":{item},"output_index":0"#)),
        (1, "response.content_part.added", format!(r#"{place},"part":{}"#, part(""))),
    ]
}

fn closing(generation: &Generation, place: &str) -> [Event; 4] {
    let last = generation.ask.max_tokens;
    let text = generation.text(0);
    let item = item(generation, Some(&text));
    [
        (last, "response.output_text.done", format!(r#"{place},"logprobs":[],"text":{}"#, quoted(&text))),
        (last, "response.content_part.done", format!(r#"{place},"part":{}"#, part(&text))),
        (last, "response.output_item.done", format!(r#""item":{item},"output_index":0"#)),
        (last, "response.completed", format!(r#""response":{}"#, object(generation, true))),
    ]
}
