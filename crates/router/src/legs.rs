//! What the legs of a pair are sent: heads, bodies, limits. It sends nothing and chooses nobody.

use std::sync::Arc;

use bytes::Bytes;
use forebay_pd::lmcache::Continuation;
use forebay_pd::{Correction, Endpoint, Pairing, Ranks};
use forebay_policy::Choice;
use forebay_workers::Worker;

use crate::attempt::Attempt;
use crate::classify::Asked;
use crate::clock;
use crate::course::Legs;
use crate::decode::DecodeLeg;
use crate::disagg::leg_path;
use crate::forward::Forward;
use crate::forwarded::Chosen;
use crate::headers::{Length, Written};
use crate::pair::Pair;
use crate::prefill::PrefillLeg;

impl Pair<'_> {
    /// What both legs of an attempt have in common. `decoder` is the decode worker, if it is chosen.
    pub(crate) fn pairing<'b>(&self, legs: &'b Legs, decoder: Option<&Worker>) -> Pairing<'b> {
        Pairing {
            connector: self.pairs.settings.connector,
            // A request without one is no pair.
            endpoint: self.ask.facts.endpoint.unwrap_or(Endpoint::Completions),
            room: legs.room,
            bootstrap: self.pairs.bootstrap(&legs.prefiller),
            ranks: Ranks { prefill: legs.prefiller.dp_rank(), decode: decoder.and_then(Worker::dp_rank) },
            batch: self.ask.batch,
            request_id: legs.request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default(),
        }
    }

    /// The head of a leg whose body has this length.
    pub(crate) fn head<'b>(&'b self, legs: &'b Legs, length: usize) -> Written<'b> {
        self.head_to(legs, length, leg_path(self.pairs.settings.connector.makes_first_token()))
    }

    /// The same to this path, or to the client's.
    pub(crate) fn head_to<'b>(
        &'b self,
        legs: &'b Legs,
        length: usize,
        path: Option<&'static str>,
    ) -> Written<'b> {
        let client = self.forward.head;
        Written {
            made_id: legs.request_id.as_ref().or(client.made_id),
            replaces_id: client.replaces_id || legs.request_id.is_some(),
            path,
            length: Length::Exact(length as u64),
            ..*client
        }
    }

    /// The prefill leg with this body.
    pub(crate) fn prefill_leg<'b>(&'b self, head: &'b Written<'b>, body: Bytes) -> PrefillLeg<'b> {
        PrefillLeg {
            attempt: self.attempt_with(head),
            connector: self.pairs.settings.connector,
            limit: self.pairs.settings.prefill_timeout,
            body,
            chosen_ms: clock::now_ms(),
        }
    }

    /// The decode leg with this body, to the worker of this choice.
    pub(crate) fn decode_leg<'b>(
        &'b self,
        head: &'b Written<'b>,
        body: Bytes,
        choice: Choice,
        (correction, continuation): (Correction, Option<Box<Continuation>>),
    ) -> DecodeLeg<'b> {
        let endpoint = match continuation {
            None => self.ask.facts.endpoint,
            Some(_) => Some(Endpoint::Completions),
        };
        DecodeLeg {
            attempt: self.attempt_with(head),
            endpoint: endpoint.unwrap_or(Endpoint::Completions),
            limit: self.pairs.settings.first_byte_timeout,
            asked: Asked { body, once_only: self.asked.once_only, ..Asked::default() },
            chosen_ms: self.forward.now_ms,
            correction,
            continuation,
            // What was cached is the prefill worker's to say: nothing is learnt from this answer.
            chosen: Chosen {
                choice: Choice { key_len: 0, ..choice },
                policy: Arc::clone(self.decode.policy()),
                text_bytes: 0,
            },
        }
    }

    pub(crate) fn attempt_with<'b>(&'b self, head: &'b Written<'b>) -> Attempt<'b> {
        let Forward { shard, settings, metrics, .. } = *self.forward;
        Attempt { shard, settings, metrics, head }
    }
}
