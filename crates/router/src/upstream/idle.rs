//! Connections that wait for the next request, for each URL a stack: the one used last is the likeliest alive.
//!
//! Each data thread has its own, so that a connection never changes threads and the lock is never contended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::conn::Conn;

/// Sweeps, one a second, that a connection may wait through. vLLM closes a connection that was idle for 5 s; ours go
/// after 2 to 3 s, so that a request rarely meets the close.
const KEEP: u64 = 3;

/// Idle connections kept for one URL by one data thread.
const MOST: usize = 1024;

/// Where a connection goes when its exchange is over: the idle ones of its thread, under the number of its host.
pub type Home<'a> = (&'a Arc<Idle>, u32);

/// The idle connections of one data thread.
#[derive(Default)]
pub struct Idle {
    by_host: Mutex<Vec<Vec<Waiting>>>,
    /// Sweeps so far: all the clock that is needed, and cheaper to read than one.
    sweeps: AtomicU64,
}

struct Waiting {
    conn: Conn,
    /// Sweeps before it began to wait.
    since: u64,
}

impl Idle {
    /// The most recently used connection to the host of this number that is still open, if any.
    pub fn take(&self, host: u32) -> Option<Conn> {
        let mut by_host = self.lock();
        let stack = by_host.get_mut(host as usize)?;
        while let Some(waiting) = stack.pop() {
            if waiting.conn.is_quiet() {
                return Some(waiting.conn);
            }
        }
        None
    }

    /// Keeps a connection for the next request to the host of this number.
    pub(super) fn put(&self, host: u32, conn: Conn) {
        let mut by_host = self.lock();
        let host = host as usize;
        if by_host.len() <= host {
            by_host.resize_with(host + 1, Vec::new);
        }
        if by_host[host].len() < MOST {
            by_host[host].push(Waiting { conn, since: self.sweeps.load(Ordering::Relaxed) });
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
        self.by_host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
