//! The body of a request, as whoever serves it sees it: here already, still to be read, or on a stream of HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_router::upstream::framing::{Decoder, FramingError};
use forebay_router::{BodyGone, Incoming};
use http_body::{Body, Frame, SizeHint};

use super::input::{Shared, lock};

/// The body of a request.
pub struct RequestBody(Source);

enum Source {
    /// It came with the head.
    Here(Bytes),
    /// It is read as it is asked for.
    Coming(Shared),
    /// It comes on a stream of HTTP/2.
    Stream(hyper::body::Incoming),
}

impl RequestBody {
    /// Of one that came with the head.
    pub(super) fn here(whole: Bytes) -> Self {
        Self(Source::Here(whole))
    }

    /// Of one that is still to be read.
    pub(super) fn coming(shared: &Shared) -> Self {
        Self(Source::Coming(Arc::clone(shared)))
    }

    /// On a stream of HTTP/2.
    pub(crate) fn of_stream(body: hyper::body::Incoming) -> Self {
        Self(Source::Stream(body))
    }
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client has closed inside the body.
    #[error("the client's connection ended inside the request's body")]
    Cut,
    /// The socket failed.
    #[error("the client's connection broke inside the request's body: {0}")]
    Io(#[from] io::Error),
    /// Its stream was reset, or its connection ended.
    #[error("the stream of the request's body broke off: {0}")]
    Stream(#[from] hyper::Error),
    /// Its chunks cannot be told apart.
    #[error("the request's body is framed wrongly: {0}")]
    Framing(#[from] FramingError),
}

/// The next data of a stream; what it sends beside data is nothing that a worker reads.
fn poll_stream(
    body: &mut hyper::body::Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, BodyError>>> {
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Poll::Ready(Some(Ok(data)));
                }
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        }
    }
}

impl Source {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        match self {
            Self::Here(whole) if whole.is_empty() => Poll::Ready(None),
            Self::Here(whole) => Poll::Ready(Some(Ok(std::mem::take(whole)))),
            Self::Coming(shared) => lock(shared).poll_body(cx),
            Self::Stream(body) => poll_stream(body, cx),
        }
    }
}

impl Incoming for RequestBody {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyGone>>> {
        self.0.poll_next(cx).map_err(|error| {
            tracing::debug!(%error, "the body of a request broke off");
            BodyGone
        })
    }

    fn exact(&self) -> Option<u64> {
        Body::size_hint(self).exact()
    }

    fn as_it_comes(&mut self) {
        if let Source::Coming(shared) = &self.0 {
            lock(shared).as_it_comes = true;
        }
    }

    fn switch(&mut self) {
        if let Source::Coming(shared) = &self.0 {
            lock(shared).body = Decoder::UntilClose;
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll_next(cx).map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Here(whole) => whole.is_empty(),
            Source::Coming(shared) => lock(shared).body.is_done(),
            Source::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Here(whole) => SizeHint::with_exact(whole.len() as u64),
            Source::Coming(shared) => match lock(shared).body {
                Decoder::Done => SizeHint::with_exact(0),
                Decoder::Length(left) => SizeHint::with_exact(left),
                Decoder::Chunked(_) | Decoder::UntilClose => SizeHint::default(),
            },
            Source::Stream(body) => body.size_hint(),
        }
    }
}
