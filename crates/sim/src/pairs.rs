//! Prefill and decode workers: what comes of a leg, checked as strictly as an engine would. The ledger is the exchange's.

mod disagg;
mod named;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{Answer, Record, SANITISED, error_body};
use crate::exchange::Exchange;
use crate::notices::Speech;
use crate::prompt::{Ask, Prompt};
use crate::request::Request;
use crate::routes::Generating;
use crate::sse;
use crate::state::State;

/// What a worker does of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairRole {
    /// The prompt.
    Prefill,
    /// The rest.
    Decode,
}

/// How blocks go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handing {
    /// The decode worker reads what the prefill worker's answer names.
    Pull,
    /// The prefill worker writes to whoever shares the request id.
    Push,
    /// Both find each other in a room.
    Room,
    /// Both read from the request id where the other one is.
    Named {
        /// Where others reach this one.
        port: u16,
    },
    /// The prefill worker writes where its leg says, and tells the first token.
    Disagg {
        /// Where the first rank of this one takes in blocks.
        port: u16,
        /// How its ranks say that they have written.
        speech: Speech,
    },
}

impl Handing {
    /// By the name that forebay has for it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "nixl" => Some(Self::Pull),
            "nixl_push" => Some(Self::Push),
            "bootstrap" => Some(Self::Room),
            _ => None,
        }
    }
}

/// A worker's part in pairs.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// What it does.
    pub role: PairRole,
    /// How blocks go over.
    pub handing: Handing,
    /// Time that a prefill worker keeps blocks.
    pub lease: Duration,
    /// Shared by all workers that hand over to each other.
    pub exchange: Exchange,
}

/// What a leg has to do with others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leg {
    /// Its blocks came from elsewhere.
    pub(crate) is_fetched: bool,
    /// Tokens that the prefill worker had cached, if it said so.
    pub(crate) cached_elsewhere: Option<u64>,
    /// Its answer hands its blocks over, under this id.
    pub(crate) hands_over: Option<String>,
    /// Its answer tells the first token.
    pub(crate) first_token: Option<u64>,
    /// The prompt that its ids stand for, and how many words of the answer are among them.
    pub(crate) prompt: Option<(Prompt, u64)>,
}

/// Checks a request against the worker's role.
pub(crate) fn leg(
    state: &State,
    kind: Generating,
    request: &Request<'_>,
    (body, ask): (&Value, &Ask),
) -> Result<Leg, Box<Answer>> {
    let Some(pair) = &state.options.pair else { return Ok(Leg::default()) };
    let params = body.get("kv_transfer_params").filter(|params| params.is_object());
    let prompt = ask.prompts.iter().fold(0, |sum, prompt| sum ^ prompt.fingerprint());
    let says = |name: &str| params.and_then(|params| params.get(name)).and_then(Value::as_bool) == Some(true);
    if pair.handing == Handing::Room {
        return Ok(in_room(pair, body, prompt));
    }
    if let Handing::Disagg { port, .. } = pair.handing {
        return Ok(disagg::leg(pair, (port, state.notices.as_ref()), (kind, body, ask)));
    }
    if let Handing::Named { port } = pair.handing {
        return Ok(named::leg(pair, port, &given_id(kind, request, ask), (ask, prompt)));
    }
    match pair.role {
        PairRole::Prefill => {
            prefill(pair, ask, (says("do_remote_decode"), says("do_remote_prefill")));
            Ok(granted(state, pair, (kind, request, ask), prompt))
        }
        PairRole::Decode => {
            if says("do_remote_decode") {
                pair.exchange.violated("decode_worker_was_to_prefill");
            }
            match params.filter(|_| says("do_remote_prefill")) {
                None => Ok(Leg::default()),
                Some(params) => fetch(pair, params, (kind, request, ask), prompt),
            }
        }
    }
}

fn prefill(pair: &PairOptions, ask: &Ask, (to_decode, to_prefill): (bool, bool)) {
    let wrong = [
        (to_prefill, "prefill_worker_was_to_decode"),
        (!to_decode, "plain_request_to_prefill_worker"),
        (ask.stream, "prefill_leg_streamed"),
        (ask.max_tokens != 1, "prefill_leg_not_one_token"),
        (ask.choices != 1 || ask.prompts.len() != 1, "prefill_leg_of_several"),
    ];
    for (holds, what) in wrong {
        if holds {
            pair.exchange.violated(what);
        }
    }
}

fn granted(
    state: &State,
    pair: &PairOptions,
    (kind, request, ask): (Generating, &Request<'_>, &Ask),
    prompt: u64,
) -> Leg {
    let id = format!("{}-{}", shared_id(kind, request, ask), &state.fresh_id()[..8]);
    if pair.handing == Handing::Push {
        pair.exchange.meet(&shared_id(kind, request, ask), PairRole::Prefill, prompt);
    }
    if let Some(engine) = &state.engine_name {
        pair.exchange.grant((engine, &id), prompt, pair.lease, pair.handing == Handing::Push);
    }
    Leg { hands_over: Some(id), ..Leg::default() }
}

fn fetch(
    pair: &PairOptions,
    params: &Value,
    (kind, request, ask): (Generating, &Request<'_>, &Ask),
    prompt: u64,
) -> Result<Leg, Box<Answer>> {
    let text = |name: &str| params.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (engine, reference) = (text("remote_engine_id"), text("remote_request_id"));
    let has_blocks =
        params.get("remote_block_ids").is_some_and(|ids| ids.to_string().bytes().any(|b| b.is_ascii_digit()));
    let has_port = params.get("remote_port").is_some_and(Value::is_u64);
    if pair.handing == Handing::Pull && !has_blocks {
        pair.exchange.violated("no_blocks_kills_the_engine");
    }
    let (Some(engine), Some(reference), true, Some(_)) = (engine, reference, has_port, text("remote_host"))
    else {
        pair.exchange.violated("coordinates_missing");
        return Err(failed(kind, ask));
    };
    let is_there = match pair.handing {
        Handing::Pull => pair.exchange.take(engine, reference, prompt),
        Handing::Push | Handing::Room | Handing::Named { .. } | Handing::Disagg { .. } => {
            pair.exchange.meet(&shared_id(kind, request, ask), PairRole::Decode, prompt);
            pair.exchange.has(engine)
        }
    };
    if !is_there {
        return Err(failed(kind, ask));
    }
    let cached_elsewhere = params.get("remote_prefill_cached_tokens").and_then(Value::as_u64);
    Ok(Leg { is_fetched: true, cached_elsewhere, ..Leg::default() })
}

/// The blocks could not be read: 500, or a stream whose first word is an error. Some routes open their streams before.
fn failed(kind: Generating, ask: &Ask) -> Box<Answer> {
    let body = error_body(500, "InternalServerError", SANITISED, None);
    if !ask.stream {
        return Box::new(Answer::json(500, body));
    }
    let opening = match kind {
        Generating::Chat | Generating::ChatTokens => Some(sse::data(
            r#"{"id":"chatcmpl-x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
        )),
        Generating::Messages => Some(sse::event(
            "message_start",
            r#"{"type":"message_start","message":{"usage":{"input_tokens":1,"output_tokens":0}}}"#,
        )),
        Generating::Completions | Generating::Responses | Generating::Tokens | Generating::Plain => None,
    };
    let records = opening.into_iter().chain([sse::data(&body), sse::done()]);
    Box::new(Answer::stream(records.map(|bytes| Record { token: 1, bytes }).collect()))
}

fn in_room(pair: &PairOptions, body: &Value, prompt: u64) -> Leg {
    match body.get("bootstrap_room").and_then(Value::as_u64) {
        Some(room) if room <= i64::MAX as u64 => {
            if body.get("bootstrap_host").and_then(Value::as_str).is_none() {
                pair.exchange.violated("no_bootstrap_host");
            }
            pair.exchange.meet(&room.to_string(), pair.role, prompt);
            Leg { is_fetched: pair.role == PairRole::Decode, ..Leg::default() }
        }
        Some(_) => {
            pair.exchange.violated("room_out_of_range");
            Leg::default()
        }
        None if pair.role == PairRole::Prefill && body.get("bootstrap_room").is_none() => {
            pair.exchange.violated("plain_request_to_prefill_worker");
            Leg::default()
        }
        None => Leg::default(),
    }
}

/// The id that a request comes with.
fn given_id(kind: Generating, request: &Request<'_>, ask: &Ask) -> String {
    let header = request.header("x-request-id").map(str::to_owned);
    let id = match kind {
        Generating::Responses => ask.request_id.clone(),
        _ => header.or_else(|| ask.request_id.clone()),
    };
    id.unwrap_or_default()
}

/// The id by which legs that go at once find each other.
fn shared_id(kind: Generating, request: &Request<'_>, ask: &Ask) -> String {
    let id = given_id(kind, request, ask);
    match kind {
        Generating::Chat | Generating::ChatTokens | Generating::Messages => format!("chatcmpl-{id}"),
        Generating::Completions | Generating::Plain => format!("cmpl-{id}-0"),
        Generating::Tokens => format!("generate-tokens-{id}"),
        Generating::Responses => id,
    }
}

/// What the answer of a prefill leg carries.
pub(crate) fn params(state: &State, id: &str, (prompt, cached): (u64, u64)) -> String {
    let engine = state.engine_name.as_deref().unwrap_or_default();
    let block = state.options.engine.block_tokens.max(1) as u64;
    let blocks: Vec<String> = (0..prompt.div_ceil(block)).map(|block| (block + 2).to_string()).collect();
    let mode = match state.options.pair.as_ref().map(|pair| pair.handing) {
        Some(Handing::Push) => "push",
        _ => "pull",
    };
    let cached = match state.options.version.as_str() {
        // Older ones leave it to the router.
        version if version.starts_with("0.2") => String::new(),
        _ => format!(r#","remote_prefill_cached_tokens":{cached}"#),
    };
    format!(
        r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{}]],"remote_engine_id":"{engine}","remote_request_id":"{id}","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":{prompt},"remote_blocks_expiry_time":null,"transfer_mode":"{mode}"{cached}}}"#,
        blocks.join(",")
    )
}

/// Puts them into a whole answer.
pub(crate) fn with_params(body: &[u8], params: &str) -> Vec<u8> {
    const NONE: &str = r#""kv_transfer_params":null"#;
    let text = String::from_utf8_lossy(body);
    let member = format!(r#""kv_transfer_params":{params}"#);
    match text.rfind(NONE) {
        Some(_) => text.replacen(NONE, &member, 1).into_bytes(),
        None => format!("{},{member}}}", text.strip_suffix('}').unwrap_or(&text)).into_bytes(),
    }
}
