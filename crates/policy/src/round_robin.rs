//! One after the other, in registration order.

use crate::choice::{Pick, Reason};
use crate::fleet::{Fleet, Slot};

/// Remembers the slot last chosen, not a counter: a worker that leaves or returns shifts nobody else's turn.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    last: Option<Slot>,
}

impl RoundRobin {
    /// The first eligible candidate after the one last chosen, cyclically.
    pub(crate) fn pick<F: Fleet>(&mut self, fleet: &F) -> Option<Pick> {
        let len = fleet.len();
        let start = self.last.map_or(0, |last| first_after(fleet, last));
        let index = (start..len).chain(0..start).find(|&i| fleet.eligible(i))?;
        self.last = Some(fleet.slot(index));
        Some(Pick::plain(index, Reason::Rotation))
    }
}

/// Index of the first candidate with a slot above `last`.
fn first_after<F: Fleet>(fleet: &F, last: Slot) -> usize {
    let (mut low, mut high) = (0, fleet.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if fleet.slot(middle) <= last {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sample;

    fn turns(policy: &mut RoundRobin, fleet: &Sample, count: usize) -> Vec<u32> {
        (0..count).map(|_| fleet.slot(policy.pick(fleet).unwrap().index).0).collect()
    }

    #[test]
    fn turns_follow_registration_order_and_wrap() {
        let mut policy = RoundRobin::default();
        assert_eq!(turns(&mut policy, &Sample::new(3), 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_worker_that_leaves_and_returns_shifts_nobodys_turn() {
        let mut policy = RoundRobin::default();
        let all = Sample::new(4);
        assert_eq!(turns(&mut policy, &all, 2), [0, 1]);
        let without_one = Sample::with_slots(&[0, 2, 3]);
        assert_eq!(turns(&mut policy, &without_one, 3), [2, 3, 0]);
        assert_eq!(turns(&mut policy, &all, 3), [1, 2, 3]);
    }

    #[test]
    fn the_last_chosen_may_be_gone() {
        let mut policy = RoundRobin::default();
        turns(&mut policy, &Sample::new(3), 3);
        assert_eq!(turns(&mut policy, &Sample::with_slots(&[0, 1]), 2), [0, 1]);
    }

    #[test]
    fn the_ineligible_are_skipped_and_none_is_an_answer() {
        let mut policy = RoundRobin::default();
        let mut fleet = Sample::new(3);
        fleet.workers[1].eligible = false;
        assert_eq!(turns(&mut policy, &fleet, 4), [0, 2, 0, 2]);
        for worker in &mut fleet.workers {
            worker.eligible = false;
        }
        assert_eq!(policy.pick(&fleet), None);
        assert_eq!(policy.pick(&Sample::new(0)), None);
    }
}
