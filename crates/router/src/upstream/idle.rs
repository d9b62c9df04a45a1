//! Connections that wait for the next request, for each worker a stack: the one used last is the likeliest alive.
//!
//! Each data thread has its own, so that a connection never changes threads and the lock is never contended.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_policy::Slot;

use super::conn::Conn;

/// vLLM closes a connection that was idle for 5 s; ours go before that, so that a request rarely meets the close.
const KEEP: Duration = Duration::from_secs(3);

/// Idle connections kept for one worker by one data thread.
const MOST: usize = 1024;

/// The idle connections of one data thread.
#[derive(Default)]
pub struct Idle {
    by_slot: Mutex<Vec<Vec<Waiting>>>,
}

struct Waiting {
    conn: Conn,
    since: Instant,
}

impl Idle {
    /// The most recently used connection to the worker that is still open, if any.
    pub fn take(&self, slot: Slot) -> Option<Conn> {
        let mut by_slot = self.lock();
        let stack = by_slot.get_mut(slot.0 as usize)?;
        while let Some(waiting) = stack.pop() {
            if waiting.since.elapsed() < KEEP && waiting.conn.is_quiet() {
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
            by_slot[slot].push(Waiting { conn, since: Instant::now() });
        }
    }

    /// Closes connections that have waited too long. Called once a second.
    pub fn sweep(&self) {
        for stack in self.lock().iter_mut() {
            let old = stack.iter().take_while(|waiting| waiting.since.elapsed() >= KEEP).count();
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
