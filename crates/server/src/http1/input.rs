//! What a client sends: heads as they come, bodies when they are asked for. It decides nothing about requests.

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use forebay_router::upstream::framing::Decoder;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

use super::body::{BodyError, RequestBody};
use super::head::{self, HEAD_LIMIT, Head, HeadError};
use super::{SCRATCH, SCRATCH_SIZE};

/// Largest piece in which a body of known length is handed out, in bytes. One that is not larger is never copied.
const PIECE: usize = 2 * 1024 * 1024;

/// The reading side of a connection.
pub(super) struct Input {
    pub(super) half: OwnedReadHalf,
    /// What came and has not been taken: part of a head, or what was sent ahead.
    pub(super) ahead: BytesMut,
    /// Bytes at the start of `ahead` that have been looked at and hold no whole head.
    looked_at: usize,
    /// How the rest of the present request's body is read.
    pub(super) body: Decoder,
    /// The piece of the body that is being read.
    piece: BytesMut,
    /// It is handed out as it comes, in pieces that are not larger than one read.
    pub(super) as_it_comes: bool,
    /// The client waits to be told to send the body.
    awaits_continue: bool,
    /// The body is wanted: it should be told.
    pub(super) wants_continue: bool,
}

/// The reading side, shared by the connection and the body of its present request. One task uses both.
pub(super) type Shared = Arc<Mutex<Input>>;

/// A request's head and body.
pub(super) struct Incoming {
    pub(super) head: Head,
    pub(super) body: RequestBody,
}

/// What waiting for a head came to.
pub(super) enum Next {
    Request(Incoming),
    /// The client has closed.
    End,
    Refused(HeadError),
}

impl Input {
    pub(super) fn shared(half: OwnedReadHalf) -> Shared {
        Arc::new(Mutex::new(Self {
            half,
            ahead: BytesMut::new(),
            looked_at: 0,
            body: Decoder::Done,
            piece: BytesMut::new(),
            as_it_comes: false,
            awaits_continue: false,
            wants_continue: false,
        }))
    }

    /// Whether part of a request has come.
    pub(super) fn has_begun(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The next request.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>, shared: &Shared) -> Poll<Next> {
        loop {
            if self.ahead.len() > self.looked_at {
                let mut ahead = std::mem::take(&mut self.ahead);
                ahead.advance(blank(&ahead));
                let taken = self.take(&ahead, shared);
                if let Ok(Some((_, used))) = &taken {
                    ahead.advance(*used);
                }
                self.ahead = ahead;
                self.looked_at = self.ahead.len();
                if let Some(next) = self.taken(taken) {
                    return Poll::Ready(next);
                }
            }
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let bytes = ready!(poll_read(&mut self.half, cx, &mut scratch[..]))?;
                Poll::Ready(io::Result::Ok(self.look_at(bytes, shared)))
            });
            match ready!(read) {
                Ok(None) => {}
                Ok(Some(next)) => return Poll::Ready(next),
                Err(_) => return Poll::Ready(Next::End),
            }
        }
    }

    /// What one read came to; `None` if a head has not come to its end.
    fn look_at(&mut self, bytes: &[u8], shared: &Shared) -> Option<Next> {
        if bytes.is_empty() {
            return Some(Next::End);
        }
        if !self.ahead.is_empty() {
            // Only a line's end can be the end of a head: what has none need not be looked at again.
            let may_end = bytes.contains(&b'\n') || self.ahead.len() > HEAD_LIMIT;
            self.ahead.extend_from_slice(bytes);
            self.looked_at = if may_end { 0 } else { self.ahead.len() };
            return None;
        }
        let bytes = &bytes[blank(bytes)..];
        let taken = self.take(bytes, shared);
        let used = taken.as_ref().map_or(0, |taken| taken.as_ref().map_or(0, |(_, used)| *used));
        self.ahead.extend_from_slice(&bytes[used..]);
        self.looked_at = self.ahead.len();
        self.taken(taken)
    }

    fn taken(&mut self, taken: Result<Option<(Incoming, usize)>, HeadError>) -> Option<Next> {
        match taken {
            Ok(None) => None,
            Ok(Some((incoming, _))) => {
                self.looked_at = 0;
                Some(Next::Request(incoming))
            }
            Err(error) => Some(Next::Refused(error)),
        }
    }

    /// The request at the start of `wire`, and how many bytes of it were taken: with the body, if all of that is there.
    fn take(&mut self, wire: &[u8], shared: &Shared) -> Result<Option<(Incoming, usize)>, HeadError> {
        let Some(mut head) = head::parse(wire)? else { return Ok(None) };
        let (body, used) = match (&head.body, head.whole.take()) {
            (Decoder::Done, _) if head.switches => {
                self.body = Decoder::Done;
                (RequestBody::coming(shared), 0)
            }
            (Decoder::Done, _) => (RequestBody::here(Bytes::new()), 0),
            (_, Some(whole)) => {
                let length = whole.len();
                (RequestBody::here(whole), length)
            }
            (framing, None) => {
                self.body = framing.clone();
                self.as_it_comes = false;
                self.awaits_continue = head.awaits_continue;
                (RequestBody::coming(shared), 0)
            }
        };
        let used = head.length + used;
        Ok(Some((Incoming { head, body }, used)))
    }

    /// Looks whether the client has left, while nothing is expected of it. What it sends ahead is kept, up to a limit.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ahead.len() < HEAD_LIMIT {
            let left = SCRATCH.with_borrow_mut(|scratch| {
                let read = ready!(poll_read(&mut self.half, cx, &mut scratch[..]));
                let bytes = read.unwrap_or_default();
                self.ahead.extend_from_slice(bytes);
                Poll::Ready(bytes.is_empty())
            });
            if ready!(left) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Reads and forgets; ready when the client has closed.
    pub(super) fn poll_forget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ahead = BytesMut::new();
        loop {
            let ended = SCRATCH.with_borrow_mut(|scratch| {
                let read = ready!(poll_read(&mut self.half, cx, &mut scratch[..]));
                Poll::Ready(read.is_ok_and(|bytes| !bytes.is_empty()))
            });
            if !ready!(ended) {
                return Poll::Ready(());
            }
        }
    }

    /// Whether the next request can be read: the body of this one has been, or all of it is here.
    pub(super) fn ends_body(&mut self) -> bool {
        self.piece = BytesMut::new();
        while !self.body.is_done() && !self.ahead.is_empty() {
            match self.body.decode(&self.ahead) {
                Ok((_, used)) => self.ahead.advance(used),
                Err(_) => return false,
            }
        }
        (self.awaits_continue, self.wants_continue) = (false, false);
        self.body.is_done()
    }

    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        // What has begun to come needs no invitation.
        self.wants_continue |= self.awaits_continue && self.ahead.is_empty();
        self.awaits_continue = false;
        match self.body {
            Decoder::Done => Poll::Ready(None),
            Decoder::Length(left) => self.poll_piece(cx, left).map(Some),
            Decoder::Chunked(_) | Decoder::UntilClose => self.poll_chunks(cx),
        }
    }

    /// The next piece of a body of which this much is left: what comes is read where it will stay.
    fn poll_piece(&mut self, cx: &mut Context<'_>, left: u64) -> Poll<Result<Bytes, BodyError>> {
        let most = if self.as_it_comes { SCRATCH_SIZE } else { PIECE };
        let size = usize::try_from(left).unwrap_or(most).min(most);
        if self.piece.capacity() == 0 {
            self.piece.reserve(size);
        }
        while self.piece.len() < size {
            let missing = size - self.piece.len();
            if self.ahead.is_empty() {
                let mut room = (&mut self.piece).limit(missing);
                match pin!(self.half.read_buf(&mut room)).poll(cx)? {
                    Poll::Ready(0) => return Poll::Ready(Err(BodyError::Cut)),
                    Poll::Ready(_) => {}
                    Poll::Pending if self.as_it_comes && !self.piece.is_empty() => break,
                    Poll::Pending => return Poll::Pending,
                }
            } else {
                let here = self.ahead.len().min(missing);
                self.piece.extend_from_slice(&self.ahead[..here]);
                self.ahead.advance(here);
            }
        }
        self.body = Decoder::length(left - self.piece.len() as u64);
        Poll::Ready(Ok(std::mem::take(&mut self.piece).freeze()))
    }

    fn poll_chunks(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        while !self.body.is_done() {
            let payload = if self.ahead.is_empty() {
                let Self { half, body, ahead, .. } = self;
                let read = SCRATCH.with_borrow_mut(|scratch| {
                    let bytes = ready!(poll_read(half, cx, &mut scratch[..]))?;
                    if bytes.is_empty() {
                        return Poll::Ready(match body.end() {
                            Ok(()) => Ok(Bytes::new()),
                            Err(_) => Err(BodyError::Cut),
                        });
                    }
                    let (payload, used) = body.decode(bytes)?;
                    ahead.extend_from_slice(&bytes[used..]);
                    Poll::Ready(Ok(payload))
                });
                ready!(read)?
            } else {
                let (payload, used) = self.body.decode(&self.ahead)?;
                self.ahead.advance(used);
                payload
            };
            if !payload.is_empty() {
                return Poll::Ready(Some(Ok(payload)));
            }
        }
        Poll::Ready(None)
    }
}

/// Line ends before a request, which are allowed.
fn blank(wire: &[u8]) -> usize {
    wire.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
}

/// One read; empty at the end.
fn poll_read<'a>(
    half: &mut OwnedReadHalf,
    cx: &mut Context<'_>,
    into: &'a mut [u8],
) -> Poll<io::Result<&'a [u8]>> {
    let mut buf = ReadBuf::new(into);
    ready!(Pin::new(half).poll_read(cx, &mut buf))?;
    let length = buf.filled().len();
    Poll::Ready(Ok(&into[..length]))
}

/// For as long as one task works on a connection, nobody waits here.
pub(super) fn lock(shared: &Mutex<Input>) -> MutexGuard<'_, Input> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
