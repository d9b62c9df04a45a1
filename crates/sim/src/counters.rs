//! What a worker counts, and waiting for a count. Requests are counted as the worker sees them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

/// Counts of one worker at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open_connections: u64,
    /// Requests whose head was read.
    pub arrived: u64,
    /// Of these, requests that are not over yet.
    pub open_requests: u64,
    /// Of these, requests that carry a prompt.
    pub open_inference: u64,
    /// Requests answered to the last byte, whatever the status.
    pub served: u64,
    /// Of these, requests that carry a prompt.
    pub served_inference: u64,
    /// Requests given up because the client left.
    pub aborted: u64,
    /// Requests cut by a fault or by the worker's stop.
    pub cut: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    connections: AtomicU64,
    open_connections: AtomicU64,
    arrived: AtomicU64,
    open_requests: AtomicU64,
    open_inference: AtomicU64,
    served: AtomicU64,
    served_inference: AtomicU64,
    aborted: AtomicU64,
    cut: AtomicU64,
    changed: Notify,
}

impl Counters {
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            connections: self.connections.load(Relaxed),
            open_connections: self.open_connections.load(Relaxed),
            arrived: self.arrived.load(Relaxed),
            open_requests: self.open_requests.load(Relaxed),
            open_inference: self.open_inference.load(Relaxed),
            served: self.served.load(Relaxed),
            served_inference: self.served_inference.load(Relaxed),
            aborted: self.aborted.load(Relaxed),
            cut: self.cut.load(Relaxed),
        }
    }

    /// Tells everybody who waits for a count or for something kept elsewhere that they should look again.
    pub(crate) fn announce(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `ready` gives a value; it is asked again after each change.
    pub(crate) async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = ready() {
                return value;
            }
            changed.await;
        }
    }

    pub(crate) fn open_connection(&self) -> OpenConnection<'_> {
        self.connections.fetch_add(1, Relaxed);
        self.open_connections.fetch_add(1, Relaxed);
        self.announce();
        OpenConnection { counters: self }
    }

    pub(crate) fn open_request(&self, inference: bool) -> OpenRequest<'_> {
        self.arrived.fetch_add(1, Relaxed);
        self.open_requests.fetch_add(1, Relaxed);
        self.open_inference.fetch_add(u64::from(inference), Relaxed);
        self.announce();
        OpenRequest { counters: self, inference, end: RequestEnd::Cut }
    }
}

/// One connection in the gauge.
pub(crate) struct OpenConnection<'a> {
    counters: &'a Counters,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.counters.open_connections.fetch_sub(1, Relaxed);
        self.counters.announce();
    }
}

/// How a request ended for the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    Served,
    Aborted,
    Cut,
}

/// One request in the gauges. It counts as cut unless told otherwise.
pub(crate) struct OpenRequest<'a> {
    counters: &'a Counters,
    inference: bool,
    end: RequestEnd,
}

impl OpenRequest<'_> {
    /// Takes the request out of the gauges.
    pub(crate) fn end(mut self, end: RequestEnd) {
        self.end = end;
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let inference = u64::from(self.inference);
        self.counters.open_inference.fetch_sub(inference, Relaxed);
        self.counters.open_requests.fetch_sub(1, Relaxed);
        match self.end {
            RequestEnd::Served => {
                self.counters.served_inference.fetch_add(inference, Relaxed);
                self.counters.served.fetch_add(1, Relaxed)
            }
            RequestEnd::Aborted => self.counters.aborted.fetch_add(1, Relaxed),
            RequestEnd::Cut => self.counters.cut.fetch_add(1, Relaxed),
        };
        self.counters.announce();
    }
}
