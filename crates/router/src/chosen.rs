//! Who gets the legs of a pair, and by which id they find each other. It sends nothing.

use forebay_pd::{LegKind, nccl};
use forebay_policy::{Ask, Choice};
use forebay_workers::{Asker, Pool, Selected, Tried, Worker};
use http::HeaderValue;

use crate::course::Course;
use crate::failure::Failure;
use crate::forward::note;
use crate::forwarded::Progress;
use crate::pair::Pair;

/// A place on a worker, if there is one.
type Found = Result<Option<Selected>, Failure>;

impl<'a> Pair<'a> {
    /// No decode worker was asked yet. A client that insists on a data-parallel rank means theirs.
    pub(crate) fn untried(&self) -> Result<Tried, Failure> {
        match self.asked.rank {
            Some(rank) if !self.decode.has_rank(rank) => Err(Failure::RankUnknown(rank)),
            rank => Ok(Tried::with_rank(rank)),
        }
    }

    /// Tokens that the decode worker would have to compute. A policy that knows no prefixes predicts nothing.
    pub(crate) fn uncached(&self, choice: &Choice) -> u64 {
        if choice.key_len > 0 { u64::from(choice.uncached_tokens) } else { self.tokens }
    }

    /// A place on a decode worker that was not tried yet, if there is none already.
    pub(crate) fn take_place(
        &self,
        course: &mut Course<'a>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<(), Failure> {
        if course.place.is_none() {
            course.place =
                self.choose(LegKind::Decode, self.decode, &mut course.tried_decode, progress.attempts.count)?;
            course.place.iter().for_each(|place| progress.chosen(place));
        }
        Ok(())
    }

    /// A place on another decode worker, if there is one, instead of one where a part of the blocks may have been written.
    pub(crate) fn leave_half_written(
        &self,
        course: &mut Course<'a>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<(), Failure> {
        let Some(place) = course.place.as_ref().filter(|_| course.is_half_written) else { return Ok(()) };
        course.is_half_written = false;
        let mut tried = course.tried_decode.clone();
        tried.add(place.guard.worker().slot());
        if let Some(other) = self.choose(LegKind::Decode, self.decode, &mut tried, progress.attempts.count)? {
            progress.chosen(&other);
            (course.place, course.tried_decode) = (Some(other), tried);
        }
        Ok(())
    }

    /// A worker that was not tried yet. One of whom legs have to say where it is reached, and nobody knows, is as good as
    /// tried.
    pub(crate) fn choose(&self, leg: LegKind, pool: &Pool, tried: &mut Tried, attempt: u32) -> Found {
        let question = Ask {
            prefix: self.asked.prefix.as_ref(),
            tokens: Some(self.tokens),
            // The end of a prefill leg is seen, whatever the client asked for.
            streamed: leg == LegKind::Prefill || self.asked.streamed,
            hash: self.asked.hash,
            now_ms: self.forward.now_ms,
        };
        let request = if pool.is_noted() { self.forward.head.id() } else { &[] };
        loop {
            let selected = pool.select_for(Asker { request, attempt }, &question, tried)?;
            match selected.as_ref().map(|selected| selected.guard.worker()) {
                Some(worker) if !self.is_reached(leg, worker) => tried.add(worker.slot()),
                _ => {
                    selected.iter().for_each(|selected| note(selected.guard.worker(), &selected.choice));
                    return Ok(selected);
                }
            }
        }
    }

    /// Whether it is known where others reach it, as far as a leg has to say so.
    fn is_reached(&self, leg: LegKind, worker: &Worker) -> bool {
        let connector = self.pairs.settings.connector;
        if connector.makes_first_token() {
            return leg == LegKind::Prefill || self.receiver(worker).is_some();
        }
        !connector.names_workers() || worker.host().kv_address().is_some()
    }

    /// The id that both legs of a new attempt have, if they find each other by it.
    pub(crate) fn request_id(&self, prefill: &Worker, decode: &Worker) -> Option<HeaderValue> {
        let connector = self.pairs.settings.connector;
        if !connector.pairs_by_request_id() {
            return None;
        }
        let fresh = self.forward.shard.fresh_id();
        if !connector.names_workers() {
            return Some(fresh);
        }
        // Nobody is chosen who has none.
        let address = |worker: &Worker| worker.host().kv_address().unwrap_or_default();
        let (prefill, decode) = (address(prefill), address(decode));
        let named = nccl::request_id(&prefill, &decode, fresh.to_str().unwrap_or_default());
        HeaderValue::try_from(named).ok()
    }
}
