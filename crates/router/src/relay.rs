//! The body that goes to the client. It owns everything that lives as long as the response, and reads the worker's
//! connection itself whenever the client can take more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_openai::{Dialect, Usage};
use forebay_pd::Correction;
use forebay_pd::lmcache::Continuation;
use http_body::{Body, Frame, SizeHint};

use crate::aliases::Renamed;
use crate::failure::Failure;
use crate::leg::Leg;
use crate::outcome::Outcome;
use crate::patience::Patience;
use crate::record::Record;
use crate::records::Records;
use crate::report::Report;
use crate::stored::Keeper;
use crate::tunnel::Tunnel;
use crate::upstream::{BodyError, Upstream};

/// Body of a response.
pub enum ResponseBody {
    /// Made by the router.
    Whole(Bytes),
    /// A worker's answer on its way.
    Relay(Box<Relay>),
    /// Another protocol than HTTP, both ways.
    Tunnel(Box<Tunnel>),
}

/// A worker's answer on its way to the client.
///
/// The order of the fields is the order in which they are dropped: the worker's connection closes first (vLLM then
/// aborts the request), then the load comes down, and the request is counted last.
pub struct Relay {
    upstream: Upstream,
    leg: Option<Leg>,
    record: Box<Record>,
    manner: Manner,
    /// The last bytes have been handed out, by whomever they were written.
    ended: bool,
}

/// How an answer is relayed.
pub(crate) struct Manner {
    /// What the request counts as when the client has got everything.
    pub complete: Outcome,
    /// If it is an event stream.
    // Boxed, since it is large and most answers have none.
    pub records: Option<Box<Records>>,
    /// Of the route, for a last record of the router's own.
    pub dialect: Dialect,
    pub patience: Patience,
    /// What is put right in its records.
    pub correction: Option<Correction>,
    /// The model's name in it, if the client gave it another one.
    pub renamed: Option<Box<Renamed>>,
    /// What goes in front of them, if a pair of workers made them together.
    pub continuation: Option<Box<Continuation>>,
    /// What the worker will report of the prompt, if that is of use.
    pub report: Option<Report>,
    /// Who keeps the answer, if anybody does, until its id has come.
    pub keeper: Option<Keeper>,
}

impl Manner {
    /// The counts that a stream has told so far, if it is one.
    fn told(&self) -> Option<Usage> {
        let told = self.records.as_ref()?.usage();
        Some(self.continuation.as_ref().map_or(told, |continuation| continuation.counts(told)))
    }

    /// What the request counts as, now that the client gets everything.
    fn outcome(&self) -> Outcome {
        let has_error = self.records.as_ref().is_some_and(|records| records.has_error());
        if has_error { Outcome::ErrorInStream } else { self.complete }
    }

    /// Whether what goes on may be longer or shorter than what came.
    fn edits_records(&self) -> bool {
        self.records.is_some() && (self.correction.is_some() || self.continuation.is_some())
    }
}

impl Relay {
    pub(crate) fn new(upstream: Upstream, leg: Leg, mut record: Box<Record>, manner: Manner) -> Self {
        let mut leg = Some(leg);
        // A body that came whole with the head leaves nothing to wait for on the worker's side.
        if upstream.at_end() {
            end(&mut leg);
        }
        let ended = upstream.is_finished();
        record.account.outcome = if ended { manner.complete } else { Outcome::ClientGoneMidStream };
        Self { upstream, leg, record, manner, ended }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        while !self.ended {
            match self.upstream.poll_chunk(cx) {
                Poll::Pending if self.record.is_cut() => {
                    self.upstream.close();
                    let error = BodyError::Io(io::ErrorKind::ConnectionAborted.into());
                    return Poll::Ready(Some(self.break_off(&Failure::Drained, error)));
                }
                Poll::Pending => {
                    let stage = ready!(self.manner.patience.poll(cx));
                    self.upstream.close();
                    let error = BodyError::Io(io::ErrorKind::TimedOut.into());
                    return Poll::Ready(Some(self.break_off(&Failure::WorkerTimeout(stage), error)));
                }
                Poll::Ready(Some(Ok(chunk))) => {
                    let goes = self.take(chunk);
                    if !goes.is_empty() {
                        return Poll::Ready(Some(Ok(goes)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(self.break_off(&Failure::WorkerDiedMidStream, error)));
                }
                Poll::Ready(None) => {
                    let rest = self.finish();
                    return Poll::Ready((!rest.is_empty()).then_some(Ok(rest)));
                }
            }
        }
        Poll::Ready(None)
    }

    /// Ready when the client, which takes in nothing at the moment, has had its time. What it lacks it does not get.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let failure = Failure::WorkerTimeout(ready!(self.manner.patience.poll_deadline(cx)));
        self.upstream.close();
        drop(self.leg.take());
        // What had gone wrong before stays the reason.
        if !self.ended || self.record.account.outcome == self.manner.complete {
            self.record.account.outcome = failure.outcome();
        }
        self.ended = true;
        Poll::Ready(())
    }

    /// Takes what came; gives what goes on.
    fn take(&mut self, chunk: Bytes) -> Bytes {
        self.manner.patience.moved();
        if let Some(keeper) = self.manner.keeper.take() {
            keeper.begins(&chunk);
        }
        let (goes, has_token) = match &mut self.manner.records {
            Some(records) => {
                let whole = records.pass(chunk);
                let goes = match (&mut self.manner.continuation, &self.manner.correction) {
                    (Some(continuation), _) => continuation.of_records(&whole),
                    (None, Some(correction)) => correction.of_records(whole),
                    (None, None) => whole,
                };
                let goes = match &self.manner.renamed {
                    Some(renamed) => renamed.records(goes),
                    None => goes,
                };
                (goes, records.has_token())
            }
            None => {
                if let Some(report) = &mut self.manner.report {
                    report.take_in(&chunk);
                }
                match &mut self.manner.renamed {
                    Some(renamed) => (renamed.pass(chunk), true),
                    None => (chunk, true),
                }
            }
        };
        if let (Some(took), Some(leg)) = (self.record.chunk(has_token), &mut self.leg) {
            leg.first_token(self.record.account.started, took);
        }
        // Clients of OpenAI close as soon as they have read `[DONE]`, before the end of the body has come.
        if self.manner.records.as_ref().is_some_and(|records| records.is_done()) {
            self.record.account.outcome = self.manner.outcome();
            // What is learnt of it has to be known before the request that the client may send next.
            self.hear_report();
        }
        if self.upstream.at_end() {
            self.hear_error();
            end(&mut self.leg);
        }
        if !self.upstream.is_finished() {
            return goes;
        }
        let rest = self.finish();
        if rest.is_empty() { goes } else { [goes, rest].concat().into() }
    }

    /// The worker's message is whole: gives what was held back of it.
    fn finish(&mut self) -> Bytes {
        self.hear_error();
        end(&mut self.leg);
        self.ended = true;
        self.hear_report();
        self.record.account.outcome = self.manner.outcome();
        match (self.manner.records.as_mut(), &mut self.manner.renamed) {
            (Some(records), _) => records.rest(),
            (None, Some(renamed)) => renamed.rest(),
            (None, None) => Bytes::new(),
        }
    }

    /// Nothing more will be told of tokens.
    fn hear_report(&mut self) {
        if let Some(report) = self.manner.report.take() {
            self.record.account.tokens = report.end(self.manner.told());
        }
    }

    /// A worker that reports a failure in so many words is alive, and nobody knows whose fault it was.
    fn hear_error(&mut self) {
        if let (Some(records), Some(leg)) = (&self.manner.records, &mut self.leg)
            && records.has_error()
        {
            leg.says_nothing();
        }
    }

    /// The worker's message will not become whole. The client of an event stream is told with a last record; any other
    /// answer is cut, so that it does not look whole.
    fn break_off(&mut self, failure: &Failure, error: BodyError) -> Result<Bytes, BodyError> {
        if let Some(leg) = self.leg.take() {
            match failure.outcome() {
                Outcome::RequestTimeout | Outcome::Drained => drop(leg),
                _ => leg.broke(),
            }
        }
        self.record.account.outcome = failure.outcome();
        self.ended = true;
        match &self.manner.records {
            Some(records) if records.takes_more() => {
                Ok(failure.record(self.manner.dialect, records.so_far()))
            }
            _ => Err(error),
        }
    }
}

impl Drop for Relay {
    /// An answer that did not become whole: what its stream had told of tokens by then is noted all the same.
    fn drop(&mut self) {
        if let (Some(_), Some(told)) = (self.manner.report.take(), self.manner.told()) {
            self.record.account.tokens = told;
        }
    }
}

fn end(leg: &mut Option<Leg>) {
    if let Some(leg) = leg.take() {
        leg.ended();
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
            // Counted when it was made.
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Relay(relay) => {
                let polled = relay.poll(cx);
                if let Poll::Ready(Some(Ok(bytes))) = &polled {
                    relay.record.handed_out(bytes);
                }
                polled.map_ok(Frame::data)
            }
            Self::Tunnel(tunnel) => tunnel.poll(cx).map(|polled| polled.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Relay(relay) => relay.ended,
            Self::Tunnel(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            // What is put right in an answer changes its length.
            Self::Relay(relay) if relay.manner.edits_records() || relay.manner.renamed.is_some() => {
                SizeHint::default()
            }
            Self::Relay(relay) => relay.upstream.size_hint(),
            Self::Tunnel(_) => SizeHint::default(),
        }
    }
}

/// A body whose client may be heard while the body goes out.
pub trait TwoWay: Body<Data = Bytes> + Unpin {
    /// What the client says goes on, although it takes in nothing at the moment. Ready when it has had its time.
    fn poll_inward(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl TwoWay for ResponseBody {
    fn poll_inward(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Whole(_) => Poll::Pending,
            Self::Relay(relay) => relay.poll_over(cx),
            Self::Tunnel(tunnel) => tunnel.poll_over(cx),
        }
    }
}
