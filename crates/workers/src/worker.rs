//! One worker: an engine endpoint, whether it may be chosen, and what it is doing.

pub mod host;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_policy::{Reason, Slot};

use crate::blocker::{BREAKERS, Blocker, PATIENCE};
use crate::breaker::{BreakerSettings, BreakerState};
use crate::circuit::Circuit;
use crate::pending::{Pace, Pending, Share};
use crate::places::Places;
use crate::prediction::Predictions;
use crate::role::Role;
use crate::served::Models;
use crate::url::WorkerUrl;
use host::Host;

/// One engine endpoint, `(url, dp_rank)`.
pub struct Worker {
    slot: Slot,
    name: Box<str>,
    host: Arc<Host>,
    dp_rank: Option<u32>,
    blockers: AtomicU32,
    pub(crate) in_flight: AtomicU32,
    /// Most of them since the trial began.
    peak: AtomicU32,
    // Counted apart from `in_flight`, so that the one can be checked against the other.
    pub(crate) started: AtomicU64,
    pub(crate) ended: AtomicU64,
    decisions: [AtomicU64; Reason::ALL.len()],
    pub(crate) pending: Pending,
    pub(crate) pace: Pace,
    cache_tokens: AtomicU64,
    predictions: Predictions,
    circuit: Circuit,
    /// Told when a leg ends, if there is a bound on them.
    pub(crate) bound: Option<Arc<Places>>,
}

/// Which breakers a request is a probe of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Probe {
    own: bool,
    host: bool,
}

impl Worker {
    pub(crate) fn new(
        slot: Slot,
        host: &Arc<Host>,
        dp_rank: Option<u32>,
        (breaking, epoch): (Arc<BreakerSettings>, u64),
    ) -> Self {
        let name = match dp_rank {
            Some(rank) => format!("{}@{rank}", host.url()),
            None => host.url().to_string(),
        };
        Self {
            slot,
            name: name.into(),
            host: Arc::clone(host),
            dp_rank,
            blockers: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            decisions: std::array::from_fn(|_| AtomicU64::new(0)),
            pending: Pending::default(),
            pace: Pace::default(),
            cache_tokens: AtomicU64::new(0),
            predictions: Predictions::default(),
            circuit: Circuit::new(breaking, epoch),
            bound: None,
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

    /// The URL it is behind, and what is known of that.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Port of its bootstrap server, if it is a prefill worker that has one.
    pub fn bootstrap_port(&self) -> Option<u16> {
        match self.host.role() {
            Role::Prefill { bootstrap_port } => bootstrap_port,
            Role::Regular | Role::Decode => None,
        }
    }

    /// Where it is reached.
    pub fn url(&self) -> &WorkerUrl {
        self.host.url()
    }

    /// Data-parallel rank behind the URL, if ranks are told apart.
    pub fn dp_rank(&self) -> Option<u32> {
        self.dp_rank
    }

    /// Whether a policy may choose it now.
    pub fn eligible(&self) -> bool {
        self.blockers.load(Ordering::Relaxed) == 0
    }

    /// Whether a policy may choose it at `now_ms`: as [`Self::eligible`], and as a probe of breakers.
    pub fn admits(&self, now_ms: u64) -> bool {
        let mut blockers = self.blockers.load(Ordering::Relaxed);
        if blockers & Blocker::Paused as u32 != 0 && self.host.resumes(now_ms) {
            blockers &= !(Blocker::Paused as u32);
        }
        blockers == 0
            || (blockers & !BREAKERS == 0
                && self.breakers(blockers).into_iter().flatten().all(|circuit| circuit.admits(now_ms)))
    }

    /// When the last of its breakers opened, if nothing else keeps it from being chosen and a probe may go there all the
    /// same.
    pub(crate) fn last_resort(&self, now_ms: u64) -> Option<u64> {
        let blockers = self.blockers.load(Ordering::Relaxed);
        if blockers == 0 || blockers & !BREAKERS != 0 {
            return None;
        }
        let open = self.breakers(blockers).into_iter().flatten();
        open.map(|circuit| circuit.trickles(now_ms)).try_fold(0, |last, opened| Some(last.max(opened?)))
    }

    /// Whether nothing keeps it from being chosen but that it asked, or was told, to be left alone.
    pub fn is_only_paused(&self) -> bool {
        let blockers = self.blockers.load(Ordering::Relaxed);
        blockers != 0 && blockers & !PATIENCE == 0
    }

    /// Its own breaker and the host's, those that keep it out.
    fn breakers(&self, blockers: u32) -> [Option<&Circuit>; 2] {
        let if_open = |blocker, circuit| (blockers & blocker as u32 != 0).then_some(circuit);
        [if_open(Blocker::Open, &self.circuit), if_open(Blocker::HostOpen, &self.host.circuit)]
    }

    /// State of its circuit breaker and its host's together: the one that lets through less.
    pub fn breaker_state(&self) -> BreakerState {
        match (self.circuit.state(), self.host.circuit.state()) {
            (BreakerState::Open, _) | (_, BreakerState::Open) => BreakerState::Open,
            (BreakerState::HalfOpen, _) | (_, BreakerState::HalfOpen) => BreakerState::HalfOpen,
            (BreakerState::Closed, BreakerState::Closed) => BreakerState::Closed,
        }
    }

    /// Times that its circuit breaker, or its host's, changed to this state.
    pub fn breaker_transitions(&self, to: BreakerState) -> u64 {
        self.circuit.transitions(to) + self.host.circuit.transitions(to)
    }

    /// A request of this epoch was given to it.
    pub(crate) fn sent(&self, epoch: u64, now_ms: u64) -> Probe {
        let blockers = self.blockers.load(Ordering::Relaxed);
        if blockers & BREAKERS == 0 {
            return Probe::default();
        }
        let [own, host] =
            self.breakers(blockers).map(|circuit| circuit.is_some_and(|circuit| circuit.sent(epoch, now_ms)));
        Probe { own, host }
    }

    /// It did well. Takes no lock unless the request was a probe.
    pub(crate) fn succeeded(&self, epoch: u64, probe: Probe) {
        self.circuit.went_well();
        if probe.own {
            self.circuit.probe_passed(epoch, |is_closed| self.heed(is_closed));
        }
        if self.host.is_ranked() {
            self.reached(epoch, probe);
        }
    }

    /// It answered that it failed.
    pub(crate) fn failed(&self, epoch: u64, probe: Probe, now_ms: u64) {
        self.circuit.failed(epoch, probe.own, now_ms, |is_closed| self.heed(is_closed));
        if self.host.is_ranked() {
            self.reached(epoch, probe);
        }
        self.host.accuse();
    }

    /// The connection failed: what one rank suffers by that, all ranks of its host would have.
    pub(crate) fn broke(&self, epoch: u64, probe: Probe, now_ms: u64) {
        if self.host.is_ranked() {
            self.host.circuit.failed(epoch, probe.host, now_ms, |is_closed| self.host.heed(is_closed));
            self.host.accuse();
        } else {
            self.failed(epoch, probe, now_ms);
        }
    }

    /// Its host answered, which is all that the host's breaker wants to know.
    fn reached(&self, epoch: u64, probe: Probe) {
        self.host.circuit.went_well();
        if probe.host {
            self.host.circuit.probe_passed(epoch, |is_closed| self.host.heed(is_closed));
        }
    }

    /// A probe of breakers is over.
    pub(crate) fn probe_ended(&self, epoch: u64, probe: Probe) {
        if probe.own {
            self.circuit.probe_ended(epoch);
        }
        if probe.host {
            self.host.circuit.probe_ended(epoch);
        }
    }

    pub(crate) fn reset_breaker(&self, epoch: u64) {
        self.circuit.reset(epoch, |is_closed| self.heed(is_closed));
    }

    pub(crate) fn carry_breaker(&self, epoch: u64) {
        self.circuit.carry(epoch);
    }

    pub(crate) fn forgive(&self) {
        self.circuit.forgive(|is_closed| self.heed(is_closed));
    }

    /// Its breaker says whether it may be chosen.
    fn heed(&self, is_closed: bool) {
        if is_closed {
            self.unblock(Blocker::Open);
        } else {
            self.block(Blocker::Open);
        }
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

    /// Takes over the blockers of its host.
    pub(crate) fn take_blockers(&self, blockers: u32) {
        self.blockers.fetch_or(blockers, Ordering::Relaxed);
    }

    /// Legs in flight at its host, whatever their ranks.
    pub(crate) fn in_flight_at_host(&self) -> u32 {
        if self.host.is_ranked() { self.host.in_flight.load(Ordering::Relaxed) } else { self.in_flight() }
    }

    /// Legs in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// One more leg is in flight.
    pub(crate) fn count_in(&self) {
        self.counted_in(self.in_flight.fetch_add(1, Ordering::SeqCst).wrapping_add(1));
    }

    /// The same if it may have one more. Pools of other models may have given it one since it was looked at.
    pub(crate) fn count_in_within_bound(&self) -> bool {
        let Some(places) = &self.bound else {
            self.count_in();
            return true;
        };
        let more = |legs: u32| (legs < places.most()).then_some(legs + 1);
        let before = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        before.inspect(|before| self.counted_in(before + 1)).is_ok()
    }

    /// With this one, so many are in flight.
    fn counted_in(&self, legs: u32) {
        self.started.fetch_add(1, Ordering::SeqCst);
        if legs > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(legs, Ordering::Relaxed);
        }
    }

    /// Most legs that were in flight at the same time in this trial.
    pub fn peak(&self) -> u32 {
        self.peak.load(Ordering::Relaxed)
    }

    /// A trial begins.
    pub fn begin_peak(&self) {
        self.peak.store(self.in_flight(), Ordering::Relaxed);
    }

    /// Legs ever started.
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
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
        self.host.models()
    }

    /// Engine version, if it told one.
    pub fn version(&self) -> Arc<Option<String>> {
        self.host.version()
    }

    /// Whether its health alone would let it be chosen.
    pub fn is_well(&self) -> bool {
        !self.blocked_by(Blocker::Unhealthy) && !self.blocked_by(Blocker::Suspect)
    }

    /// Whether it is well and does not sleep.
    pub fn is_awake(&self) -> bool {
        self.is_well() && !self.blocked_by(Blocker::Asleep)
    }

    /// State of health in a word: `draining`, `unhealthy`, `suspect`, `asleep`, `paused` or `healthy`.
    pub fn health_word(&self) -> &'static str {
        if self.blocked_by(Blocker::Draining) {
            "draining"
        } else if self.blocked_by(Blocker::Unhealthy) {
            "unhealthy"
        } else if self.blocked_by(Blocker::Suspect) {
            "suspect"
        } else if self.blocked_by(Blocker::Asleep) {
            "asleep"
        } else if self.blocked_by(Blocker::Stopped) || self.blocked_by(Blocker::Paused) {
            "paused"
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
