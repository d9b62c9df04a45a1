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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::pin::pin;
    use std::time::Duration;

    use bytes::Bytes;
    use forebay_router::ResponseBody;
    use http::Response;

    use super::*;
    use crate::http1::connection::{self, Patience};

    #[tokio::test]
    async fn the_first_request_of_a_connection_is_answered_although_the_end_has_begun() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let limit = Duration::from_secs(60);
        let patience = Patience { head: limit, idle: limit, whole: None, body: None };
        let drain = Drain::default();
        let service = |_, _| async { Response::new(ResponseBody::Whole(Bytes::from_static(b"late"))) };
        let mut serving = pin!(connection::serve(stream, service, patience, &drain));
        for _ in 0..3 {
            assert!(poll_fn(|cx| Poll::Ready(serving.as_mut().poll(cx).is_pending())).await);
            drain.begin();
        }
        client.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        assert!(serving.await.is_none());
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\r\nconnection: close\r\n") && answer.ends_with("late"), "{answer}");
    }
}
