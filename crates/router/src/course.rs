//! What one pair has been through: its plan, the workers it asked, what they answered. It sends nothing.

use std::sync::Arc;
use std::time::Instant;

use forebay_pd::lmcache::First;
use forebay_pd::{Correction, HandOver, Happened, LegFailure, LegKind, Plan, Room, Step};
use forebay_workers::{Pool, Reader, Selected, Tried, Worker};
use http::HeaderValue;

use crate::clock;
use crate::decode::DecodeEnd;
use crate::disagg::{Disagg, Unwritten};
use crate::failure::Failure;
use crate::forward::exhausted;
use crate::forwarded::Forwarded;
use crate::leg::Leg;
use crate::pairs::{PairCount, Pairs};
use crate::prefill::PrefillEnd;
use crate::retry::Budget;

/// What both legs of one attempt share.
pub(crate) struct Legs {
    pub room: Room,
    /// Made by the router, if the legs find each other by it.
    pub request_id: Option<HeaderValue>,
    pub prefiller: Arc<Worker>,
}

/// One pair.
pub(crate) struct Course<'a> {
    pub plan: Plan,
    pub count: PairCount<'a>,
    pub pairs: &'a Pairs,
    /// Pays for repeats.
    pub budget: &'a Budget,
    /// The attempt under way.
    pub legs: Option<Arc<Legs>>,
    /// A place on a decode worker, taken before the prefill leg begins.
    pub place: Option<Selected>,
    pub tried_prefill: Tried,
    pub tried_decode: Tried,
    pub correction: Correction,
    /// When the prefill leg was over.
    pub prefilled: Option<Instant>,
    /// What the prefill worker said of the prompt's length.
    pub prompt_tokens: Option<u64>,
    /// Answers that may still go to the client.
    pub from_prefill: Option<Box<Forwarded>>,
    pub from_decode: Option<Box<Forwarded>>,
    /// The first prefill worker that answered 500. It was its fault if another one does better.
    pub doubted: Option<Leg>,
    pub failure: Option<Failure>,
    /// What it carries along, if the prefill worker makes the first token.
    pub disagg: Option<Box<Disagg>>,
    /// A prefill worker may have written a part of the blocks to the chosen decode worker, which would read it as all: it
    /// knows blocks by their tokens, from the moment that there is room for them.
    pub is_half_written: bool,
}

impl Course<'_> {
    /// The prefill leg is over, one way or the other.
    pub(crate) fn prefill_ended(&mut self, end: PrefillEnd) -> Step {
        let slot = self.legs.as_ref().map(|legs| legs.prefiller.slot());
        let happened = match end {
            PrefillEnd::Done(prefilled, took) => {
                self.pairs.metrics.prefill.observe(took.as_secs_f64());
                self.prefilled = Some(Instant::now());
                self.prompt_tokens = prefilled.prompt_tokens;
                self.correction.cached_tokens = prefilled.cached_tokens;
                // Nobody will wait for what it may write all the same.
                self.is_half_written |= prefilled.hand_over.is_none() && self.has_ordered();
                if let Some(doubted) = self.doubted.take() {
                    doubted.ended();
                }
                if let (Some(slot), Some(peer)) = (slot, prefilled.peer) {
                    self.pairs.learn_peer(slot, peer);
                }
                match self.all_of(prefilled.first) {
                    Some(answer) => {
                        self.from_prefill = Some(answer);
                        Happened::PrefillWasAll
                    }
                    None => Happened::Prefilled(prefilled.hand_over),
                }
            }
            PrefillEnd::Answered(failure, mut answer) => {
                self.is_half_written |= failure == LegFailure::Doubtful && self.has_ordered();
                match (failure, self.doubted.take()) {
                    (LegFailure::Doubtful, None) => self.doubted = Some(answer.leg),
                    (LegFailure::Doubtful, Some(_)) => {
                        // Two say the same: it is the request's fault, for all that is known.
                        answer.leg.says_nothing();
                        self.from_prefill = Some(answer);
                    }
                    (_, doubted) => (self.from_prefill, self.doubted) = (Some(answer), doubted),
                }
                Happened::PrefillFailed(failure)
            }
            PrefillEnd::Failed { kind, failure, by_age } => {
                self.is_half_written |= kind == LegFailure::Broken && self.has_ordered();
                self.failure = Some(failure);
                if by_age {
                    return self.next(Happened::PrefillFailed(kind));
                }
                Happened::PrefillFailed(kind)
            }
            PrefillEnd::Needless => Happened::Prefilled(None),
            PrefillEnd::TimedOut => Happened::PrefillFailed(LegFailure::TimedOut),
        };
        if let (Some(slot), Happened::PrefillFailed(_)) = (slot, &happened) {
            self.tried_prefill.add(slot);
            self.pairs.forget_peer(slot);
        }
        self.next(happened)
    }

    /// Whether a prefill worker was told to write to the chosen decode worker.
    fn has_ordered(&self) -> bool {
        self.disagg.as_ref().is_some_and(|disagg| disagg.has_ordered())
    }

    /// The client's answer, if the first token is all of it.
    fn all_of(&mut self, first: Option<Box<First>>) -> Option<Box<Forwarded>> {
        let (disagg, legs) = (self.disagg.as_mut()?, self.legs.as_ref()?);
        disagg.begins_with(*first?, &legs.prefiller)
    }

    /// The decode leg answers, or is over. `hand_over` is what it was given.
    pub(crate) fn decode_ended(&mut self, end: DecodeEnd, on: &Worker, hand_over: Option<HandOver>) -> Step {
        let happened = match end {
            DecodeEnd::Began(answer) => {
                self.from_decode = Some(answer);
                Happened::DecodeBegan
            }
            DecodeEnd::Answered(failure, answer) => {
                self.from_decode = Some(answer);
                match failure {
                    // For all that is known it was the blocks, and who was to hand them over.
                    LegFailure::Doubtful => self.suspect_prefiller(),
                    _ => self.tried_decode.add(on.slot()),
                }
                Happened::DecodeFailed(failure)
            }
            DecodeEnd::Unsent(failure) => {
                self.failure = Some(failure);
                self.tried_decode.add(on.slot());
                hand_over.map_or(Happened::DecodeUnreachable, Happened::DecodeUnsent)
            }
            DecodeEnd::Broken { failure, by_age } => {
                self.failure = Some(failure);
                if !by_age {
                    self.tried_decode.add(on.slot());
                }
                Happened::DecodeFailed(LegFailure::Broken)
            }
            DecodeEnd::BrokeAtOnce(failure) => {
                self.failure = Some(failure);
                self.suspect_prefiller();
                Happened::DecodeFailed(LegFailure::Doubtful)
            }
            DecodeEnd::TimedOut => Happened::DecodeFailed(LegFailure::TimedOut),
        };
        self.next(happened)
    }

    /// The prefill worker is down, and the decode worker waits for it in vain.
    pub(crate) fn prefiller_lost(&mut self) -> Step {
        self.failure = Some(Failure::WorkerDied);
        self.suspect_prefiller();
        self.next(Happened::DecodeFailed(LegFailure::Broken))
    }

    /// The blocks are not where a decode worker would read them.
    pub(crate) fn unwritten(&mut self, why: Unwritten) -> Step {
        self.is_half_written |= !matches!(why, Unwritten::Unfit);
        match why {
            Unwritten::TooLong => self.next(Happened::NotReady),
            Unwritten::Unfit => self.next(Happened::HandOverUnfit),
            Unwritten::Lost => self.prefiller_lost(),
        }
    }

    fn suspect_prefiller(&mut self) {
        if let Some(legs) = &self.legs {
            self.tried_prefill.add(legs.prefiller.slot());
            self.pairs.forget_peer(legs.prefiller.slot());
        }
    }

    /// The plan's next step. Repeats that workers' answers are the cause of have to be paid for.
    pub(crate) fn next(&mut self, happened: Happened) -> Step {
        let (leg, costs) = match &happened {
            Happened::PrefillFailed(kind) => (LegKind::Prefill, costs(*kind)),
            Happened::DecodeFailed(kind) => (LegKind::Decode, costs(*kind)),
            Happened::DecodeUnsent(_) | Happened::DecodeUnreachable => (LegKind::Decode, false),
            _ => return self.plan.next(happened, clock::now_ms()),
        };
        let paid = costs && self.budget.pay();
        if costs && !paid {
            self.plan.no_more_repeats();
        }
        let step = self.plan.next(happened, clock::now_ms());
        if !step.is_last() && step != Step::Wait {
            self.pairs.metrics.retried(leg);
            if let Some(legs) = &self.legs {
                tracing::info!(room = %legs.room, leg = leg.as_str(), "a leg failed; it is tried again");
            }
        } else if paid {
            self.budget.give_back();
        }
        step
    }

    /// Why there is no answer.
    pub(crate) fn failed(self, pool: &Pool) -> Failure {
        let retries = self.tried_prefill.count() + self.tried_decode.count();
        let cause = self.failure.unwrap_or_else(|| exhausted(pool, retries as u64));
        match self.legs {
            Some(legs) => Failure::InPair { room: legs.room.number(), cause: Box::new(cause) },
            None => cause,
        }
    }
}

/// Resolves when a prefill worker is down that a decode worker waits for, which does not see that by itself. A mere
/// suspicion is followed by a probe at once, which says it to all who wait.
pub(crate) async fn lost(prefiller: &Worker, fleet: &Reader) {
    fleet.wait_for(|_| !prefiller.is_well()).await;
}

/// Whether a repeat after such a failure has to be paid for.
fn costs(failure: LegFailure) -> bool {
    matches!(failure, LegFailure::Busy | LegFailure::Doubtful | LegFailure::Broken)
}
