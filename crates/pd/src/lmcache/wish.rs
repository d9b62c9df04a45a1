//! What of a request matters here, and which requests the first token would not be right for: whatever depends on the output
//! as a whole, since for the decode worker that token is of the prompt.

use bytes::Bytes;
use forebay_openai::walk::KeyBuffer;
use forebay_openai::{BodyError, Members};

use crate::condition::Bypass;
use crate::endpoint::Endpoint;
use crate::hand_over::number;
use crate::lmcache::messages;
use crate::lmcache::tokens::Tokens;

/// Tokens of a completion that does not say how many it wants.
const OF_COMPLETIONS: u64 = 16;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub(crate) endpoint: Endpoint,
    /// Tokens at most; `None` is as many as there is room for.
    max_tokens: Option<u64>,
    pub(crate) min_tokens: u64,
    /// What draws begin with. An engine takes -1 for none.
    pub(crate) seed: Option<i64>,
    pub(crate) streamed: bool,
    pub(crate) include_usage: bool,
    /// The prompt, if it came as ids.
    ids: Option<Tokens>,
}

/// What a member of a body is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It makes no difference whether a token is the last of the prompt or the first of the output.
    Passes,
    /// The same, if it has one of these values.
    PassesAs(&'static [&'static str]),
    MaxTokens,
    MaxCompletionTokens,
    MinTokens,
    Seed,
    Stream,
    StreamOptions,
    Prompt,
    Messages,
    /// It is for `/tokenize`.
    Rendering,
    /// Only a worker can make of it what it asks for.
    Not(Bypass),
}

fn kind(name: &[u8], endpoint: Endpoint) -> Kind {
    let is_chat = endpoint == Endpoint::Chat;
    match name {
        b"model"
        | b"temperature"
        | b"top_p"
        | b"top_k"
        | b"min_p"
        | b"user"
        | b"ignore_eos"
        | b"stop_token_ids"
        | b"logit_bias"
        | b"allowed_token_ids"
        | b"repetition_penalty"
        | b"skip_special_tokens"
        | b"spaces_between_special_tokens"
        | b"priority"
        | b"cache_salt"
        | b"request_id"
        | b"session_id"
        | b"session_params"
        | b"user_id"
        | b"metadata"
        | b"store"
        | b"service_tier"
        | b"safety_identifier"
        | b"prompt_cache_key"
        | b"parallel_tool_calls"
        | b"stream_interval" => Kind::Passes,
        b"n" | b"best_of" => Kind::PassesAs(&["1"]),
        b"presence_penalty" | b"frequency_penalty" => Kind::PassesAs(&["0", "0.0", "-0.0"]),
        b"response_format" => Kind::PassesAs(&[r#"{"type":"text"}"#, r#"{"type": "text"}"#]),
        b"tool_choice" => Kind::PassesAs(&[r#""none""#, r#""auto""#]),
        b"max_tokens" => Kind::MaxTokens,
        b"max_completion_tokens" if is_chat => Kind::MaxCompletionTokens,
        b"min_tokens" => Kind::MinTokens,
        b"seed" => Kind::Seed,
        b"stream" => Kind::Stream,
        b"stream_options" => Kind::StreamOptions,
        b"prompt" if !is_chat => Kind::Prompt,
        b"messages" if is_chat => Kind::Messages,
        b"add_special_tokens" => Kind::Rendering,
        b"add_generation_prompt" | b"continue_final_message" | b"chat_template" if is_chat => Kind::Rendering,
        _ => Kind::Not(made_of_all(name)),
    }
}

/// What depends on all of an answer.
fn made_of_all(name: &[u8]) -> Bypass {
    match name {
        b"tools" | b"functions" | b"function_call" => Bypass::Tools,
        b"reasoning_effort"
        | b"include_reasoning"
        | b"reasoning"
        | b"thinking"
        | b"thinking_token_budget"
        | b"chat_template_kwargs" => Bypass::Reasoning,
        _ => Bypass::Options,
    }
}

impl Wish {
    /// Reads a body.
    ///
    /// # Errors
    /// Why a decode worker has to do all of it. A body that cannot be walked is for it too.
    pub fn read(body: &Bytes, endpoint: Endpoint) -> Result<Self, Bypass> {
        if !matches!(endpoint, Endpoint::Chat | Endpoint::Completions) {
            return Err(Bypass::Route);
        }
        let mut found = Found::default();
        found.members(body, endpoint).map_err(|_| Bypass::Options)??;
        let (max_tokens, ids) = match endpoint {
            Endpoint::Chat if found.has_prompt => (found.max_completion_tokens.or(found.max_tokens), None),
            Endpoint::Completions if found.has_prompt && !found.wants_all => {
                (Some(found.max_tokens.unwrap_or(OF_COMPLETIONS)), found.ids)
            }
            _ => return Err(Bypass::Options),
        };
        let Found { min_tokens, seed, streamed, include_usage, .. } = found;
        Ok(Self { endpoint, max_tokens, min_tokens, seed, streamed, include_usage, ids })
    }

    /// The API of the request.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Whether the answer is to be a stream.
    pub fn is_streamed(&self) -> bool {
        self.streamed
    }

    /// Whether the first token is all that it wants.
    pub fn is_for_one_token(&self) -> bool {
        self.max_tokens == Some(1)
    }

    /// The prompt, if it came as ids.
    pub fn tokens(&self) -> Option<&Tokens> {
        self.ids.as_ref()
    }

    /// Tokens at most that follow the first one; `None` if nobody knows, or there are none, or no prompt.
    pub fn rest(&self, tokens: &Tokens) -> Option<u64> {
        if tokens.count() == 0 {
            return None;
        }
        let all = self.max_tokens.or_else(|| tokens.room())?;
        all.checked_sub(1).filter(|rest| *rest > 0)
    }

    /// What `/tokenize` is asked.
    ///
    /// # Errors
    /// [`BodyError`] if the body cannot be walked.
    pub fn tokenize(&self, body: &Bytes) -> Result<Bytes, BodyError> {
        let mut out = Vec::with_capacity(body.len());
        for member in Members::new(body)? {
            let member = member?;
            let mut buffer = KeyBuffer::default();
            let name = member.key.name(body, &mut buffer);
            let kind = kind(name, self.endpoint);
            if name == b"model" || matches!(kind, Kind::Prompt | Kind::Messages | Kind::Rendering) {
                out.push(if out.is_empty() { b'{' } else { b',' });
                out.extend_from_slice(&body[member.key.raw.start - 1..member.value.end]);
            }
        }
        out.push(b'}');
        Ok(out.into())
    }
}

/// What was found so far. Of duplicates the last one counts.
#[derive(Default)]
struct Found {
    max_tokens: Option<u64>,
    /// A completion says in so many words that it wants as many as there is room for.
    wants_all: bool,
    max_completion_tokens: Option<u64>,
    min_tokens: u64,
    seed: Option<i64>,
    streamed: bool,
    include_usage: bool,
    has_prompt: bool,
    ids: Option<Tokens>,
}

impl Found {
    fn members(&mut self, body: &Bytes, endpoint: Endpoint) -> Result<Result<(), Bypass>, BodyError> {
        for member in Members::new(body)? {
            let member = member?;
            let mut buffer = KeyBuffer::default();
            let kind = kind(member.key.name(body, &mut buffer), endpoint);
            let value = body.slice(member.value.clone());
            if let Err(why) = self.member(kind, &value, (body, member.value.start)) {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }

    fn member(&mut self, kind: Kind, value: &Bytes, (body, at): (&Bytes, usize)) -> Result<(), Bypass> {
        let is_null = &value[..] == b"null";
        // What says nothing asks for nothing.
        let is_unsaid = is_null || matches!(&value[..], b"false" | b"[]");
        let count = || number(value).ok_or(Bypass::Options);
        let at_least_one = || count().ok().filter(|count| *count > 0).ok_or(Bypass::Options);
        match kind {
            Kind::Passes | Kind::Rendering => {}
            Kind::PassesAs(values) if is_null || values.iter().any(|one| one.as_bytes() == value) => {}
            Kind::PassesAs(_) => return Err(Bypass::Options),
            Kind::MaxTokens if is_null => (self.max_tokens, self.wants_all) = (None, true),
            Kind::MaxTokens => (self.max_tokens, self.wants_all) = (Some(at_least_one()?), false),
            Kind::MaxCompletionTokens if is_null => self.max_completion_tokens = None,
            Kind::MaxCompletionTokens => self.max_completion_tokens = Some(at_least_one()?),
            Kind::MinTokens => self.min_tokens = if is_null { 0 } else { count()? },
            // One that is no number is for the workers to refuse.
            Kind::Seed => {
                let seed = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.seed = seed.filter(|seed| *seed != -1);
            }
            Kind::Stream if is_unsaid || &value[..] == b"true" => self.streamed = !is_unsaid,
            Kind::Stream => return Err(Bypass::Options),
            Kind::StreamOptions => self.include_usage = stream_options(body, at)?,
            Kind::Prompt => self.prompt(value)?,
            Kind::Messages => {
                messages::check(body, at)?;
                self.has_prompt = true;
            }
            // To leave out what is thought is a wish of its own.
            Kind::Not(Bypass::Reasoning) if !is_null => return Err(Bypass::Reasoning),
            Kind::Not(why) if !is_unsaid => return Err(why),
            Kind::Not(_) => {}
        }
        Ok(())
    }

    fn prompt(&mut self, value: &Bytes) -> Result<(), Bypass> {
        (self.has_prompt, self.ids) = (true, None);
        match value.first() {
            Some(b'"') => Ok(()),
            Some(b'[') => {
                self.ids = Some(Tokens::of_list(value).ok_or(Bypass::List)?);
                Ok(())
            }
            _ => Err(Bypass::Options),
        }
    }
}

/// Whether the counts are to come at the end. In the midst of a stream nobody would put them right.
fn stream_options(body: &[u8], at: usize) -> Result<bool, Bypass> {
    if body[at..].starts_with(b"null") {
        return Ok(false);
    }
    let mut include_usage = false;
    for member in Members::nested(body, at).map_err(|_| Bypass::Options)? {
        let member = member.map_err(|_| Bypass::Options)?;
        let mut buffer = KeyBuffer::default();
        match (member.key.name(body, &mut buffer), &body[member.value]) {
            (b"include_usage", value) => include_usage = value == b"true",
            (_, b"false" | b"null") => {}
            _ => return Err(Bypass::Options),
        }
    }
    Ok(include_usage)
}

#[cfg(test)]
mod tests;
