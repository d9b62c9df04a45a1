//! One after the other, in registration order: first the lowest rank of each URL, then the next one.

use crate::choice::{Pick, Reason};
use crate::fleet::{Fleet, Slot};

/// A place in the rotation: rank, then slot.
type Place = (u32, Slot);

/// Remembers the place last chosen, not a counter: a worker that leaves or returns shifts nobody else's turn.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    last: Option<Place>,
    /// Numbers of the candidates in the order of their places.
    order: Vec<usize>,
    generation: Option<u64>,
}

impl RoundRobin {
    /// The first eligible candidate after the one last chosen, cyclically.
    pub(crate) fn pick<F: Fleet>(&mut self, fleet: &F) -> Option<Pick> {
        let place = |&i: &usize| (fleet.rank(i), fleet.slot(i));
        if self.generation != Some(fleet.generation()) {
            self.generation = Some(fleet.generation());
            self.order = (0..fleet.len()).collect();
            self.order.sort_unstable_by_key(place);
        }
        let start = self.last.map_or(0, |last| self.order.partition_point(|i| place(i) <= last));
        let (before, after) = self.order.split_at(start);
        let index = *after.iter().chain(before).find(|&&i| fleet.eligible(i))?;
        self.last = Some(place(&index));
        Some(Pick::plain(index, Reason::Rotation))
    }
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
    fn urls_take_turns_before_their_ranks_do() {
        let mut fleet = Sample::new(5);
        for (worker, rank) in fleet.workers.iter_mut().zip([0, 1, 2, 0, 1]) {
            worker.rank = rank;
        }
        assert_eq!(turns(&mut RoundRobin::default(), &fleet, 7), [0, 3, 1, 4, 2, 0, 3]);
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
