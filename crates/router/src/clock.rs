//! The process's clock in whole milliseconds: the same on all threads, so that times which meet in a worker can be
//! compared.

use std::sync::LazyLock;
use std::time::Instant;

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A moment in milliseconds since the process first asked; 0 for what was before.
pub(crate) fn millis(at: Instant) -> u64 {
    u64::try_from(at.duration_since(*ORIGIN).as_millis()).unwrap_or(u64::MAX)
}

/// Now.
pub(crate) fn now_ms() -> u64 {
    millis(Instant::now())
}
