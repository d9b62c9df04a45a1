//! Legs of LMCache pairs: the prefill worker is told where to write, tells the first token, and each of its ranks says when it
//! has written; the decode worker goes on behind that token. What would mislead an engine is counted.

use serde_json::Value;

use super::{Leg, PairOptions, PairRole};
use crate::answers::text_of;
use crate::exchange::Fetched;
use crate::notices::Notices;
use crate::prompt::{Ask, Prompt, word_id, words};
use crate::routes::Generating;

/// A leg, at a worker whose first rank takes in blocks at this port.
pub(super) fn leg(
    pair: &PairOptions,
    (port, notices): (u16, Option<&Notices>),
    (kind, body, ask): (Generating, &Value, &Ask),
) -> Leg {
    let params = body.get("kv_transfer_params").filter(|params| !params.is_null());
    match pair.role {
        PairRole::Prefill => match params {
            Some(params) => prefill(pair, notices, params, (kind, ask)),
            None => {
                if ask.max_tokens != 1 {
                    pair.exchange.violated("plain_request_to_prefill_worker");
                }
                Leg::default()
            }
        },
        PairRole::Decode => {
            if params.is_some() {
                pair.exchange.violated("decode_leg_with_params");
            }
            decode(pair, port, (kind, ask)).unwrap_or_default()
        }
    }
}

fn prefill(
    pair: &PairOptions,
    notices: Option<&Notices>,
    params: &Value,
    (kind, ask): (Generating, &Ask),
) -> Leg {
    super::prefill(pair, ask, (true, false));
    let spec = params.get("disagg_spec");
    let text = |name: &str| spec.and_then(|spec| spec.get(name)).and_then(Value::as_str);
    let ports = |name: &str| {
        let list = spec.and_then(|spec| spec.get(name)).and_then(Value::as_array);
        list.map(|list| list.iter().filter_map(Value::as_u64).collect::<Vec<_>>()).unwrap_or_default()
    };
    let (init, alloc) = (ports("receiver_init_port"), ports("receiver_alloc_port"));
    let ids = match ask.prompts.first() {
        Some(Prompt::Ids(ids)) => ids,
        _ => &Vec::new(),
    };
    let wrong = [
        (kind != Generating::Completions, "leg_of_another_api"),
        (ids.is_empty(), "prompt_is_not_ids"),
        (params.get("ret_first_tok") != Some(&Value::Bool(true)), "first_token_not_wanted"),
        (init.is_empty() || init.len() != alloc.len(), "ranks_without_ports"),
        (text("receiver_host") != Some("127.0.0.1"), "receiver_elsewhere"),
    ];
    let mut violations = wrong.into_iter().filter(|(holds, _)| *holds).peekable();
    let (Some(req_id), Some(&port), None) = (text("req_id"), init.first(), violations.peek()) else {
        violations.for_each(|(_, what)| pair.exchange.violated(what));
        return Leg::default();
    };
    let prompt = Prompt::Ids(ids.clone()).fingerprint();
    pair.exchange.write(req_id, port, prompt, init.len());
    if let Some(notices) = notices {
        notices.order(&pair.exchange, req_id, init.len());
    }
    let prompt = Prompt::Text(text_of(ids));
    let first_token = words(&prompt, 0, 1).first().map(|word| word_id(word));
    Leg { prompt: Some((prompt, 0)), first_token, ..Leg::default() }
}

/// `None` if nobody has written the prompt for this worker: it computes it by itself.
fn decode(pair: &PairOptions, port: u16, (kind, ask): (Generating, &Ask)) -> Option<Leg> {
    let Some(Prompt::Ids(ids)) = ask.prompts.first().filter(|_| kind == Generating::Completions) else {
        return None;
    };
    let (last, before) = ids.split_last()?;
    let prompt = Prompt::Ids(before.to_vec()).fingerprint();
    match pair.exchange.fetch(u64::from(port), prompt) {
        Fetched::Nothing => return None,
        Fetched::Early => pair.exchange.violated("decoded_before_written"),
        Fetched::Written => {}
    }
    let prompt = Prompt::Text(text_of(before));
    if words(&prompt, 0, 1).first().map(|word| word_id(word)) != Some(u64::from(*last)) {
        pair.exchange.violated("wrong_first_token");
    }
    Some(Leg { is_fetched: true, prompt: Some((prompt, 1)), ..Leg::default() })
}
