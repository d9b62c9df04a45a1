//! What is asked: requests of every kind, drawn from a seed, each with the answer that it has to get.

use forebay_sim::expected_text;
use forebay_tests::client::{chunked, request};
use serde_json::{Value, json};

use crate::chance::Chance;

/// Conversations that prompts belong to: few enough that what a router remembers of them has a bound.
const CONVERSATIONS: u64 = 300;

/// One request.
pub(crate) struct Ask {
    /// For reports.
    pub(crate) name: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// As it goes out, head and body.
    pub(crate) bytes: Vec<u8>,
    pub(crate) wants: Wants,
}

/// What has to come of it, unless a worker's failure is in the way.
pub(crate) enum Wants {
    /// This text, whole.
    Text(String),
    /// This text, in events.
    Stream(String),
    /// JSON, with these members.
    Json(Value),
    /// Any answer of the router's or a worker's.
    Any,
    /// This refusal, at once.
    Status(u16),
    /// Nothing: the client leaves before an answer, after so many milliseconds.
    LeaveBefore(u64),
    /// The first bytes, then the client leaves.
    LeaveMid,
}

/// Paths that generate.
const GENERATING: [&str; 4] = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"];

impl Ask {
    /// One of every kind there is, by chance.
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        match chance.below(100) {
            0..38 => Self::generating(chance, false),
            38..68 => Self::generating(chance, true),
            68..72 => Self { wants: Wants::LeaveMid, name: "leave_mid", ..Self::generating(chance, true) },
            72..76 => Self::leaving(chance),
            76..80 => Self::refused(chance),
            80..90 => Self::pooling(chance),
            90..94 => Self::page(chance),
            94..97 => Self::unknown(chance),
            _ => Self::in_chunks(chance),
        }
    }

    /// A prompt with its answer.
    pub(crate) fn generating(chance: &mut Chance, stream: bool) -> Self {
        let path = *chance.pick(&GENERATING);
        let body = body(chance, path, stream);
        let text = expected_text(path, &body).expect("a text for each prompt");
        let wants = if stream { Wants::Stream(text) } else { Wants::Text(text) };
        let session = format!("s{}", chance.below(CONVERSATIONS));
        let headers = [("x-session-id", session.as_str())];
        let headers = if chance.below(2) == 0 { &headers[..] } else { &[] };
        let name = if stream { "stream" } else { "whole" };
        Self { name, method: "POST", path, bytes: request("POST", path, headers, &body), wants }
    }

    /// A stream that the worker holds after its second record.
    pub(crate) fn held(chance: &mut Chance) -> Vec<u8> {
        let path = "/v1/completions";
        request("POST", path, &[("x-sim-fault", "stall-mid-stream=2")], &body(chance, path, true))
    }

    fn leaving(chance: &mut Chance) -> Self {
        let path = "/v1/completions";
        let stream = chance.below(2) == 0;
        let body = body(chance, path, stream);
        let bytes = request("POST", path, &[("x-sim-fault", "never-answer")], &body);
        Self {
            name: "leave_before",
            method: "POST",
            path,
            bytes,
            wants: Wants::LeaveBefore(chance.below(20)),
        }
    }

    fn refused(chance: &mut Chance) -> Self {
        let (method, path, body, status) = *chance.pick(&[
            ("POST", "/v1/completions", r#"{"prompt":"#, 400),
            ("POST", "/v1/chat/completions", "no json at all", 400),
            ("POST", "/v1/completions", r#"{"model":"nobody","prompt":"x"}"#, 404),
            ("PUT", "/tokenize", "", 405),
            ("GET", "/v1/completions", "", 405),
            ("POST", "/admin/nothing", "{}", 404),
        ]);
        let bytes = request(method, path, &[], body.as_bytes());
        Self { name: "refused", method, path, bytes, wants: Wants::Status(status) }
    }

    fn pooling(chance: &mut Chance) -> Self {
        let text = format!("text {}", chance.below(1000));
        let (path, body) = match chance.below(7) {
            0 => ("/v1/embeddings", json!({"input": text})),
            1 => ("/score", json!({"text_1": text, "text_2": "b"})),
            2 => ("/v1/rerank", json!({"query": text, "documents": ["a", "b"]})),
            3 => ("/classify", json!({"input": text})),
            4 => ("/tokenize", json!({"prompt": text})),
            5 => (
                "/inference/v1/generate",
                json!({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}}),
            ),
            _ => ("/generate", json!({"prompt": text, "max_tokens": 4})),
        };
        let wants = match path {
            "/tokenize" => Wants::Json(json!({"count": text.len().div_ceil(4)})),
            _ => Wants::Json(json!({})),
        };
        let bytes = request("POST", path, &[], body.to_string().as_bytes());
        Self { name: "pooling", method: "POST", path, bytes, wants }
    }

    fn page(chance: &mut Chance) -> Self {
        let (path, wants) = match chance.below(4) {
            0 => ("/health", Wants::Json(Value::Null)),
            1 => ("/readiness", Wants::Any),
            2 => ("/v1/models", Wants::Any),
            _ => ("/liveness", Wants::Any),
        };
        Self { name: "page", method: "GET", path, bytes: request("GET", path, &[], b""), wants }
    }

    /// Paths that the router knows nothing of, and orders to all workers.
    fn unknown(chance: &mut Chance) -> Self {
        let (method, path) =
            *chance.pick(&[("GET", "/etc/passwd"), ("POST", "/v1/nothing"), ("POST", "/reset_mm_cache")]);
        Self { name: "unknown", method, path, bytes: request(method, path, &[], b""), wants: Wants::Any }
    }

    fn in_chunks(chance: &mut Chance) -> Self {
        let path = "/v1/completions";
        let body = body(chance, path, false);
        let wants = Wants::Text(expected_text(path, &body).expect("a text"));
        let size = 1 + chance.below(64) as usize;
        Self { name: "in_chunks", method: "POST", path, bytes: chunked(path, &[], &body, size), wants }
    }
}

/// The next turn of a conversation: what was said before is at its beginning.
fn body(chance: &mut Chance, path: &str, stream: bool) -> Vec<u8> {
    let (conversation, turns) = (chance.below(CONVERSATIONS), 1 + chance.below(8));
    let turn = |turn: u64| format!("Turn {turn} of {conversation}: {}", "what the river said. ".repeat(9));
    let text: String = (0..turns).map(turn).collect();
    let tokens = 1 + chance.below(24);
    let mut body = match path {
        "/v1/completions" => json!({"prompt": text, "max_tokens": tokens}),
        "/v1/responses" => json!({"input": text, "max_output_tokens": tokens}),
        _ => json!({"messages": [{"role": "user", "content": text}], "max_tokens": tokens}),
    };
    body["stream"] = stream.into();
    if chance.below(2) == 0 {
        body["model"] = "tiny".into();
    }
    if stream && path.ends_with("completions") && chance.below(2) == 0 {
        body["stream_options"] = json!({"include_usage": true});
    }
    body.to_string().into_bytes()
}
