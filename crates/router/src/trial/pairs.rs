//! The prefill/decode pairs of one trial: how they ended, and the ids of those that did not go as they should.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::account::Paired;
use crate::pairs::PairOutcome;

/// Ids that are kept. Logs have them all.
const KEPT: usize = 32;

/// As far as one data thread has them.
#[derive(Clone, Default)]
pub(crate) struct PairTally {
    outcomes: [u64; PairOutcome::ALL.len()],
    /// The latest last.
    troubled: VecDeque<u64>,
}

/// In the form in which they are reported.
#[derive(Debug, Clone, Serialize)]
pub struct PairFigures {
    /// Requests that became pairs and have ended.
    pub ended: u64,
    /// The same by how the pairs ended; what never happened is left out.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Ids of the last of them that failed, took too long, or were answered by one leg alone.
    pub troubled_rooms: Vec<u64>,
}

impl PairTally {
    /// A request has ended that became this pair.
    pub(crate) fn count(&mut self, pair: Paired) {
        self.outcomes[pair.outcome as usize] += 1;
        match pair.outcome {
            PairOutcome::HandedOver
            | PairOutcome::PrefillOnly
            | PairOutcome::BegunAnew
            | PairOutcome::Abandoned => {}
            PairOutcome::Recomputed | PairOutcome::Rejected | PairOutcome::TimedOut | PairOutcome::Failed => {
                self.keep(pair.room);
            }
        }
    }

    /// Adds what another thread has of the same trial.
    pub(crate) fn add(&mut self, other: &Self) {
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(sum, count)| *sum += count);
        other.troubled.iter().for_each(|room| self.keep(*room));
    }

    fn keep(&mut self, room: u64) {
        if self.troubled.len() == KEPT {
            self.troubled.pop_front();
        }
        self.troubled.push_back(room);
    }
}

impl PairFigures {
    pub(crate) fn of(tally: &PairTally) -> Self {
        let outcomes = PairOutcome::ALL.into_iter().zip(tally.outcomes);
        Self {
            ended: tally.outcomes.iter().sum(),
            outcomes: outcomes
                .filter(|(_, count)| *count > 0)
                .map(|(outcome, count)| (outcome.as_str(), count))
                .collect(),
            troubled_rooms: tally.troubled.iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pairs_that_went_wrong_are_named() {
        let (mut one, mut other) = (PairTally::default(), PairTally::default());
        for room in 0..100 {
            let outcome = if room % 2 == 0 { PairOutcome::HandedOver } else { PairOutcome::TimedOut };
            one.count(Paired { room, outcome });
        }
        other.count(Paired { room: 1000, outcome: PairOutcome::Failed });
        one.add(&other);
        let figures = PairFigures::of(&one);
        assert_eq!(figures.ended, 101);
        assert_eq!(figures.outcomes, [("handed_over", 50), ("timed_out", 50), ("failed", 1)].into());
        assert_eq!(figures.troubled_rooms.len(), KEPT);
        assert_eq!(figures.troubled_rooms[KEPT - 2..], [99, 1000]);
    }
}
