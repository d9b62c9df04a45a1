//! What a worker was sent, byte for byte, in order of arrival. It judges nothing.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::http;
use crate::lock::Held;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Place in the order in which bodies were complete (or given up), from 0.
    pub order: u64,
    /// Number of the connection, from 0.
    pub connection: u64,
    /// Method as it was sent.
    pub method: String,
    /// Path and query as they were sent.
    pub target: String,
    /// The head, blank line included.
    pub head: Bytes,
    /// The body, without chunk framing.
    pub body: Bytes,
    /// Whether the body came in chunks.
    pub chunked: bool,
    /// Whether all of the body came.
    pub complete: bool,
}

impl Recorded {
    /// First value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        http::header(&self.head, name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Path without query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    on: AtomicBool,
    capacity: usize,
    next: AtomicU64,
    requests: Mutex<VecDeque<Recorded>>,
}

impl Recorder {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            on: AtomicBool::new(capacity > 0),
            capacity: if capacity == 0 { 4096 } else { capacity },
            next: AtomicU64::new(0),
            requests: Mutex::new(VecDeque::new()),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub(crate) fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    pub(crate) fn push(&self, mut recorded: Recorded) {
        let mut requests = self.requests.held();
        recorded.order = self.next.fetch_add(1, Relaxed);
        if requests.len() == self.capacity {
            requests.pop_front();
        }
        requests.push_back(recorded);
    }

    pub(crate) fn all(&self) -> Vec<Recorded> {
        self.requests.held().iter().cloned().collect()
    }

    pub(crate) fn take(&self) -> Vec<Recorded> {
        self.requests.held().drain(..).collect()
    }
}
