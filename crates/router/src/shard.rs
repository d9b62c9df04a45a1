//! What one data thread has to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::HeaderValue;

use crate::headers::fresh_id;
use crate::upstream::Idle;

/// State of one data thread. Nothing in it is ever contended.
pub struct Shard {
    /// Connections to workers that wait for a request.
    pub(crate) idle: Arc<Idle>,
    nonce: u64,
    requests: AtomicU64,
    born: Instant,
}

impl Shard {
    /// `nonce` must differ between threads, and between processes: request ids begin with it.
    pub fn new(nonce: u64) -> Self {
        Self { idle: Arc::default(), nonce, requests: AtomicU64::new(0), born: Instant::now() }
    }

    /// Closes idle connections that are too old to be reused. Called once a second.
    pub fn sweep(&self) {
        self.idle.sweep();
    }

    /// An id for a request that came without one.
    pub(crate) fn fresh_id(&self) -> HeaderValue {
        fresh_id(self.nonce, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// A moment in milliseconds on a clock that only goes forward.
    pub(crate) fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.born).as_millis()).unwrap_or(u64::MAX)
    }
}
