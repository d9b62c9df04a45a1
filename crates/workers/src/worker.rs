//! One worker: an engine endpoint, whether it may be chosen, and what it is doing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use forebay_policy::{Reason, Slot};
use tokio::sync::Notify;

use crate::breaker::{Breaker, BreakerSettings, BreakerState, Leg};
use crate::guard::Guard;
use crate::health::Health;
use crate::pending::{Pace, Pending, Share};
use crate::prediction::Predictions;
use crate::served::Models;
use crate::url::WorkerUrl;

/// Why a worker may not be chosen. A worker without any blocker is eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Blocker {
    /// Probes say it is down, or none has succeeded yet.
    Unhealthy = 1,
    /// A request met a refused connection; the next probe decides.
    Suspect = 2,
    /// It was taken off the list.
    Removed = 4,
    /// Its circuit breaker is open or half-open.
    Open = 8,
}

/// One engine endpoint, `(url, dp_rank)`.
pub struct Worker {
    slot: Slot,
    name: Box<str>,
    url: WorkerUrl,
    dp_rank: Option<u32>,
    blockers: AtomicU32,
    pub(crate) in_flight: AtomicU32,
    // Counted apart from `in_flight`, so that the one can be checked against the other.
    pub(crate) started: AtomicU64,
    pub(crate) ended: AtomicU64,
    decisions: [AtomicU64; Reason::ALL.len()],
    pub(crate) pending: Pending,
    pub(crate) pace: Pace,
    cache_tokens: AtomicU64,
    predictions: Predictions,
    health: Mutex<Health>,
    breaking: Arc<BreakerSettings>,
    breaker: Mutex<Breaker>,
    /// Answers that were a success.
    successes: AtomicU64,
    models: ArcSwap<Models>,
    version: ArcSwap<Option<String>>,
    models_stale: AtomicBool,
    look: Notify,
}

impl Worker {
    pub(crate) fn new(
        slot: Slot,
        url: WorkerUrl,
        dp_rank: Option<u32>,
        breaking: Arc<BreakerSettings>,
    ) -> Self {
        let name = match dp_rank {
            Some(rank) => format!("{url}@{rank}"),
            None => url.to_string(),
        };
        Self {
            slot,
            name: name.into(),
            url,
            dp_rank,
            blockers: AtomicU32::new(Blocker::Unhealthy as u32),
            in_flight: AtomicU32::new(0),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            decisions: std::array::from_fn(|_| AtomicU64::new(0)),
            pending: Pending::default(),
            pace: Pace::default(),
            cache_tokens: AtomicU64::new(0),
            predictions: Predictions::default(),
            health: Mutex::new(Health::default()),
            breaking,
            breaker: Mutex::new(Breaker::new()),
            successes: AtomicU64::new(0),
            models: ArcSwap::from_pointee(Models::Unread),
            version: ArcSwap::from_pointee(None),
            models_stale: AtomicBool::new(false),
            look: Notify::new(),
        }
    }

    /// Stable small number of this worker, in order of registration.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// `url`, or `url@rank`: the name in metrics, logs and hash rings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is reached.
    pub fn url(&self) -> &WorkerUrl {
        &self.url
    }

    /// Data-parallel rank behind the URL, if ranks are told apart.
    pub fn dp_rank(&self) -> Option<u32> {
        self.dp_rank
    }

    /// Whether a policy may choose it now.
    pub fn eligible(&self) -> bool {
        self.blockers.load(Ordering::Relaxed) == 0
    }

    /// Whether a policy may choose it at `now_ms`: as [`Self::eligible`], and as a probe of its breaker.
    pub fn admits(&self, now_ms: u64) -> bool {
        let blockers = self.blockers.load(Ordering::Relaxed);
        blockers == 0 || (blockers == Blocker::Open as u32 && self.breaker().admits(&self.breaking, now_ms))
    }

    /// When its breaker opened, if that alone keeps it from being chosen and a probe may go there all the same.
    pub(crate) fn last_resort(&self, now_ms: u64) -> Option<u64> {
        if self.blockers.load(Ordering::Relaxed) != Blocker::Open as u32 {
            return None;
        }
        let breaker = self.breaker();
        breaker.admits_trickle(now_ms).then(|| breaker.opened_ms())
    }

    /// State of its circuit breaker.
    pub fn breaker_state(&self) -> BreakerState {
        self.breaker().state()
    }

    /// Times its circuit breaker changed to this state.
    pub fn breaker_transitions(&self, to: BreakerState) -> u64 {
        self.breaker().transitions(to)
    }

    /// A request of this epoch was given to it; true if as a probe of its breaker.
    pub(crate) fn sent(&self, epoch: u64, now_ms: u64) -> bool {
        self.blocked_by(Blocker::Open) && self.breaker().sent(&self.breaking, epoch, now_ms)
    }

    /// It did well. Takes no lock unless the request was a probe.
    pub(crate) fn succeeded(&self, epoch: u64, is_probe: bool) {
        self.successes.fetch_add(1, Ordering::Relaxed);
        if is_probe {
            self.break_by(|breaker, settings| breaker.probe_passed(settings, epoch));
        }
    }

    /// It failed a request. A probe is asked for, which finds out sooner than more requests whether it is dead.
    pub(crate) fn failed(&self, epoch: u64, is_probe: bool, now_ms: u64) {
        let leg = Leg { epoch, is_probe, successes: self.successes.load(Ordering::Relaxed) };
        self.break_by(|breaker, settings| breaker.failed(settings, leg, now_ms));
        self.look.notify_one();
    }

    /// A probe of its breaker is over.
    pub(crate) fn probe_ended(&self, epoch: u64) {
        self.breaker().probe_ended(epoch);
    }

    pub(crate) fn reset_breaker(&self, epoch: u64) {
        self.break_by(|breaker, _| breaker.reset(epoch));
    }

    pub(crate) fn carry_breaker(&self, epoch: u64) {
        self.break_by(|breaker, _| breaker.carry(epoch));
    }

    /// Forgets the streaks and suspicions of its health: one that is down returns with the first good probe, which is
    /// asked for now.
    pub(crate) fn reset_health(&self) {
        let mut health = self.health();
        *health = match *health {
            Health::Up(_) => Health::Up(0),
            Health::New | Health::Down(_) => Health::New,
        };
        drop(health);
        self.unblock(Blocker::Suspect);
        self.look.notify_one();
    }

    pub(crate) fn forgive(&self) {
        self.break_by(|breaker, _| breaker.forgive());
    }

    /// Changes the breaker, and with it the blocker, under one lock.
    fn break_by(&self, change: impl FnOnce(&mut Breaker, &BreakerSettings)) {
        let mut breaker = self.breaker();
        change(&mut breaker, &self.breaking);
        match breaker.state() {
            BreakerState::Closed => self.unblock(Blocker::Open),
            BreakerState::Open | BreakerState::HalfOpen => self.block(Blocker::Open),
        };
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this blocker is up.
    pub fn blocked_by(&self, blocker: Blocker) -> bool {
        self.blockers.load(Ordering::Relaxed) & blocker as u32 != 0
    }

    /// Raises a blocker; true if it was down before.
    pub(crate) fn block(&self, blocker: Blocker) -> bool {
        self.blockers.fetch_or(blocker as u32, Ordering::Relaxed) & blocker as u32 == 0
    }

    /// Lowers a blocker; true if it was up before.
    pub(crate) fn unblock(&self, blocker: Blocker) -> bool {
        self.blockers.fetch_and(!(blocker as u32), Ordering::Relaxed) & blocker as u32 != 0
    }

    /// A request found its connection refused: out of rotation until a probe has looked, which is asked for now.
    pub fn suspect(&self) {
        if self.block(Blocker::Suspect) {
            self.look.notify_one();
        }
    }

    /// What it serves may have changed: a probe is asked for now, and to read the models again.
    pub fn may_serve_others(&self) {
        self.models_stale.store(true, Ordering::Relaxed);
        self.look.notify_one();
    }

    /// Whether somebody said that the models may have changed, since this was asked last.
    pub fn take_models_stale(&self) -> bool {
        self.models_stale.swap(false, Ordering::Relaxed)
    }

    /// Resolves when a probe is asked for.
    pub async fn look_asked(&self) {
        self.look.notified().await;
    }

    /// Puts a load on it that no policy chose: a request that names its worker.
    pub fn hold(self: &Arc<Self>) -> Guard {
        Guard::new(Arc::clone(self))
    }

    /// Legs in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Legs ever started.
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Legs in flight − (started − ended). Other than 0 only between the two steps of a guard, or if somebody
    /// wrote a counter who must not.
    pub(crate) fn drift(&self) -> i64 {
        let ended = self.ended.load(Ordering::SeqCst);
        let in_flight = i64::from(self.in_flight.load(Ordering::SeqCst));
        let started = self.started.load(Ordering::SeqCst);
        in_flight.wrapping_sub_unsigned(started.wrapping_sub(ended))
    }

    /// Counts a decision for this worker.
    pub fn decided(&self, reason: Reason) {
        self.decisions[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Decisions for this worker by reason, since it was registered.
    pub fn decisions(&self, reason: Reason) -> u64 {
        self.decisions[reason as usize].load(Ordering::Relaxed)
    }

    /// Prompt tokens it was given and has not prefilled yet, as predicted, at `now_ms`.
    pub fn pending_tokens(&self, now_ms: u64) -> u64 {
        self.pending.tokens(now_ms.saturating_mul(1000), &self.pace)
    }

    /// Adds to what is pending; gives what is to be given back, and how much there was before.
    pub(crate) fn add_pending(&self, tokens: u64, is_seen: bool, now_ms: u64) -> (Share, u64) {
        let before = self.pending_tokens(now_ms);
        (self.pending.add(tokens, is_seen, now_ms.saturating_mul(1000), &self.pace), before)
    }

    /// Tokens that it prefills in a second, as learnt in this epoch.
    pub fn prefill_rate(&self) -> Option<f64> {
        self.pace.per_second()
    }

    /// Tokens that its prefix cache holds at most; 0 if not known.
    pub fn cache_tokens(&self) -> u64 {
        self.cache_tokens.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cache_tokens(&self, tokens: u64) {
        self.cache_tokens.store(tokens, Ordering::Relaxed);
    }

    /// What was predicted of its prefix cache.
    pub fn predictions(&self) -> &Predictions {
        &self.predictions
    }

    /// What it serves, as last read.
    pub fn models(&self) -> Arc<Models> {
        self.models.load_full()
    }

    pub(crate) fn set_models(&self, models: Models) {
        self.models.store(Arc::new(models));
    }

    /// Engine version, if it told one.
    pub fn version(&self) -> Arc<Option<String>> {
        self.version.load_full()
    }

    pub(crate) fn set_version(&self, version: Option<String>) {
        self.version.store(Arc::new(version));
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no probe has succeeded yet.
    pub fn never_well(&self) -> bool {
        *self.health() == Health::New
    }

    /// Whether its health alone would let it be chosen.
    pub fn is_well(&self) -> bool {
        !self.blocked_by(Blocker::Unhealthy) && !self.blocked_by(Blocker::Suspect)
    }

    /// State of health in a word: `unhealthy`, `suspect` or `healthy`.
    pub fn health_word(&self) -> &'static str {
        if self.blocked_by(Blocker::Unhealthy) {
            "unhealthy"
        } else if self.blocked_by(Blocker::Suspect) {
            "suspect"
        } else {
            "healthy"
        }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} {} in flight {})", self.slot.0, self.name, self.in_flight())
    }
}
