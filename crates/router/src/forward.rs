//! Choosing a worker and getting the head of its answer, with as many workers as it takes.

use std::sync::Arc;

use forebay_policy::{Ask, Choice};
use forebay_workers::{Asker, Blocker, Guard, Pool, Selected, Tried, Worker, Writer};

use crate::attempt::{Attempt, AttemptError};
use crate::classify::Asked;
use crate::clock;
use crate::failure::Failure;
use crate::forwarded::{Chosen, Forwarded, Progress};
use crate::headers::Written;
use crate::leg::Leg;
use crate::metrics::RouterMetrics;
use crate::outcome::{Outcome, Verdict};
use crate::refusals::{has_moved, is_unserved, may_be_moved, may_be_unserved};
use crate::retry::{Again, asks_for_patience, pause};
use crate::settings::RouterSettings;
use crate::shard::Shard;
use crate::upstream::Answer;

/// What forwarding needs beside the request itself.
pub(crate) struct Forward<'a> {
    pub shard: &'a Shard,
    pub settings: &'a RouterSettings,
    pub metrics: &'a RouterMetrics,
    /// Learns of ranks.
    pub writer: &'a Writer,
    pub head: &'a Written<'a>,
    /// When the request came, on the process's clock.
    pub now_ms: u64,
}

/// What one request has been through.
#[derive(Default)]
struct Course {
    /// Workers that are not asked in this round.
    tried: Tried,
    /// Workers that have heard their verdict on this request: one is enough.
    judged: Tried,
    /// Attempts so far, and those of them that reached a worker.
    attempts: u32,
    counted: u32,
    /// When the last choice was made.
    chosen_ms: u64,
    /// Times that workers were asked again.
    rounds: u32,
    /// The last bad answer. The client gets it if there is no better one.
    // Boxed, since it is rare and would make every request's future larger.
    kept: Option<Box<Kept>>,
    /// The first worker that answered 500. It was its fault if another one does better.
    doubted: Option<Leg>,
    /// Why the last attempt gave no answer.
    failure: Option<Failure>,
    /// Why the next attempt is made.
    reason: &'static str,
}

/// A bad answer that is not given yet.
struct Kept {
    again: Again,
    forwarded: Forwarded,
}

impl Forward<'_> {
    /// Asks one worker after the other until one answers well, or nobody is left who might.
    /// `first` is a worker that was chosen already, whom it begins with.
    pub(crate) async fn to_any_of(
        &self,
        pool: &Pool,
        asked: &Asked,
        mut first: Option<Selected>,
        progress: Progress<'_, '_>,
    ) -> Result<Forwarded, Failure> {
        let Progress { attempts, line } = progress;
        if line.is_none() && first.is_none() {
            self.arrive(pool)?;
        }
        let mut course = Course::begin(pool, asked)?;
        loop {
            let selected = match course.begin_with(first.take(), self.now_ms) {
                None => self.next(pool, asked, &mut course, attempts.count).await?,
                first => first,
            };
            let Some(Selected { guard, choice, noted }) = selected else {
                return course.last_resort(pool);
            };
            note(guard.worker(), &choice);
            *line = None;
            attempts.note(choice, noted);
            match self.attempt().with(guard.worker(), asked).await {
                Ok(mut answer) => {
                    // Boxed, since it is rare and would make every request's future larger.
                    let (worker, insists) = (guard.worker(), asked.rank.is_some());
                    if may_be_moved(&answer, worker)
                        && Box::pin(has_moved(self.writer, worker, &mut answer, insists)).await?
                    {
                        return Err(Failure::RanksMoved);
                    }
                    let is_unserved = may_be_unserved(&answer, asked)
                        && Box::pin(is_unserved(worker, &mut answer, asked)).await?;
                    let again = if is_unserved { Again::Unserved } else { Again::of(answer.status) };
                    heed_pause(again, &answer, guard.worker());
                    let policy = Arc::clone(pool.policy());
                    let chosen = Chosen { choice, policy, text_bytes: asked.text_bytes(&choice) };
                    let kept = Kept { again, forwarded: course.judge(answer, guard, chosen) };
                    if again == Again::No || !self.may_try_again(asked, &course, again) {
                        return Ok(course.settle(kept, self.settings.retry.limit() == 1));
                    }
                    course.keep(kept);
                }
                Err(error) => {
                    let goes_on = self.goes_on(asked, &error, &mut course);
                    let failure = error.told(guard.worker());
                    course.failed(&failure, guard);
                    if !goes_on {
                        return Err(failure);
                    }
                    course.failure = Some(failure);
                }
            }
        }
    }

    /// A request comes to a pool: it goes behind those who wait for a place there.
    fn arrive(&self, pool: &Pool) -> Result<(), Failure> {
        self.shard.budget.earn(pool.epoch());
        let is_awaited = pool.bound().is_some_and(|places| places.is_awaited(pool.label()));
        if is_awaited { Err(Failure::Overloaded) } else { Ok(()) }
    }

    /// To this worker and no other.
    pub(crate) async fn to(&self, worker: &Arc<Worker>, asked: &Asked) -> Result<Forwarded, Failure> {
        let guard = worker.hold();
        match self.attempt().with(worker, asked).await {
            Ok(answer) => Ok(Forwarded::of_leg(answer, Leg::new(guard, Verdict::None, 0))),
            Err(error) => {
                if matches!(error, AttemptError::Unreachable(_)) {
                    worker.host().suspect();
                }
                Err(error.told(worker))
            }
        }
    }

    /// The next worker to ask: at once if it is another one, after a wait if all that are left were busy before.
    async fn next(
        &self,
        pool: &Pool,
        asked: &Asked,
        course: &mut Course,
        attempt: u32,
    ) -> Result<Option<Selected>, Failure> {
        // Nobody is at fault if a model has gone: that takes nothing from those who may have to try again.
        let pays = course.kept.as_ref().is_some_and(|kept| kept.again != Again::Unserved);
        if pays && !self.shard.budget.pay() {
            course.nobody_told_more();
            return Ok(None);
        }
        let ask = self.ask(asked, course);
        let request = if pool.is_noted() { self.head.id() } else { &[] };
        let asker = Asker { request, attempt };
        let mut selected = pool.select_for(asker, &ask, &course.tried)?;
        if selected.is_none() && course.is_worth_a_wait() {
            course.rounds += 1;
            let wait = self.settings.retry.backoff(course.rounds, self.shard.unit());
            tokio::time::sleep(wait).await;
            course.tried = Tried::with_rank_of(asked.only, asked.rank);
            let ask = self.ask(asked, course);
            selected = pool.select_for(asker, &ask, &course.tried)?;
        }
        match &selected {
            Some(_) if course.attempts > 0 => self.metrics.note_retry(course.reason),
            None if pays => self.shard.budget.give_back(),
            _ => {}
        }
        course.attempts += u32::from(selected.is_some());
        Ok(selected)
    }

    fn ask<'b>(&self, asked: &'b Asked, course: &mut Course) -> Ask<'b> {
        // The moment that the request came is good enough for the first choice, and costs nothing.
        course.chosen_ms = if course.attempts == 0 { self.now_ms } else { clock::now_ms() };
        Ask {
            prefix: asked.prefix.as_ref(),
            tokens: asked.tokens,
            streamed: asked.streamed,
            hash: asked.hash,
            now_ms: course.chosen_ms,
        }
    }

    fn may_try_again(&self, asked: &Asked, course: &Course, again: Again) -> bool {
        let was = |before: Again| course.kept.as_ref().is_some_and(|kept| kept.again == before);
        let is_worth_it = match again {
            Again::Doubtful => asked.can_be_repeated() && !course.has_doubt(),
            // It was not begun, and nobody asks the whole fleet in this way.
            Again::Unserved => asked.is_whole() && !was(Again::Unserved),
            Again::No | Again::Busy | Again::Failed => asked.can_be_repeated(),
        };
        is_worth_it && course.counted < self.settings.retry.limit()
    }

    /// Whether an attempt without an answer leaves the request fit for another worker.
    fn goes_on(&self, asked: &Asked, error: &AttemptError, course: &mut Course) -> bool {
        match error {
            AttemptError::Unreachable(_) => {
                course.reason = "unreachable";
                self.settings.retry.enabled
            }
            AttemptError::Exchange(error) if error.is_reset() => {
                course.reason = "reset";
                course.counted += 1;
                asked.can_be_repeated() && course.counted < self.settings.retry.limit()
            }
            AttemptError::Exchange(_)
            | AttemptError::Silence
            | AttemptError::Stalled
            | AttemptError::Body(_)
            | AttemptError::OutOfResources(_) => false,
        }
    }

    fn attempt(&self) -> Attempt<'_> {
        Attempt { shard: self.shard, settings: self.settings, metrics: self.metrics, head: self.head }
    }
}

impl Course {
    /// Of a request whose client may insist on a rank, or that only one URL can serve.
    fn begin(pool: &Pool, asked: &Asked) -> Result<Self, Failure> {
        match asked.rank {
            Some(rank) if !pool.has_rank(rank) => Err(Failure::RankUnknown(rank)),
            rank => Ok(Self { tried: Tried::with_rank_of(asked.only, rank), ..Self::default() }),
        }
    }

    /// The first attempt is with a worker that was chosen before, at `now_ms`.
    fn begin_with(&mut self, first: Option<Selected>, now_ms: u64) -> Option<Selected> {
        if first.is_some() {
            (self.attempts, self.chosen_ms) = (1, now_ms);
        }
        first
    }

    /// Puts an answer and the verdict in it together. A worker hears one verdict on a request.
    fn judge(&mut self, answer: Answer, guard: Guard, chosen: Chosen) -> Forwarded {
        self.counted += 1;
        let verdict = Outcome::of_status(answer.status).verdict();
        let heard = self.judged.contains(guard.worker().slot());
        let whole = if heard { Verdict::None } else { verdict };
        let chosen = Some(chosen);
        Forwarded { chosen, ..Forwarded::of_leg(answer, Leg::new(guard, whole, self.chosen_ms)) }
    }

    /// Whether a worker has answered 500 before.
    fn has_doubt(&self) -> bool {
        self.doubted.is_some() || self.kept.as_ref().is_some_and(|kept| kept.again == Again::Doubtful)
    }

    /// A bad answer, while others are asked.
    fn keep(&mut self, mut kept: Kept) {
        if kept.forwarded.answer.body.at_end() {
            kept.forwarded.leg.kept(kept.again == Again::Doubtful);
        }
        self.reason = kept.again.as_str();
        let worker = kept.forwarded.leg.worker();
        match kept.again {
            Again::Unserved => self.tried.add_all_of(worker.host()),
            _ => self.tried.add(worker.slot()),
        }
        if kept.again != Again::Busy {
            self.judged.add(worker.slot());
        }
        self.give_up_kept();
        self.kept = Some(Box::new(kept));
    }

    /// What was kept is not needed any more; what it says of its worker is.
    fn give_up_kept(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        let Kept { again, forwarded: Forwarded { answer, leg, .. } } = *kept;
        drop(answer);
        if again == Again::Doubtful {
            self.doubted = Some(leg);
        } else {
            leg.ended();
        }
    }

    /// This is the answer. `only_one` says that no other worker could have been asked.
    fn settle(mut self, kept: Kept, only_one: bool) -> Forwarded {
        self.give_up_kept();
        let Kept { again, mut forwarded } = kept;
        match (again, self.doubted.take()) {
            // It did better than the one before.
            (Again::No, Some(doubted)) => doubted.ended(),
            // Both say 500, or one does and nobody else was asked: the request's fault, for all that is known.
            (Again::Doubtful, _) if !only_one => forwarded.leg.says_nothing(),
            _ => {}
        }
        forwarded
    }

    /// An attempt without an answer.
    fn failed(&mut self, failure: &Failure, guard: Guard) {
        let slot = guard.worker().slot();
        self.tried.add(slot);
        match failure.outcome() {
            Outcome::OutOfResources | Outcome::Refused | Outcome::ClientTimeout => {}
            // The next probe decides, which is sooner and surer than a breaker.
            Outcome::WorkerUnreachable | Outcome::ConnectTimeout => guard.worker().host().suspect(),
            _ if self.judged.contains(slot) => {}
            _ => {
                self.judged.add(slot);
                guard.broke(clock::now_ms());
            }
        }
    }

    /// Whether all that were asked may be asked again: they are well, and did not say for how long they are busy.
    fn is_worth_a_wait(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| {
            kept.again == Again::Busy && !asks_for_patience(&kept.forwarded.answer.headers)
        })
    }

    /// Somebody else might have told whose fault it was, but could not be asked.
    fn nobody_told_more(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.again == Again::Doubtful) {
            kept.forwarded.leg.says_nothing();
        }
    }

    /// Nobody is left: the last answer as it was, or why there is none.
    fn last_resort(self, pool: &Pool) -> Result<Forwarded, Failure> {
        if let Some(kept) = self.kept {
            return Ok(kept.forwarded);
        }
        match self.failure {
            Some(failure) if failure.outcome() != Outcome::WorkerUnreachable => Err(failure),
            _ if pool.is_full(&self.tried, self.chosen_ms) => Err(Failure::Overloaded),
            _ => Err(exhausted(pool, u64::from(self.attempts.saturating_sub(1)))),
        }
    }
}

/// A busy worker may say for how long it wants to be left alone.
pub(crate) fn heed_pause(again: Again, answer: &Answer, worker: &Worker) {
    if let (Again::Busy, Some(pause)) = (again, pause(&answer.headers)) {
        let until = clock::now_ms() + u64::try_from(pause.as_millis()).unwrap_or(0);
        worker.host().pause(until);
    }
}

/// One line for each decision, for who asks for it.
pub(crate) fn note(worker: &Worker, choice: &Choice) {
    tracing::debug!(
        worker = worker.name(),
        reason = choice.reason.as_str(),
        matched_bytes = choice.matched,
        prompt_bytes = choice.key_len,
        prompt_tokens = choice.prompt_tokens,
        uncached_tokens = choice.uncached_tokens,
        draw = choice.draw,
        "worker chosen"
    );
}

pub(crate) fn exhausted(pool: &Pool, retries: u64) -> Failure {
    let count = |is: &dyn Fn(&Worker) -> bool| pool.workers().filter(|worker| is(worker)).count() as u64;
    Failure::PoolExhausted {
        retries,
        pool_size: pool.workers().len() as u64,
        open_circuits: count(&|worker| worker.blocked_by(Blocker::Open)),
        unhealthy: count(&|worker| !worker.is_awake()),
    }
}
