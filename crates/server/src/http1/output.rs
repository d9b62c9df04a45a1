//! What goes to a client, and what of it still waits. What is small leaves in one piece: a gathering write costs the
//! kernel more than the copy costs here.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// Up to this many bytes are copied together.
const JOINED: usize = 8 * 1024;

thread_local! {
    /// Where heads are written, and small bodies behind them. One for each thread, so that a connection that waits holds
    /// no buffer.
    static PAGE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An empty buffer for the beginning of a write.
pub(super) fn page() -> Vec<u8> {
    let mut page = PAGE.take();
    page.clear();
    page.reserve(JOINED);
    page
}

/// The writing side of a connection.
pub(super) struct Output {
    pub(super) half: OwnedWriteHalf,
    /// What waits, in this order; of the first, what is behind `written`.
    before: Vec<u8>,
    written: usize,
    data: Bytes,
    behind: &'static [u8],
}

impl Output {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self { half, before: Vec::new(), written: 0, data: Bytes::new(), behind: b"" }
    }

    /// Begins to write these, in this order. Nothing else may wait.
    pub(super) fn put(&mut self, before: Vec<u8>, data: Bytes, behind: &'static [u8]) {
        (self.before, self.written, self.data, self.behind) = (before, 0, data, behind);
        if self.before.len() + self.data.len() + behind.len() <= JOINED {
            self.before.extend_from_slice(&std::mem::take(&mut self.data));
            self.before.extend_from_slice(std::mem::take(&mut self.behind));
        }
    }

    /// Ready when nothing waits any more.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let before = &self.before[self.written..];
            let half = Pin::new(&mut self.half);
            let wrote = match (before, &self.data[..], self.behind) {
                ([], [], []) => {
                    self.written = 0;
                    if self.before.capacity() > 0 {
                        PAGE.set(std::mem::take(&mut self.before));
                    }
                    return Poll::Ready(Ok(()));
                }
                (one, [], []) | ([], one, []) | ([], [], one) => half.poll_write(cx, one),
                (before, data, behind) => {
                    let all = [before, data, behind].map(IoSlice::new);
                    half.poll_write_vectored(cx, &all)
                }
            };
            if wrote.is_pending() {
                self.settle();
            }
            match ready!(wrote)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                wrote => self.advance(wrote),
            }
        }
    }

    fn advance(&mut self, wrote: usize) {
        let of_before = wrote.min(self.before.len() - self.written);
        self.written += of_before;
        let of_data = (wrote - of_before).min(self.data.len());
        self.data.advance(of_data);
        self.behind = &self.behind[wrote - of_before - of_data..];
    }

    /// What waits for the client keeps no more memory than it needs.
    fn settle(&mut self) {
        if self.before.capacity() >= JOINED {
            let rest = self.before.split_off(self.written);
            PAGE.set(std::mem::replace(&mut self.before, rest));
            self.written = 0;
        }
    }

    /// The end of the connection is a reset: what was sent is not whole, and nothing else would say so.
    pub(super) fn reset(self) {
        let stream: &TcpStream = self.half.as_ref();
        // If it cannot be set the client has gone already.
        let _gone = stream.set_zero_linger();
        // Dropped, it would say that all has been sent.
        self.half.forget();
    }

    /// Tells the client that nothing more comes.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.half).poll_shutdown(cx)
    }
}
