//! The hold on new requests while one trial ends and the next begins. Open, it costs whoever passes one load.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Passed by each request when it is admitted.
#[derive(Default)]
pub(crate) struct Gate {
    held: AtomicBool,
    released: Notify,
    left: Notify,
}

impl Gate {
    /// Holds new requests until the result is dropped.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.held.store(true, Ordering::SeqCst);
        Hold(self)
    }

    /// Whether requests are held.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Resolves at the next release, also one that comes before this is polled.
    pub(crate) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    /// A request is no longer under way.
    pub(crate) fn one_left(&self) {
        if self.is_held() {
            self.left.notify_one();
        }
    }

    /// Resolves when a request has left since this resolved last.
    pub(crate) fn left(&self) -> Notified<'_> {
        self.left.notified()
    }
}

/// As long as this lives, requests are held.
pub(crate) struct Hold<'a>(&'a Gate);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::SeqCst);
        self.0.released.notify_waiters();
    }
}
