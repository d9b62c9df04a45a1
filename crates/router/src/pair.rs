//! A prefill/decode pair: carries out the steps of its plan. The plan says what comes next, each leg goes by itself.

use std::sync::Arc;

use bytes::Bytes;
use forebay_openai::BodyError;
use forebay_pd::{Bypass, Correction, HandOver, Happened, LegKind, Limits, Order, Plan, Recompute, Step};
use forebay_workers::{Pool, Selected, Tried};

use crate::classify::{Asked, PairAsk};
use crate::course::{Course, Legs, lost};
use crate::failure::Failure;
use crate::forward::{Forward, exhausted};
use crate::forwarded::{Forwarded, Progress};
use crate::pairs::{PairOutcome, Pairs};
use crate::prefill::bad;

/// A request that may become a pair.
pub(crate) struct Pair<'a> {
    pub forward: &'a Forward<'a>,
    pub pairs: &'a Pairs,
    /// The decode workers of the model, and its prefill workers.
    pub decode: &'a Pool,
    pub prefill: Option<&'a Pool>,
    pub asked: &'a Asked,
    pub ask: &'a PairAsk,
    /// Tokens of the prompt, counted or estimated.
    pub tokens: u64,
}

impl<'a> Pair<'a> {
    /// The answer for the client, however it comes about.
    pub(crate) async fn answer(&self, mut progress: Progress<'_, '_>) -> Result<Forwarded, Failure> {
        let settings = &self.pairs.settings;
        if let Some(why) = Bypass::by_nature(&self.ask.facts, settings.connector) {
            if !settings.connector.decodes_alone() {
                return Err(Failure::Unpairable(why));
            }
            return self.bypass(why, None, &mut progress).await;
        }
        if let Some(why) = settings.by_length(self.tokens) {
            return self.bypass(why, None, &mut progress).await;
        }
        let disagg = match self.disagg() {
            Ok(disagg) => disagg,
            Err(Bypass::OneToken) => return self.one_token(&mut progress).await,
            Err(why) => return self.bypass(why, None, &mut progress).await,
        };
        if progress.line.is_none() && self.decode.bound().is_some_and(|it| it.is_awaited(self.decode.label()))
        {
            return Err(Failure::Overloaded);
        }
        let mut tried = self.untried()?;
        let count = progress.attempts.count;
        let Some(place) = self.choose(LegKind::Decode, self.decode, &mut tried, count)? else {
            let is_full = self.decode.is_full(&tried, self.forward.now_ms);
            return Err(if is_full { Failure::Overloaded } else { exhausted(self.decode, 0) });
        };
        *progress.line = None;
        progress.chosen(&place);
        if let Some(why) = settings.by_cache(self.uncached(&place.choice)) {
            return self.bypass(why, Some(place), &mut progress).await;
        }
        self.forward.shard.budget.earn(self.decode.epoch());
        self.run(Course { disagg, ..self.course(place) }, &mut progress).await
    }

    async fn bypass(
        &self,
        why: Bypass,
        place: Option<Selected>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Forwarded, Failure> {
        self.pairs.metrics.bypassed(why);
        let lent = progress.lend(place.as_ref());
        self.forward.to_any_of(self.decode, self.asked, place, lent).await
    }

    /// Where a decode worker cannot do without, that is what failed.
    fn no_prefill(&self, course: &mut Course<'a>) -> Step {
        if let (None, Some(pool)) = (&course.failure, self.prefill) {
            course.failure = Some(exhausted(pool, 0));
        }
        course.next(Happened::NoPrefill)
    }

    fn course(&self, place: Selected) -> Course<'a> {
        let settings = &self.pairs.settings;
        let retry = &self.forward.settings.retry;
        let workers = self.decode.workers().len() + self.prefill.map_or(0, |pool| pool.workers().len());
        let limits = Limits {
            repeats: retry.limit().saturating_sub(1),
            unreachable: if retry.enabled { u32::try_from(workers).unwrap_or(u32::MAX) } else { 0 },
            lease_ms: u64::try_from(settings.lease.as_millis()).unwrap_or(u64::MAX),
            once_only: self.asked.once_only,
            decodes_alone: settings.connector.decodes_alone(),
        };
        Course {
            plan: Plan::new(settings.order(), limits),
            count: self.pairs.metrics.count(),
            pairs: self.pairs,
            budget: &self.forward.shard.budget,
            legs: None,
            place: Some(place),
            tried_prefill: Tried::default(),
            tried_decode: Tried::with_rank(self.asked.rank),
            correction: Correction::default(),
            prefilled: None,
            prompt_tokens: None,
            from_prefill: None,
            from_decode: None,
            doubted: None,
            failure: None,
            disagg: None,
            is_half_written: false,
        }
    }

    async fn run(
        &self,
        mut course: Course<'a>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Forwarded, Failure> {
        let mut step = course.plan.first();
        loop {
            step = match step {
                Step::Prefill | Step::Both => match self.begin(&mut course, progress)? {
                    Some((legs, selected)) => self.attempt(&mut course, &legs, selected, step).await?,
                    None if course.place.is_none() => course.next(Happened::NoDecode),
                    None => self.no_prefill(&mut course),
                },
                Step::Decode(hand_over) => self.decode(&mut course, hand_over, progress).await?,
                last => return self.end(course, last, progress).await,
            };
        }
    }

    /// Begins an attempt: a room of its own, a place on a decode worker if there is none any more, and one on a prefill
    /// worker of the same version.
    fn begin(
        &self,
        course: &mut Course<'a>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Option<(Arc<Legs>, Selected)>, Failure> {
        self.leave_half_written(course, progress)?;
        self.take_place(course, progress)?;
        let (Some(place), Some(pool)) = (&course.place, self.prefill) else { return Ok(None) };
        let decoder = place.guard.worker();
        if !self.pairs.settings.allow_version_skew {
            course.tried_prefill.only_version_of(decoder);
        }
        let tried = &mut course.tried_prefill;
        let selected = self.choose(LegKind::Prefill, pool, tried, progress.attempts.count)?;
        let Some(selected) = selected else { return Ok(None) };
        progress.attempts.prefill = Some(selected.choice);
        let prefiller = Arc::clone(selected.guard.worker());
        let connector = self.pairs.settings.connector;
        let room = self.pairs.room();
        progress.paired(room);
        tracing::debug!(
            %room,
            connector = connector.as_str(),
            prefill = prefiller.name(),
            decode = decoder.name(),
            "pair chosen"
        );
        let request_id = self.request_id(&prefiller, decoder);
        let legs = Arc::new(Legs { room, request_id, prefiller });
        course.legs = Some(Arc::clone(&legs));
        Ok(Some((legs, selected)))
    }

    /// The prefill leg, or both. Whatever comes that does not let the other one go on ends both.
    async fn attempt(
        &self,
        course: &mut Course<'a>,
        legs: &Legs,
        selected: Selected,
        step: Step,
    ) -> Result<Step, Failure> {
        let pairing = self.pairing(legs, course.place.as_ref().map(|place| &**place.guard.worker()));
        let (body, selected) = match self.prefill_leg_of(course, legs, selected).await? {
            Ok(ready) => ready,
            Err(step) => return Ok(step),
        };
        let head = self.head(legs, body.len());
        let leg = self.prefill_leg(&head, body);
        let connector = self.pairs.settings.connector;
        let peer = self.pairs.peer(&legs.prefiller);
        if step == Step::Both && connector.needs_peer() && peer.is_none() {
            // It is reached through what it answers; later pairs need not wait for that.
            course.plan.set_order(Order::PrefillFirst);
        }
        if step == Step::Prefill || (connector.needs_peer() && peer.is_none()) {
            let end = self.heed_prefill(course, leg.run(selected).await).await?;
            return Ok(self.prefilled(course, |course| course.prefill_ended(end)));
        }
        let Some(place) = course.place.take() else { return Ok(course.next(Happened::NoDecode)) };
        let decode_body = pairing.decode_along(&self.asked.body, peer.as_deref()).map_err(broken)?;
        let decode_head = self.head(legs, decode_body.len());
        let decoder = Arc::clone(place.guard.worker());
        let decode = self.decode_leg(&decode_head, decode_body, place.choice, (course.correction, None));
        let mut prefill = std::pin::pin!(leg.run(selected));
        let mut decode = std::pin::pin!(decode.run(place.guard));
        let (mut prefilling, mut decoding) = (true, true);
        let fleet = self.forward.writer.reader();
        loop {
            let step = tokio::select! {
                biased;
                end = &mut prefill, if prefilling => {
                    prefilling = false;
                    let end = self.heed_prefill(course, end).await?;
                    self.prefilled(course, |course| course.prefill_ended(end))
                }
                end = &mut decode, if decoding => {
                    decoding = false;
                    let end = self.heed_decode(course, end).await?;
                    course.decode_ended(end, &decoder, None)
                }
                () = lost(&legs.prefiller, &fleet), if !prefilling && connector.waits_for_peer() => course.prefiller_lost(),
                else => Step::GiveUp,
            };
            if step != Step::Wait {
                return Ok(step);
            }
        }
    }

    /// The body of the prefill leg; or the next step, if it could not be had.
    async fn prefill_leg_of(
        &self,
        course: &mut Course<'a>,
        legs: &Legs,
        selected: Selected,
    ) -> Result<Result<(Bytes, Selected), Step>, Failure> {
        if course.disagg.is_none() {
            let decoder = course.place.as_ref().map(|place| &**place.guard.worker());
            let body = self.pairing(legs, decoder).prefill(&self.asked.body).map_err(broken)?;
            return Ok(Ok((body, selected)));
        }
        // Boxed, since it would make every pair's future larger.
        match Box::pin(self.prefill_body(course, legs, selected)).await? {
            Ok(ready) => Ok(Ok(ready)),
            Err(end) => {
                let end = self.heed_prefill(course, end).await?;
                Ok(Err(self.prefilled(course, |course| course.prefill_ended(end))))
            }
        }
    }

    /// What the prefill worker counted makes later estimates better.
    fn prefilled(&self, course: &mut Course<'a>, end: impl FnOnce(&mut Course<'a>) -> Step) -> Step {
        course.prompt_tokens = None;
        let step = end(course);
        if let (Some(tokens), true) = (course.prompt_tokens, self.ask.text_bytes > 0) {
            for pool in [Some(self.decode), self.prefill].into_iter().flatten() {
                pool.policy().learn_tokens(u64::from(self.ask.text_bytes), tokens);
            }
        }
        step
    }

    /// The decode leg after the prefill leg.
    async fn decode(
        &self,
        course: &mut Course<'a>,
        hand_over: HandOver,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Step, Failure> {
        let Some(legs) = course.legs.clone() else { return Ok(course.next(Happened::NoDecode)) };
        if !self.pairs.settings.allow_version_skew {
            course.tried_decode.only_version_of(&legs.prefiller);
        }
        self.take_place(course, progress)?;
        let Some(place) = course.place.take() else { return Ok(course.next(Happened::NoDecode)) };
        let decoder = Arc::clone(place.guard.worker());
        let body = match &course.disagg {
            None => self.pairing(&legs, Some(&decoder)).decode(&self.asked.body, &hand_over),
            // Boxed, since it would make every pair's future larger.
            Some(disagg) => match Box::pin(self.decode_body(disagg, &legs.prefiller)).await {
                Ok(body) => body,
                Err(why) => {
                    course.place = Some(place);
                    return Ok(course.unwritten(why));
                }
            },
        };
        let body = body.map_err(broken)?;
        let head = self.head(&legs, body.len());
        let continuation = course.disagg.as_ref().and_then(|disagg| disagg.continuation());
        let leg = self.decode_leg(&head, body, place.choice, (course.correction, continuation));
        let waits = self.pairs.settings.connector.waits_for_peer();
        let fleet = self.forward.writer.reader();
        let end = tokio::select! {
            biased;
            end = leg.run(place.guard) => end,
            () = lost(&legs.prefiller, &fleet), if waits => return Ok(course.prefiller_lost()),
        };
        let end = self.heed_decode(course, end).await?;
        // What names the decode worker is of no use to another one.
        let of_use = !self.pairs.settings.connector.names_the_attempt();
        Ok(course.decode_ended(end, &decoder, of_use.then_some(hand_over)))
    }

    /// The last step.
    async fn end(
        &self,
        mut course: Course<'a>,
        last: Step,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Forwarded, Failure> {
        let (outcome, answer) = match last {
            Step::Plain(why) => return self.plain(course, why, progress).await,
            Step::GivePrefill => {
                let answer = course.from_prefill.take();
                let is_all = answer.as_ref().is_some_and(|answer| answer.answer.status.is_success());
                (if is_all { PairOutcome::PrefillOnly } else { PairOutcome::Rejected }, answer)
            }
            Step::GiveDecode => {
                let answer = course.from_decode.take();
                let is_refusal = answer.as_ref().is_some_and(|answer| bad(answer.answer.status).is_some());
                (if is_refusal { PairOutcome::Rejected } else { PairOutcome::HandedOver }, answer)
            }
            Step::TimedOut(leg) => {
                course.count.outcome = PairOutcome::TimedOut;
                progress.pair_ended(PairOutcome::TimedOut);
                return Err(self.timed_out(&course, leg));
            }
            Step::GiveUp | Step::Wait | Step::Prefill | Step::Both | Step::Decode(_) => {
                (PairOutcome::Failed, course.from_decode.take().or(course.from_prefill.take()))
            }
        };
        course.count.outcome = outcome;
        progress.pair_ended(outcome);
        if let (PairOutcome::HandedOver, Some(prefilled)) = (outcome, course.prefilled) {
            self.pairs.metrics.hand_over.observe(prefilled.elapsed().as_secs_f64());
        }
        match answer {
            Some(mut answer) => {
                answer.correction = (outcome == PairOutcome::HandedOver).then_some(course.correction);
                Ok(*answer)
            }
            None => Err(course.failed(self.decode)),
        }
    }

    /// A decode worker computes the prompt by itself.
    async fn plain(
        &self,
        mut course: Course<'a>,
        why: Recompute,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Forwarded, Failure> {
        if let Some(legs) = &course.legs {
            tracing::info!(room = %legs.room, why = why.as_str(), "a decode worker computes the prompt itself");
        }
        self.pairs.metrics.recomputed(why);
        course.count.outcome = PairOutcome::Recomputed;
        progress.pair_ended(PairOutcome::Recomputed);
        self.leave_half_written(&mut course, progress)?;
        let place = course.place.take();
        drop(course);
        let lent = progress.lend(place.as_ref());
        self.forward.to_any_of(self.decode, self.asked, place, lent).await
    }

    fn timed_out(&self, course: &Course<'_>, leg: LegKind) -> Failure {
        let settings = &self.pairs.settings;
        let limit = match leg {
            LegKind::Prefill => settings.prefill_timeout,
            LegKind::Decode => settings.first_byte_timeout,
        };
        let timeout_secs = limit.unwrap_or_default().as_secs();
        let room = course.legs.as_ref().map_or(0, |legs| legs.room.number());
        tracing::warn!(room, leg = leg.as_str(), timeout_secs, "a leg of a pair took too long");
        Failure::PairTimeout { leg, timeout_secs, room }
    }
}

/// A body that was read before can be walked, so that this does not happen.
fn broken(error: BodyError) -> Failure {
    Failure::BodyBroken(error.to_string())
}
