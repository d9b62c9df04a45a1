//! Telling connections to finish, at the price of one load for each time a connection is polled.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The connections of one data thread, and whether they have been told to finish.
#[derive(Default)]
pub(crate) struct Drain {
    begun: AtomicBool,
    tasks: Mutex<Tasks>,
}

/// Wakers of the connections' tasks; a task's waker stays the same for its life.
#[derive(Default)]
struct Tasks {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl Drain {
    /// Tells all connections, those that come later too.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.wake();
    }

    /// Has all connections polled, because something changed that they look at.
    pub(crate) fn wake(&self) {
        for waker in self.tasks().wakers.iter().flatten() {
            waker.wake_by_ref();
        }
    }

    /// Whether they have been told.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// The task that awaits this will be woken when it begins, for as long as the place is held.
    pub(crate) async fn enter(&self) -> Place<'_> {
        self.place(poll_fn(|cx| Poll::Ready(cx.waker().clone())).await)
    }

    fn place(&self, waker: Waker) -> Place<'_> {
        let mut tasks = self.tasks();
        let at = tasks.free.pop().unwrap_or(tasks.wakers.len());
        if at == tasks.wakers.len() {
            tasks.wakers.push(None);
        }
        tasks.wakers[at] = Some(waker);
        Place { drain: self, at }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place, given back by drop.
pub(crate) struct Place<'a> {
    drain: &'a Drain,
    at: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut tasks = self.drain.tasks();
        tasks.wakers[self.at] = None;
        tasks.free.push(self.at);
    }
}
