//! HTTP/2 for clients that begin with it: the connection's streams are requests like any other. It knows nothing of routes
//! and workers.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::header::HOST;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::door::Door;
use crate::drain::Drain;
use crate::http1::body::RequestBody;

/// What a client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Requests that a client may have under way on one connection.
const STREAMS: u32 = 1024;

/// Largest head of a request, in bytes, as for HTTP/1.1.
const HEAD_LIMIT: u32 = 128 * 1024;

/// What a client may send ahead on one stream, in bytes: as much as on a connection of HTTP/1.1.
const STREAM_WINDOW: u32 = 128 * 1024;

/// The same for all of its connection together. All streams have room in it: requests that wait for a place are not read,
/// and must not take the room of those that have one and would never end without it.
const WINDOW: u32 = STREAMS * STREAM_WINDOW;

/// How long a client that has been told of the end may be silent, when nothing is under way for it.
const GOODBYE: Duration = Duration::from_secs(3);

/// How much longer than it may take a request is left to end by itself, with a word to the client that reads.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Whether a client speaks HTTP/2 that begins so.
pub(crate) fn begins(came: &[u8]) -> bool {
    let length = came.len().min(PREFACE.len());
    length > 4 && came[..length] == PREFACE[..length]
}

/// A connection of which something has been read already.
pub(crate) struct Begun {
    pub came: BytesMut,
    pub stream: TcpStream,
    /// Reads that gave something.
    pub heard: Arc<AtomicU64>,
}

/// Serves a connection to its end.
pub(crate) async fn serve(begun: Begun, peer: SocketAddr, door: &Arc<Door>, drain: &Arc<Drain>) {
    let limit = door.patience.whole.map(|limit| limit.saturating_add(LAST_WORDS));
    let streams = Streams { tasks: TaskTracker::new(), drain: Arc::clone(drain), limit };
    let requests = Arc::new(AtomicU64::new(0));
    let (count, entered) = (Arc::clone(&requests), Arc::clone(door));
    let service = service_fn(move |request: Request<Incoming>| {
        count.fetch_add(1, Ordering::Relaxed);
        let (mut head, body) = request.into_parts();
        // What HTTP/1.1 says in a header, and who may do what is decided by.
        if let (Some(authority), false) = (head.uri.authority(), head.headers.contains_key(HOST))
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            head.headers.insert(HOST, host);
        }
        let answered = entered.enter(peer, Box::new(head), RequestBody::of_stream(body));
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let mut builder = http2::Builder::new(streams.clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_LIMIT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW);
    let heard = Arc::clone(&begun.heard);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(begun), service));
    let _place = drain.enter().await;
    let mut idle = Idle::new(door.patience.idle);
    let mut goodbye = None;
    let ended = poll_fn(|cx| {
        let is_quiet = streams.tasks.is_empty();
        let goodbye = match &mut goodbye {
            Some(goodbye) => goodbye,
            none => {
                let is_idle = idle.poll(cx, requests.load(Ordering::Relaxed), is_quiet);
                if !is_idle && !drain.has_begun() {
                    return connection.as_mut().poll(cx);
                }
                connection.as_mut().graceful_shutdown();
                none.insert(Goodbye::new(heard.load(Ordering::Relaxed)))
            }
        };
        if goodbye.poll(cx, heard.load(Ordering::Relaxed), is_quiet) {
            return Poll::Ready(Ok(()));
        }
        connection.as_mut().poll(cx)
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a connection of HTTP/2 broke off");
    }
}

/// Notices that nothing is asked for a while.
struct Idle {
    limit: Duration,
    timer: Pin<Box<tokio::time::Sleep>>,
    /// Requests when the timer was set.
    seen: u64,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Self { limit, timer: Box::pin(sleep(limit)), seen: 0 }
    }

    /// Whether nothing was asked, and nothing was under way, for once to twice the limit.
    fn poll(&mut self, cx: &mut Context<'_>, requests: u64, is_quiet: bool) -> bool {
        while self.timer.as_mut().poll(cx).is_ready() {
            if is_quiet && requests == self.seen {
                return true;
            }
            self.seen = requests;
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        false
    }
}

/// Notices that the client does not hear that the connection ends: it would have to say that it has.
struct Goodbye {
    timer: Pin<Box<tokio::time::Sleep>>,
    /// What had been heard of the client when it was told.
    heard: u64,
}

impl Goodbye {
    fn new(heard: u64) -> Self {
        Self { timer: Box::pin(sleep(GOODBYE)), heard }
    }

    /// Whether nothing has been heard since, and nothing is under way. Who has said a word may take its time: what it has
    /// not taken in yet is still written.
    fn poll(&mut self, cx: &mut Context<'_>, heard: u64, is_quiet: bool) -> bool {
        while self.timer.as_mut().poll(cx).is_ready() {
            if is_quiet && heard == self.heard {
                return true;
            }
            self.timer.as_mut().reset(Instant::now() + GOODBYE);
        }
        false
    }
}

/// The tasks of a connection's streams. Each is polled when all are to end, as connections are.
#[derive(Clone)]
struct Streams {
    tasks: TaskTracker,
    drain: Arc<Drain>,
    /// How long one may take: as long as its client takes in nothing, nobody asks its answer for more.
    limit: Option<Duration>,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let (drain, limit) = (Arc::clone(&self.drain), self.limit);
        self.tasks.spawn(async move {
            let _place = drain.enter().await;
            match limit {
                Some(limit) => drop(timeout(limit, stream).await),
                None => drop(stream.await),
            }
        });
    }
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.came.is_empty() {
            let before = into.filled().len();
            let read = Pin::new(&mut self.stream).poll_read(cx, into);
            if into.filled().len() > before {
                self.heard.fetch_add(1, Ordering::Relaxed);
            }
            return read;
        }
        let length = self.came.len().min(into.remaining());
        into.put_slice(&self.came[..length]);
        self.came.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_2_is_told_by_its_first_bytes() {
        assert!(begins(PREFACE) && begins(b"PRI * HTTP/2") && begins(&[PREFACE, b"more"].concat()));
        for other in
            [&b""[..], b"PRI ", b"PRI / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX"]
        {
            assert!(!begins(other), "{other:?}");
        }
    }
}
