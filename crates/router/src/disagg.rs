//! A pair whose prefill worker makes the first token: the prompt as ids, the order to write the blocks, the wait until all
//! ranks have, and the token itself. The plan is the one of all pairs.

use std::sync::Arc;

use bytes::Bytes;
use forebay_openai::BodyError;
use forebay_pd::lmcache::{Continuation, First, LEG_PATH, Receiver, TOKENIZE_PATH, Tokens, Wish};
use forebay_pd::{Bypass, LegFailure};
use forebay_workers::{Awaited, Selected, Worker};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::attempt::Attempt;
use crate::classify::Asked;
use crate::clock;
use crate::course::{Course, Legs, lost};
use crate::failure::Failure;
use crate::forward::heed_pause;
use crate::forwarded::{Forwarded, Progress};
use crate::leg::Leg;
use crate::outcome::{Outcome, Verdict};
use crate::pair::Pair;
use crate::prefill::{PrefillEnd, bad, failed};
use crate::retry::Again;
use crate::upstream::{Answer, Upstream};

/// Longest answer of `/tokenize` that is read, in bytes.
const TOKENS_LIMIT: usize = 64 * 1024 * 1024;

/// What such a pair carries from one leg to the next.
pub(crate) struct Disagg {
    wish: Wish,
    /// Of the client or of a worker, for all attempts.
    tokens: Option<Tokens>,
    /// The attempt under way: its id, and the wait for its blocks.
    order: Option<(HeaderValue, Awaited)>,
    first: Option<First>,
}

/// Why a decode worker cannot go on behind the first token.
#[derive(Clone, Copy)]
pub(crate) enum Unwritten {
    /// Not all ranks have said in time that the blocks are written.
    TooLong,
    /// They are written, but the first token is none behind which anybody could go on.
    Unfit,
    /// The prefill worker is down.
    Lost,
}

impl Disagg {
    fn new(wish: Wish) -> Self {
        let tokens = wish.tokens().cloned();
        Self { wish, tokens, order: None, first: None }
    }

    /// The first token came, of this worker. Gives the client's answer, if it is all of it.
    pub(crate) fn begins_with(&mut self, first: First, prefiller: &Arc<Worker>) -> Option<Box<Forwarded>> {
        if !first.is_all() {
            self.first = Some(first);
            return None;
        }
        let alone = first.alone(&self.wish);
        let kind = match self.wish.is_streamed() {
            true => "text/event-stream; charset=utf-8",
            false => "application/json",
        };
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        let answer = Answer { status: StatusCode::OK, headers, body: Upstream::ready(alone?) };
        Some(Box::new(Forwarded::of_leg(answer, Leg::new(prefiller.hold(), Verdict::None, 0))))
    }

    /// Whether the attempt under way has told a prefill worker where to write.
    pub(crate) fn has_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// What goes in front of the decode worker's answer.
    pub(crate) fn continuation(&self) -> Option<Box<Continuation>> {
        let first = self.first.clone()?;
        Some(Box::new(Continuation::new(first, self.wish.endpoint())))
    }

    /// The body of the decode leg; `None` if there is nothing to go on with.
    fn decode(&self, body: &Bytes) -> Option<Result<Bytes, BodyError>> {
        let first = self.first.as_ref().filter(|first| !first.is_part())?;
        let tokens = self.tokens.as_ref()?;
        let rest = self.wish.rest(tokens)?;
        Some(self.wish.decode(body, tokens, (first, rest)))
    }
}

impl<'a> Pair<'a> {
    /// What the request asks for, where it matters; or that a decode worker has to do all of it.
    pub(crate) fn disagg(&self) -> Result<Option<Box<Disagg>>, Bypass> {
        if !self.pairs.settings.connector.makes_first_token() {
            return Ok(None);
        }
        let endpoint = self.ask.facts.endpoint.ok_or(Bypass::Route)?;
        let wish = Wish::read(&self.asked.body, endpoint)?;
        if wish.is_for_one_token() {
            return Err(Bypass::OneToken);
        }
        Ok(Some(Box::new(Disagg::new(wish))))
    }

    /// A request for one token goes to a prefill worker, who would make it anyway; to a decode worker if there is none.
    pub(crate) async fn one_token(&self, progress: &mut Progress<'_, '_>) -> Result<Forwarded, Failure> {
        self.pairs.metrics.bypassed(Bypass::OneToken);
        if let (Some(prefill), None) = (self.prefill, self.asked.rank) {
            let answered = self.forward.to_any_of(prefill, self.asked, None, progress.lend(None)).await;
            if !matches!(answered, Err(Failure::PoolExhausted { .. })) {
                return answered;
            }
        }
        self.forward.to_any_of(self.decode, self.asked, None, progress.lend(None)).await
    }

    /// Where this worker takes in blocks, if it can.
    pub(crate) fn receiver(&self, decoder: &Worker) -> Option<&'a Receiver> {
        self.pairs.settings.receivers.get(decoder.url().as_str())
    }

    /// The body of a prefill leg, for which the prompt is made ids if it is not yet; or what came of that instead.
    pub(crate) async fn prefill_body(
        &self,
        course: &mut Course<'a>,
        legs: &Legs,
        selected: Selected,
    ) -> Result<Result<(Bytes, Selected), PrefillEnd>, Failure> {
        let broken = |error: BodyError| Failure::BodyBroken(error.to_string());
        let receiver = course.place.as_ref().and_then(|place| self.receiver(place.guard.worker()));
        let (Some(disagg), Some(receiver)) = (&mut course.disagg, receiver) else {
            return Err(Failure::BodyBroken("a pair without an order".to_owned()));
        };
        // The wait of the attempt before ends here.
        (disagg.order, disagg.first) = (None, None);
        let mut selected = selected;
        if disagg.tokens.is_none() {
            let question = disagg.wish.tokenize(&self.asked.body).map_err(broken)?;
            let (tokens, place) = match self.tokenized(legs, question, selected).await {
                Ok(found) => found,
                Err(end) => return Ok(Err(*end)),
            };
            (disagg.tokens, selected) = (Some(tokens), place);
        }
        let Some(tokens) = disagg.tokens.as_ref().filter(|tokens| disagg.wish.rest(tokens).is_some()) else {
            // There is no prompt, or no room for a second token, or nobody knows: a worker has to say so.
            return Ok(Err(PrefillEnd::Needless));
        };
        let id = self.forward.shard.fresh_id();
        let text = id.to_str().unwrap_or_default();
        let number = u128::from_str_radix(text, 16).unwrap_or_default();
        let awaited = self.pairs.signals.expect(number, receiver.ranks());
        let body = disagg.wish.prefill(&self.asked.body, tokens, (receiver, text)).map_err(broken)?;
        disagg.order = Some((id, awaited));
        Ok(Ok((body, selected)))
    }

    /// Asks the chosen prefill worker for the ids of the prompt.
    async fn tokenized(
        &self,
        legs: &Legs,
        question: Bytes,
        selected: Selected,
    ) -> Result<(Tokens, Selected), Box<PrefillEnd>> {
        let asking = self.ask_tokens(legs, question, selected);
        match self.pairs.settings.prefill_timeout {
            Some(limit) => {
                let within = tokio::time::timeout(limit, asking).await;
                within.unwrap_or_else(|_| Err(Box::new(PrefillEnd::TimedOut)))
            }
            None => asking.await,
        }
    }

    async fn ask_tokens(
        &self,
        legs: &Legs,
        question: Bytes,
        selected: Selected,
    ) -> Result<(Tokens, Selected), Box<PrefillEnd>> {
        let head = self.head_to(legs, question.len(), Some(TOKENIZE_PATH));
        let attempt: Attempt<'_> = self.attempt_with(&head);
        let asked = Asked { body: question, ..Asked::default() };
        let answer = match attempt.with(selected.guard.worker(), &asked).await {
            Ok(answer) => answer,
            Err(error) => return Err(Box::new(failed(error, selected.guard))),
        };
        if let Some(failure) = bad(answer.status) {
            heed_pause(Again::of(answer.status), &answer, selected.guard.worker());
            let whole = Outcome::of_status(answer.status).verdict();
            let leg = Leg::new(selected.guard, whole, self.forward.now_ms);
            return Err(Box::new(PrefillEnd::Answered(failure, Box::new(Forwarded::of_leg(answer, leg)))));
        }
        let failure = match answer.body.collect(TOKENS_LIMIT).await {
            Ok(content) => match Tokens::read(&content.into()) {
                Some(tokens) => return Ok((tokens, selected)),
                None => Failure::InvalidResponse("no tokens".to_owned()),
            },
            Err(_) => Failure::WorkerDied,
        };
        selected.guard.failed(clock::now_ms());
        Err(Box::new(PrefillEnd::Failed { kind: LegFailure::Broken, failure, by_age: false }))
    }

    /// The body of the decode leg, as soon as all ranks of the prefill worker have said that the blocks are written.
    pub(crate) async fn decode_body(
        &self,
        disagg: &Disagg,
        prefiller: &Worker,
    ) -> Result<Result<Bytes, BodyError>, Unwritten> {
        let Some((id, awaited)) = &disagg.order else { return Err(Unwritten::TooLong) };
        let fleet = self.forward.writer.reader();
        tokio::select! {
            biased;
            () = awaited.ready() => disagg.decode(&self.asked.body).ok_or(Unwritten::Unfit),
            () = lost(prefiller, &fleet) => Err(Unwritten::Lost),
            () = tokio::time::sleep(self.pairs.settings.ready_timeout) => {
                tracing::warn!(?id, prefill = prefiller.name(), "not all ranks have said that they have handed over");
                Err(Unwritten::TooLong)
            }
        }
    }
}

/// The path that the legs of pairs go to, if it is not the client's.
pub(crate) fn leg_path(makes_first_token: bool) -> Option<&'static str> {
    makes_first_token.then_some(LEG_PATH)
}
