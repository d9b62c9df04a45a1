//! From a request to its answer: what vLLM checks first, in its order, then the route's own answer.

mod audio;
mod chat;
mod completions;
mod control;
mod generate;
mod info;
mod messages;
mod pooling;
mod responses;
mod stored;
mod text;
mod tokens;

use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;

use crate::answer::{Answer, quoted};
use crate::lock::Held;
use crate::options::Mode;
use crate::request::{Request, asks_for_stream};
use crate::routes::{Found, Gated, Route};
use crate::state::{Pause, State};

pub use generate::expected_text;
pub(crate) use text::text_of;

/// The answer to a request.
pub(crate) fn answer(state: &State, request: &Request<'_>) -> Answer {
    match checked(state, request) {
        Ok(found) => routed(state, request, found.route),
        Err(refusal) => *refusal,
    }
}

fn checked(state: &State, request: &Request<'_>) -> Result<Found, Box<Answer>> {
    authorised(state, request)?;
    let not_found = || Box::new(Answer::json(404, r#"{"detail":"Not Found"}"#));
    let found = request.found.ok_or_else(not_found)?;
    if found.gate == Gated::DevMode && !state.options.dev_mode {
        return Err(not_found());
    }
    if !found.allowed.contains(&request.method) {
        let names: Vec<_> = found.allowed.iter().map(|method| method.name()).collect();
        let mut answer = Answer::json(405, r#"{"detail":"Method Not Allowed"}"#);
        answer.headers.push(("allow", names.join(", ")));
        return Err(Box::new(answer));
    }
    if found.gate == Gated::ScaleOut && !state.options.scale_out {
        let message =
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
        return Err(Box::new(Answer::error(403, "PermissionDeniedError", message, None)));
    }
    let content_type = request.header("content-type").unwrap_or_default();
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if found.route.needs_json() && !kind.eq_ignore_ascii_case("application/json") {
        let message = "Unsupported Media Type: Only 'application/json' is allowed";
        return Err(Box::new(Answer::error(400, "Bad Request", message, None)));
    }
    if found.route.is_inference() {
        awake(state)?;
    }
    Ok(found)
}

fn authorised(state: &State, request: &Request<'_>) -> Result<(), Box<Answer>> {
    let Some(key) = &state.options.api_key else {
        return Ok(());
    };
    if !["/v1", "/v2", "/inference"].iter().any(|prefix| request.path().starts_with(prefix)) {
        return Ok(());
    }
    let given = request.header("authorization").and_then(|value| value.split_once(' '));
    match given {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && token.trim() == key => Ok(()),
        _ => Err(Box::new(Answer::json(401, r#"{"error":"Unauthorized"}"#))),
    }
}

fn awake(state: &State) -> Result<(), Box<Answer>> {
    if state.health.load(Relaxed) != 200 {
        let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        return Err(Box::new(Answer::error(500, "InternalServerError", message, None)));
    }
    let refuses = matches!(*state.pause.held(), Pause::Refuse);
    match refuses || state.is_asleep() {
        true => Err(Box::new(Answer::unavailable("The engine is paused. Please retry later."))),
        false => Ok(()),
    }
}

fn routed(state: &State, request: &Request<'_>, route: Route) -> Answer {
    match route {
        Route::Info(kind) => info::answer(state, kind),
        Route::Stored | Route::CancelStored => stored::answer(state, request, route),
        Route::Control(kind) => control::answer(state, kind, request),
        Route::Audio => audio::answer(state, request),
        Route::Generating(_) | Route::Pooling(_) | Route::Text(_) => match parsed(state, request.body) {
            Ok(body) => prompted(state, request, route, &body),
            Err(refusal) => *refusal,
        },
    }
}

fn prompted(state: &State, request: &Request<'_>, route: Route, body: &Value) -> Answer {
    let model = body.get("model").and_then(Value::as_str);
    if !state.serves(model) {
        let message = format!(
            "The model `{}` does not exist. Valid aliases: {}.",
            model.unwrap_or_default(),
            state.model()
        );
        return Answer::error(404, "NotFoundError", &message, Some("model"));
    }
    match route {
        Route::Generating(kind) => {
            generate::answer(state, kind, request, body).unwrap_or_else(|refusal| *refusal)
        }
        Route::Pooling(kind) => pooling::answer(state, kind, request, body),
        Route::Text(kind) => text::answer(state, kind, request, body),
        Route::Info(_) | Route::Stored | Route::CancelStored | Route::Control(_) | Route::Audio => {
            Answer::empty(200)
        }
    }
}

/// The JSON of a body. A recording worker takes bodies that only Python parses (`NaN`) for a text prompt in all fields.
fn parsed(state: &State, body: &[u8]) -> Result<Value, Box<Answer>> {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(Box::new(Answer::invalid(
            "model_attributes_type",
            "body",
            "Input should be a valid dictionary",
        ))),
        Err(_) if state.options.mode == Mode::Recording => Ok(lenient(body)),
        Err(error) => {
            let at = error.column();
            let text = format!("{{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error'}}");
            let message = format!("1 validation error:\n  {text}");
            Err(Box::new(Answer::error(400, "Bad Request", &message, Some(&format!("body.{at}")))))
        }
    }
}

fn lenient(body: &[u8]) -> Value {
    let text = quoted(&String::from_utf8_lossy(body));
    let stream = asks_for_stream(body);
    let json = format!(
        r#"{{"stream":{stream},"prompt":{text},"input":{text},"query":{text},"messages":[{{"content":{text}}}],"token_ids":[1]}}"#
    );
    serde_json::from_str(&json).unwrap_or_default()
}
