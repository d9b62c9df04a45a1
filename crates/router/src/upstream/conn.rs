//! One connection to a worker: connect, read the body of an answer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_dial::{Dialer, Stream};
use forebay_workers::WorkerUrl;
use http::{HeaderMap, StatusCode};
use http_body::SizeHint;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Decoder, FramingError};
use super::head::HeadError;
use super::idle::Idle;

thread_local! {
    /// What a read goes into before its payload is copied to a buffer of the right size. One for each thread, so that
    /// a stream that waits for its next token holds no buffer.
    static SCRATCH: RefCell<Box<[u8; 64 * 1024]>> = RefCell::new(Box::new([0; 64 * 1024]));
}

/// An open connection on which nothing is under way.
pub struct Conn {
    pub(super) io: Stream,
    pub(super) reused: bool,
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
    pub async fn open(dialer: &Dialer, url: &WorkerUrl, limit: Duration) -> io::Result<Self> {
        Ok(Self { io: dialer.open(url, limit).await?, reused: false })
    }

    /// Whether the other side has neither closed nor sent anything, as far as the runtime was told. No system call.
    pub(super) fn is_quiet(&self) -> bool {
        self.io.is_quiet()
    }

    /// One read into the thread's scratch; `take` gets what came, empty at the end of the stream.
    pub(super) fn poll_read<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch[..]);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf))?;
            Poll::Ready(Ok(take(buf.filled())))
        })
    }
}

/// The body of a response, read straight from the socket by whoever polls it.
pub struct Upstream {
    pub(super) conn: Option<Conn>,
    pub(super) decoder: Decoder,
    /// Payload that came with the head.
    pub(super) first: Bytes,
    /// Where the connection goes after the body, if it may carry another exchange.
    pub(super) home: Option<(Arc<Idle>, u32)>,
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

    /// Writes to the worker, on a connection that has switched to another protocol.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.conn {
            Some(conn) => Pin::new(&mut conn.io).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Sends what TLS holds back.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.conn.as_mut().map_or(Poll::Ready(Ok(())), |conn| Pin::new(&mut conn.io).poll_flush(cx))
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
    pub(super) fn release_if_done(&mut self) {
        if self.decoder.is_done()
            && let Some(mut conn) = self.conn.take()
            && let Some((idle, host)) = self.home.take()
        {
            conn.reused = true;
            idle.put(host, conn);
        }
    }
}
