//! The nodes of the tree in one array, and what they weigh. It knows no order among them.

use super::holders::{BLOCK_OVERHEAD, Holders};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// A run of chain hashes that the same workers hold. One cache line: a descent that matches the whole run
/// reads nothing else.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// `run[0]`, which the index finds the node by.
    pub(super) first: u64,
    /// The last of the run. Equal to the key's hash there: the whole run matches.
    pub(super) last: u64,
    pub(super) run: Box<[u64]>,
    pub(super) holders: Holders,
    /// The node this run continues; for a free node the next free one.
    pub(super) parent: u32,
    pub(super) children: u32,
    /// Whether the queue of recency has an entry for this number, which outlives the node.
    pub(super) is_listed: bool,
}

impl Node {
    /// A node without children. `run` must not be empty.
    pub(super) fn new(run: Box<[u64]>, holders: Holders, parent: u32) -> Self {
        let first = run.first().copied().unwrap_or_default();
        let last = run.last().copied().unwrap_or_default();
        Self { first, last, run, holders, parent, children: 0, is_listed: false }
    }

    /// Bytes on the heap, the allocator's included.
    pub(super) fn heap_bytes(&self) -> usize {
        run_bytes(self.run.len()) + self.holders.heap_bytes()
    }

    /// How many hashes the run and `key` have in common, at least one. Equal at one place means equal before it.
    pub(super) fn common(&self, key: &[u64]) -> usize {
        let (mut low, mut high) = (1, self.run.len().min(key.len()));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.run[middle] == key[middle] {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// A node in use has a run; a free one does not.
    pub(super) fn is_used(&self) -> bool {
        !self.run.is_empty()
    }
}

/// Bytes of a run on the heap, the allocator's included.
pub(super) const fn run_bytes(len: usize) -> usize {
    len * size_of::<u64>() + BLOCK_OVERHEAD
}

/// Nodes by number. Numbers are reused.
#[derive(Debug)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    free: u32,
    used: usize,
}

impl Arena {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE, used: 0 }
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Nodes in use.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Numbers given so far, free ones included.
    pub(super) const fn numbers(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Bytes of the array.
    pub(super) const fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    /// Bytes by which the next [`Arena::insert`] makes the array grow.
    pub(super) const fn growth(&self) -> usize {
        if self.free == NONE && self.nodes.len() == self.nodes.capacity() {
            self.step() * size_of::<Node>()
        } else {
            0
        }
    }

    /// An eighth at a time: doubling would overshoot a bound in bytes by far.
    const fn step(&self) -> usize {
        let eighth = self.nodes.capacity() / 8;
        if eighth < 16 { 16 } else { eighth }
    }

    pub(super) fn insert(&mut self, node: Node) -> u32 {
        self.used += 1;
        if self.free != NONE {
            let id = self.free;
            self.free = self.get(id).parent;
            let is_listed = self.get(id).is_listed;
            *self.get_mut(id) = Node { is_listed, ..node };
            return id;
        }
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact(self.step());
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Frees a node; its number is given again.
    pub(super) fn remove(&mut self, id: u32) {
        let free = self.free;
        let node = self.get_mut(id);
        node.run = Box::default();
        node.holders = Holders::EMPTY;
        node.parent = free;
        self.free = id;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_cache_line() {
        assert_eq!(size_of::<Node>(), 64);
    }

    #[test]
    fn numbers_are_reused_and_growth_is_told_before_it_happens() {
        let mut arena = Arena::new();
        let node = || Node::new(Box::new([1, 2]), Holders::EMPTY, NONE);
        for _ in 0..200 {
            let (before, growth) = (arena.bytes(), arena.growth());
            arena.insert(node());
            assert_eq!(arena.bytes(), before + growth);
        }
        arena.remove(7);
        arena.remove(9);
        assert!(!arena.get(7).is_used());
        assert_eq!((arena.insert(node()), arena.insert(node()), arena.insert(node())), (9, 7, 200));
        assert_eq!(arena.used(), 201);
    }
}
