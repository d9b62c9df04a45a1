//! The first token, as the answer of a prefill leg tells it.

use bytes::Bytes;
use forebay_openai::walk::Array;
use forebay_openai::{BodyError, Members};

use crate::endpoint::Endpoint;
use crate::hand_over::{FIELD, number};
use crate::lmcache::continuation::{DONE, Form, Head, data, edited};
use crate::lmcache::wish::Wish;

/// The first token of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// Its id, as JSON.
    token: Bytes,
    /// Its text in JSON, without the quotes.
    text: Bytes,
    /// It is the last one too.
    is_all: bool,
    /// What ended the answer with it, as JSON.
    stop_reason: Bytes,
    /// Tokens of the prompt, and those of them that were cached, if that was told.
    pub(crate) prompt_tokens: Option<u64>,
    pub(crate) cached_tokens: Option<u64>,
    /// The answer that it came in.
    answer: Bytes,
}

impl First {
    /// From an answer; `None` if that does not tell it.
    ///
    /// # Errors
    /// [`BodyError`] if the answer is no JSON object.
    pub fn read(answer: &Bytes) -> Result<Option<Self>, BodyError> {
        let (mut token, mut choice) = (None, None);
        let (mut prompt_tokens, mut cached_tokens) = (None, None);
        for member in Members::new(answer)? {
            let member = member?;
            let at = member.value.start;
            match &answer[member.key.raw] {
                name if name == FIELD.as_bytes() && answer[at] == b'{' => {
                    token = value_in(answer, at, b"first_tok")?.filter(|id| number(id).is_some());
                }
                b"choices" if answer[at] == b'[' => {
                    let first = Array::open(answer, at)?.next_element()?;
                    choice = first.filter(|at| answer[*at] == b'{');
                }
                b"usage" if answer[at] == b'{' => {
                    prompt_tokens = value_in(answer, at, b"prompt_tokens")?.and_then(|count| number(&count));
                    cached_tokens = cached(answer, at)?;
                }
                _ => {}
            }
        }
        let (Some(token), Some(at)) = (token, choice) else { return Ok(None) };
        let text = value_in(answer, at, b"text")?;
        let Some(text) = text.and_then(|text| {
            text.strip_prefix(b"\"")?.strip_suffix(b"\"").map(|text| answer.slice_ref(text))
        }) else {
            return Ok(None);
        };
        let is_all = match value_in(answer, at, b"finish_reason")?.as_deref() {
            Some(b"\"length\"") => false,
            Some(b"\"stop\"") => true,
            _ => return Ok(None),
        };
        let stop_reason = value_in(answer, at, b"stop_reason")?.unwrap_or(Bytes::from_static(b"null"));
        Ok(Some(Self {
            token,
            text,
            is_all,
            stop_reason,
            prompt_tokens,
            cached_tokens,
            answer: answer.clone(),
        }))
    }

    /// Its id, as JSON.
    pub(crate) fn token(&self) -> &[u8] {
        &self.token
    }

    /// Its text in JSON, without the quotes.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether nothing follows it.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// Whether its text, if it has one, may end inside a character. An engine whose prompt ends there tells all of the prompt
    /// with the rest of the character.
    pub fn is_part(&self) -> bool {
        const REPLACED: &[u8] = "\u{fffd}".as_bytes();
        const ESCAPED: &[u8] = b"\\ufffd";
        let text = &self.text[..];
        let is_escape = || {
            let (before, end) = text.split_at(text.len().saturating_sub(ESCAPED.len()));
            let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
            end.eq_ignore_ascii_case(ESCAPED) && backslashes.is_multiple_of(2)
        };
        text.is_empty() || text.ends_with(REPLACED) || is_escape()
    }

    /// The answer that it came in.
    pub(crate) fn answer(&self) -> &Bytes {
        &self.answer
    }

    /// The client's answer, of which this is all; `None` if there is none.
    pub fn alone(&self, wish: &Wish) -> Option<Bytes> {
        if !wish.streamed {
            return edited(
                &self.answer,
                &Form { is_chat: wish.endpoint == Endpoint::Chat, is_whole: true, first: None },
            );
        }
        let head = Head::read(&self.answer, wish.endpoint == Endpoint::Chat);
        let mut out = Vec::new();
        head.role(&mut out);
        head.token(&mut out, &self.text, (br#""stop""#, &self.stop_reason));
        if let Some(usage) = wish.include_usage.then(|| self.usage()).flatten() {
            data(&mut out, &[&head.start(), br#"],"usage":"#, &usage, b"}"]);
        }
        out.extend_from_slice(DONE);
        Some(out.into())
    }

    fn usage(&self) -> Option<Bytes> {
        let members = Members::new(&self.answer).ok()?.filter_map(Result::ok);
        let usage = members.filter(|member| &self.answer[member.key.raw.clone()] == b"usage").last()?;
        Some(self.answer.slice(usage.value))
    }
}

fn cached(answer: &Bytes, usage: usize) -> Result<Option<u64>, BodyError> {
    for member in Members::nested(answer, usage)? {
        let member = member?;
        if &answer[member.key.raw] == b"prompt_tokens_details" && answer[member.value.start] == b'{' {
            let told = value_in(answer, member.value.start, b"cached_tokens")?;
            return Ok(told.and_then(|count| number(&count)));
        }
    }
    Ok(None)
}

/// The value of this member of the object that begins at `at`.
fn value_in(answer: &Bytes, at: usize, name: &[u8]) -> Result<Option<Bytes>, BodyError> {
    let mut found = None;
    for member in Members::nested(answer, at)? {
        let member = member?;
        if &answer[member.key.raw] == name {
            found = Some(answer.slice(member.value));
        }
    }
    Ok(found)
}
