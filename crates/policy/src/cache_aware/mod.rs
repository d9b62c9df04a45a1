//! The worker on which a prompt costs the fleet least, in tokens of prefill. This file is the rule; what is known of
//! prefixes is in `tree` and can serve another rule as well.
//!
//! `cost = pending + 2 · uncached + 8 · running`, least wins. Why this is right:
//! 1. An engine prefills one prompt after the other, so a request waits for the uncached tokens ahead of it and then
//!    for its own: `pending + uncached` is its time to the first token, in tokens.
//! 2. Its own tokens also delay everybody who comes while it is being prefilled, and push as many cached tokens out.
//!    What is ahead delays nobody twice. So own work counts twice and work ahead once: each choice takes
//!    account of what it costs others, and a queue is not answered by computing the same prefix everywhere.
//! 3. Affinity follows by itself: a holder is left only when its queue is longer than twice what the prefix saves, and
//!    then the newcomer holds it too. A prefix gets as many holders as its traffic is worth, and no more.
//! 4. A burst of equal prompts follows the first one: what that one computes is pending once and uncached for no other.
//! 5. Load is counted in the unit of its cause, so a long prompt weighs more than ten short ones, and it is counted the
//!    moment the choice is made. Running requests share the engine with prefill a little: a small term each.
//!
//! A match at or below `cache_threshold` counts as none, and nobody beyond both balance thresholds is chosen.
//!
//! In reading order: `holders` (who holds a run), `arena` (nodes and their weight), `index` (first hash to node),
//! `recency` (who goes first), `ageing` (time to ticks), `holdings` (what a worker of known capacity has dropped),
//! `tree` (all of them together), `cheapest` (comparing offers).

mod ageing;
mod arena;
mod cheapest;
mod holders;
mod holdings;
mod index;
mod recency;
mod tree;

use crate::choice::{Ask, Pick, Reason};
use crate::draws::Draw;
use crate::fleet::{Fleet, Slot, find_slot};
use crate::key::PrefixKey;
use crate::settings::CacheAwareSettings;
use cheapest::{Cheapest, Offer};
use tree::{Level, Tree};

/// What a token of own work counts, against a token that is ahead.
const OWN: u64 = 2;

/// Tokens of prefill that one running request counts as.
const RUNNING: u64 = 8;

/// Without a prompt nothing is matched.
const NO_PROMPT: &PrefixKey = &PrefixKey::new();

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

    /// The cheapest candidate, which becomes a holder. `ask.tokens` must be given.
    pub(crate) fn pick<F: Fleet>(&mut self, ask: &Ask<'_>, fleet: &F, draw: &mut Draw) -> Option<Pick> {
        let key = ask.prefix.unwrap_or(NO_PROMPT);
        let prompt = Prompt { key, tokens: ask.tokens.unwrap_or(0) };
        let mut round = Round::new(&self.settings, prompt, fleet, draw)?;
        self.tree.descend(key.blocks(), ask.now_ms);
        if round.eligible > 1 {
            round.offer_holders(&self.tree);
        }
        let (index, reason) = round.end(&self.tree)?;
        let slot = fleet.slot(index);
        let held = self.tree.blocks_held_by(slot);
        if !key.is_empty() {
            self.tree.record(key.blocks(), slot, prompt.blocks(fleet.cache_tokens(index)));
        }
        Some(Pick {
            index,
            reason,
            matched: key.covered_bytes(held),
            key_len: key.len_bytes(),
            prompt_tokens: prompt.tokens,
            uncached_tokens: prompt.uncached(held),
        })
    }

    pub(crate) fn forget(&mut self, slot: Slot) {
        self.tree.forget(slot);
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.tree.resident_bytes() as u64
    }
}

/// A prompt and its length in tokens.
#[derive(Clone, Copy)]
struct Prompt<'a> {
    key: &'a PrefixKey,
    tokens: u64,
}

impl Prompt<'_> {
    /// Tokens to be computed by a worker that holds the first `blocks` blocks. The last one is never taken from a
    /// cache.
    fn uncached(&self, blocks: usize) -> u64 {
        let (held, all) = (self.key.covered_bytes(blocks), self.key.len_bytes().max(1));
        let held = u128::from(self.tokens) * u128::from(held) / u128::from(all);
        (self.tokens - held as u64).max(self.tokens.min(1))
    }

    /// Blocks of a key like this one that so many tokens are; `None` if nothing is known.
    fn blocks(&self, tokens: u64) -> Option<u64> {
        let blocks = u128::from(tokens) * self.key.blocks().len() as u128 / u128::from(self.tokens.max(1));
        (tokens > 0).then_some(u64::try_from(blocks).unwrap_or(u64::MAX))
    }
}

/// One choice under way.
struct Round<'a, F> {
    settings: &'a CacheAwareSettings,
    prompt: Prompt<'a>,
    fleet: &'a F,
    draw: &'a mut Draw,
    eligible: usize,
    /// Fewest requests in flight.
    lowest: u32,
    /// Least cost of what is there already.
    least: u64,
    cheapest: Cheapest,
    /// Whether an eligible worker holds enough of the prompt.
    is_held: bool,
}

impl<'a, F: Fleet> Round<'a, F> {
    /// Offers every eligible candidate as if it held nothing. `None` if there is none.
    fn new(
        settings: &'a CacheAwareSettings,
        prompt: Prompt<'a>,
        fleet: &'a F,
        draw: &'a mut Draw,
    ) -> Option<Self> {
        let (eligible, lowest, least, cheapest) = (0, u32::MAX, u64::MAX, Cheapest::default());
        let mut round =
            Self { settings, prompt, fleet, draw, eligible, lowest, least, cheapest, is_held: false };
        let own = OWN * prompt.uncached(0);
        for index in (0..fleet.len()).filter(|&i| fleet.eligible(i)) {
            let (running, there) = round.there(index);
            round.eligible += 1;
            round.lowest = round.lowest.min(running);
            round.least = round.least.min(there);
            let offer = Offer { index, cost: there + own, held: 0 };
            round.cheapest.offer(fleet, offer, round.draw);
        }
        let best = round.cheapest.get()?;
        if round.is_too_busy(fleet.in_flight(best.index)) {
            // Seldom: what has least to compute has most in flight. Again, without those who have.
            round.cheapest = Cheapest::default();
            for index in (0..fleet.len()).filter(|&i| fleet.eligible(i)) {
                let (running, there) = round.there(index);
                if !round.is_too_busy(running) {
                    let offer = Offer { index, cost: there + own, held: 0 };
                    round.cheapest.offer(fleet, offer, round.draw);
                }
            }
        }
        Some(round)
    }

    /// Requests in flight at a candidate, and the cost of what is there.
    fn there(&self, index: usize) -> (u32, u64) {
        let running = self.fleet.in_flight(index);
        (running, self.fleet.pending_tokens(index).saturating_add(RUNNING * u64::from(running)))
    }

    /// Offers those who hold something, longest match first, as long as that can be cheaper.
    fn offer_holders(&mut self, tree: &Tree) {
        for level in tree.levels() {
            let enough = self.is_enough(level.blocks);
            // Too short a match counts for nothing, but on a tie it wins.
            let uncached = self.prompt.uncached(if enough { level.blocks } else { 0 });
            let own = OWN * uncached;
            if self.cheapest.beats(self.least.saturating_add(own)) {
                return;
            }
            self.offer_level(&level, own, enough);
        }
    }

    fn offer_level(&mut self, level: &Level<'_>, own: u64, enough: bool) {
        let mut from = 0;
        for slot in level.slots() {
            let Some(index) = find_slot(self.fleet, slot, from) else {
                continue;
            };
            from = index + 1;
            if !self.fleet.eligible(index) {
                continue;
            }
            self.is_held |= enough;
            let (running, there) = self.there(index);
            if !self.is_too_busy(running) {
                let offer = Offer { index, cost: there.saturating_add(own), held: level.blocks };
                self.cheapest.offer(self.fleet, offer, self.draw);
            }
        }
    }

    /// Who it is, and why.
    fn end(self, tree: &Tree) -> Option<(usize, Reason)> {
        let index = self.cheapest.get()?.index;
        let reason = if self.eligible == 1 {
            Reason::OnlyCandidate
        } else if self.is_enough(tree.blocks_held_by(self.fleet.slot(index))) {
            Reason::PrefixHit
        } else if self.is_held || self.is_held_by_anybody(tree) {
            Reason::SpillLoad
        } else {
            Reason::MissLeastCost
        };
        Some((index, reason))
    }

    /// Looks at the holders that were too expensive to be offered.
    fn is_held_by_anybody(&self, tree: &Tree) -> bool {
        let widest = tree.levels().take_while(|level| self.is_enough(level.blocks)).last();
        let eligible = |slot| find_slot(self.fleet, slot, 0).is_some_and(|i| self.fleet.eligible(i));
        widest.is_some_and(|level| level.slots().any(eligible))
    }

    /// Whether a match of so many blocks attracts the prompt.
    fn is_enough(&self, blocks: usize) -> bool {
        let key = self.prompt.key;
        key.covered_bytes(blocks) as f64 > self.settings.cache_threshold * key.len_bytes() as f64
    }

    /// Both thresholds, so that neither small absolute nor small relative differences break up affinity.
    fn is_too_busy(&self, running: u32) -> bool {
        running.saturating_sub(self.lowest) > self.settings.balance_abs_threshold
            && f64::from(running) > f64::from(self.lowest) * self.settings.balance_rel_threshold
    }
}

#[cfg(test)]
mod tests;
