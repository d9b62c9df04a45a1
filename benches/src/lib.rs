//! What several benches share. The package holds bench targets and the yardstick, which is a binary.

use forebay_policy::{Fleet, Slot};

/// Idle workers that are all alike: the choice itself costs next to nothing.
pub struct Idle {
    /// How many.
    pub workers: usize,
    /// Tokens that the prefix cache of each holds; 0 if that is not known.
    pub cache_tokens: u64,
}

impl Fleet for Idle {
    fn len(&self) -> usize {
        self.workers
    }

    fn slot(&self, i: usize) -> Slot {
        Slot(i as u32)
    }

    fn name(&self, _: usize) -> &str {
        ""
    }

    fn eligible(&self, _: usize) -> bool {
        true
    }

    fn in_flight(&self, _: usize) -> u32 {
        0
    }

    fn pending_tokens(&self, _: usize) -> u64 {
        0
    }

    fn cache_tokens(&self, _: usize) -> u64 {
        self.cache_tokens
    }

    fn served(&self, _: usize) -> u64 {
        0
    }

    fn generation(&self) -> u64 {
        1
    }
}
