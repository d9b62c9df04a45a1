//! Connections that wait for the next request, for each worker a stack: the one used last is the likeliest alive.
//!
//! Each data thread has its own, so that a connection never changes threads and the lock is never contended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_policy::Slot;

use super::conn::Conn;

/// Sweeps, one a second, that a connection may wait through. vLLM closes a connection that was idle for 5 s; ours go
/// after 2 to 3 s, so that a request rarely meets the close.
const KEEP: u64 = 3;

/// Idle connections kept for one worker by one data thread.
const MOST: usize = 1024;

/// The idle connections of one data thread.
#[derive(Default)]
pub struct Idle {
    by_slot: Mutex<Vec<Vec<Waiting>>>,
    /// Sweeps so far: all the clock that is needed, and cheaper to read than one.
    sweeps: AtomicU64,
}

struct Waiting {
    conn: Conn,
    /// Sweeps before it began to wait.
    since: u64,
}

impl Idle {
    /// The most recently used connection to the worker that is still open, if any.
    pub fn take(&self, slot: Slot) -> Option<Conn> {
        let mut by_slot = self.lock();
        let stack = by_slot.get_mut(slot.0 as usize)?;
        while let Some(waiting) = stack.pop() {
            if waiting.conn.is_quiet() {
                return Some(waiting.conn);
            }
        }
        None
    }

    /// Keeps a connection for the next request to the worker.
    pub(super) fn put(&self, slot: Slot, conn: Conn) {
        let mut by_slot = self.lock();
        let slot = slot.0 as usize;
        if by_slot.len() <= slot {
            by_slot.resize_with(slot + 1, Vec::new);
        }
        if by_slot[slot].len() < MOST {
            by_slot[slot].push(Waiting { conn, since: self.sweeps.load(Ordering::Relaxed) });
        }
    }

    /// Closes connections that have waited too long. Called once a second.
    pub fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
        for stack in self.lock().iter_mut() {
            let old = stack.iter().take_while(|waiting| now - waiting.since >= KEEP).count();
            stack.drain(..old);
            if stack.is_empty() {
                stack.shrink_to_fit();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Waiting>>> {
        self.by_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
