//! The prefix cache of a simulated engine: block hashes with least-recently-used eviction. It knows hashes only, no text.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys are hashes already: hashing them again would be most of the cost of a lookup.
#[derive(Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Node {
    hash: u64,
    younger: usize,
    older: usize,
}

/// Blocks by age. A block is never older than a block that follows it in a chain, so eviction takes tails first.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    capacity: usize,
    index: HashMap<u64, usize, BuildHasherDefault<Identity>>,
    nodes: Vec<Node>,
    youngest: usize,
    oldest: usize,
}

impl PrefixCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, index: HashMap::default(), nodes: Vec::new(), youngest: NONE, oldest: NONE }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// Looks a chain up from its start, then stores all of it (what fits). Returns how many leading blocks were there.
    pub(crate) fn touch(&mut self, chain: &[u64]) -> usize {
        let chain = &chain[..chain.len().min(self.capacity)];
        let found = chain.iter().take_while(|hash| self.index.contains_key(hash)).count();
        // What was found becomes young first, or making room for the rest could evict it.
        for &hash in &chain[..found] {
            self.refresh(hash);
        }
        for &hash in chain.iter().rev() {
            self.refresh(hash);
        }
        found
    }

    fn refresh(&mut self, hash: u64) {
        let node = match self.index.get(&hash) {
            Some(&node) => {
                self.unlink(node);
                node
            }
            None => self.place(hash),
        };
        self.nodes[node].older = self.youngest;
        self.nodes[node].younger = NONE;
        match self.youngest {
            NONE => self.oldest = node,
            youngest => self.nodes[youngest].younger = node,
        }
        self.youngest = node;
    }

    /// An unlinked node for a new block: a fresh one, or that of the oldest block.
    fn place(&mut self, hash: u64) -> usize {
        let node = if self.nodes.len() < self.capacity {
            self.nodes.push(Node { hash, younger: NONE, older: NONE });
            self.nodes.len() - 1
        } else {
            let node = self.oldest;
            self.unlink(node);
            self.index.remove(&self.nodes[node].hash);
            self.nodes[node].hash = hash;
            node
        };
        self.index.insert(hash, node);
        node
    }

    fn unlink(&mut self, node: usize) {
        let Node { younger, older, .. } = self.nodes[node];
        match younger {
            NONE => self.youngest = older,
            younger => self.nodes[younger].older = older,
        }
        match older {
            NONE => self.oldest = younger,
            older => self.nodes[older].younger = younger,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_found_up_to_its_first_missing_block() {
        let mut cache = PrefixCache::new(10);
        assert_eq!(cache.touch(&[1, 2, 3]), 0);
        assert_eq!(cache.touch(&[1, 2, 9, 3]), 2, "3 is there, but not behind 9");
        assert_eq!(cache.len(), 4);
    }

    #[test]
    fn tails_go_before_heads_and_the_least_recent_chain_first() {
        let mut cache = PrefixCache::new(4);
        cache.touch(&[1, 2]);
        cache.touch(&[3, 4]);
        cache.touch(&[5]);
        assert_eq!(cache.touch(&[1, 2]), 1, "2 made room for 5, its head stayed");
        assert_eq!(cache.touch(&[3, 4]), 1, "then 4 made room for 2");
    }

    #[test]
    fn making_room_never_evicts_the_chain_that_needs_it() {
        let mut cache = PrefixCache::new(3);
        cache.touch(&[1]);
        cache.touch(&[8, 9]);
        assert_eq!(cache.touch(&[1, 2, 3]), 1);
        assert_eq!(cache.touch(&[1, 2, 3]), 3);
    }

    #[test]
    fn a_chain_longer_than_the_cache_keeps_its_start() {
        let mut cache = PrefixCache::new(2);
        cache.touch(&[1, 2, 3, 4]);
        assert_eq!(cache.touch(&[1, 2, 3, 4]), 2);
        assert_eq!(cache.len(), 2);
        assert_eq!(PrefixCache::new(0).touch(&[1]), 0);
    }
}
