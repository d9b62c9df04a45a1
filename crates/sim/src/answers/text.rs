//! Answers that turn text into token ids and back: four bytes of text are one id, so that the way back works.

use serde_json::Value;

use crate::answer::{Answer, quoted};
use crate::engine::BYTES_PER_TOKEN;
use crate::prompt::{Ask, Prompt, ids, rendered};
use crate::request::Request;
use crate::routes::{Generating, TextRoute};
use crate::state::State;

pub(super) fn answer(state: &State, kind: TextRoute, request: &Request<'_>, body: &Value) -> Answer {
    let render = |generating| render(state, generating, request, body).unwrap_or_else(|refusal| *refusal);
    match kind {
        TextRoute::Tokenize => tokenize(state, body),
        TextRoute::Detokenize => match ids(body.get("tokens")) {
            Some(ids) => Answer::json(200, format!(r#"{{"prompt":{}}}"#, quoted(&text_of(&ids)))),
            None => Answer::invalid("missing", "body.tokens", "Field required"),
        },
        TextRoute::CountTokens => {
            let count = ids_of(&chat_text(body)).len().max(1);
            Answer::json(200, format!(r#"{{"input_tokens":{count}}}"#))
        }
        TextRoute::RenderChat => render(Generating::Chat),
        TextRoute::RenderCompletions => render(Generating::Completions),
        TextRoute::RenderMessages => render(Generating::Messages),
        TextRoute::RenderResponses => render(Generating::Responses),
    }
}

fn ids_of(text: &str) -> Vec<u32> {
    let tokens = text.as_bytes().chunks(BYTES_PER_TOKEN);
    tokens
        .map(|token| {
            let mut le = [0; BYTES_PER_TOKEN];
            le[..token.len()].copy_from_slice(token);
            u32::from_le_bytes(le)
        })
        .collect()
}

/// The text of ids.
pub(crate) fn text_of(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).filter(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn listed(ids: &[u32]) -> String {
    let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
    format!("[{}]", ids.join(","))
}

fn chat_text(body: &Value) -> String {
    let messages = body.get("messages").and_then(Value::as_array);
    rendered(body.get("system"), messages.map_or(&[], Vec::as_slice))
}

fn tokenize(state: &State, body: &Value) -> Answer {
    let text = match body.get("prompt").and_then(Value::as_str) {
        Some(prompt) => prompt.to_owned(),
        None if body.get("messages").is_some() => chat_text(body),
        None => return Answer::invalid("missing", "body.prompt", "Field required"),
    };
    let ids = ids_of(&text);
    let json = format!(
        r#"{{"count":{},"max_model_len":{},"tokens":{},"token_strs":null}}"#,
        ids.len(),
        state.options.max_model_len,
        listed(&ids)
    );
    Answer::json(200, json)
}

fn render(
    state: &State,
    kind: Generating,
    request: &Request<'_>,
    body: &Value,
) -> Result<Answer, Box<Answer>> {
    let ask = Ask::read(kind, body)?;
    let model = quoted(ask.model.as_deref().unwrap_or(&state.model()));
    let prefix = if kind == Generating::Completions { "cmpl" } else { "chatcmpl" };
    let id = request.header("x-request-id").map_or_else(|| state.fresh_id(), str::to_owned);
    let one = |prompt: &Prompt| {
        let ids = match prompt {
            Prompt::Text(text) => ids_of(text),
            Prompt::Ids(ids) => ids.clone(),
        };
        format!(
            r#"{{"request_id":{},"token_ids":{},"token_offsets":null,"features":null,"content_parts":null,"sampling_params":{{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":1.0,"top_p":1.0,"min_p":0.0,"stop":[],"stop_token_ids":[],"max_tokens":{},"output_kind":2,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":false}},"model":{model},"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":null,"output_mode":"tokens","stream":{},"stream_options":null,"cache_salt":null,"priority":0,"kv_transfer_params":null,"ec_transfer_params":null}}"#,
            quoted(&format!("{prefix}-{id}")),
            listed(&ids),
            ask.max_tokens,
            ask.stream,
        )
    };
    let all: Vec<_> = ask.prompts.iter().map(one).collect();
    Ok(Answer::json(
        200,
        match kind {
            Generating::Completions => format!("[{}]", all.join(",")),
            _ => all.concat(),
        },
    ))
}
