//! The load of one leg: up when it is made, down when it is dropped, and written nowhere else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_policy::Choice;

use crate::pending::Share;
use crate::worker::{Probe, Worker};

/// One leg in flight on a worker. Not `Clone`. The load falls with the value, or once before, when the worker's message has
/// come whole; the work that is pending for it comes down with the first token.
#[must_use = "the load falls as soon as the guard is dropped"]
pub struct Guard {
    worker: Arc<Worker>,
    /// The trial it belongs to; 0 if no breaker hears of it.
    epoch: u64,
    probe: Probe,
    /// Whether the load has not fallen yet.
    carries: bool,
    /// Whether it is counted at the host as well.
    at_host: bool,
    share: Share,
    /// Tokens to prefill until its first token, when it was made.
    ahead: u64,
}

impl Guard {
    /// Counts one leg in. Made inside the choice, so that the next choice sees it.
    pub(crate) fn new(worker: Arc<Worker>) -> Self {
        worker.count_in();
        Self::counted(worker)
    }

    /// Of a leg that the worker has counted.
    fn counted(worker: Arc<Worker>) -> Self {
        let at_host = worker.host().is_ranked();
        if at_host {
            worker.host().in_flight.fetch_add(1, Ordering::Relaxed);
        }
        let (probe, share) = (Probe::default(), Share::Seen(0));
        Self { worker, epoch: 0, probe, carries: true, at_host, share, ahead: 0 }
    }

    /// The same, with the breakers hearing how it ends, if that is still in this epoch.
    pub(crate) fn heard_in(mut self, epoch: u64, now_ms: u64) -> Self {
        self.epoch = epoch;
        self.probe = self.worker.sent(epoch, now_ms);
        self
    }

    /// The leg is over and the worker did well. A guard that is only dropped says nothing of its worker.
    pub fn succeeded(self) {
        self.worker.succeeded(self.epoch, self.probe);
    }

    /// The leg is over: the worker answered that it failed.
    pub fn failed(self, now_ms: u64) {
        self.worker.failed(self.epoch, self.probe, now_ms);
    }

    /// The leg is over: its connection failed, or went silent.
    pub fn broke(self, now_ms: u64) {
        self.worker.broke(self.epoch, self.probe, now_ms);
    }

    /// The same with the work that was predicted for it. `streamed` says whether its first token will be seen. `None` if
    /// the worker may have no more legs.
    pub(crate) fn of_choice(
        worker: Arc<Worker>,
        choice: &Choice,
        streamed: bool,
        now_ms: u64,
    ) -> Option<Self> {
        let mut guard = worker.count_in_within_bound().then(|| Self::counted(worker))?;
        let tokens = u64::from(choice.uncached_tokens);
        if tokens > 0 {
            let (share, before) = guard.worker.add_pending(tokens, streamed, now_ms);
            (guard.share, guard.ahead) = (share, if streamed { before + tokens } else { 0 });
        }
        Some(guard)
    }

    /// The worker's message has come whole, and it is kept for later what it says of the worker: the load falls now.
    pub fn unload(&mut self) {
        if !std::mem::take(&mut self.carries) {
            return;
        }
        self.worker.probe_ended(self.epoch, self.probe);
        self.worker.pending.give_back(&mut self.share);
        self.worker.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.worker.ended.fetch_add(1, Ordering::SeqCst);
        if self.at_host {
            self.worker.host().in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(places) = &self.worker.bound {
            places.freed();
        }
    }

    /// The worker answered that it failed, and its message has come whole, but who holds this goes on to do so.
    pub fn failed_and_held(&mut self, now_ms: u64) {
        self.worker.failed(self.epoch, self.probe, now_ms);
        self.unload();
    }

    /// The first bytes of the answer's body came, so long after the choice: the prompt is prefilled.
    pub fn first_token(&mut self, took: Duration) {
        self.worker.pending.give_back(&mut self.share);
        self.worker.pace.learn(self.epoch, std::mem::take(&mut self.ahead), took);
    }

    /// The worker that carries the load.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }
}

impl Worker {
    /// Puts a load on it that no policy chose: a request that names its worker.
    pub fn hold(self: &Arc<Self>) -> Guard {
        Guard::new(Arc::clone(self))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.unload();
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({})", self.worker.name())
    }
}
