//! The body of a request, wherever it comes from, as the router asks for it. It reads nothing itself.

use std::task::{Context, Poll};

use bytes::Bytes;

/// The body of a request.
pub trait Incoming: Send + Sync + Unpin + 'static {
    /// What comes next; `None` at the end.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyGone>>>;

    /// How much is still to come, if that is known.
    fn exact(&self) -> Option<u64>;

    /// From now on it is handed out as it comes, in small pieces, rather than in few large ones.
    fn as_it_comes(&mut self) {}

    /// From now on the connection speaks another protocol: everything until its end is handed out.
    fn switch(&mut self) {}
}

/// The body broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request's body broke off")]
pub struct BodyGone;
