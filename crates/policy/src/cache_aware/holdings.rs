//! How much each worker holds, by the age of its last use, so that it can be told from when on a worker of known
//! capacity has dropped what it was given. It keeps sums only and knows no prefix.

use super::holders::BLOCK_OVERHEAD;
use crate::fleet::Slot;

/// Steps of age that are told apart: what a worker drops is known to about 1/32 of its capacity.
const STEPS: usize = 32;

/// The holdings of every worker whose capacity is known, by slot.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    slots: Vec<Option<Box<Holding>>>,
    /// Holdings there are.
    known: usize,
}

/// One worker's, oldest step first.
#[derive(Debug)]
struct Holding {
    steps: [Step; STEPS],
    len: usize,
    blocks: u64,
}

/// What was last used at `since` or later, and before the next step begins.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    since: u64,
    blocks: u64,
}

impl Holdings {
    /// Begins to count for `slot`, unless that or the count of others takes more than `most` bytes. Gives whether
    /// it counts.
    pub(super) fn count(&mut self, slot: Slot, most: usize) -> bool {
        let at = slot.0 as usize;
        if self.slots.get(at).is_some_and(Option::is_some) {
            return true;
        }
        let slots = self.slots.len().max((at + 1).next_power_of_two());
        let needed = slots * size_of::<Option<Box<Holding>>>() + (self.known + 1) * each();
        if needed > most {
            return false;
        }
        if self.slots.len() < slots {
            self.slots.reserve_exact(slots - self.slots.len());
            self.slots.resize_with(slots, || None);
        }
        let none = Step::default();
        self.slots[at] = Some(Box::new(Holding { steps: [none; STEPS], len: 1, blocks: 0 }));
        self.known += 1;
        true
    }

    /// Bytes on the heap, the allocator's included.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Box<Holding>>>() + self.known * each()
    }

    /// `blocks` that were last used at `old`, or not held, are used at `now`, which no step is younger than.
    pub(super) fn used(&mut self, slot: Slot, old: Option<u64>, now: u64, blocks: usize) {
        if let Some(holding) = self.of(slot) {
            if let Some(old) = old {
                holding.take(old, blocks as u64);
            }
            holding.put(now, blocks as u64);
        }
    }

    /// `blocks` that were last used at `old` are not known any more.
    pub(super) fn lost(&mut self, slot: Slot, old: u64, blocks: usize) {
        if let Some(holding) = self.of(slot) {
            holding.take(old, blocks as u64);
        }
    }

    /// Nothing last used up to `tick` counts any more, for any worker.
    pub(super) fn age(&mut self, tick: u64) {
        for holding in self.slots.iter_mut().flatten() {
            while holding.has_second() && holding.steps[1].since <= tick {
                holding.drop_oldest();
            }
        }
    }

    /// The worker holds nothing.
    pub(super) fn forget(&mut self, slot: Slot) {
        if let Some(holding) = self.of(slot) {
            (holding.steps[0], holding.len, holding.blocks) = (Step::default(), 1, 0);
        }
    }

    /// If `slot` holds more than `capacity` blocks: the tick up to which it has dropped everything.
    pub(super) fn trim(&mut self, slot: Slot, capacity: u64) -> Option<u64> {
        let holding = self.of(slot)?;
        let mut dropped = None;
        while holding.blocks > capacity && holding.has_second() {
            holding.drop_oldest();
            dropped = Some(holding.steps[0].since.saturating_sub(1));
        }
        let newest = &mut holding.steps[holding.len - 1];
        if newest.blocks > capacity / STEPS as u64 && newest.blocks > 0 {
            holding.begin_step();
        }
        dropped
    }

    fn of(&mut self, slot: Slot) -> Option<&mut Holding> {
        self.slots.get_mut(slot.0 as usize)?.as_deref_mut()
    }
}

/// Bytes of one holding.
const fn each() -> usize {
    size_of::<Holding>() + BLOCK_OVERHEAD
}

impl Holding {
    /// The newest step is still without a beginning until something is put into it.
    fn put(&mut self, now: u64, blocks: u64) {
        let newest = &mut self.steps[self.len - 1];
        if newest.since == 0 && self.len > 1 {
            newest.since = now;
        }
        newest.blocks += blocks;
        self.blocks += blocks;
    }

    fn take(&mut self, old: u64, blocks: u64) {
        let begun = match self.steps[self.len - 1].since {
            0 if self.len > 1 => self.len - 1,
            _ => self.len,
        };
        let after = self.steps[..begun].partition_point(|step| step.since <= old);
        let step = &mut self.steps[after.saturating_sub(1)];
        // What was held before counting began is in no step.
        let taken = blocks.min(step.blocks);
        step.blocks -= taken;
        self.blocks -= taken;
    }

    /// Whether the oldest step has ended and another has begun.
    const fn has_second(&self) -> bool {
        self.len > 1 && self.steps[1].since > 0
    }

    fn drop_oldest(&mut self) {
        self.blocks -= self.steps[0].blocks;
        self.steps.copy_within(1..self.len, 0);
        self.len -= 1;
    }

    fn begin_step(&mut self) {
        if self.len == STEPS {
            // The two neighbours that hold least become one.
            let weight = |at: usize| self.steps[at].blocks + self.steps[at + 1].blocks;
            let at = (0..self.len - 2).min_by_key(|&at| weight(at)).unwrap_or(0);
            self.steps[at].blocks = weight(at);
            self.steps.copy_within(at + 2..self.len, at + 1);
            self.len -= 1;
        }
        self.steps[self.len] = Step::default();
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOT: Slot = Slot(3);

    fn counting() -> Holdings {
        let mut holdings = Holdings::default();
        assert!(holdings.count(SLOT, usize::MAX));
        holdings
    }

    #[test]
    fn the_least_recently_used_is_dropped_first_and_no_more_than_needed() {
        let mut holdings = counting();
        let mut floor = 0;
        for tick in 1..=200 {
            holdings.used(SLOT, None, tick, 10);
            floor = holdings.trim(SLOT, 1000).unwrap_or(floor);
        }
        assert!((100..=104).contains(&floor), "{floor}");
    }

    #[test]
    fn what_is_used_again_does_not_count_twice() {
        let mut holdings = counting();
        for tick in 1..=500 {
            holdings.used(SLOT, (tick > 5).then(|| tick - 5), tick, 100);
            assert_eq!(holdings.trim(SLOT, 1000), None);
        }
    }

    #[test]
    fn one_prompt_larger_than_the_capacity_is_kept_until_the_next() {
        let mut holdings = counting();
        holdings.used(SLOT, None, 1, 5000);
        assert_eq!(holdings.trim(SLOT, 1000), None);
        holdings.used(SLOT, None, 2, 10);
        assert_eq!(holdings.trim(SLOT, 1000), Some(1));
    }

    #[test]
    fn a_wild_slot_is_not_counted() {
        let mut holdings = Holdings::default();
        assert!(!holdings.count(Slot(1 << 19), 1 << 16));
        assert_eq!(holdings.heap_bytes(), 0);
        assert_eq!(holdings.trim(Slot(1 << 19), 0), None);
    }

    proptest! {
        #[test]
        fn sums_agree_with_a_list_of_everything_up_to_one_step(
            uses in prop::collection::vec((0_usize..60, 1_usize..50), 1..600),
            capacity in 200_u64..3000,
        ) {
            let mut holdings = counting();
            let mut held: [Option<u64>; 60] = [None; 60];
            let size = |item: usize| 1 + item * 7 % 40;
            for (tick, (item, _)) in (1_u64..).zip(uses) {
                holdings.used(SLOT, held[item], tick, size(item));
                held[item] = Some(tick);
                if let Some(floor) = holdings.trim(SLOT, capacity) {
                    held.iter_mut().for_each(|last| *last = last.filter(|&last| last > floor));
                }
                let sum: usize = (0..60).filter(|&i| held[i].is_some()).map(size).sum();
                let holding = holdings.of(SLOT).unwrap();
                prop_assert_eq!(holding.blocks, sum as u64);
                prop_assert_eq!(holding.steps[..holding.len].iter().map(|s| s.blocks).sum::<u64>(), sum as u64);
                prop_assert!(holding.blocks <= capacity || holding.len <= 2);
            }
        }
    }
}
