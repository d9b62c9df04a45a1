//! The load of one leg: up when it is made, down when it is dropped, and written nowhere else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::worker::Worker;

/// One leg in flight on a worker. Not `Clone`, and no method lowers the load: it falls with the value.
#[must_use = "the load falls as soon as the guard is dropped"]
pub struct Guard {
    worker: Arc<Worker>,
}

impl Guard {
    /// Counts one leg in. Made inside the choice, so that the next choice sees it.
    pub(crate) fn new(worker: Arc<Worker>) -> Self {
        worker.in_flight.fetch_add(1, Ordering::SeqCst);
        worker.started.fetch_add(1, Ordering::SeqCst);
        Self { worker }
    }

    /// The worker that carries the load.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.worker.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.worker.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({})", self.worker.name())
    }
}
