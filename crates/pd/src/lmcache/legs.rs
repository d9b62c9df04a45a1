//! The bodies of both legs: the client's own, with ids for a prompt. Whatever says how tokens are drawn stays, since both
//! workers draw.

use bytes::Bytes;
use forebay_openai::{BodyError, Change, Splices};

use crate::hand_over::FIELD;
use crate::lmcache::first::First;
use crate::lmcache::receiver::Receiver;
use crate::lmcache::tokens::Tokens;
use crate::lmcache::wish::Wish;

/// What only a chat has, and what is done when the prompt is ids.
const RENDERED: [Change<'static>; 5] = [
    Change::Cut("messages"),
    Change::Cut("max_completion_tokens"),
    Change::Cut("add_generation_prompt"),
    Change::Cut("continue_final_message"),
    Change::Cut("chat_template"),
];

/// By this the decode worker's seed differs from the client's. With the same one it would draw its first token, which is the
/// second of the answer, by the very numbers that the prefill worker drew the first one by, and say the same again and again.
const OF_DECODE: i64 = 0x5eed_de00;

impl Wish {
    /// The body of the prefill leg under this id: one token, not streamed, and the order to write the blocks.
    ///
    /// # Errors
    /// [`BodyError`] if the client's body cannot be walked.
    pub fn prefill(
        &self,
        body: &Bytes,
        tokens: &Tokens,
        (receiver, req_id): (&Receiver, &str),
    ) -> Result<Bytes, BodyError> {
        let mut changes = vec![
            Change::Set("prompt", tokens.with(None)),
            Change::Set("max_tokens", Bytes::from_static(b"1")),
            Change::Replace("stream", Bytes::from_static(b"false")),
            Change::Cut("stream_options"),
            Change::Set(FIELD, receiver.order(req_id)),
        ];
        if self.min_tokens > 1 {
            changes.push(Change::Replace("min_tokens", Bytes::from_static(b"1")));
        }
        changes.extend_from_slice(&RENDERED);
        changed(body, &changes)
    }

    /// The body of the decode leg, behind the first token: so many tokens at most.
    ///
    /// # Errors
    /// [`BodyError`] if the client's body cannot be walked.
    pub fn decode(
        &self,
        body: &Bytes,
        tokens: &Tokens,
        (first, rest): (&First, u64),
    ) -> Result<Bytes, BodyError> {
        let mut changes = vec![
            Change::Set("prompt", tokens.with(Some(first.token()))),
            Change::Set("max_tokens", rest.to_string().into()),
        ];
        if self.min_tokens > 0 {
            changes.push(Change::Replace("min_tokens", (self.min_tokens - 1).to_string().into()));
        }
        if let Some(seed) = self.seed {
            changes.push(Change::Replace("seed", (seed ^ OF_DECODE).to_string().into()));
        }
        changes.extend_from_slice(&RENDERED);
        changed(body, &changes)
    }
}

fn changed(body: &Bytes, changes: &[Change<'_>]) -> Result<Bytes, BodyError> {
    let mut splices = Splices::default();
    splices.change(body, &[], changes)?;
    Ok(splices.apply(body))
}

#[cfg(test)]
mod tests;
