//! One line for each request, at its end. Nothing of what a client sent is in it but the id of its request: no path beyond
//! the route's name, no query, no header, no prompt.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::account::Account;
use crate::lines::Lines;

thread_local! {
    /// Where a line is put together.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Characters of a request's id that are shown.
const ID_SHOWN: usize = 128;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFormat {
    /// One JSON object.
    Json,
    /// `name=value` pairs for people, the same names.
    Text,
}

/// Writes a line for each request.
pub struct AccessLog {
    format: AccessFormat,
    lines: Lines,
}

/// A line. Times are in milliseconds, except for the first, when the request ended.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    id: &'a str,
    route: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    #[serde(flatten)]
    decision: Option<Decision>,
    /// Id of the prefill/decode pair that it became, and how that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    room: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<&'static str>,
    attempts: u32,
    /// 0 if the client was sent none.
    status: u16,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttfb_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_ms: Option<f64>,
    duration_ms: f64,
    request_bytes: u64,
    response_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    epoch: u64,
}

/// Why the worker was chosen, with what was predicted.
#[derive(Serialize)]
struct Decision {
    decision: &'static str,
    matched_bytes: u32,
    key_bytes: u32,
    predicted_uncached_tokens: u32,
}

impl AccessLog {
    /// Writes to `lines`.
    pub fn new(format: AccessFormat, lines: Lines) -> Self {
        Self { format, lines }
    }

    /// A request has ended.
    pub(crate) fn note(&self, account: &Account) {
        LINE.with_borrow_mut(|text| {
            text.clear();
            let line = Line::of(account, SystemTime::now());
            match self.format {
                // Nothing in it can fail to be written.
                AccessFormat::Json => drop(serde_json::to_writer(&mut *text, &line)),
                AccessFormat::Text => text.extend_from_slice(line.text().as_bytes()),
            }
            text.push(b'\n');
            self.lines.push(text);
        });
    }
}

impl<'a> Line<'a> {
    fn of(account: &'a Account, now: SystemTime) -> Self {
        let id = account.id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
        let ms = |took: Duration| (took.as_secs_f64() * 1e6).round() / 1e3;
        Self {
            time: humantime::format_rfc3339_millis(now).to_string(),
            id: &id[..id.len().min(ID_SHOWN)],
            route: account.route.template,
            model: account.model.as_deref().filter(|model| !model.is_empty()),
            worker: account.worker().map(|worker| worker.name()),
            decision: account.attempts.last.map(|choice| Decision {
                decision: choice.reason.as_str(),
                matched_bytes: choice.matched,
                key_bytes: choice.key_len,
                predicted_uncached_tokens: choice.uncached_tokens,
            }),
            room: account.attempts.pair.map(|pair| pair.room),
            pair: account.attempts.pair.map(|pair| pair.outcome.as_str()),
            attempts: account.attempts.count,
            status: account.status,
            outcome: account.outcome.as_str(),
            ttfb_ms: account.first_byte.map(ms),
            first_token_ms: account.first_token.map(ms),
            duration_ms: ms(account.took),
            request_bytes: account.request_bytes,
            response_bytes: account.response_bytes,
            prompt_tokens: account.tokens.prompt_tokens,
            completion_tokens: account.tokens.completion_tokens,
            cached_tokens: account.tokens.cached_tokens,
            epoch: account.world.epoch(),
        }
    }

    /// The members as `name=value`, in their order.
    fn text(&self) -> String {
        let mut text = String::with_capacity(384);
        let members = match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(members)) => members,
            _ => return text,
        };
        for name in NAMES {
            let Some(value) = members.get(name) else { continue };
            let gap = if text.is_empty() { "" } else { " " };
            // Of texts, only those that a space or a quote would make two of keep their quotes.
            let _infallible = match value.as_str() {
                Some(plain) if plain.bytes().all(|b| b.is_ascii_graphic() && b != b'"') => {
                    write!(text, "{gap}{name}={plain}")
                }
                _ => write!(text, "{gap}{name}={value}"),
            };
        }
        text
    }
}

/// The names in a line, in the order of a line for people.
const NAMES: [&str; 23] = [
    "time",
    "status",
    "outcome",
    "route",
    "model",
    "worker",
    "decision",
    "matched_bytes",
    "key_bytes",
    "predicted_uncached_tokens",
    "room",
    "pair",
    "attempts",
    "ttfb_ms",
    "first_token_ms",
    "duration_ms",
    "request_bytes",
    "response_bytes",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "epoch",
    "id",
];
