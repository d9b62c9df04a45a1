//! Groups of ranks that step together, as those behind one URL do if they share experts: a busy one slows them all. So what a
//! group has to do counts for each of its ranks beside its own. It chooses nobody.

use crate::fleet::{Fleet, load};
use crate::settings::LoadKind;

/// Groups from here on are of one rank each.
const GROUPS: usize = 1 << 16;

/// Parts of one request or token in loads that are compared, so that a mean of small numbers still tells.
const PARTS: u64 = 1024;

/// What each group has to do at the moment of one choice.
#[derive(Debug)]
pub(crate) struct Groups {
    /// What the mean of a group counts against the load of a rank itself; 0 is nothing.
    weight: f64,
    /// By group. Stays between choices for its room.
    sums: Vec<Sum>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    load: u64,
    ranks: u64,
}

impl Groups {
    pub(crate) const fn new(weight: f64) -> Self {
        Self { weight, sums: Vec::new() }
    }

    /// Looks at all loads, also of those who may not be chosen: they step too. Nothing to do without a weight.
    pub(crate) fn look<F: Fleet>(&mut self, fleet: &F, load: impl Fn(usize) -> u64) {
        if self.weight == 0.0 {
            return;
        }
        self.sums.fill(Sum::default());
        for i in 0..fleet.len() {
            let group = fleet.group(i) as usize;
            if group < GROUPS {
                if self.sums.len() <= group {
                    self.sums.resize(group + 1, Sum::default());
                }
                let sum = &mut self.sums[group];
                (sum.load, sum.ranks) = (sum.load.saturating_add(load(i)), sum.ranks + 1);
            }
        }
    }

    /// The load of a rank, weighed with the mean of its group. What a rank alone in its group has to do stays as it is.
    pub(crate) fn weigh(&self, group: u32, own: u64) -> u64 {
        match self.sums.get(group as usize) {
            Some(sum) if sum.ranks > 1 => {
                let mean = sum.load as f64 / sum.ranks as f64;
                ((own as f64 + self.weight * mean) / (1.0 + self.weight)) as u64
            }
            _ => own,
        }
    }
}

/// The loads that policies compare which know nothing of prompts.
#[derive(Debug)]
pub(crate) struct Loads {
    kind: LoadKind,
    groups: Groups,
}

impl Loads {
    pub(crate) const fn new(kind: LoadKind, weight: f64) -> Self {
        Self { kind, groups: Groups::new(weight) }
    }

    pub(crate) const fn kind(&self) -> LoadKind {
        self.kind
    }

    /// As they are now; what is looked up after that is a little newer.
    pub(crate) fn look<F: Fleet>(&mut self, fleet: &F) {
        let kind = self.kind;
        self.groups.look(fleet, |i| load(fleet, kind, i).saturating_mul(PARTS));
    }

    /// What candidate `i` has to do, in parts of one request or token.
    pub(crate) fn of<F: Fleet>(&self, fleet: &F, i: usize) -> u64 {
        self.groups.weigh(fleet.group(i), load(fleet, self.kind, i).saturating_mul(PARTS))
    }

    /// The groups, for a policy that looks by itself.
    pub(crate) const fn groups(&mut self) -> &mut Groups {
        &mut self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::Ask;
    use crate::policy::Policy;
    use crate::settings::{PolicyKind, PolicySettings};
    use crate::testing::Sample;

    /// Two URLs with two ranks each and these requests in flight.
    fn fleet(running: [u32; 4]) -> Sample {
        let mut fleet = Sample::new(4);
        for (i, (worker, running)) in fleet.workers.iter_mut().zip(running).enumerate() {
            (worker.group, worker.rank) = (i as u32 / 2, i as u32 % 2);
            worker.in_flight.set(running);
        }
        fleet
    }

    fn chosen(kind: PolicyKind, group_weight: f64, running: [u32; 4]) -> usize {
        let policy = Policy::new(&PolicySettings { kind, group_weight, ..PolicySettings::default() }, 1);
        policy.select(&Ask::default(), &fleet(running), |_| ()).unwrap().0.index
    }

    #[test]
    fn an_idle_rank_of_a_busy_group_is_passed_over_only_if_the_group_counts() {
        for kind in [PolicyKind::CacheAware, PolicyKind::LeastLoaded] {
            assert_eq!(chosen(kind, 0.0, [0, 40, 10, 11]), 0, "{kind}");
            assert_eq!(chosen(kind, 2.0, [0, 40, 10, 11]), 2, "{kind}");
            assert_eq!(chosen(kind, 0.1, [0, 40, 10, 11]), 0, "{kind}: a little is not enough");
        }
    }

    #[test]
    fn of_two_drawn_the_group_counts_as_well() {
        let policy = |group_weight| {
            let kind = PolicyKind::PowerOfTwo;
            Policy::new(&PolicySettings { kind, group_weight, ..PolicySettings::default() }, 1)
        };
        let (alone, grouped, fleet) = (policy(0.0), policy(2.0), fleet([0, 40, 10, 11]));
        let picks = |policy: &Policy| -> Vec<usize> {
            (0..200).map(|_| policy.select(&Ask::default(), &fleet, |_| ()).unwrap().0.index).collect()
        };
        // Whenever it is drawn the idle one wins by itself; with its group it beats nobody but its neighbour.
        let idle = |picks: &[usize]| picks.iter().filter(|&&i| i == 0).count();
        let (by_itself, with_group) = (idle(&picks(&alone)), idle(&picks(&grouped)));
        assert!(by_itself > 80 && (15..60).contains(&with_group), "{by_itself} {with_group}");
    }

    #[test]
    fn within_a_group_the_ranks_own_load_decides() {
        for weight in [0.0, 1.0, 100.0] {
            assert_eq!(chosen(PolicyKind::LeastLoaded, weight, [9, 8, 90, 90]), 1);
        }
    }

    #[test]
    fn who_may_not_be_chosen_slows_its_group_all_the_same() {
        let mut fleet = fleet([0, 40, 10, 11]);
        fleet.workers[1].eligible = false;
        let settings =
            PolicySettings { kind: PolicyKind::LeastLoaded, group_weight: 2.0, ..PolicySettings::default() };
        let choice = Policy::new(&settings, 1).select(&Ask::default(), &fleet, |_| ()).unwrap().0;
        assert_eq!(choice.index, 2);
    }

    #[test]
    fn ranks_alone_in_their_group_weigh_what_they_have_to_do_and_wild_groups_take_no_memory() {
        let mut fleet = fleet([1, 2, 3, 4]);
        (0..4).for_each(|i| fleet.workers[i].group = [7, 8, 9, u32::MAX][i]);
        let mut groups = Groups::new(5.0);
        groups.look(&fleet, |i| 10 * u64::from(fleet.in_flight(i)));
        assert_eq!([7, 8, 9, u32::MAX, 3].map(|group| groups.weigh(group, 77)), [77; 5]);
        assert_eq!(groups.sums.len(), 10);
    }
}
