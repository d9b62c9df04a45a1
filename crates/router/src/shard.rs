//! What one data thread has to itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderValue;

use crate::headers::{ID_LENGTH, id};
use crate::retry::Budget;
use crate::trial::Roll;
use crate::upstream::Idle;

/// State of one data thread. Nothing in it is ever contended.
pub struct Shard {
    /// Connections to workers that wait for a request.
    pub(crate) idle: Arc<Idle>,
    /// What retries may cost.
    pub(crate) budget: Budget,
    ids: Mutex<Ids>,
    nonce: u64,
    draws: AtomicU64,
    /// Its requests under way, with their part of each trial.
    pub(crate) roll: Arc<Roll>,
}

/// Ids for requests that come without one, written many at a time: one allocation serves them all.
struct Ids {
    nonce: u64,
    written: u64,
    /// Those not handed out yet.
    ready: Bytes,
}

/// Ids written at a time.
const AT_A_TIME: u64 = 64;

impl Shard {
    /// `nonce` must differ between threads, and between processes: request ids begin with it.
    pub(crate) fn new(nonce: u64, roll: Arc<Roll>) -> Self {
        let ids = Mutex::new(Ids { nonce, written: 0, ready: Bytes::new() });
        let draws = AtomicU64::new(0);
        Self { idle: Arc::default(), budget: Budget::default(), ids, nonce, draws, roll }
    }

    /// Closes idle connections that are too old to be reused, and lets the budget for retries grow. Called once a second.
    pub fn sweep(&self) {
        self.idle.sweep();
        self.budget.refill();
    }

    /// A number from 0 to 1 that is as good as random.
    pub(crate) fn unit(&self) -> f64 {
        let count = self.draws.fetch_add(1, Ordering::Relaxed);
        let drawn = xxhash_rust::xxh3::xxh3_64_with_seed(&count.to_le_bytes(), self.nonce);
        f64::from((drawn >> 32) as u32) / f64::from(u32::MAX)
    }

    /// An id for a request that came without one.
    pub(crate) fn fresh_id(&self) -> HeaderValue {
        let id = self.ids.lock().unwrap_or_else(PoisonError::into_inner).next();
        // Hexadecimal digits are always a valid value.
        HeaderValue::from_maybe_shared(id).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}

impl Ids {
    fn next(&mut self) -> Bytes {
        if self.ready.is_empty() {
            let first = self.written;
            self.written += AT_A_TIME;
            let ids = (first..self.written).flat_map(|count| id(self.nonce, count));
            self.ready = ids.collect::<Vec<u8>>().into();
        }
        self.ready.split_to(ID_LENGTH)
    }
}
