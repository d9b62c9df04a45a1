//! A path-compressed radix tree over chain hashes: who has seen which prefix, within a bound in bytes. It
//! knows nothing of loads and chooses nobody.

use smallvec::SmallVec;

use super::ageing::Ageing;
use super::arena::{Arena, NONE, Node, run_bytes};
use super::holders::{Holders, LAST_TICK, Liveness, SLOTS, Stamp};
use super::holdings::Holdings;
use super::index::Index;
use super::recency::Recency;
use crate::fleet::Slot;

/// Nodes that one access looks at to clean up after the forgotten and the aged.
const CLEAN_PER_ACCESS: u32 = 16;

/// Nodes looked at for a dead one before a live one is evicted.
const CLEAN_PER_EVICTION: u32 = 64;

/// The invariants that make it simple:
/// - A holder of a node holds its whole run, and every run before it: holders only shrink on the way down.
/// - `bytes` of the parts plus `heap` is all memory there is, and never above `bound` between two calls.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Tree {
    // What every request writes comes first and fits one cache line, with the field before it: two threads that take turns
    // hand each line over.
    /// Counts recordings; stamps carry it.
    tick: u64,
    /// Where the last descent went.
    path: SmallVec<[Step; 3]>,
    arena: Arena,
    recency: Recency,
    index: Index,
    liveness: Liveness,
    holdings: Holdings,
    ageing: Ageing,
    /// Bytes of runs and holders on the heap.
    heap: usize,
    bound: usize,
    /// Next node to clean, after somebody was forgotten.
    cleaner: Option<u32>,
    /// One above the highest slot that ever held something.
    slots: u32,
}

/// A node on the path of a descent, and how much of the key matches up to and with it.
#[derive(Clone, Copy, Debug)]
struct Step {
    node: u32,
    blocks: u32,
}

/// What some workers hold of the key of the last descent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level<'a> {
    /// Blocks of the key that match.
    pub(super) blocks: usize,
    holders: &'a Holders,
    liveness: &'a Liveness,
}

impl<'a> Level<'a> {
    /// Who holds them, in slot order. Holders of a deeper level are among them.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + 'a {
        self.holders.live(self.liveness)
    }
}

impl Tree {
    /// An empty tree that will never take more than `bound` bytes. What is unused for `period_secs` is
    /// dropped, if that is not 0.
    pub(super) fn new(bound: usize, period_secs: u64) -> Self {
        Self {
            arena: Arena::new(),
            index: Index::new(),
            recency: Recency::new(),
            liveness: Liveness::default(),
            holdings: Holdings::default(),
            ageing: Ageing::new(period_secs),
            path: SmallVec::new(),
            tick: 0,
            heap: 0,
            bound,
            cleaner: None,
            slots: 0,
        }
    }

    /// Forgets everything and gives the memory back; only the ageing goes on.
    pub(super) fn clear(&mut self) {
        self.arena = Arena::new();
        self.index = Index::new();
        self.recency = Recency::new();
        self.liveness = Liveness::default();
        self.holdings = Holdings::default();
        self.path = SmallVec::new();
        (self.tick, self.heap, self.slots, self.cleaner) = (0, 0, 0, None);
        self.ageing.restart();
    }

    /// Memory in use, in bytes, capacity and the allocator's overhead included.
    pub(super) fn resident_bytes(&self) -> usize {
        size_of::<Self>()
            + self.arena.bytes()
            + self.index.bytes()
            + self.recency.bytes()
            + self.liveness.heap_bytes()
            + self.holdings.heap_bytes()
            + if self.path.spilled() { self.path.capacity() * size_of::<Step>() } else { 0 }
            + self.heap
    }

    /// Finds the longest known prefix of `key`. The answer is in [`Tree::levels`] until the next descent.
    pub(super) fn descend(&mut self, key: &[u64], now_ms: u64) {
        self.path.clear();
        if let Some(horizon) = self.ageing.access(now_ms, self.tick) {
            self.liveness.age(horizon);
            self.holdings.age(horizon);
            self.cleaner = Some(0);
        }
        self.clean(CLEAN_PER_ACCESS);
        self.walk(key);
        self.enforce_bound();
    }

    /// Follows `key` down and leaves the path.
    fn walk(&mut self, key: &[u64]) {
        let mut parent = NONE;
        let mut at = 0;
        while let Some(&first) = key.get(at) {
            let Some(id) = self.index.get(first, &self.arena) else {
                return;
            };
            let node = self.arena.get(id);
            if node.parent != parent {
                return; // Two different prefixes with one hash.
            }
            let len = node.run.len();
            let whole = key.get(at + len - 1) == Some(&node.last);
            at += if whole { len } else { node.common(&key[at..]) };
            self.path.push(Step { node: id, blocks: at as u32 });
            if !whole {
                return;
            }
            parent = id;
        }
    }

    /// What the last descent found, longest match first.
    pub(super) fn levels(&self) -> impl Iterator<Item = Level<'_>> {
        self.path.iter().rev().map(|step| Level {
            blocks: step.blocks as usize,
            holders: &self.arena.get(step.node).holders,
            liveness: &self.liveness,
        })
    }

    /// Blocks that `slot` holds of the key of the last descent.
    pub(super) fn blocks_held_by(&self, slot: Slot) -> usize {
        self.path
            .iter()
            .rev()
            .find(|step| self.arena.get(step.node).holders.holds(slot, &self.liveness))
            .map_or(0, |step| step.blocks as usize)
    }

    /// Makes `slot` a holder of `key`, which must be the key of the last descent, as far as there is room. A worker
    /// that can hold no more than `capacity` blocks drops what it has not used for longest.
    pub(super) fn record(&mut self, key: &[u64], slot: Slot, capacity: Option<u64>) {
        if slot.0 >= SLOTS {
            return;
        }
        if self.tick == LAST_TICK {
            self.clear();
        }
        self.tick += 1;
        self.slots = self.slots.max(slot.0 + 1);
        let stamp = Stamp::new(slot, self.tick);
        let capacity = capacity.filter(|_| self.counts(slot));
        if self.split_end() {
            self.mark_path(stamp);
            self.append_rest(key, stamp);
        } else {
            self.mark_path(stamp);
        }
        if let Some(floor) = capacity.and_then(|capacity| self.holdings.trim(slot, capacity)) {
            // Nothing has to be cleaned up for it: what is oldest here goes first anyway.
            self.liveness.forget(slot, floor);
        }
        self.enforce_bound();
    }

    /// Whether there is room to count what `slot` holds.
    fn counts(&mut self, slot: Slot) -> bool {
        let most = self.bound / 8;
        Liveness::heap_bytes_with(slot) <= most && self.holdings.count(slot, most)
    }

    /// What `slot` holds is gone. Its entries stop counting now and are cleaned up bit by bit.
    pub(super) fn forget(&mut self, slot: Slot) {
        if slot.0 >= self.slots {
            return;
        }
        if Liveness::heap_bytes_with(slot) > self.bound / 8 {
            return self.clear(); // Rather than let wild slot numbers eat the room.
        }
        self.path.clear();
        self.liveness.forget(slot, self.tick);
        self.holdings.forget(slot);
        self.cleaner = Some(0);
        self.enforce_bound();
    }

    /// Cuts the last node of the path where the match ends, so that the path ends with a whole run. Without
    /// the room for that, the path ends above the node, where nothing can be appended.
    fn split_end(&mut self) -> bool {
        let Some(&Step { node: lower, blocks }) = self.path.last() else {
            return true;
        };
        let before = self.path.len().checked_sub(2).map_or(0, |i| self.path[i].blocks);
        let keep = (blocks - before) as usize;
        let node = self.arena.get(lower);
        if keep == node.run.len() {
            return true;
        }
        let cost = run_bytes(0) + node.holders.heap_bytes();
        if !self.make_room(cost, node.run[keep]) {
            self.path.pop();
            return false;
        }
        let node = self.arena.get_mut(lower);
        self.heap -= node.heap_bytes();
        let (head, tail) = node.run.split_at(keep);
        let (head, tail): (Box<[u64]>, Box<[u64]>) = (head.into(), tail.into());
        let mut upper = Node::new(head, node.holders.clone(), node.parent);
        upper.children = 1;
        (node.first, node.run) = (tail[0], tail);
        self.heap += node.heap_bytes() + upper.heap_bytes();
        let first = upper.first;
        let upper = self.arena.insert(upper);
        self.arena.get_mut(lower).parent = upper;
        self.index.replace(first, lower, upper);
        self.index.insert(lower, &self.arena);
        if let Some(end) = self.path.last_mut() {
            end.node = upper;
        }
        true
    }

    /// The end of the path, which must survive while something is added below it. The nodes above it have a
    /// child, and only leaves are evicted.
    fn pinned(&self) -> u32 {
        self.path.last().map_or(NONE, |end| end.node)
    }

    /// Makes the stamp's slot a holder of every node of the path.
    fn mark_path(&mut self, stamp: Stamp) {
        for step in &self.path {
            let node = self.arena.get_mut(step.node);
            self.heap -= node.holders.heap_bytes();
            let old = node.holders.mark(stamp, &self.liveness);
            self.heap += node.holders.heap_bytes();
            self.holdings.used(stamp.slot(), old, stamp.tick(), node.run.len());
        }
    }

    /// Adds what the descent did not find as one run, cut to the room there is.
    fn append_rest(&mut self, key: &[u64], stamp: Stamp) {
        let (parent, at) = self.path.last().map_or((NONE, 0), |end| (end.node, end.blocks as usize));
        // One prompt gets at most half of the tree.
        let most = self.bound / (2 * size_of::<u64>());
        let Some(rest) = key.get(at..key.len().min(most)).filter(|rest| !rest.is_empty()) else {
            return;
        };
        if !self.make_room(run_bytes(rest.len()), rest[0]) {
            return;
        }
        let node = Node::new(rest.into(), Holders::One(stamp), parent);
        self.heap += node.heap_bytes();
        self.holdings.used(stamp.slot(), None, stamp.tick(), node.run.len());
        let id = self.arena.insert(node);
        self.index.insert(id, &self.arena);
        self.recency.list(id, &mut self.arena);
        if parent != NONE {
            self.arena.get_mut(parent).children += 1;
        }
    }

    /// For the small things that grow without asking for room first.
    fn enforce_bound(&mut self) {
        while self.resident_bytes() > self.bound {
            if !self.evict_one() {
                return self.clear();
            }
        }
    }

    /// Evicts until a node that starts with `first` and `heap` more bytes fit.
    fn make_room(&mut self, heap: usize, first: u64) -> bool {
        let growth = |tree: &Self| tree.arena.growth() + tree.index.growth(first) + tree.recency.growth();
        while self.resident_bytes() + heap + growth(self) > self.bound {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Evicts one leaf, a dead one if one is met soon, else the least recently used. False if nothing but the
    /// pinned node is left.
    fn evict_one(&mut self) -> bool {
        let used = self.arena.used();
        self.clean(CLEAN_PER_EVICTION);
        if self.arena.used() < used {
            return true;
        }
        let victim = self.recency.oldest(self.pinned(), &mut self.arena);
        victim.inspect(|&leaf| self.remove_leaf(leaf)).is_some()
    }

    /// Looks at the next few nodes for entries that do not count any more.
    fn clean(&mut self, nodes: u32) {
        let Some(from) = self.cleaner else { return };
        let to = from.saturating_add(nodes).min(self.arena.numbers());
        self.cleaner = (to < self.arena.numbers()).then_some(to);
        for id in from..to {
            self.clean_node(id);
        }
    }

    /// Drops dead holders of a node, and the node with its ancestors as far as they are dead leaves.
    fn clean_node(&mut self, mut id: u32) {
        if !self.arena.get(id).is_used() {
            return;
        }
        let holders = &mut self.arena.get_mut(id).holders;
        self.heap -= holders.heap_bytes();
        holders.purge(&self.liveness);
        self.heap += holders.heap_bytes();
        while id != NONE && id != self.pinned() {
            let node = self.arena.get(id);
            if node.children > 0 || !node.holders.is_dead(&self.liveness) {
                return;
            }
            let parent = node.parent;
            self.remove_leaf(id);
            id = parent;
        }
    }

    /// Removes a node without children.
    fn remove_leaf(&mut self, id: u32) {
        let node = self.arena.get(id);
        let (first, parent) = (node.first, node.parent);
        self.heap -= node.heap_bytes();
        for stamp in node.holders.live_stamps(&self.liveness) {
            self.holdings.lost(stamp.slot(), stamp.tick(), node.run.len());
        }
        self.index.remove(first, id);
        self.arena.remove(id);
        if parent == NONE {
            return;
        }
        let above = self.arena.get_mut(parent);
        above.children -= 1;
        if above.children == 0 {
            self.recency.list(parent, &mut self.arena);
        }
    }
}

#[cfg(test)]
mod tests;
