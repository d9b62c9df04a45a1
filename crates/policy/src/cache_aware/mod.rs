//! The worker that has seen the longest prefix of the prompt, unless it is overloaded. This file is the rule;
//! what is known of prefixes is in `tree` and can serve another rule as well.
//!
//! In reading order: `holders` (who holds a run), `arena` (nodes and their weight), `index` (first hash to
//! node), `recency` (who goes first), `ageing` (time to ticks), `tree` (all of them together).

mod ageing;
mod arena;
mod holders;
mod index;
mod recency;
mod tree;

use crate::choice::{Ask, Pick, Reason};
use crate::draws::Draw;
use crate::fleet::{Fleet, Slot, find_slot};
use crate::key::PrefixKey;
use crate::least_loaded::Lightest;
use crate::settings::CacheAwareSettings;
use tree::Tree;

#[derive(Debug)]
pub(crate) struct CacheAware {
    settings: CacheAwareSettings,
    tree: Tree,
}

impl CacheAware {
    pub(crate) fn new(settings: &CacheAwareSettings) -> Self {
        let bound = usize::try_from(settings.max_tree_size).unwrap_or(usize::MAX);
        Self { settings: settings.clone(), tree: Tree::new(bound, settings.eviction_interval_secs) }
    }

    /// The best holder, else the least loaded; whoever it is becomes a holder.
    pub(crate) fn pick<F: Fleet>(&mut self, ask: &Ask<'_>, fleet: &F, draw: &mut Draw) -> Option<Pick> {
        let lightest = Lightest::of(fleet, draw);
        let (least, lowest) = lightest.get()?;
        let only = (lightest.offered() == 1).then_some((least, Reason::OnlyCandidate));
        let Some(key) = ask.prefix.filter(|key| !key.is_empty()) else {
            let (index, reason) = only.unwrap_or((least, Reason::MissLeastLoaded));
            return Some(Pick::plain(index, reason));
        };
        self.tree.descend(key.blocks(), ask.now_ms);
        let (index, reason) = only.unwrap_or_else(|| match self.best_holder(key, fleet, lowest, draw) {
            Verdict::Take(index) => (index, Reason::PrefixHit),
            Verdict::Busy => (least, Reason::SpillLoad),
            Verdict::Nobody => (least, Reason::MissLeastLoaded),
        });
        let slot = fleet.slot(index);
        let matched = key.covered_bytes(self.tree.blocks_held_by(slot));
        self.tree.record(key.blocks(), slot);
        Some(Pick { index, reason, matched, key_len: key.len_bytes() })
    }

    pub(crate) fn forget(&mut self, slot: Slot) {
        self.tree.forget(slot);
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.tree.resident_bytes() as u64
    }

    /// The holder with the longest match that is long enough and not too busy; of equals the lightest.
    fn best_holder<F: Fleet>(&self, key: &PrefixKey, fleet: &F, lowest: u32, draw: &mut Draw) -> Verdict {
        let enough = self.settings.cache_threshold * key.len_bytes() as f64;
        let mut verdict = Verdict::Nobody;
        for level in self.tree.levels() {
            if key.covered_bytes(level.blocks) as f64 <= enough {
                break;
            }
            let mut lightest = Lightest::default();
            let mut from = 0;
            for slot in level.slots() {
                let Some(i) = find_slot(fleet, slot, from) else {
                    continue;
                };
                from = i + 1;
                if !fleet.eligible(i) {
                    continue;
                }
                let load = fleet.in_flight(i);
                if self.is_too_busy(load, lowest) {
                    verdict = Verdict::Busy;
                } else {
                    lightest.offer(fleet, i, load, draw);
                }
            }
            if let Some((i, _)) = lightest.get() {
                return Verdict::Take(i);
            }
        }
        verdict
    }

    /// Both thresholds, so that neither small absolute nor small relative differences break up affinity.
    fn is_too_busy(&self, load: u32, lowest: u32) -> bool {
        load.saturating_sub(lowest) > self.settings.balance_abs_threshold
            && f64::from(load) > f64::from(lowest) * self.settings.balance_rel_threshold
    }
}

/// What the holders of a prompt come down to.
enum Verdict {
    Take(usize),
    /// There are holders, all too busy.
    Busy,
    Nobody,
}

#[cfg(test)]
mod tests;
