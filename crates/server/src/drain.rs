//! Telling connections to finish, at the price of one load for each time a connection is polled.

use std::future::{Future, poll_fn};
use std::pin::Pin;
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
        for waker in self.tasks().wakers.iter().flatten() {
            waker.wake_by_ref();
        }
    }

    /// Drives a connection to its end; `finish` is called once, when it has been told to.
    pub(crate) async fn watch<F: Future>(
        &self,
        mut serving: Pin<&mut F>,
        finish: fn(Pin<&mut F>),
    ) -> F::Output {
        let _place = self.enter(poll_fn(|cx| Poll::Ready(cx.waker().clone())).await);
        let mut told = false;
        poll_fn(|cx| {
            if !told && self.begun.load(Ordering::Acquire) {
                told = true;
                finish(serving.as_mut());
            }
            serving.as_mut().poll(cx)
        })
        .await
    }

    fn enter(&self, waker: Waker) -> Place<'_> {
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
struct Place<'a> {
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
