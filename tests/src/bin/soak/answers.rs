//! Whether an answer is right: the whole text, or a beginning of it and a failure that was told. It sends nothing.

use forebay_tests::{Answer, Head};
use serde_json::Value;

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// What was asked for.
    Right,
    /// A failure that says whose it is: a machine name, or the worker's own answer.
    Failed(String),
    /// The connection ended inside the answer.
    Cut,
    /// The client left, as it wanted to.
    Left,
    /// What must never come.
    Wrong(String),
}

/// A whole answer to a prompt.
pub(crate) fn whole(path: &str, answer: &Answer, expected: &str) -> Seen {
    if answer.status() != 200 {
        return failure(&answer.head, &answer.body);
    }
    let body: Value = match serde_json::from_slice(&answer.body) {
        Ok(body) => body,
        Err(error) => return Seen::Wrong(format!("{path}: {error}: {}", answer.text())),
    };
    let text = match path {
        "/v1/completions" => &body["choices"][0]["text"],
        "/v1/chat/completions" => &body["choices"][0]["message"]["content"],
        "/v1/messages" => &body["content"][0]["text"],
        _ => &body["output"][0]["content"][0]["text"],
    };
    match text.as_str() {
        Some(text) if text == expected => Seen::Right,
        _ => Seen::Wrong(format!("{path}: {expected:?} became {text}")),
    }
}

/// JSON with these members, or `null` for anything.
pub(crate) fn json(answer: &Answer, members: &Value) -> Seen {
    if answer.status() != 200 {
        return failure(&answer.head, &answer.body);
    }
    let Some(members) = members.as_object() else { return Seen::Right };
    match serde_json::from_slice::<Value>(&answer.body) {
        Ok(body) if members.iter().all(|(name, value)| body[name] == *value) => Seen::Right,
        _ => Seen::Wrong(format!("not {members:?}: {}", answer.text())),
    }
}

/// An answer that is none of what was asked for: it must say whose failure it is.
pub(crate) fn failure(head: &Head, body: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(body).into_owned();
    let is_failure = matches!(head.status, 408 | 429 | 500 | 502 | 503 | 504);
    match (head.text("x-forebay-failure"), head.text("x-sim-worker")) {
        (Some(machine), None) if is_failure && text.contains(&machine) => Seen::Failed(machine),
        (None, Some(_)) if is_failure => Seen::Failed(format!("worker_{}", head.status)),
        _ => Seen::Wrong(format!("status {} with {text}", head.status)),
    }
}

/// A stream of events as far as it came; `whole` says that the message ended as messages do.
pub(crate) fn stream(path: &str, bytes: &[u8], whole: bool, expected: &str) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let (mut said, mut done, mut told) = (String::new(), false, None);
    for record in text.split("\n\n").filter(|record| !record.is_empty()) {
        let Some(data) = record.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            if whole {
                return Seen::Wrong(format!("{path}: a broken record: {data}"));
            }
            continue;
        };
        if let Some(failure) = failure_in(&event) {
            told = Some(failure);
        }
        said.push_str(delta(path, &event));
        done |= matches!(event["type"].as_str(), Some("message_stop" | "response.completed"));
    }
    match told {
        _ if !expected.starts_with(&said) => Seen::Wrong(format!("{path}: {expected:?} became {said:?}")),
        Some(failure) if whole => Seen::Failed(format!("in_stream_{failure}")),
        Some(_) => Seen::Wrong(format!("{path}: told and cut: {text}")),
        None if !whole => Seen::Cut,
        None if done && said == expected => Seen::Right,
        None => Seen::Wrong(format!("{path}: ended without a word: {said:?} of {expected:?}, {done}")),
    }
}

/// The name of the failure that an event tells of.
fn failure_in(event: &Value) -> Option<String> {
    let name = |value: &Value| value["failure"].as_str().map(str::to_owned);
    if let Some(name) = name(&event["forebay"]).or_else(|| name(&event["response"]["forebay"])) {
        return Some(name);
    }
    let is_error = event.get("error").is_some_and(Value::is_object);
    (is_error || event["type"] == "error" || event["type"] == "response.failed").then(|| "worker".to_owned())
}

fn delta<'a>(path: &str, event: &'a Value) -> &'a str {
    let text = match path {
        "/v1/completions" => &event["choices"][0]["text"],
        "/v1/chat/completions" => &event["choices"][0]["delta"]["content"],
        "/v1/messages" if event["type"] == "content_block_delta" => &event["delta"]["text"],
        "/v1/responses" if event["type"] == "response.output_text.delta" => &event["delta"],
        _ => &Value::Null,
    };
    text.as_str().unwrap_or_default()
}
