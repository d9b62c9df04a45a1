//! What one data thread has to itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderValue;

use crate::headers::{ID_LENGTH, id};
use crate::upstream::Idle;

/// State of one data thread. Nothing in it is ever contended.
pub struct Shard {
    /// Connections to workers that wait for a request.
    pub(crate) idle: Arc<Idle>,
    ids: Mutex<Ids>,
    born: Instant,
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
    pub fn new(nonce: u64) -> Self {
        let ids = Mutex::new(Ids { nonce, written: 0, ready: Bytes::new() });
        Self { idle: Arc::default(), ids, born: Instant::now() }
    }

    /// Closes idle connections that are too old to be reused. Called once a second.
    pub fn sweep(&self) {
        self.idle.sweep();
    }

    /// An id for a request that came without one.
    pub(crate) fn fresh_id(&self) -> HeaderValue {
        let id = self.ids.lock().unwrap_or_else(PoisonError::into_inner).next();
        // Hexadecimal digits are always a valid value.
        HeaderValue::from_maybe_shared(id).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }

    /// A moment in milliseconds on a clock that only goes forward.
    pub(crate) fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.born).as_millis()).unwrap_or(u64::MAX)
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
