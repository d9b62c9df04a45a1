//! From the first hash of a run to its node. Because a chain hash stands for everything before it, one table
//! serves the whole tree.

use hashbrown::HashTable;

use super::arena::Arena;

/// Tables grow by doubling; many small ones keep each of these pauses short.
const SHARDS: usize = 64;

/// Node numbers, found by the `first` of the node they stand for. The arena is an argument of everything that
/// may have to compare or to grow.
#[derive(Debug)]
pub(super) struct Index {
    shards: Box<[HashTable<u32>]>,
    bytes: usize,
}

impl Index {
    pub(super) fn new() -> Self {
        let shards: Box<[HashTable<u32>]> = (0..SHARDS).map(|_| HashTable::new()).collect();
        let bytes = size_of_val(&*shards);
        Self { shards, bytes }
    }

    /// Bytes of all tables.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all tables, counted anew.
    #[cfg(test)]
    pub(super) fn counted_bytes(&self) -> usize {
        size_of_val(&*self.shards) + self.shards.iter().map(HashTable::allocation_size).sum::<usize>()
    }

    /// Bytes by which an [`Index::insert`] of `first` makes a table grow, at most.
    pub(super) fn growth(&self, first: u64) -> usize {
        let shard = &self.shards[shard_of(first)];
        if shard.len() < shard.capacity() { 0 } else { shard.allocation_size() + 64 }
    }

    #[inline]
    pub(super) fn get(&self, first: u64, arena: &Arena) -> Option<u32> {
        self.shards[shard_of(first)].find(first, |&id| arena.get(id).first == first).copied()
    }

    /// Adds a node that is in the arena already.
    pub(super) fn insert(&mut self, id: u32, arena: &Arena) {
        let first = arena.get(id).first;
        let shard = &mut self.shards[shard_of(first)];
        let before = shard.allocation_size();
        shard.insert_unique(first, id, |&id| arena.get(id).first);
        self.bytes = self.bytes - before + shard.allocation_size();
    }

    /// What was found as `old` is found as `new`.
    pub(super) fn replace(&mut self, first: u64, old: u32, new: u32) {
        if let Some(id) = self.shards[shard_of(first)].find_mut(first, |&id| id == old) {
            *id = new;
        }
    }

    pub(super) fn remove(&mut self, first: u64, id: u32) {
        if let Ok(entry) = self.shards[shard_of(first)].find_entry(first, |&other| other == id) {
            entry.remove();
        }
    }
}

/// Bits that the table itself uses little: it takes the position from the low end and a tag from the top.
const fn shard_of(first: u64) -> usize {
    (first >> 40) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_aware::arena::{NONE, Node};
    use crate::cache_aware::holders::Holders;
    use crate::draws::Draw;

    #[test]
    fn growth_is_never_more_than_told_and_bytes_are_counted() {
        let (mut index, mut arena, mut draw) = (Index::new(), Arena::new(), Draw::new(1, 1));
        let mut ids = Vec::new();
        for _ in 0..5000 {
            let first = draw.next();
            let id = arena.insert(Node::new(Box::new([first]), Holders::EMPTY, NONE));
            let limit = index.bytes() + index.growth(first);
            index.insert(id, &arena);
            assert!(index.bytes() <= limit);
            assert_eq!(index.get(first, &arena), Some(id));
            ids.push((first, id));
            if ids.len() % 3 == 0 {
                let (first, id) = ids.swap_remove(ids.len() / 2);
                index.remove(first, id);
                assert_eq!(index.get(first, &arena), None);
            }
        }
        assert_eq!(index.bytes(), index.counted_bytes());
        assert!(ids.iter().all(|&(first, id)| index.get(first, &arena) == Some(id)));
    }
}
