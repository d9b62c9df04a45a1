//! One connection to a worker: connect, send, await the head, read the body.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_workers::WorkerUrl;
use http::{HeaderMap, Method, StatusCode};
use http_body::SizeHint;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::dial::dial;
use super::framing::{Decoder, FramingError};
use super::head::{self, Head, HeadError};
use super::idle::Idle;

thread_local! {
    /// What a read goes into before its payload is copied to a buffer of the right size. One for each thread, so that
    /// a stream that waits for its next token holds no buffer.
    static SCRATCH: RefCell<Box<[u8; 64 * 1024]>> = RefCell::new(Box::new([0; 64 * 1024]));

    /// Where the next request's head is written. One for each thread, so that an idle connection holds none.
    static PAGE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Up to this many bytes, head and body are copied together: a gathering write costs the kernel more than that.
const JOINED: usize = 8 * 1024;

/// An open connection on which nothing is under way.
pub struct Conn {
    io: TcpStream,
    reused: bool,
}

/// A response whose body is still to be read.
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Headers for the client.
    pub headers: HeaderMap,
    /// The body.
    pub body: Upstream,
}

/// Why an exchange gave no response head.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection ended or broke before the first byte of a response.
    #[error("connection ended before the response: {source}")]
    Silent {
        /// It had carried an exchange before, so that its end may have been due to its age.
        reused: bool,
        /// What the socket said.
        source: io::Error,
    },
    /// It ended inside the head.
    #[error("connection ended inside the response head")]
    InsideHead,
    /// It ended behind the head, before anything of the body had come.
    #[error("connection ended before the response body")]
    BeforeBody,
    /// What came was no HTTP response.
    #[error("invalid response: {0}")]
    Head(#[from] HeadError),
    /// The body broke its framing right behind the head.
    #[error("invalid response body: {0}")]
    Framing(#[from] FramingError),
}

impl ExchangeError {
    /// Whether the worker ended the exchange before its answer had begun, so that it has said nothing.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::InsideHead | Self::BeforeBody)
    }
}

impl Conn {
    /// Opens a connection. The time limit is for each address that the host's name has.
    pub async fn open(url: &WorkerUrl, limit: Duration) -> io::Result<Self> {
        let io = dial(url.host(), url.port(), limit).await?;
        io.set_nodelay(true)?;
        Ok(Self { io, reused: false })
    }

    /// Whether the other side has neither closed nor sent anything, as far as the runtime was told. No system call.
    pub(super) fn is_quiet(&self) -> bool {
        self.io.poll_read_ready(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Sends `body` behind the head that `write_head` writes, and awaits the head of the response.
    ///
    /// Dropping the future closes the connection, which is how vLLM learns that nobody waits any more.
    pub async fn exchange(
        mut self,
        method: &Method,
        write_head: impl FnOnce(&mut Vec<u8>),
        body: &Bytes,
        home: (&Arc<Idle>, u32),
    ) -> Result<Answer, ExchangeError> {
        let mut page = PAGE.take();
        page.clear();
        write_head(&mut page);
        let mut sending = Sending::new(page, body);
        let Begun { head, first, clean } = poll_fn(|cx| sending.poll(cx, &mut self, method)).await?;
        let sent_all = sending.has_sent_all();
        let Head { status, headers, decoder, keep_alive, .. } = head;
        let home = (keep_alive && sent_all && clean).then(|| (Arc::clone(home.0), home.1));
        let mut upstream = Upstream { conn: Some(self), decoder, first, home };
        upstream.release_if_done();
        Ok(Answer { status, headers, body: upstream })
    }

    /// One read into the thread's scratch; `take` gets what came, empty at the end of the stream.
    fn poll_read<T>(&mut self, cx: &mut Context<'_>, take: impl FnOnce(&[u8]) -> T) -> Poll<io::Result<T>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch[..]);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf))?;
            Poll::Ready(Ok(take(buf.filled())))
        })
    }
}

/// A head, and the payload that came in one read with it.
struct Begun {
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
        method: &Method,
    ) -> Poll<Result<Begun, ExchangeError>> {
        // A failed write says nothing yet: the worker may have answered and closed. The read will tell.
        let write_error = match self.poll_write(cx, conn) {
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(())) | Poll::Pending => None,
        };
        loop {
            let so_far = &mut self.head_so_far;
            let read = conn.poll_read(cx, |bytes| {
                if so_far.is_empty() {
                    return (bytes.is_empty(), take_head(bytes, method, so_far));
                }
                let mut joined = std::mem::take(so_far);
                joined.extend_from_slice(bytes);
                (bytes.is_empty(), take_head(&joined, method, so_far))
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
                Poll::Ready(_) if !self.head_so_far.is_empty() => Err(ExchangeError::InsideHead),
                Poll::Ready(Ok((true, Ok(None)))) => Err(silent(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Err(error)) => Err(silent(error)),
            });
        }
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
        if self.page.capacity() > 0 {
            PAGE.set(std::mem::take(&mut self.page));
        }
        Poll::Ready(Ok(()))
    }
}

/// The head and what followed it; an incomplete head is kept in `so_far`.
fn take_head(wire: &[u8], method: &Method, so_far: &mut Vec<u8>) -> Result<Option<Begun>, ExchangeError> {
    let Some(mut head) = head::parse(wire, method)? else {
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

/// The body of a response, read straight from the socket by whoever polls it.
pub struct Upstream {
    conn: Option<Conn>,
    decoder: Decoder,
    /// Payload that came with the head.
    first: Bytes,
    /// Where the connection goes after the body, if it may carry another exchange.
    home: Option<(Arc<Idle>, u32)>,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The socket failed.
    #[error("connection broke inside the response: {0}")]
    Io(#[from] io::Error),
    /// The framing failed, or the connection ended too early.
    #[error("response broke off: {0}")]
    Framing(#[from] FramingError),
}

impl Upstream {
    /// Reads until there is something of the body to hand out, or nothing more to come.
    pub async fn begin(&mut self) -> Result<(), ExchangeError> {
        if !self.first.is_empty() {
            return Ok(());
        }
        match poll_fn(|cx| self.poll_chunk(cx)).await {
            Some(Ok(chunk)) => self.first = chunk,
            None => {}
            Some(Err(BodyError::Io(_) | BodyError::Framing(FramingError::Truncated))) => {
                return Err(ExchangeError::BeforeBody);
            }
            Some(Err(BodyError::Framing(error))) => return Err(error.into()),
        }
        Ok(())
    }

    /// A body that has come already.
    pub fn ready(body: Bytes) -> Self {
        Self { conn: None, decoder: Decoder::Done, first: body, home: None }
    }

    /// Puts back what was read and is to be read again.
    pub fn unread(&mut self, came: Bytes) {
        self.first = came;
    }

    /// Whether the whole message has been read from the worker; its payload may still wait to be handed out.
    pub fn at_end(&self) -> bool {
        self.decoder.is_done()
    }

    /// Whether everything was read and handed out.
    pub fn is_finished(&self) -> bool {
        self.at_end() && self.first.is_empty()
    }

    /// How much is still to come, if the worker said so.
    pub fn size_hint(&self) -> SizeHint {
        let ready = self.first.len() as u64;
        match self.decoder {
            Decoder::Done => SizeHint::with_exact(ready),
            Decoder::Length(left) => SizeHint::with_exact(ready + left),
            Decoder::Chunked(_) | Decoder::UntilClose => SizeHint::default(),
        }
    }

    /// What the next read gives, all of it; `None` at the end of the message.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        while let (false, Some(conn)) = (self.decoder.is_done(), self.conn.as_mut()) {
            let decoder = &mut self.decoder;
            let read = ready!(conn.poll_read(cx, |bytes| {
                match bytes {
                    [] => decoder.end().map(|()| (Bytes::new(), true)),
                    _ => decoder.decode(bytes).map(|(payload, used)| (payload, used == bytes.len())),
                }
            }));
            let (payload, clean) = match read.map_err(BodyError::from).and_then(|decoded| Ok(decoded?)) {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.conn = None;
                    return Poll::Ready(Some(Err(error)));
                }
            };
            if !clean {
                self.home = None;
            }
            self.release_if_done();
            if !payload.is_empty() {
                return Poll::Ready(Some(Ok(payload)));
            }
        }
        Poll::Ready(None)
    }

    /// Reads a body of known length up to `limit` to its end, and keeps it for whoever reads next. `None` if it is longer,
    /// or nobody knows.
    pub async fn read_ahead(&mut self, limit: u64) -> Result<Option<Bytes>, BodyError> {
        if self.size_hint().exact().is_none_or(|length| length > limit) {
            return Ok(None);
        }
        let mut all = Vec::new();
        while let Some(chunk) = poll_fn(|cx| self.poll_chunk(cx)).await {
            all.extend_from_slice(&chunk?);
        }
        self.first = all.into();
        Ok(Some(self.first.clone()))
    }

    /// Ends it now: the worker's connection closes.
    pub fn close(&mut self) {
        self.conn = None;
        self.home = None;
    }

    /// All of the body, for answers that the router itself reads.
    pub async fn collect(mut self, limit: usize) -> Result<Vec<u8>, BodyError> {
        let mut all = Vec::new();
        while let Some(chunk) = poll_fn(|cx| self.poll_chunk(cx)).await {
            all.extend_from_slice(&chunk?);
            if all.len() > limit {
                return Err(BodyError::Io(io::ErrorKind::FileTooLarge.into()));
            }
        }
        Ok(all)
    }

    /// At the end of the message the connection goes home at once, not when the client has read the rest.
    fn release_if_done(&mut self) {
        if self.decoder.is_done()
            && let Some(mut conn) = self.conn.take()
            && let Some((idle, host)) = self.home.take()
        {
            conn.reused = true;
            idle.put(host, conn);
        }
    }
}
