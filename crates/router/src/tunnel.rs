//! A connection that has switched to another protocol: bytes both ways between one client and one worker, until either
//! side closes. It understands none of them.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};

use crate::failure::Failure;
use crate::incoming::Incoming;
use crate::leg::Leg;
use crate::outcome::Outcome;
use crate::patience::Patience;
use crate::record::Record;
use crate::upstream::Upstream;

/// A tunnel. The order of the fields is the order in which they are dropped, as in an answer.
pub struct Tunnel {
    upstream: Upstream,
    client: Box<dyn Incoming>,
    /// What the client said and the worker has not been told yet.
    inward: Bytes,
    leg: Option<Leg>,
    patience: Patience,
    ended: bool,
    record: Box<Record>,
}

impl Tunnel {
    pub(crate) fn new(
        upstream: Upstream,
        mut client: Box<dyn Incoming>,
        leg: Leg,
        mut record: Box<Record>,
        patience: Patience,
    ) -> Self {
        client.switch();
        // Whoever closes, that is how a tunnel ends.
        record.account.outcome = Outcome::Completed;
        Self { upstream, client, inward: Bytes::new(), leg: Some(leg), patience, ended: false, record }
    }

    /// What the worker says next; `None` when either side has closed, or nothing was said for too long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_inward(cx);
        if self.ended {
            return Poll::Ready(None);
        }
        match self.upstream.poll_chunk(cx) {
            Poll::Ready(Some(Ok(bytes))) => {
                self.patience.moved();
                self.record.handed_out(&bytes);
                return Poll::Ready(Some(bytes));
            }
            Poll::Ready(None) => self.end(Outcome::Completed),
            Poll::Ready(Some(Err(_))) => self.end(Outcome::ResetMidStream),
            Poll::Pending if self.record.is_cut() => self.end(Outcome::Drained),
            Poll::Pending => {
                let stage = ready!(self.patience.poll(cx));
                self.end(Failure::WorkerTimeout(stage).outcome());
            }
        }
        Poll::Ready(None)
    }

    /// The same as [`Self::poll`] while the client takes in nothing: only what it says goes on. Ready when it has had its time.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_inward(cx);
        let stage = ready!(self.patience.poll(cx));
        if !self.ended {
            self.end(Failure::WorkerTimeout(stage).outcome());
        }
        Poll::Ready(())
    }

    /// Carries what the client says to the worker, as far as that takes it in.
    fn poll_inward(&mut self, cx: &mut Context<'_>) {
        while !self.ended {
            if self.inward.is_empty() {
                if let Poll::Ready(Err(_)) = self.upstream.poll_flush(cx) {
                    return self.end(Outcome::ResetMidStream);
                }
                match self.client.poll_data(cx) {
                    Poll::Ready(Some(Ok(bytes))) => {
                        self.record.account.request_bytes += bytes.len() as u64;
                        self.inward = bytes;
                    }
                    Poll::Ready(Some(Err(_)) | None) => return self.end(Outcome::Completed),
                    Poll::Pending => return,
                }
            }
            match self.upstream.poll_send(cx, &self.inward) {
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return self.end(Outcome::ResetMidStream),
                Poll::Ready(Ok(sent)) => {
                    self.patience.moved();
                    self.inward.advance(sent);
                }
                Poll::Pending => return,
            }
        }
    }

    /// The worker's connection closes, and the load comes down.
    fn end(&mut self, outcome: Outcome) {
        self.ended = true;
        self.upstream.close();
        self.record.account.outcome = outcome;
        if let Some(leg) = self.leg.take() {
            match outcome {
                Outcome::Completed => leg.ended(),
                Outcome::ResetMidStream => leg.broke(),
                _ => drop(leg),
            }
        }
    }
}
