//! What to do next with a pair, given what has happened so far. It sends nothing, chooses nobody and knows no time but what it
//! is told.

use crate::connector::Order;
use crate::hand_over::HandOver;

/// Which of the two legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LegKind {
    /// The prompt's blocks are computed.
    Prefill,
    /// They are fetched, and the answer is generated.
    Decode,
}

impl LegKind {
    /// Name in answers, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// How a leg failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegFailure {
    /// No connection: nothing of the request has left.
    Unreachable,
    /// 429, 502, 503 or 504: somebody else should be asked.
    Busy,
    /// 500, or an error as the first record of a stream: nobody knows whose fault it is.
    Doubtful,
    /// Its worker does not serve the model any more: one other is asked.
    Unserved,
    /// Any other status from 400 on: the request's own fault.
    Rejected,
    /// The connection ended, or what came was no answer.
    Broken,
    /// It took too long.
    TimedOut,
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Happened {
    /// The prefill leg is over, with a hand-over that can be used or without.
    Prefilled(Option<HandOver>),
    /// The prefill leg failed.
    PrefillFailed(LegFailure),
    /// The prefill leg is over, and its answer is all that there is to say.
    PrefillWasAll,
    /// The prefill leg is over, but not all of the worker's ranks have said in time that they have handed over.
    NotReady,
    /// The prefill leg is over, but nobody can go on behind what it handed over.
    HandOverUnfit,
    /// There is no prefill worker to ask, or none that was not asked yet.
    NoPrefill,
    /// The answer of the decode leg can go to the client.
    DecodeBegan,
    /// The decode leg failed after it may have been read.
    DecodeFailed(LegFailure),
    /// The decode worker could not be connected to: the hand-over is as good as before.
    DecodeUnsent(HandOver),
    /// The same of a decode leg without a hand-over.
    DecodeUnreachable,
    /// There is no decode worker that was not asked yet.
    NoDecode,
}

/// Why a decode worker computes the prompt by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// The prefill worker handed nothing over, or not all that is needed.
    NoHandOver,
    /// Nobody said that all blocks have been handed over.
    NotReady,
    /// No prefill worker did its work.
    PrefillFailed,
    /// No prefill worker is well, or none has the version of the decode worker.
    NoPrefill,
    /// The decode workers failed with what was handed over.
    DecodeFailed,
}

impl Recompute {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::NoHandOver, Self::NotReady, Self::PrefillFailed, Self::NoPrefill, Self::DecodeFailed];

    /// Name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoHandOver => "no_hand_over",
            Self::NotReady => "not_ready",
            Self::PrefillFailed => "prefill_failed",
            Self::NoPrefill => "no_prefill",
            Self::DecodeFailed => "decode_failed",
        }
    }
}

/// What to do. Any step but [`Step::Wait`] ends what is still under way first.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Choose a prefill worker that was not asked yet, and send it the prefill leg.
    Prefill,
    /// Send a decode leg with this hand-over.
    Decode(HandOver),
    /// Choose a prefill worker that was not asked yet, and send both legs at once.
    Both,
    /// Wait for the other leg.
    Wait,
    /// Send the client's own request to a decode worker. The plan ends here.
    Plain(Recompute),
    /// The client gets the prefill worker's answer. The plan ends here.
    GivePrefill,
    /// The client gets the decode worker's answer. The plan ends here.
    GiveDecode,
    /// The client gets the last bad answer there was, or hears of the last failure. The plan ends here.
    GiveUp,
    /// The client hears that this leg took too long. The plan ends here.
    TimedOut(LegKind),
}

impl Step {
    /// Whether the plan ends here.
    pub const fn is_last(&self) -> bool {
        match self {
            Self::Prefill | Self::Decode(_) | Self::Both | Self::Wait => false,
            Self::Plain(_) | Self::GivePrefill | Self::GiveDecode | Self::GiveUp | Self::TimedOut(_) => true,
        }
    }
}

/// How often something may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Repeats because of workers that answered badly or broke off.
    pub repeats: u32,
    /// Repeats because of workers that could not be connected to.
    pub unreachable: u32,
    /// Time that a prefill worker keeps blocks for whoever fetches them, in milliseconds.
    pub lease_ms: u64,
    /// The request must not be worked on twice.
    pub once_only: bool,
    /// A decode worker can compute a prompt by itself.
    pub decodes_alone: bool,
}

/// One pair's course.
#[derive(Debug)]
pub struct Plan {
    order: Order,
    limits: Limits,
    prefilled: bool,
    began: bool,
    /// A decode leg may have been read.
    decoding: bool,
    /// A worker was asked for a model that it does not serve.
    was_unserved: bool,
    /// 500s so far, by leg.
    prefill_doubts: u32,
    decode_doubts: u32,
}

impl Plan {
    /// A plan of which nothing has happened. Its first step is [`Plan::first`].
    pub fn new(order: Order, limits: Limits) -> Self {
        Self {
            order,
            limits,
            prefilled: false,
            began: false,
            decoding: false,
            was_unserved: false,
            prefill_doubts: 0,
            decode_doubts: 0,
        }
    }

    /// Where it begins.
    pub fn first(&mut self) -> Step {
        self.start()
    }

    /// From the next attempt on, the legs go in this order.
    pub fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    /// Whether another repeat because of an answer would be allowed.
    pub fn may_repeat(&self) -> bool {
        self.limits.repeats > 0
    }

    /// No further repeats: they would cost more than they may.
    pub fn no_more_repeats(&mut self) {
        self.limits.repeats = 0;
    }

    /// The next step after `happened` at `now_ms`.
    pub fn next(&mut self, happened: Happened, now_ms: u64) -> Step {
        match happened {
            Happened::Prefilled(hand_over) => self.prefilled(hand_over, now_ms),
            Happened::PrefillFailed(failure) => self.prefill_failed(failure),
            Happened::PrefillWasAll => Step::GivePrefill,
            Happened::NotReady => self.unsent(Recompute::NotReady),
            Happened::HandOverUnfit => self.unsent(Recompute::NoHandOver),
            Happened::NoPrefill => self.plain(Recompute::NoPrefill),
            Happened::DecodeBegan => {
                self.began = true;
                if self.order == Order::PrefillFirst || self.prefilled {
                    Step::GiveDecode
                } else {
                    Step::Wait
                }
            }
            Happened::DecodeFailed(failure) => self.decode_failed(failure),
            Happened::DecodeUnsent(hand_over) => {
                self.decoding = false;
                if !self.spend_unreachable() {
                    return Step::GiveUp;
                }
                self.decode(hand_over, now_ms)
            }
            Happened::DecodeUnreachable => {
                self.decoding = false;
                if self.spend_unreachable() { self.start() } else { Step::GiveUp }
            }
            Happened::NoDecode => Step::GiveUp,
        }
    }

    fn start(&mut self) -> Step {
        (self.prefilled, self.began) = (false, false);
        match self.order {
            Order::PrefillFirst => Step::Prefill,
            Order::Both => {
                self.decoding = true;
                Step::Both
            }
        }
    }

    fn prefilled(&mut self, hand_over: Option<HandOver>, now_ms: u64) -> Step {
        self.prefilled = true;
        match (self.order, hand_over) {
            (Order::Both, _) if self.began => Step::GiveDecode,
            (Order::Both, _) => Step::Wait,
            (Order::PrefillFirst, Some(hand_over)) => self.decode(hand_over, now_ms),
            (Order::PrefillFirst, None) => self.plain(Recompute::NoHandOver),
        }
    }

    /// A hand-over is sent while its blocks are there; later they must be computed anew.
    fn decode(&mut self, hand_over: HandOver, now_ms: u64) -> Step {
        if hand_over.is_fresh(now_ms, self.limits.lease_ms) {
            self.decoding = true;
            return Step::Decode(hand_over);
        }
        if self.spend_repeat() { self.start() } else { self.plain(Recompute::PrefillFailed) }
    }

    fn prefill_failed(&mut self, failure: LegFailure) -> Step {
        let again = match failure {
            LegFailure::Rejected => return Step::GivePrefill,
            LegFailure::Unserved if std::mem::replace(&mut self.was_unserved, true) => {
                return Step::GivePrefill;
            }
            LegFailure::TimedOut => return Step::TimedOut(LegKind::Prefill),
            LegFailure::Doubtful if self.prefill_doubts > 0 => return Step::GivePrefill,
            LegFailure::Doubtful => {
                self.prefill_doubts += 1;
                self.spend_repeat()
            }
            LegFailure::Unserved | LegFailure::Busy | LegFailure::Broken => self.spend_repeat(),
            LegFailure::Unreachable => self.spend_unreachable(),
        };
        if self.is_bound() {
            return Step::GiveUp;
        }
        if again { self.start() } else { self.plain(Recompute::PrefillFailed) }
    }

    fn decode_failed(&mut self, failure: LegFailure) -> Step {
        match failure {
            LegFailure::Rejected => return Step::GiveDecode,
            LegFailure::Unserved if std::mem::replace(&mut self.was_unserved, true) => {
                return Step::GiveDecode;
            }
            LegFailure::TimedOut => return Step::TimedOut(LegKind::Decode),
            LegFailure::Unserved
            | LegFailure::Unreachable
            | LegFailure::Busy
            | LegFailure::Doubtful
            | LegFailure::Broken => {}
        }
        if self.is_bound() || !self.spend_repeat() {
            return Step::GiveUp;
        }
        if failure == LegFailure::Doubtful {
            self.decode_doubts += 1;
            if self.decode_doubts > 1 {
                // With a hand-over it failed twice. Without one it may do, and if not, it is the request's fault.
                return self.plain(Recompute::DecodeFailed);
            }
        }
        self.start()
    }

    /// Nothing was sent to the decode worker.
    fn unsent(&mut self, why: Recompute) -> Step {
        self.decoding = false;
        self.plain(why)
    }

    fn plain(&mut self, why: Recompute) -> Step {
        if self.is_bound() || !self.limits.decodes_alone { Step::GiveUp } else { Step::Plain(why) }
    }

    /// Whether the request was sent to a decode worker and must not be sent again.
    fn is_bound(&self) -> bool {
        self.decoding && self.limits.once_only
    }

    fn spend_repeat(&mut self) -> bool {
        spend(&mut self.limits.repeats)
    }

    fn spend_unreachable(&mut self) -> bool {
        spend(&mut self.limits.unreachable)
    }
}

fn spend(left: &mut u32) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

#[cfg(test)]
mod tests;
