//! A worker's load together with what its answer will say of it. Each leg gives at most one verdict.

use forebay_workers::Guard;

use crate::clock;
use crate::outcome::Verdict;

/// An exchange under way.
pub(crate) struct Leg {
    guard: Guard,
    /// What it says of the worker if the answer comes whole.
    whole: Verdict,
}

impl Leg {
    /// A leg whose answer has begun.
    pub(crate) fn new(guard: Guard, whole: Verdict) -> Self {
        Self { guard, whole }
    }

    /// Whatever comes of it, nobody knows whose fault it is.
    pub(crate) fn says_nothing(&mut self) {
        self.whole = Verdict::None;
    }

    /// The worker's message has ended.
    pub(crate) fn ended(self) {
        match self.whole {
            Verdict::Success => self.guard.succeeded(),
            Verdict::Failure => self.guard.failed(clock::now_ms()),
            Verdict::None => {}
        }
    }

    /// It broke off, and not because of the client.
    pub(crate) fn broke(self) {
        self.guard.failed(clock::now_ms());
    }
}
