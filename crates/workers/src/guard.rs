//! The load of one leg: up when it is made, down when it is dropped, and written nowhere else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::worker::Worker;

/// One leg in flight on a worker. Not `Clone`, and no method lowers the load: it falls with the value.
#[must_use = "the load falls as soon as the guard is dropped"]
pub struct Guard {
    worker: Arc<Worker>,
    /// The trial it belongs to; 0 if no breaker hears of it.
    epoch: u64,
    is_probe: bool,
}

impl Guard {
    /// Counts one leg in. Made inside the choice, so that the next choice sees it.
    pub(crate) fn new(worker: Arc<Worker>) -> Self {
        worker.in_flight.fetch_add(1, Ordering::SeqCst);
        worker.started.fetch_add(1, Ordering::SeqCst);
        Self { worker, epoch: 0, is_probe: false }
    }

    /// The same, with the worker's breaker hearing how it ends, if that is still in this epoch.
    pub(crate) fn heard_in(mut self, epoch: u64, now_ms: u64) -> Self {
        self.epoch = epoch;
        self.is_probe = self.worker.sent(epoch, now_ms);
        self
    }

    /// The leg is over and the worker did well. A guard that is only dropped says nothing of its worker.
    pub fn succeeded(self) {
        self.worker.succeeded(self.epoch, self.is_probe);
    }

    /// The leg is over and the worker failed it.
    pub fn failed(self, now_ms: u64) {
        self.worker.failed(self.epoch, self.is_probe, now_ms);
    }

    /// The worker that carries the load.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_probe {
            self.worker.probe_ended(self.epoch);
        }
        self.worker.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.worker.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({})", self.worker.name())
    }
}
