//! What the tree is compared with: a map of all prefixes, and steps that both take.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::chain;
use crate::cache_aware::tree::Tree;

/// Every prefix of every prompt, and for each holder the number of its last use.
#[derive(Default)]
pub(super) struct Model {
    pub(super) prefixes: HashMap<Vec<u8>, BTreeMap<u32, u64>>,
    uses: u64,
    mark: Option<(u64, u64)>,
}

impl Model {
    pub(super) const PERIOD_MS: u64 = 10_000;

    pub(super) fn access(&mut self, now_ms: u64) {
        let (then, uses) = *self.mark.get_or_insert((now_ms, self.uses));
        if now_ms - then >= Self::PERIOD_MS {
            for holders in self.prefixes.values_mut() {
                holders.retain(|_, last| *last > uses);
            }
            self.mark = Some((now_ms, self.uses));
        }
    }

    pub(super) fn insert(&mut self, blocks: &[u8], slot: u32) {
        self.uses += 1;
        for len in 1..=blocks.len() {
            self.prefixes.entry(blocks[..len].to_vec()).or_default().insert(slot, self.uses);
        }
    }

    pub(super) fn forget(&mut self, slot: u32) {
        for holders in self.prefixes.values_mut() {
            holders.remove(&slot);
        }
    }

    /// Drops what the tree has dropped, which must be ends of what it knew. (That it is the right ends is another test.)
    pub(super) fn evict(&mut self, tree: &Tree) -> Result<(), TestCaseError> {
        let used = (0..tree.arena.numbers()).map(|id| tree.arena.get(id));
        let kept: BTreeSet<u64> = used.flat_map(|node| node.run.iter().copied()).collect();
        let is_kept = |prefix: &Vec<u8>| chain(prefix).last().is_some_and(|hash| kept.contains(hash));
        let (stayed, gone): (Vec<_>, Vec<_>) = self.prefixes.keys().cloned().partition(is_kept);
        for prefix in gone {
            prop_assert!(stayed.iter().all(|longer| !longer.starts_with(&prefix)));
            self.prefixes.remove(&prefix);
        }
        Ok(())
    }

    pub(super) fn matches(&self, blocks: &[u8]) -> BTreeMap<u32, usize> {
        let mut longest = BTreeMap::new();
        for len in 1..=blocks.len() {
            for &slot in self.prefixes.get(&blocks[..len]).into_iter().flat_map(BTreeMap::keys) {
                longest.insert(slot, len);
            }
        }
        longest
    }
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Insert(Vec<u8>, u32),
    Match(Vec<u8>),
    Forget(u32),
    Wait(u64),
    Clear,
}

pub(super) fn prompts() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(0_u8..2, 0..12),
        1 => (0_u8..6, 1_usize..80).prop_map(|(block, len)| vec![block; len]),
    ]
}

pub(super) fn steps(most: usize) -> impl Strategy<Value = Vec<Action>> {
    let step = prop_oneof![
        12 => (prompts(), 0_u32..6).prop_map(|(prompt, slot)| Action::Insert(prompt, slot)),
        4 => prompts().prop_map(Action::Match),
        1 => (0_u32..6).prop_map(Action::Forget),
        1 => (0_u64..15_000).prop_map(Action::Wait),
    ];
    let rare = prop_oneof![60 => step, 1 => Just(Action::Clear)];
    prop::collection::vec(rare, 1..most)
}
