//! An exchange whose request has a body that is still coming: it goes out piece by piece, while the head of the answer is
//! looked out for.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use super::conn::{Answer, Conn, ExchangeError};
use super::exchange::{PAGE, poll_head};
use super::head::Expected;
use super::idle::Home;

/// Where a body comes from, piece by piece.
pub trait Source {
    /// Why it broke off.
    type Error;

    /// The next piece, which is not empty; `None` at the end.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>>;

    /// Bytes of the whole body, if they are known; else it goes out in chunks.
    fn length(&self) -> Option<u64>;
}

/// Why an exchange gave no head of an answer.
pub enum StreamedError<E> {
    /// The worker's side.
    Exchange(ExchangeError),
    /// The body's side.
    Source(E),
}

impl Conn {
    /// Sends what `source` gives behind the head that `write_head` writes, and awaits the head of the response. A worker
    /// that answers before it has read everything is sent no more.
    pub async fn exchange_streamed<S: Source>(
        mut self,
        expected: Expected<'_>,
        write_head: impl FnOnce(&mut Vec<u8>),
        source: S,
        home: Home<'_>,
    ) -> Result<Answer, StreamedError<S::Error>> {
        let mut page = PAGE.take();
        page.clear();
        write_head(&mut page);
        let is_chunked = source.length().is_none();
        let mut sending =
            Sending { before: page, written: 0, data: Bytes::new(), behind: b"", is_chunked, ended: false };
        let (mut source, mut so_far) = (source, Vec::new());
        let begun = poll_fn(|cx| {
            let write_error = match sending.poll(cx, &mut self, &mut source) {
                Poll::Ready(Err(Broken::Source(error))) => {
                    return Poll::Ready(Err(StreamedError::Source(error)));
                }
                Poll::Ready(Err(Broken::Io(error))) => Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => None,
            };
            poll_head(&mut self, cx, (expected, &mut so_far), write_error).map_err(StreamedError::Exchange)
        });
        let begun = begun.await?;
        let sent_all = sending.ended && sending.is_empty();
        Ok(self.answered(begun, sent_all, home))
    }
}

enum Broken<E> {
    Io(io::Error),
    Source(E),
}

/// What is on its way to the worker.
struct Sending {
    /// What waits, in this order; of the first, what is behind `written`.
    before: Vec<u8>,
    written: usize,
    data: Bytes,
    behind: &'static [u8],
    is_chunked: bool,
    /// The source has given everything.
    ended: bool,
}

impl Sending {
    fn is_empty(&self) -> bool {
        self.written == self.before.len() && self.data.is_empty() && self.behind.is_empty()
    }

    /// Ready when all is sent.
    fn poll<S: Source>(
        &mut self,
        cx: &mut Context<'_>,
        conn: &mut Conn,
        source: &mut S,
    ) -> Poll<Result<(), Broken<S::Error>>> {
        loop {
            if let Err(error) = ready!(self.poll_write(cx, conn)) {
                return Poll::Ready(Err(Broken::Io(error)));
            }
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            match ready!(source.poll_piece(cx)) {
                Some(Ok(piece)) => self.put(piece),
                Some(Err(error)) => return Poll::Ready(Err(Broken::Source(error))),
                None => {
                    self.ended = true;
                    self.behind = if self.is_chunked { b"0\r\n\r\n" } else { b"" };
                }
            }
        }
    }

    fn put(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.before.clear();
        self.written = 0;
        if self.is_chunked {
            self.before.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            self.behind = b"\r\n";
        }
        self.data = piece;
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, conn: &mut Conn) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let before = &self.before[self.written..];
            let all = [before, &self.data, self.behind].map(IoSlice::new);
            let wrote = ready!(Pin::new(&mut conn.io).poll_write_vectored(cx, &all))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_before = wrote.min(before.len());
            let of_data = (wrote - of_before).min(self.data.len());
            self.written += of_before;
            self.data.advance(of_data);
            self.behind = &self.behind[wrote - of_before - of_data..];
        }
        // Only TLS holds anything back.
        Pin::new(&mut conn.io).poll_flush(cx)
    }
}
