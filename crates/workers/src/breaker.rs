//! One worker's circuit breaker: verdicts on its answers in, may it be chosen out. Reads no clock: milliseconds on a
//! clock that only goes forward are an argument.

use std::collections::VecDeque;
use std::time::Duration;

/// Knobs of the breakers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Without it no breaker ever opens.
    pub enabled: bool,
    /// Failures within the window that open it, if there were no more successes than failures among them. At least 1.
    pub failure_threshold: u32,
    /// Probes in a row that must succeed until it closes, and probes at a time while half-open. At least 1.
    pub success_threshold: u32,
    /// How long it stays open before it is half-open.
    pub open_for: Duration,
    /// How long a failure counts.
    pub window: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            failure_threshold: 10,
            success_threshold: 3,
            open_for: Duration::from_secs(60),
            window: Duration::from_secs(120),
        }
    }
}

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// The worker is chosen as any other.
    Closed,
    /// It is not chosen.
    Open,
    /// A few requests may try it.
    HalfOpen,
}

impl BreakerState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// Name in metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Between two probes of a worker whose breaker is open because the breakers of all others are too.
const TRICKLE_MS: u64 = 250;

/// The breaker of one worker.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The trial whose requests it listens to.
    epoch: u64,
    state: BreakerState,
    /// When it opened last.
    opened_ms: u64,
    /// Failures that count while closed, oldest first, each with the worker's successes up to then.
    failures: VecDeque<(u64, u64)>,
    /// Probes in flight.
    probes: u32,
    /// Probes in a row that succeeded.
    passed: u32,
    /// When the last probe was sent.
    probed_ms: u64,
    transitions: [u64; BreakerState::ALL.len()],
}

impl Breaker {
    /// Closed, in the first epoch.
    pub(crate) fn new() -> Self {
        Self {
            epoch: 1,
            state: BreakerState::Closed,
            opened_ms: 0,
            failures: VecDeque::new(),
            probes: 0,
            passed: 0,
            probed_ms: 0,
            transitions: [0; BreakerState::ALL.len()],
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Times it changed to this state.
    pub(crate) fn transitions(&self, to: BreakerState) -> u64 {
        self.transitions[to as usize]
    }

    pub(crate) fn opened_ms(&self) -> u64 {
        self.opened_ms
    }

    /// Whether a request may go to the worker now.
    pub(crate) fn admits(&self, settings: &BreakerSettings, now_ms: u64) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open => self.probes == 0 && self.is_due(settings, now_ms),
            // As many as can still be needed, so that an engine that is not well yet fails few.
            BreakerState::HalfOpen => self.probes + self.passed < settings.success_threshold,
        }
    }

    /// Whether one may, although it is open: there is nobody else.
    pub(crate) fn admits_trickle(&self, now_ms: u64) -> bool {
        self.probes == 0 && now_ms >= self.probed_ms.saturating_add(TRICKLE_MS)
    }

    /// A request of this epoch goes to the worker. True if it is a probe, which [`Self::probe_ended`] must follow.
    pub(crate) fn sent(&mut self, settings: &BreakerSettings, epoch: u64, now_ms: u64) -> bool {
        if self.state == BreakerState::Closed || epoch != self.epoch {
            return false;
        }
        if self.state == BreakerState::Open && self.is_due(settings, now_ms) {
            self.turn(BreakerState::HalfOpen);
        }
        self.probes += 1;
        self.probed_ms = now_ms;
        true
    }

    /// A probe is over, whatever came of it.
    pub(crate) fn probe_ended(&mut self, epoch: u64) {
        if epoch == self.epoch {
            self.probes = self.probes.saturating_sub(1);
        }
    }

    /// A probe succeeded.
    pub(crate) fn probe_passed(&mut self, settings: &BreakerSettings, epoch: u64) {
        if epoch != self.epoch || self.state == BreakerState::Closed {
            return;
        }
        if self.state == BreakerState::Open {
            self.turn(BreakerState::HalfOpen);
        }
        self.passed += 1;
        if self.passed >= settings.success_threshold {
            self.turn(BreakerState::Closed);
        }
    }

    /// A request failed, after `successes` of the worker so far. What was sent before it opened says nothing new.
    pub(crate) fn failed(&mut self, settings: &BreakerSettings, leg: Leg, now_ms: u64) {
        if leg.epoch != self.epoch || !settings.enabled {
            return;
        }
        match self.state {
            BreakerState::Closed => {
                if self.counts_enough(settings, leg.successes, now_ms) {
                    self.open(now_ms);
                }
            }
            BreakerState::Open | BreakerState::HalfOpen if leg.is_probe => self.open(now_ms),
            BreakerState::Open | BreakerState::HalfOpen => {}
        }
    }

    /// A new trial begins: nothing of the old one counts.
    pub(crate) fn reset(&mut self, epoch: u64) {
        self.forgive();
        self.carry(epoch);
        self.probed_ms = 0;
    }

    /// A new trial begins with the state as it is; requests of the old one are not heard any more.
    pub(crate) fn carry(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.probes = 0;
    }

    /// The worker was away and is back: another process, as far as anybody knows.
    pub(crate) fn forgive(&mut self) {
        if self.state != BreakerState::Closed {
            self.turn(BreakerState::Closed);
        }
        self.failures.clear();
    }

    fn is_due(&self, settings: &BreakerSettings, now_ms: u64) -> bool {
        now_ms >= self.opened_ms.saturating_add(millis(settings.open_for))
    }

    /// Takes one more failure. A worker that answers most requests well stays, however many it has.
    fn counts_enough(&mut self, settings: &BreakerSettings, successes: u64, now_ms: u64) -> bool {
        let window = millis(settings.window);
        let threshold = settings.failure_threshold as usize;
        self.failures.push_back((now_ms, successes));
        while self.failures.len() > threshold
            || self.failures.front().is_some_and(|(at, _)| at.saturating_add(window) < now_ms)
        {
            self.failures.pop_front();
        }
        let first = self.failures.front().map_or(successes, |(_, successes)| *successes);
        self.failures.len() >= threshold && successes.saturating_sub(first) <= threshold as u64
    }

    fn open(&mut self, now_ms: u64) {
        if self.state != BreakerState::Open {
            self.turn(BreakerState::Open);
        }
        self.failures.clear();
        self.opened_ms = now_ms;
        self.passed = 0;
    }

    fn turn(&mut self, to: BreakerState) {
        self.state = to;
        self.transitions[to as usize] += 1;
        self.passed = 0;
    }
}

/// What a breaker has to know of a request that failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leg {
    /// The trial it belongs to.
    pub epoch: u64,
    /// Whether it was sent as a probe.
    pub is_probe: bool,
    /// Successes of the worker up to now.
    pub successes: u64,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: BreakerSettings = BreakerSettings {
        enabled: true,
        failure_threshold: 3,
        success_threshold: 2,
        open_for: Duration::from_millis(1000),
        window: Duration::from_millis(100),
    };

    fn leg(epoch: u64, is_probe: bool, successes: u64) -> Leg {
        Leg { epoch, is_probe, successes }
    }

    fn opened(at_ms: u64) -> Breaker {
        let mut breaker = Breaker::new();
        (0..3).for_each(|_| breaker.failed(&SETTINGS, leg(1, false, 0), at_ms));
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker
    }

    #[test]
    fn only_failures_within_the_window_count() {
        let mut breaker = Breaker::new();
        for at in [0, 60, 120, 200, 260] {
            breaker.failed(&SETTINGS, leg(1, false, 0), at);
            assert_eq!(breaker.state(), BreakerState::Closed, "{at}");
        }
        breaker.failed(&SETTINGS, leg(1, false, 0), 290);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn a_worker_that_answers_most_requests_well_stays_in() {
        let mut breaker = Breaker::new();
        for i in 0..100 {
            breaker.failed(&SETTINGS, leg(1, false, 2 * i), i);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        for _ in 0..3 {
            breaker.failed(&SETTINGS, leg(1, false, 200), 100);
        }
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn a_half_open_breaker_lets_through_as_many_probes_as_it_needs() {
        let mut breaker = opened(0);
        assert!(!breaker.admits(&SETTINGS, 999));
        assert!(breaker.admits(&SETTINGS, 1000));
        assert!(breaker.sent(&SETTINGS, 1, 1000) && breaker.state() == BreakerState::HalfOpen);
        assert!(breaker.admits(&SETTINGS, 1000) && breaker.sent(&SETTINGS, 1, 1000));
        assert!(!breaker.admits(&SETTINGS, 1000), "two at a time");
        breaker.probe_passed(&SETTINGS, 1);
        breaker.probe_ended(1);
        assert!(!breaker.admits(&SETTINGS, 5000), "one has passed, one is under way");
        // A client that left: no verdict, and another one may try.
        breaker.probe_ended(1);
        assert!(breaker.admits(&SETTINGS, 5000) && breaker.sent(&SETTINGS, 1, 5000));
        breaker.probe_passed(&SETTINGS, 1);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_probe_that_fails_opens_it_again_for_the_whole_time() {
        let mut breaker = opened(0);
        breaker.sent(&SETTINGS, 1, 1000);
        breaker.failed(&SETTINGS, leg(1, false, 0), 1100);
        assert_eq!(
            breaker.state(),
            BreakerState::HalfOpen,
            "what was sent before it opened says nothing new"
        );
        breaker.failed(&SETTINGS, leg(1, true, 0), 1200);
        breaker.probe_ended(1);
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.admits(&SETTINGS, 2199) && breaker.admits(&SETTINGS, 2200));
    }

    #[test]
    fn a_trickle_is_one_probe_at_a_time_with_a_pause_between_two() {
        let mut breaker = opened(1000);
        assert!(breaker.admits_trickle(1000) && breaker.sent(&SETTINGS, 1, 1000));
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.admits_trickle(9000), "one is under way");
        breaker.probe_ended(1);
        assert!(!breaker.admits_trickle(1249) && breaker.admits_trickle(1250));
        breaker.sent(&SETTINGS, 1, 1250);
        breaker.probe_passed(&SETTINGS, 1);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "a success is a reason to ask for more");
    }

    #[test]
    fn a_reset_closes_it_and_what_began_before_is_not_heard() {
        let mut breaker = opened(0);
        breaker.sent(&SETTINGS, 1, 1000);
        breaker.reset(2);
        assert_eq!(breaker.state(), BreakerState::Closed);
        for _ in 0..9 {
            breaker.failed(&SETTINGS, leg(1, true, 0), 1001);
        }
        breaker.probe_ended(1);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(breaker.transitions(BreakerState::Open), 1);
    }

    #[test]
    fn a_trial_that_keeps_the_breakers_begins_with_an_open_one_that_lets_its_own_probes_through() {
        let mut breaker = opened(0);
        assert!(breaker.sent(&SETTINGS, 1, 1000));
        breaker.carry(2);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.failed(&SETTINGS, leg(1, true, 0), 1001);
        breaker.probe_passed(&SETTINGS, 1);
        breaker.probe_ended(1);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "a probe of the old trial says nothing");
        for _ in 0..2 {
            assert!(breaker.admits(&SETTINGS, 1001) && breaker.sent(&SETTINGS, 2, 1001));
            breaker.probe_passed(&SETTINGS, 2);
            breaker.probe_ended(2);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_disabled_breaker_never_opens() {
        let settings = BreakerSettings { enabled: false, ..SETTINGS };
        let mut breaker = Breaker::new();
        for i in 0..1000 {
            breaker.failed(&settings, leg(1, false, 0), i);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
