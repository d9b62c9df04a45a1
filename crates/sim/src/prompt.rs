//! What a generating request asks for, read from its JSON: prompts, model, length, streaming. It checks what vLLM checks
//! before it opens a stream, and nothing else.

use serde_json::Value;

use crate::answer::Answer;
use crate::engine::{PromptChain, hash};
use crate::routes::Generating;

/// Output tokens where the request does not say.
pub(crate) const DEFAULT_TOKENS: u64 = 16;

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Prompt {
    pub(crate) fn chain(&self, salt: u64, block_tokens: usize) -> PromptChain {
        match self {
            Self::Text(text) => PromptChain::of_text(text.as_bytes(), salt, block_tokens),
            Self::Ids(ids) => PromptChain::of_ids(ids, salt, block_tokens),
        }
    }

    /// A number that differs between prompts: the answer's text follows from it.
    pub(crate) fn fingerprint(&self) -> u64 {
        match self {
            Self::Text(text) => hash(text.as_bytes(), 1),
            Self::Ids(ids) => ids.iter().fold(2, |seed, id| hash(&id.to_le_bytes(), seed)),
        }
    }
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) model: Option<String>,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) choices: u64,
    pub(crate) max_tokens: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) request_id: Option<String>,
    pub(crate) cache_salt: Option<String>,
}

impl Ask {
    /// What a body asks for on a route, or the answer that refuses it.
    pub(crate) fn read(route: Generating, body: &Value) -> Result<Self, Box<Answer>> {
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let stream = body.get("stream").and_then(Value::as_bool).unwrap_or(false);
        let options = body.get("stream_options").filter(|options| !options.is_null());
        if options.is_some() && !stream {
            return Err(Box::new(Answer::bad_request(
                "Stream options can only be defined when `stream=True`.",
                Some("stream_options"),
            )));
        }
        let option = |name: &str| options.and_then(|o| o.get(name)).and_then(Value::as_bool).unwrap_or(false);
        Ok(Self {
            model: text("model"),
            prompts: prompts(route, body)?,
            choices: body.get("n").and_then(Value::as_u64).unwrap_or(1).clamp(1, 128),
            max_tokens: max_tokens(route, body)?,
            stream,
            include_usage: option("include_usage"),
            continuous_usage: option("continuous_usage_stats"),
            request_id: text("request_id"),
            cache_salt: text("cache_salt"),
        })
    }
}

fn max_tokens(route: Generating, body: &Value) -> Result<u64, Box<Answer>> {
    let (place, names): (_, &[&str]) = match route {
        Generating::Chat | Generating::ChatTokens => (Some(body), &["max_completion_tokens", "max_tokens"]),
        Generating::Completions | Generating::Messages | Generating::Plain => (Some(body), &["max_tokens"]),
        Generating::Responses => (Some(body), &["max_output_tokens"]),
        Generating::Tokens => (body.get("sampling_params"), &["max_tokens"]),
    };
    let found = names.iter().find_map(|name| {
        let value = place?.get(name).filter(|value| !value.is_null())?;
        Some((*name, value))
    });
    let Some((name, value)) = found else {
        return Ok(DEFAULT_TOKENS);
    };
    match value.as_i64() {
        Some(tokens) if tokens >= 1 => Ok(tokens.unsigned_abs()),
        Some(tokens) => {
            let message =
                format!("{name} must be at least 1, got {tokens}. (parameter={name}, value={tokens})");
            Err(Box::new(Answer::bad_request(&message, Some(name))))
        }
        None => Err(Box::new(Answer::invalid(
            "int_parsing",
            &format!("body.{name}"),
            "Input should be a valid integer",
        ))),
    }
}

fn prompts(route: Generating, body: &Value) -> Result<Vec<Prompt>, Box<Answer>> {
    let missing =
        |name: &str| Box::new(Answer::invalid("missing", &format!("body.{name}"), "Field required"));
    match route {
        Generating::Chat | Generating::Messages => {
            let messages =
                body.get("messages").and_then(Value::as_array).ok_or_else(|| missing("messages"))?;
            Ok(vec![Prompt::Text(rendered(body.get("system"), messages))])
        }
        Generating::Completions | Generating::Plain => {
            completion_prompts(body.get("prompt")).ok_or_else(|| missing("prompt"))
        }
        Generating::Responses => {
            let input = body.get("input").ok_or_else(|| missing("input"))?;
            let text = match input {
                Value::Array(items) => rendered(body.get("instructions"), items),
                other => rendered(body.get("instructions"), std::slice::from_ref(other)),
            };
            Ok(vec![Prompt::Text(text)])
        }
        Generating::Tokens => {
            ids(body.get("token_ids")).map(|ids| vec![Prompt::Ids(ids)]).ok_or_else(|| missing("token_ids"))
        }
        Generating::ChatTokens if body.get("messages").is_some() => prompts(Generating::Chat, body),
        Generating::ChatTokens => {
            let found = body.get("prompt_token_ids").or_else(|| body.get("token_ids"));
            ids(found).map(|ids| vec![Prompt::Ids(ids)]).ok_or_else(|| missing("token_ids"))
        }
    }
}

fn completion_prompts(prompt: Option<&Value>) -> Option<Vec<Prompt>> {
    match prompt? {
        Value::String(text) => Some(vec![Prompt::Text(text.clone())]),
        Value::Array(items) if items.iter().all(Value::is_number) && !items.is_empty() => {
            Some(vec![Prompt::Ids(ids(prompt)?)])
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Some(Prompt::Text(text.clone())),
                other => ids(Some(other)).map(Prompt::Ids),
            })
            .collect(),
        _ => None,
    }
}

/// A list of token ids; `None` if it is not one or is empty.
pub(crate) fn ids(value: Option<&Value>) -> Option<Vec<u32>> {
    let ids: Option<Vec<u32>> =
        value?.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    ids.filter(|ids| !ids.is_empty())
}

/// The text a chat becomes: roles and the text parts of contents, in order.
pub(crate) fn rendered(before: Option<&Value>, messages: &[Value]) -> String {
    let mut text = String::new();
    if let Some(before) = before {
        push_text(before, &mut text);
    }
    for message in messages {
        if let Some(role) = message.get("role").and_then(Value::as_str) {
            text.push_str(role);
            text.push('\n');
        }
        push_text(message.get("content").unwrap_or(message), &mut text);
    }
    text
}

fn push_text(content: &Value, text: &mut String) {
    match content {
        Value::String(part) => {
            text.push_str(part);
            text.push('\n');
        }
        Value::Array(parts) => parts.iter().for_each(|part| push_text(part, text)),
        Value::Object(part) => {
            if let Some(inner) = part.get("text") {
                push_text(inner, text);
            }
        }
        _ => {}
    }
}

/// The words a prompt is answered with: they follow from the prompt and the choice's index alone.
pub(crate) fn words(prompt: &Prompt, choice: u64, count: u64) -> Vec<String> {
    const WORDS: [&str; 32] = [
        "head", "race", "weir", "gate", "sluice", "penstock", "spill", "flow", "canal", "basin", "intake",
        "turbine", "shaft", "rotor", "blade", "surge", "tank", "tail", "water", "level", "stream", "river",
        "dam", "crest", "apron", "sill", "trash", "rack", "gauge", "pool", "lock", "reach",
    ];
    let fingerprint = hash(&choice.to_le_bytes(), prompt.fingerprint());
    (0..count)
        .map(|index| match index {
            0 => format!("{fingerprint:016x}"),
            _ => format!(" {}", WORDS[(hash(&index.to_le_bytes(), fingerprint) % 32) as usize]),
        })
        .collect()
}

/// The token id that stands for a word of an answer.
pub(crate) fn word_id(word: &str) -> u64 {
    hash(word.as_bytes(), 3) % 4096
}
