//! The first half of an exchange: request out, head of the answer in.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use super::conn::{Answer, Conn, ExchangeError, Upstream};
use super::framing::Decoder;
use super::head::{self, Expected, Head};
use super::idle::Home;

thread_local! {
    /// Where the next request's head is written. One for each thread, so that an idle connection holds none.
    pub(super) static PAGE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Up to this many bytes, head and body are copied together: a gathering write costs the kernel more than that.
const JOINED: usize = 8 * 1024;

impl Conn {
    /// Sends `body` behind the head that `write_head` writes, and awaits the head of the response.
    ///
    /// Dropping the future closes the connection, which is how vLLM learns that nobody waits any more.
    pub async fn exchange(
        mut self,
        expected: Expected<'_>,
        write_head: impl FnOnce(&mut Vec<u8>),
        body: &Bytes,
        home: Home<'_>,
    ) -> Result<Answer, ExchangeError> {
        let mut page = PAGE.take();
        page.clear();
        write_head(&mut page);
        let mut sending = Sending::new(page, body);
        let begun = poll_fn(|cx| sending.poll(cx, &mut self, expected)).await?;
        let sent_all = sending.has_sent_all();
        Ok(self.answered(begun, sent_all, home))
    }

    /// The head has come. The connection goes home after the body, if the request has left as a whole.
    pub(super) fn answered(self, begun: Begun, sent_all: bool, home: Home<'_>) -> Answer {
        let Begun { head, first, clean } = begun;
        let Head { status, headers, decoder, keep_alive, .. } = head;
        let home = (keep_alive && sent_all && clean).then(|| (Arc::clone(home.0), home.1));
        let mut upstream = Upstream { conn: Some(self), decoder, first, home };
        upstream.release_if_done();
        Answer { status, headers, body: upstream }
    }
}

/// A head, and the payload that came in one read with it.
pub(super) struct Begun {
    head: Head,
    first: Bytes,
    /// Nothing came that belongs to no message.
    clean: bool,
}

/// The first half of an exchange: request out, head in. Reads while it writes, since a worker may answer before it
/// has read everything.
struct Sending<'b> {
    /// The head, and a small body behind it; given back when all is sent.
    page: Vec<u8>,
    /// The body, if it is not in the page.
    body: &'b [u8],
    /// Bytes of both that have been sent.
    sent: usize,
    /// What has come of a head that one read did not complete.
    head_so_far: Vec<u8>,
}

impl<'b> Sending<'b> {
    fn new(mut page: Vec<u8>, body: &'b [u8]) -> Self {
        let joins = page.len() + body.len() <= JOINED;
        if joins {
            page.extend_from_slice(body);
        }
        Self { page, body: if joins { &[] } else { body }, sent: 0, head_so_far: Vec::new() }
    }

    fn has_sent_all(&self) -> bool {
        self.sent >= self.page.len() + self.body.len()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        conn: &mut Conn,
        expected: Expected<'_>,
    ) -> Poll<Result<Begun, ExchangeError>> {
        // A failed write says nothing yet: the worker may have answered and closed. The read will tell.
        let write_error = match self.poll_write(cx, conn) {
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(())) | Poll::Pending => None,
        };
        poll_head(conn, cx, (expected, &mut self.head_so_far), write_error)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, conn: &mut Conn) -> Poll<io::Result<()>> {
        let mut io = Pin::new(&mut conn.io);
        while !self.has_sent_all() {
            let wrote = match (self.page.get(self.sent..), self.body) {
                (Some(page @ [_, ..]), []) => ready!(io.as_mut().poll_write(cx, page))?,
                (Some(page @ [_, ..]), body) => {
                    ready!(io.as_mut().poll_write_vectored(cx, &[IoSlice::new(page), IoSlice::new(body)]))?
                }
                (_, body) => ready!(io.as_mut().poll_write(cx, &body[self.sent - self.page.len()..]))?,
            };
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += wrote;
        }
        // Only TLS holds anything back.
        ready!(io.as_mut().poll_flush(cx))?;
        if self.page.capacity() > 0 {
            PAGE.set(std::mem::take(&mut self.page));
        }
        Poll::Ready(Ok(()))
    }
}

/// Looks for the head of the answer. `write_error` is why nothing more can be sent, if that is so: what the worker has
/// said before comes first.
pub(super) fn poll_head(
    conn: &mut Conn,
    cx: &mut Context<'_>,
    (expected, so_far): (Expected<'_>, &mut Vec<u8>),
    write_error: Option<io::Error>,
) -> Poll<Result<Begun, ExchangeError>> {
    loop {
        let read = conn.poll_read(cx, |bytes| {
            if so_far.is_empty() {
                return (bytes.is_empty(), take_head(bytes, expected, so_far));
            }
            let mut joined = std::mem::take(so_far);
            joined.extend_from_slice(bytes);
            (bytes.is_empty(), take_head(&joined, expected, so_far))
        });
        let silent = |source| ExchangeError::Silent { reused: conn.reused, source };
        return Poll::Ready(match read {
            Poll::Pending => match write_error {
                Some(error) => Err(silent(error)),
                None => return Poll::Pending,
            },
            Poll::Ready(Ok((_, Ok(Some(done))))) => Ok(done),
            Poll::Ready(Ok((_, Err(error)))) => Err(error),
            Poll::Ready(Ok((false, Ok(None)))) => continue,
            Poll::Ready(_) if !so_far.is_empty() => Err(ExchangeError::InsideHead),
            Poll::Ready(Ok((true, Ok(None)))) => Err(silent(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Err(error)) => Err(silent(error)),
        });
    }
}

/// The head and what followed it; an incomplete head is kept in `so_far`.
fn take_head(
    wire: &[u8],
    expected: Expected<'_>,
    so_far: &mut Vec<u8>,
) -> Result<Option<Begun>, ExchangeError> {
    let Some(mut head) = head::parse_for(wire, expected)? else {
        so_far.extend_from_slice(wire);
        return Ok(None);
    };
    let rest = &wire[head.length..];
    let (first, used) = match head.whole.take() {
        Some(whole) => {
            head.decoder = Decoder::Done;
            let length = whole.len();
            (whole, length)
        }
        None if rest.is_empty() => (Bytes::new(), 0),
        None => head.decoder.decode(rest)?,
    };
    Ok(Some(Begun { head, first, clean: used == rest.len() }))
}
