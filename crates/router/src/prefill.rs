//! One prefill leg: the request that only computes blocks, and what its answer says. It chooses nobody.

use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_pd::{Connector, LegFailure, Prefilled};
use forebay_workers::{Guard, Selected};

use crate::attempt::{Attempt, AttemptError};
use crate::classify::Asked;
use crate::clock;
use crate::failure::Failure;
use crate::forward::heed_pause;
use crate::forwarded::Forwarded;
use crate::leg::Leg;
use crate::outcome::{Outcome, Verdict};
use crate::retry::Again;

/// Longest answer that is read, in bytes. One token with the ids of a long prompt is far below.
const ANSWER_LIMIT: usize = 64 * 1024 * 1024;

/// How a prefill leg ended.
pub(crate) enum PrefillEnd {
    /// It answered, after so long.
    Done(Box<Prefilled>, Duration),
    /// Its answer is a bad one.
    Answered(LegFailure, Box<Forwarded>),
    /// There is no answer. `by_age` says that a kept connection may just have been too old.
    Failed { kind: LegFailure, failure: Failure, by_age: bool },
    /// It was not sent: there would be nothing to hand over.
    Needless,
    /// It took too long.
    TimedOut,
}

/// A prefill leg.
pub(crate) struct PrefillLeg<'a> {
    pub attempt: Attempt<'a>,
    pub connector: Connector,
    pub limit: Option<Duration>,
    /// The leg's body.
    pub body: Bytes,
    /// When its worker was chosen, on the process's clock.
    pub chosen_ms: u64,
}

impl PrefillLeg<'_> {
    /// Sends it and reads the answer. The load falls when the answer is read.
    pub(crate) async fn run(self, selected: Selected) -> PrefillEnd {
        match self.limit {
            Some(limit) => {
                tokio::time::timeout(limit, self.exchange(selected)).await.unwrap_or(PrefillEnd::TimedOut)
            }
            None => self.exchange(selected).await,
        }
    }

    async fn exchange(&self, selected: Selected) -> PrefillEnd {
        let Selected { mut guard, .. } = selected;
        let began = Instant::now();
        let asked = Asked { body: self.body.clone(), ..Asked::default() };
        // What both legs share must not come twice.
        let exchanged = match self.connector.names_the_attempt() {
            false => self.attempt.with(guard.worker(), &asked).await,
            true => self.attempt.once(guard.worker(), &asked).await,
        };
        let answer = match exchanged {
            Ok(answer) => answer,
            Err(error) => return failed(error, guard),
        };
        if let Some(failure) = bad(answer.status) {
            heed_pause(Again::of(answer.status), &answer, guard.worker());
            let whole = Outcome::of_status(answer.status).verdict();
            let leg = Leg::new(guard, whole, self.chosen_ms);
            return PrefillEnd::Answered(failure, Box::new(Forwarded::of_leg(answer, leg)));
        }
        let worker = guard.worker().clone();
        let broken = match answer.body.collect(ANSWER_LIMIT).await {
            Ok(content) => match Prefilled::read(&content.into(), self.connector, clock::now_ms()) {
                Ok(prefilled) => {
                    let took = began.elapsed();
                    guard.first_token(took);
                    Leg::new(guard, Verdict::Success, self.chosen_ms).ended();
                    return PrefillEnd::Done(Box::new(prefilled), took);
                }
                // What a bootstrap leg answers is of no interest, be it a stream.
                Err(_) if self.connector == Connector::Bootstrap => {
                    Leg::new(guard, Verdict::Success, self.chosen_ms).ended();
                    return PrefillEnd::Done(Box::default(), began.elapsed());
                }
                Err(error) => Failure::InvalidResponse(error.to_string()),
            },
            Err(error) => {
                tracing::warn!(worker = worker.name(), %error, "the answer of a prefill leg broke off");
                Failure::WorkerDied
            }
        };
        guard.failed(clock::now_ms());
        PrefillEnd::Failed { kind: LegFailure::Broken, failure: broken, by_age: false }
    }
}

/// There is no answer: what that says, and of whom.
pub(crate) fn failed(error: AttemptError, guard: Guard) -> PrefillEnd {
    let by_age = error.is_by_age();
    let kind = match error {
        AttemptError::Unreachable(_) => LegFailure::Unreachable,
        _ => LegFailure::Broken,
    };
    PrefillEnd::Failed { kind, failure: error.charged(guard), by_age }
}

/// What a status says of a leg; `None` if it is well.
pub(crate) fn bad(status: http::StatusCode) -> Option<LegFailure> {
    match Again::of(status) {
        Again::Busy | Again::Failed => Some(LegFailure::Busy),
        Again::Doubtful => Some(LegFailure::Doubtful),
        Again::No if status.as_u16() >= 400 => Some(LegFailure::Rejected),
        Again::No | Again::Unserved => None,
    }
}
