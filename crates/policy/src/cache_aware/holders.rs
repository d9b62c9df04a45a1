//! Who holds a run of the tree, and since when unused. It does not know what a run is.

use std::slice;

use crate::fleet::Slot;

/// Bits of a stamp that name the slot. The rest counts accesses: enough for five years at 100 000 a second.
const SLOT_BITS: u32 = 20;

/// Slots from here on cannot hold anything.
pub(super) const SLOTS: u32 = 1 << SLOT_BITS;

/// Ticks end here.
pub(super) const LAST_TICK: u64 = (1 << (64 - SLOT_BITS)) - 1;

/// What the allocator is assumed to add to each block, in bytes.
pub(super) const BLOCK_OVERHEAD: usize = 16;

/// A holder and the tick of its last use, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64);

impl Stamp {
    pub(super) const fn new(slot: Slot, tick: u64) -> Self {
        Self((tick << SLOT_BITS) | slot.0 as u64)
    }

    pub(super) const fn slot(self) -> Slot {
        Slot((self.0 & (SLOTS as u64 - 1)) as u32)
    }

    pub(super) const fn tick(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// Tells stamps that still count from those that do not, without touching any of them.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Stamps up to this tick are too old.
    horizon: u64,
    /// By slot: stamps up to this tick were made before the worker lost its cache.
    forgotten: Vec<u64>,
}

impl Liveness {
    pub(super) fn is_live(&self, stamp: Stamp) -> bool {
        let floor = self.forgotten.get(stamp.slot().0 as usize).copied().unwrap_or(0);
        stamp.tick() > self.horizon.max(floor)
    }

    /// Stamps up to `tick` end.
    pub(super) fn age(&mut self, tick: u64) {
        self.horizon = self.horizon.max(tick);
    }

    /// Stamps of `slot` up to `tick` end.
    pub(super) fn forget(&mut self, slot: Slot, tick: u64) {
        let at = slot.0 as usize;
        if self.forgotten.len() <= at {
            self.forgotten.resize(at + 1, 0);
        }
        self.forgotten[at] = self.forgotten[at].max(tick);
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.forgotten.capacity() * size_of::<u64>()
    }

    /// Bytes on the heap if `slot` were forgotten, at most.
    pub(super) const fn heap_bytes_with(slot: Slot) -> usize {
        // Growth at least doubles.
        (slot.0 as usize + 1) * 2 * size_of::<u64>()
    }
}

/// The holders of one run, sorted by slot.
#[derive(Clone, Debug)]
pub(super) enum Holders {
    One(Stamp),
    #[expect(clippy::box_collection, reason = "a node with one holder must fit a cache line")]
    Many(Box<Vec<Stamp>>),
}

impl Holders {
    /// Nobody: a stamp that never counts.
    pub(super) const EMPTY: Self = Self::One(Stamp(0));

    pub(super) fn as_slice(&self) -> &[Stamp] {
        match self {
            Self::One(stamp) => slice::from_ref(stamp),
            Self::Many(stamps) => stamps,
        }
    }

    /// The holders that count, in slot order.
    pub(super) fn live<'a>(&'a self, liveness: &'a Liveness) -> impl Iterator<Item = Slot> + 'a {
        self.live_stamps(liveness).map(Stamp::slot)
    }

    pub(super) fn is_dead(&self, liveness: &Liveness) -> bool {
        self.as_slice().iter().all(|&stamp| !liveness.is_live(stamp))
    }

    pub(super) fn holds(&self, slot: Slot, liveness: &Liveness) -> bool {
        let stamps = self.as_slice();
        let found = stamps.binary_search_by_key(&slot, |stamp| stamp.slot());
        found.is_ok_and(|at| liveness.is_live(stamps[at]))
    }

    /// Makes the stamp's slot a holder, or renews it. Gives the tick of its last use before, if that counts.
    pub(super) fn mark(&mut self, stamp: Stamp, liveness: &Liveness) -> Option<u64> {
        let mut old = None;
        match self {
            Self::One(only) if only.slot() == stamp.slot() || !liveness.is_live(*only) => {
                old = Some(std::mem::replace(only, stamp));
            }
            Self::One(only) => {
                let mut both = Vec::with_capacity(4);
                both.extend([*only, stamp]);
                both.sort_unstable_by_key(|stamp| stamp.slot());
                *self = Self::Many(Box::new(both));
            }
            Self::Many(stamps) => {
                if stamps.len() == stamps.capacity() {
                    stamps.retain(|&stamp| liveness.is_live(stamp));
                }
                match stamps.binary_search_by_key(&stamp.slot(), |stamp| stamp.slot()) {
                    Ok(at) => old = Some(std::mem::replace(&mut stamps[at], stamp)),
                    Err(at) => stamps.insert(at, stamp),
                }
            }
        }
        old.filter(|&old| liveness.is_live(old)).map(Stamp::tick)
    }

    /// Tick of the last use by anybody, whether it counts or not.
    pub(super) fn last_use(&self) -> u64 {
        self.as_slice().iter().map(|stamp| stamp.tick()).max().unwrap_or(0)
    }

    /// The stamps that count.
    pub(super) fn live_stamps<'a>(&'a self, liveness: &'a Liveness) -> impl Iterator<Item = Stamp> + 'a {
        self.as_slice().iter().copied().filter(|&stamp| liveness.is_live(stamp))
    }

    /// Drops stamps that do not count; the last one stays, dead or not.
    pub(super) fn purge(&mut self, liveness: &Liveness) {
        if let Self::Many(stamps) = self {
            stamps.retain(|&stamp| liveness.is_live(stamp));
            match stamps.as_slice() {
                [] => *self = Self::EMPTY,
                &[only] => *self = Self::One(only),
                _ => {}
            }
        }
    }

    /// Bytes on the heap, the allocator's included.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Many(stamps) => {
                size_of::<Vec<Stamp>>() + stamps.capacity() * size_of::<Stamp>() + 2 * BLOCK_OVERHEAD
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(holders: &Holders, liveness: &Liveness) -> Vec<u32> {
        holders.live(liveness).map(|slot| slot.0).collect()
    }

    #[test]
    fn holders_stay_sorted_and_are_renewed_in_place() {
        let liveness = Liveness::default();
        let mut holders = Holders::One(Stamp::new(Slot(5), 1));
        for (slot, tick) in [(9, 2), (2, 3), (5, 4), (7, 5), (1, 6), (SLOTS - 1, LAST_TICK)] {
            holders.mark(Stamp::new(Slot(slot), tick), &liveness);
        }
        assert_eq!(slots(&holders, &liveness), [1, 2, 5, 7, 9, SLOTS - 1]);
        assert_eq!(holders.as_slice()[2].tick(), 4);
        assert_eq!(holders.as_slice()[5].tick(), LAST_TICK);
    }

    #[test]
    fn the_forgotten_and_the_aged_do_not_count_until_marked_again() {
        let mut liveness = Liveness::default();
        let mut holders = Holders::One(Stamp::new(Slot(0), 1));
        holders.mark(Stamp::new(Slot(1), 2), &liveness);
        holders.mark(Stamp::new(Slot(2), 3), &liveness);
        liveness.forget(Slot(2), 3);
        liveness.age(1);
        assert_eq!(slots(&holders, &liveness), [1]);
        assert!(!holders.holds(Slot(2), &liveness) && holders.holds(Slot(1), &liveness));
        holders.mark(Stamp::new(Slot(2), 4), &liveness);
        assert_eq!(slots(&holders, &liveness), [1, 2]);
        liveness.age(4);
        assert!(holders.is_dead(&liveness));
        holders.purge(&liveness);
        assert!(holders.is_dead(&liveness));
        assert_eq!(holders.heap_bytes(), 0);
    }

    #[test]
    fn a_full_list_drops_the_dead_before_it_grows() {
        let mut liveness = Liveness::default();
        let mut holders = Holders::One(Stamp::new(Slot(0), 1));
        for slot in 1..4 {
            holders.mark(Stamp::new(Slot(slot), 1), &liveness);
        }
        let before = holders.heap_bytes();
        liveness.forget(Slot(3), 1);
        holders.mark(Stamp::new(Slot(8), 2), &liveness);
        assert_eq!(slots(&holders, &liveness), [0, 1, 2, 8]);
        assert_eq!(holders.heap_bytes(), before);
    }
}
