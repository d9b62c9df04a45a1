//! Which leaf was unused for longest. It decides who goes first, and frees nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::arena::Arena;

/// Entries that are set right for one answer. Beyond that, which takes a tree where nearly everything was used since
/// it was last put in order, the answer is the oldest of these.
const LOOKS: usize = 64;

/// A queue of nodes by a tick at which or after which each was last used. A use changes nothing here, so that a hit writes
/// to no node but its own: what an entry says is set right when it comes to the front.
///
/// Every leaf has an entry. A node with children may have one; it goes when it gets to the front, and comes again when the
/// last child goes. Nothing is taken from the middle: the entry of a node that is gone stands for whoever gets its
/// number next.
#[derive(Debug)]
pub(super) struct Recency {
    queue: BinaryHeap<Reverse<Entry>>,
}

/// Ordered by tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The node was not used before this.
    since: u64,
    node: u32,
}

impl Recency {
    pub(super) const fn new() -> Self {
        Self { queue: BinaryHeap::new() }
    }

    /// Bytes of the queue.
    pub(super) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Entry>()
    }

    /// Bytes by which the next [`Recency::list`] makes the queue grow, at most.
    pub(super) fn growth(&self) -> usize {
        if self.queue.len() == self.queue.capacity() { self.step() * size_of::<Entry>() } else { 0 }
    }

    /// An eighth at a time, as the arena.
    fn step(&self) -> usize {
        (self.queue.capacity() / 8).max(16)
    }

    /// Gives a node an entry, if its number has none.
    pub(super) fn list(&mut self, id: u32, arena: &mut Arena) {
        let node = arena.get_mut(id);
        if !node.is_listed {
            node.is_listed = true;
            let since = node.holders.last_use();
            if self.queue.len() == self.queue.capacity() {
                self.queue.reserve_exact(self.step());
            }
            self.queue.push(Reverse(Entry { since, node: id }));
        }
    }

    /// The leaf that was unused for longest, other than `spared`.
    pub(super) fn oldest(&mut self, spared: u32, arena: &mut Arena) -> Option<u32> {
        let mut aside = None;
        let found = self.search(spared, &mut aside, arena);
        self.queue.extend(aside);
        found.map(|entry| entry.node)
    }

    /// As [`Recency::oldest`]; leaves the entry of `spared` aside.
    fn search(
        &mut self,
        spared: u32,
        aside: &mut Option<Reverse<Entry>>,
        arena: &mut Arena,
    ) -> Option<Entry> {
        let mut best: Option<Entry> = None;
        let mut looks = 0;
        while looks < LOOKS
            && let Some(mut front) = self.queue.peek_mut()
        {
            let Reverse(Entry { since, node: id }) = *front;
            let node = arena.get_mut(id);
            if !node.is_used() || node.children > 0 {
                node.is_listed = false;
                PeekMut::pop(front);
            } else if id == spared {
                *aside = Some(PeekMut::pop(front));
            } else if node.holders.last_use() <= since {
                return Some(front.0);
            } else {
                front.0.since = node.holders.last_use();
                best = best.min(Some(front.0)).or(Some(front.0));
                looks += 1;
            }
        }
        best
    }

    /// The numbers that have an entry.
    #[cfg(test)]
    pub(super) fn listed(&self) -> impl Iterator<Item = u32> {
        self.queue.iter().map(|entry| entry.0.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_aware::arena::{NONE, Node};
    use crate::cache_aware::holders::{Holders, Liveness, Stamp};
    use crate::fleet::Slot;

    fn stamp(tick: u64) -> Stamp {
        Stamp::new(Slot(0), tick)
    }

    fn leaf(tick: u64, arena: &mut Arena, recency: &mut Recency) -> u32 {
        let id = arena.insert(Node::new(Box::new([1]), Holders::One(stamp(tick)), NONE));
        let limit = recency.bytes() + recency.growth();
        recency.list(id, arena);
        assert!(recency.bytes() <= limit);
        id
    }

    fn use_at(tick: u64, id: u32, arena: &mut Arena) {
        arena.get_mut(id).holders.mark(stamp(tick), &Liveness::default());
    }

    /// Takes out the oldest, as an eviction does.
    fn evict(arena: &mut Arena, recency: &mut Recency) -> Option<u32> {
        recency.oldest(NONE, arena).inspect(|&id| arena.remove(id))
    }

    #[test]
    fn leaves_go_in_the_order_of_their_last_use_whatever_was_used_in_between() {
        let (mut arena, mut recency) = (Arena::new(), Recency::new());
        let ids: Vec<u32> = (1..=20).map(|tick| leaf(tick, &mut arena, &mut recency)).collect();
        for (tick, i) in [(21, 3), (22, 0), (23, 19), (24, 3), (25, 1)] {
            use_at(tick, ids[i], &mut arena);
        }
        let gone: Vec<u32> = std::iter::from_fn(|| evict(&mut arena, &mut recency)).collect();
        let kept = (0..20).filter(|i| ![3, 0, 19, 1].contains(i));
        let order: Vec<u32> = kept.chain([0, 19, 3, 1]).map(|i| ids[i]).collect();
        assert_eq!(gone, order);
        assert_eq!(recency.listed().count(), 0);
    }

    #[test]
    fn nodes_with_children_and_the_spared_one_are_passed_over_and_come_again() {
        let (mut arena, mut recency) = (Arena::new(), Recency::new());
        let ids: Vec<u32> = (1..=3).map(|tick| leaf(tick, &mut arena, &mut recency)).collect();
        arena.get_mut(ids[0]).children = 1;
        assert_eq!(recency.oldest(ids[1], &mut arena), Some(ids[2]));
        arena.get_mut(ids[0]).children = 0;
        recency.list(ids[0], &mut arena);
        recency.list(ids[0], &mut arena);
        assert_eq!(recency.listed().count(), 3);
        assert_eq!(recency.oldest(NONE, &mut arena), Some(ids[0]));
        assert_eq!(recency.oldest(ids[0], &mut arena), Some(ids[1]));
    }

    #[test]
    fn a_number_that_is_given_again_keeps_its_one_entry() {
        let (mut arena, mut recency) = (Arena::new(), Recency::new());
        let ids: Vec<u32> = (1..=2).map(|tick| leaf(tick, &mut arena, &mut recency)).collect();
        arena.remove(ids[0]);
        assert_eq!(leaf(3, &mut arena, &mut recency), ids[0]);
        assert_eq!(recency.listed().count(), 2);
        assert_eq!(evict(&mut arena, &mut recency), Some(ids[1]));
        assert_eq!(evict(&mut arena, &mut recency), Some(ids[0]));
    }

    #[test]
    fn where_everything_was_used_again_one_answer_does_not_put_all_in_order() {
        let (mut arena, mut recency) = (Arena::new(), Recency::new());
        let ids: Vec<u32> = (1..=1000).map(|tick| leaf(tick, &mut arena, &mut recency)).collect();
        for (tick, &id) in (1001..).zip(ids.iter().rev()) {
            use_at(tick, id, &mut arena);
        }
        let oldest = recency.oldest(NONE, &mut arena).unwrap();
        assert_eq!(oldest, ids[LOOKS - 1], "the oldest of those that were looked at");
        assert_eq!(recency.queue.iter().filter(|entry| entry.0.since > 1000).count(), LOOKS);
    }
}
