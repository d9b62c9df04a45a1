//! The body that goes to the client. It owns everything that lives as long as the response, and reads the worker's
//! connection itself whenever the client can take more.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay_workers::Guard;
use http_body::{Body, Frame, SizeHint};

use crate::metrics::Record;
use crate::outcome::Outcome;
use crate::report::Report;
use crate::upstream::{BodyError, Upstream};

/// Body of a response.
pub enum ResponseBody {
    /// Made by the router.
    Whole(Bytes),
    /// A worker's answer on its way.
    Relay(Box<Relay>),
}

/// A worker's answer on its way to the client.
///
/// The order of the fields is the order in which they are dropped: the worker's connection closes first (vLLM then
/// aborts the request), then the load comes down, and the request is counted last.
pub struct Relay {
    upstream: Upstream,
    guard: Option<Guard>,
    record: Record,
    /// What the worker will report of the prompt, if that is of use.
    report: Option<Report>,
    /// What the request counts as when the client has got everything.
    complete: Outcome,
}

impl Relay {
    pub(crate) fn new(
        upstream: Upstream,
        guard: Guard,
        mut record: Record,
        complete: Outcome,
        report: Option<Report>,
    ) -> Self {
        // A body that came whole with the head leaves nothing to wait for on the worker's side.
        let guard = (!upstream.at_end()).then_some(guard);
        record.outcome = if upstream.is_finished() { complete } else { Outcome::ClientGoneMidStream };
        Self { upstream, guard, record, report, complete }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = self.upstream.poll_chunk(cx);
        match &polled {
            Poll::Ready(Some(Ok(bytes))) => {
                if let (Some(took), Some(guard)) = (self.record.chunk(), &mut self.guard) {
                    guard.first_token(took);
                }
                if let Some(report) = &mut self.report {
                    report.take_in(bytes);
                }
            }
            Poll::Ready(Some(Err(_))) => {
                self.guard = None;
                self.record.outcome = Outcome::ResetMidStream;
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        if self.upstream.at_end() {
            self.guard = None;
            if self.upstream.is_finished() {
                self.record.outcome = self.complete;
                if let Some(report) = self.report.take() {
                    report.end();
                }
            }
        }
        polled
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Relay(relay) => relay.poll(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Relay(relay) => relay.upstream.is_finished(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Relay(relay) => relay.upstream.size_hint(),
        }
    }
}
