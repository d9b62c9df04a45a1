//! A worker's load together with what its answer will say of it. Each leg gives at most one verdict.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_workers::{Guard, Worker};

use crate::clock;
use crate::outcome::Verdict;

/// An exchange under way.
pub(crate) struct Leg {
    guard: Guard,
    /// What it says of the worker if the answer comes whole.
    whole: Verdict,
    /// When the worker was chosen, on the process's clock.
    chosen_ms: u64,
}

impl Leg {
    /// A leg whose answer has begun.
    pub(crate) fn new(guard: Guard, whole: Verdict, chosen_ms: u64) -> Self {
        Self { guard, whole, chosen_ms }
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Arc<Worker> {
        self.guard.worker()
    }

    /// The first of what was asked for came, so long after the request did. What went by before the choice is not the
    /// worker's.
    pub(crate) fn first_token(&mut self, requested: Instant, took: Duration) {
        let before = self.chosen_ms.saturating_sub(clock::millis(requested));
        self.guard.first_token(took.saturating_sub(Duration::from_millis(before)));
    }

    /// Whatever comes of it, nobody knows whose fault it is.
    pub(crate) fn says_nothing(&mut self) {
        self.whole = Verdict::None;
    }

    /// The worker's message has ended, and is kept while others are asked: the load falls now. So does the verdict, unless
    /// others tell whose fault it was.
    pub(crate) fn kept(&mut self, others_tell: bool) {
        if self.whole == Verdict::Failure && !others_tell {
            self.whole = Verdict::None;
            self.guard.failed_and_held(clock::now_ms());
        }
        self.guard.unload();
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
        self.guard.broke(clock::now_ms());
    }
}
