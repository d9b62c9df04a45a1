//! What must hold whatever happens, and the count of the times that it did not: choices name candidates, and no load drifts
//! from legs started less legs ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use forebay_policy::Slot;

use crate::worker::Worker;
use crate::world::World;

/// What must hold whatever happens. That it does not is a defect of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the router found its own books wrong: {}", self.as_str())]
pub enum Invariant {
    /// Legs in flight are those started less those ended, and never fewer than none.
    InFlight,
    /// A policy chooses one of the workers that it was shown.
    Candidate,
}

impl Invariant {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::InFlight, Self::Candidate];

    /// Name in metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Candidate => "candidate",
        }
    }
}

/// Looks at every worker's counters now and then, and counts what cannot be.
///
/// The counters are written in two steps, so one look may meet a guard half made. A drift counts when two audits
/// in a row see the same one; it counts once, until it changes.
#[derive(Default)]
pub struct Auditor {
    seen: Mutex<HashMap<Slot, Drift>>,
    violations: [AtomicU64; Invariant::ALL.len()],
    audits: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Drift {
    amount: i64,
    counted: bool,
}

/// Quick looks within one audit: a guard half made is gone by the next one.
const LOOKS: usize = 64;

impl Auditor {
    /// One look at the whole fleet; gives the workers whose load was found wrong by it.
    pub fn audit(&self, world: &World) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.audits.fetch_add(1, Ordering::Relaxed);
        let mut found = Vec::new();
        for worker in world.carriers() {
            let amount = (0..LOOKS)
                .map(|_| worker.drift())
                .find(|drift| *drift == 0)
                .unwrap_or_else(|| worker.drift());
            let before = seen.get(&worker.slot()).copied();
            let again = before.is_some_and(|drift| drift.amount == amount);
            let counted = again && before.is_some_and(|drift| drift.counted);
            if amount != 0 && again && !counted {
                self.found(Invariant::InFlight);
                found.push(format!("{} is off by {amount}", worker.name()));
            }
            seen.insert(worker.slot(), Drift { amount, counted: again && amount != 0 });
        }
        found
    }

    /// Looks so far.
    pub fn audits(&self) -> u64 {
        self.audits.load(Ordering::Relaxed)
    }

    /// An invariant was found broken, here or by a request that met it.
    pub fn found(&self, broken: Invariant) {
        self.violations[broken as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Violations found so far.
    pub fn violations(&self) -> u64 {
        Invariant::ALL.into_iter().map(|invariant| self.violations_of(invariant)).sum()
    }

    /// Those of one invariant.
    pub fn violations_of(&self, invariant: Invariant) -> u64 {
        self.violations[invariant as usize].load(Ordering::Relaxed)
    }
}

impl Worker {
    /// Legs in flight − (started − ended). Other than 0 only between the two steps of a guard, or if somebody
    /// wrote a counter who must not.
    fn drift(&self) -> i64 {
        let ended = self.ended.load(Ordering::SeqCst);
        let in_flight = i64::from(self.in_flight.load(Ordering::SeqCst));
        let started = self.started.load(Ordering::SeqCst);
        in_flight.wrapping_sub_unsigned(started.wrapping_sub(ended))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{BreakerSettings, HealthSettings, registry};
    use forebay_policy::PolicySettings;

    #[test]
    fn numbers_are_places_in_the_list() {
        assert!(Invariant::ALL.iter().enumerate().all(|(place, one)| *one as usize == place));
    }

    #[test]
    fn a_counter_written_by_hand_is_found_once() {
        let (reader, writer) =
            registry(PolicySettings::default(), 0, HealthSettings::default(), BreakerSettings::default());
        let worker = writer.add("http://w:1".parse().unwrap());
        let worker = Arc::clone(&worker.workers()[0]);
        let auditor = Auditor::default();
        assert!(auditor.audit(&reader.world()).is_empty());
        worker.in_flight.fetch_add(1, Ordering::SeqCst);
        let found: Vec<_> = (0..4).flat_map(|_| auditor.audit(&reader.world())).collect();
        assert_eq!((found, auditor.violations()), (vec!["http://w:1 is off by 1".to_owned()], 1));
        worker.in_flight.fetch_sub(2, Ordering::SeqCst);
        for _ in 0..4 {
            auditor.audit(&reader.world());
        }
        assert_eq!(auditor.violations(), 2);
    }
}
