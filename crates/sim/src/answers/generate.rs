//! Generating answers: from what is asked to tokens, through the engine.

use serde_json::Value;

use super::{chat, completions, messages, responses, tokens};
use crate::answer::{Answer, Content};
use crate::engine::{Admission, hash};
use crate::generation::{Generation, Usage};
use crate::lock::Held;
use crate::options::Mode;
use crate::pairs::{self, Leg};
use crate::prompt::Ask;
use crate::request::Request;
use crate::routes::{self, Generating, Route};
use crate::state::{State, Stored};

pub(super) fn answer(
    state: &State,
    kind: Generating,
    request: &Request<'_>,
    body: &Value,
) -> Result<Answer, Box<Answer>> {
    let place = place(state, request)?;
    let ask = Ask::read(kind, body)?;
    let limit = state.options.max_model_len;
    // Ready-made answers may be as long as a bench wants them.
    let ready_made = matches!(state.options.mode, Mode::Instant { .. });
    if ask.max_tokens > limit && !ready_made {
        let asked = ask.max_tokens;
        let message = format!(
            "max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens. (parameter=max_tokens, value={asked})"
        );
        return Err(Box::new(Answer::bad_request(&message, Some("max_tokens"))));
    }
    let leg = pairs::leg(state, kind, request, (body, &ask))?;
    let generation = generated(state, (kind, place), request, (ask, &leg));
    let mut answer = match kind {
        Generating::Chat | Generating::ChatTokens => chat::answer(&generation),
        Generating::Completions => completions::answer(&generation),
        Generating::Responses => stored(state, &generation, body),
        Generating::Messages => messages::answer(&generation),
        Generating::Tokens => tokens::answer(&generation),
        Generating::Plain => completions::plain(&generation),
    };
    if !generation.ask.stream && matches!(kind, Generating::Chat | Generating::Completions) {
        answer.headers.extend(load_report(state, request).map(|report| ("endpoint-load-metrics", report)));
    }
    if let (Some(id), Content::Whole(whole)) = (&leg.hands_over, &mut answer.content) {
        let counts = (generation.usage.prompt, generation.usage.cached.unwrap_or(0));
        *whole = pairs::with_params(whole, &pairs::params(state, id, counts));
    }
    if let (Some(token), Content::Whole(whole)) = (leg.first_token, &mut answer.content) {
        *whole = pairs::with_params(whole, &format!(r#"{{"first_tok":{token}}}"#));
    }
    Ok(answer)
}

/// The text a worker answers this body with on this path, if it generates: the first choice, whichever worker answers.
#[must_use]
pub fn expected_text(path: &str, body: &[u8]) -> Option<String> {
    let Route::Generating(kind) = routes::find(path.as_bytes())?.route else {
        return None;
    };
    let ask = Ask::read(kind, &serde_json::from_slice(body).ok()?).ok()?;
    Generation::outputs(&ask, 0).first().map(|words| words.concat())
}

/// The engine that the request names, or is given.
fn place(state: &State, request: &Request<'_>) -> Result<usize, Box<Answer>> {
    let rank = request.header("x-data-parallel-rank").and_then(|value| value.trim().parse::<i64>().ok());
    let place = state.engine.held().place(rank, state.now());
    place.map_err(|complaint| Box::new(Answer::bad_request(&complaint, None)))
}

fn generated(
    state: &State,
    (kind, place): (Generating, usize),
    request: &Request<'_>,
    (mut ask, leg): (Ask, &Leg),
) -> Generation {
    let mut told = 0;
    if let Some((prompt, words)) = &leg.prompt {
        (ask.prompts, told) = (vec![prompt.clone()], *words);
    }
    let admissions = admitted(state, place, &ask, leg);
    let prompt: u64 =
        admissions.iter().map(|admission| admission.cached_tokens + admission.uncached_tokens).sum();
    let cached = admissions.iter().map(|admission| admission.cached_tokens).sum();
    let cached = leg.cached_elsewhere.unwrap_or(cached);
    let outputs = Generation::outputs(&ask, told);
    let usage = Usage {
        prompt: prompt + told,
        completion: outputs.len() as u64 * ask.max_tokens,
        cached: state.options.token_details.then_some(cached),
    };
    // The Responses API takes its id from the body alone.
    let header = request.header("x-request-id").filter(|_| kind != Generating::Responses);
    let id = header.map(str::to_owned).or_else(|| ask.request_id.clone());
    Generation {
        id: id.unwrap_or_else(|| state.fresh_id()),
        created: state.created,
        model: ask.model.clone().unwrap_or_else(|| state.model().to_string()),
        fingerprint: format!("vllm-{}-51b0b0a7", state.options.version),
        outputs,
        usage,
        admissions,
        ask,
    }
}

fn admitted(state: &State, place: usize, ask: &Ask, leg: &Leg) -> Vec<Admission> {
    // Adapters and salts have caches of their own.
    let adapter = ask.model.as_ref().filter(|model| ***model != *state.model());
    let salt = [adapter, ask.cache_salt.as_ref()]
        .into_iter()
        .flatten()
        .fold(0, |salt, part| hash(part.as_bytes(), salt + 1));
    let now = state.now();
    let mut engine = state.engine.held();
    let block_tokens = engine.options().block_tokens;
    let chains = ask.prompts.iter().map(|prompt| prompt.chain(salt, block_tokens));
    let admit = |chain| {
        if leg.is_fetched {
            engine.receive(place, &chain);
        }
        engine.admit(place, now, &chain, ask.max_tokens)
    };
    chains.map(admit).collect()
}

fn stored(state: &State, generation: &Generation, body: &Value) -> Answer {
    if body.get("store").and_then(Value::as_bool) != Some(false) {
        state.store(Stored { id: responses::id(generation), json: responses::object(generation, true) });
    }
    responses::answer(generation)
}

/// Load in the answer's head, in the format that the request asks for.
fn load_report(state: &State, request: &Request<'_>) -> Option<String> {
    let format = request.header("endpoint-load-metrics-format")?.trim();
    let (waiting, usage) = {
        let engine = state.engine.held();
        let now = state.now();
        (engine.load(now).waiting as f64, engine.usage(now))
    };
    match format {
        "TEXT" => Some(format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        )),
        "JSON" => Some(format!(
            r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {usage:?}}}}}"#
        )),
        _ => None,
    }
}
