//! A breaker behind its lock, with the successes that it weighs failures against. Whoever owns it says what it stands for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::breaker::{Breaker, BreakerSettings, BreakerState, Leg};

/// One breaker and what it is fed with.
#[derive(Debug)]
pub(crate) struct Circuit {
    settings: Arc<BreakerSettings>,
    breaker: Mutex<Breaker>,
    successes: AtomicU64,
}

impl Circuit {
    /// Closed, listening to this epoch.
    pub(crate) fn new(settings: Arc<BreakerSettings>, epoch: u64) -> Self {
        let mut breaker = Breaker::new();
        breaker.reset(epoch);
        Self { settings, breaker: Mutex::new(breaker), successes: AtomicU64::new(0) }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.breaker().state()
    }

    /// Times it changed to this state.
    pub(crate) fn transitions(&self, to: BreakerState) -> u64 {
        self.breaker().transitions(to)
    }

    /// Whether a request may pass now.
    pub(crate) fn admits(&self, now_ms: u64) -> bool {
        self.breaker().admits(&self.settings, now_ms)
    }

    /// When it opened, if a request may pass although it is open; 0 if it is not open.
    pub(crate) fn trickles(&self, now_ms: u64) -> Option<u64> {
        let breaker = self.breaker();
        match breaker.state() {
            BreakerState::Closed => Some(0),
            BreakerState::Open | BreakerState::HalfOpen => {
                breaker.admits_trickle(now_ms).then(|| breaker.opened_ms())
            }
        }
    }

    /// A request of this epoch passes; true if as a probe.
    pub(crate) fn sent(&self, epoch: u64, now_ms: u64) -> bool {
        self.breaker().sent(&self.settings, epoch, now_ms)
    }

    /// A probe is over.
    pub(crate) fn probe_ended(&self, epoch: u64) {
        self.breaker().probe_ended(epoch);
    }

    /// Counts a success. Takes no lock.
    pub(crate) fn went_well(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
    }

    /// A probe succeeded. `then` learns whether it is closed, under the same lock.
    pub(crate) fn probe_passed(&self, epoch: u64, then: impl FnOnce(bool)) {
        self.change(|breaker, settings| breaker.probe_passed(settings, epoch), then);
    }

    /// A request failed. `then` as for [`Self::probe_passed`].
    pub(crate) fn failed(&self, epoch: u64, is_probe: bool, now_ms: u64, then: impl FnOnce(bool)) {
        let leg = Leg { epoch, is_probe, successes: self.successes.load(Ordering::Relaxed) };
        self.change(|breaker, settings| breaker.failed(settings, leg, now_ms), then);
    }

    /// A new trial begins. `then` as for [`Self::probe_passed`].
    pub(crate) fn reset(&self, epoch: u64, then: impl FnOnce(bool)) {
        self.change(|breaker, _| breaker.reset(epoch), then);
    }

    /// A new trial begins with the state as it is.
    pub(crate) fn carry(&self, epoch: u64) {
        self.breaker().carry(epoch);
    }

    /// What failed is another process now. `then` as for [`Self::probe_passed`].
    pub(crate) fn forgive(&self, then: impl FnOnce(bool)) {
        self.change(|breaker, _| breaker.forgive(), then);
    }

    /// Changes the breaker, and what follows from it, under one lock.
    fn change(&self, change: impl FnOnce(&mut Breaker, &BreakerSettings), then: impl FnOnce(bool)) {
        let mut breaker = self.breaker();
        change(&mut breaker, &self.settings);
        then(breaker.state() == BreakerState::Closed);
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
