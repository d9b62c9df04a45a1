//! What one data thread has to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

use crate::headers::fresh_id;
use crate::retry::Budget;
use crate::upstream::Idle;

/// State of one data thread. Nothing in it is ever contended.
pub struct Shard {
    /// Connections to workers that wait for a request.
    pub(crate) idle: Arc<Idle>,
    /// What retries may cost.
    pub(crate) budget: Budget,
    nonce: u64,
    requests: AtomicU64,
}

impl Shard {
    /// `nonce` must differ between threads, and between processes: request ids begin with it.
    pub fn new(nonce: u64) -> Self {
        Self { idle: Arc::default(), budget: Budget::default(), nonce, requests: AtomicU64::new(0) }
    }

    /// Closes idle connections that are too old to be reused, and lets the budget for retries grow. Called once a second.
    pub fn sweep(&self) {
        self.idle.sweep();
        self.budget.refill();
    }

    /// A number from 0 to 1 that is as good as random.
    pub(crate) fn unit(&self) -> f64 {
        let count = self.requests.fetch_add(1, Ordering::Relaxed);
        let drawn = xxhash_rust::xxh3::xxh3_64_with_seed(&count.to_le_bytes(), self.nonce);
        f64::from((drawn >> 32) as u32) / f64::from(u32::MAX)
    }

    /// An id for a request that came without one.
    pub(crate) fn fresh_id(&self) -> HeaderValue {
        fresh_id(self.nonce, self.requests.fetch_add(1, Ordering::Relaxed))
    }
}
