//! The worker on which a prompt costs the fleet least, in tokens of prefill. This file is the rule; what is known of
//! prefixes is in `tree` and can serve another rule as well.
//!
//! `cost = pending + 4 · uncached + 8 · running`, least wins. Why this is right:
//! 1. An engine prefills one prompt after the other, so a request waits for the uncached tokens ahead of it and then
//!    for its own: `pending + uncached` is its time to the first token, in tokens.
//! 2. Its own tokens also delay everybody behind it and push as many cached tokens out, which somebody has to compute
//!    again; what is ahead does so whatever is chosen. Hence own work weighs more than a queue (4 did best of 1 to 8).
//! 3. So affinity needs no rule: a holder is left when its queue is longer than what the prefix saves is worth.
//! 4. A burst of equal prompts follows the first one: what that one computes is pending once and uncached for no other.
//! 5. Counting each request alone, a prefix that everybody asks for would never be worth computing twice. So what its
//!    requests wait longer than they would elsewhere is summed up (a CUSUM, fading); when it is worth four times the
//!    price, one goes where it is cheapest, and makes one more holder: as many as the traffic is worth.
//! 6. All loads are in the unit of their cause and seen by the next choice; running requests take a little each.
//!
//! Of ranks that step together, `pending` and `running` are weighed with the mean of their group (`group_weight`).
//! A match at or below `cache_threshold` counts as none, and nobody beyond both balance thresholds is chosen.
//!
//! In reading order: `holders` (who holds a run), `arena` (nodes and their weight), `index` (first hash to node),
//! `recency` (who goes first), `ageing` (time to ticks), `holdings` (what a worker of known capacity has dropped),
//! `tree` (all of them together), `cheapest` (comparing offers), `crowding` (prefixes that need more holders), `warmth`
//! (workers that have nothing yet).

mod ageing;
mod arena;
mod cheapest;
mod crowding;
mod holders;
mod holdings;
mod index;
mod recency;
mod tree;
mod warmth;

use crate::choice::{Ask, Pick, Reason};
use crate::draws::Draw;
use crate::fleet::{Fleet, Slot};
use crate::groups::Groups;
use crate::key::PrefixKey;
use crate::settings::CacheAwareSettings;
use cheapest::{Cheapest, Offer};
use crowding::{Crowding, Match, Work};
use tree::{Level, Tree};
use warmth::Warmth;

/// What a token of own work counts, against a token that is ahead.
const OWN: u64 = 4;

/// Tokens of prefill that one running request counts as.
const RUNNING: u64 = 8;

/// Differences below this part of what is to be computed are none: what was given before decides.
const GRAIN: u64 = 4;

/// Without a prompt nothing is matched.
const NO_PROMPT: &PrefixKey = &PrefixKey::new();

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheAware {
    /// Choices made.
    choices: u64,
    tree: Tree,
    settings: CacheAwareSettings,
    crowding: Crowding,
    warmth: Warmth,
}

impl CacheAware {
    pub(crate) fn new(settings: &CacheAwareSettings) -> Self {
        let crowding = Crowding::new();
        let bound = usize::try_from(settings.max_tree_size).unwrap_or(usize::MAX) - crowding.heap_bytes();
        let tree = Tree::new(bound, settings.eviction_interval_secs);
        Self { choices: 0, tree, settings: settings.clone(), crowding, warmth: Warmth::default() }
    }

    /// The cheapest candidate, which becomes a holder. `ask.tokens` must be given.
    pub(crate) fn pick<F: Fleet>(
        &mut self,
        ask: &Ask<'_>,
        fleet: &F,
        groups: &mut Groups,
        draw: &mut Draw,
    ) -> Option<Pick> {
        let key = ask.prefix.unwrap_or(NO_PROMPT);
        let prompt = Prompt { key, tokens: ask.tokens.unwrap_or(0) };
        self.warmth.look(fleet, self.choices);
        groups.look(fleet, |i| ahead(fleet, i).1);
        let given = (draw, &self.warmth, &*groups, self.choices);
        let mut round = Round::new(&self.settings, prompt, fleet, given)?;
        self.tree.descend(key.blocks(), ask.now_ms);
        if round.eligible > 1 {
            round.offer_holders(&self.tree);
        }
        let eligible = round.eligible;
        let (mut index, mut reason) = round.end(&self.tree, &mut self.crowding)?;
        if reason == Reason::PrefixHit
            && let Some(cold) = self.warmth.wants(fleet, (index, eligible), self.choices)
        {
            (index, reason) = (cold, Reason::SpillLoad);
        }
        let slot = fleet.slot(index);
        let held = self.tree.blocks_held_by(slot);
        if !key.is_empty() {
            self.tree.record(key.blocks(), slot, prompt.blocks(fleet.cache_tokens(index)));
        }
        self.warmth.chose(slot, prompt.uncached(held), eligible, self.choices);
        self.choices += 1;
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
        self.warmth.forget(slot, self.choices);
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        (self.tree.resident_bytes() + self.crowding.heap_bytes() + self.warmth.heap_bytes()) as u64
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

/// Requests in flight at a candidate, and the cost of what it has to do.
fn ahead<F: Fleet>(fleet: &F, index: usize) -> (u32, u64) {
    let running = fleet.in_flight(index);
    (running, fleet.pending_tokens(index).saturating_add(RUNNING * u64::from(running)))
}

/// One choice under way.
struct Round<'a, F> {
    settings: &'a CacheAwareSettings,
    prompt: Prompt<'a>,
    fleet: &'a F,
    draw: &'a mut Draw,
    warmth: &'a Warmth,
    groups: &'a Groups,
    /// Choices before this one.
    choice: u64,
    eligible: usize,
    /// Fewest requests in flight.
    lowest: u32,
    /// Least cost of what is there already.
    least: u64,
    /// Who is cheapest to somebody who is held nowhere.
    elsewhere: usize,
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
        (draw, warmth, groups, choice): (&'a mut Draw, &'a Warmth, &'a Groups, u64),
    ) -> Option<Self> {
        let mut round = Self {
            settings,
            prompt,
            fleet,
            draw,
            warmth,
            groups,
            choice,
            eligible: 0,
            lowest: u32::MAX,
            least: u64::MAX,
            elsewhere: 0,
            cheapest: Cheapest::new(prompt.uncached(0) / GRAIN),
            is_held: false,
        };
        let own = OWN * prompt.uncached(0);
        for index in (0..fleet.len()).filter(|&i| fleet.eligible(i)) {
            let (running, there) = round.there(index);
            round.eligible += 1;
            round.lowest = round.lowest.min(running);
            round.least = round.least.min(there);
            let offer = Offer { index, cost: there.saturating_add(own), held: 0 };
            round.offer(offer);
        }
        let best = round.cheapest.get()?;
        if round.is_too_busy(fleet.in_flight(best.index)) {
            // Seldom: what has least to compute has most in flight. Again, without those who have.
            round.cheapest = Cheapest::new(prompt.uncached(0) / GRAIN);
            for index in (0..fleet.len()).filter(|&i| fleet.eligible(i)) {
                let (running, there) = round.there(index);
                if !round.is_too_busy(running) {
                    let offer = Offer { index, cost: there.saturating_add(own), held: 0 };
                    round.offer(offer);
                }
            }
        }
        round.elsewhere = round.cheapest.get()?.index;
        Some(round)
    }

    fn offer(&mut self, offer: Offer) {
        let (fleet, warmth) = (self.fleet, self.warmth);
        // Of those who would compute it the one with least to compute lately, of those who hold it the one with least to do.
        let weight = |offer: &Offer| {
            let given = warmth.given(fleet.slot(offer.index));
            let lately = if offer.held > 0 { given.prompts } else { given.tokens };
            (lately, fleet.served(offer.index))
        };
        self.cheapest.offer(offer, weight, self.draw);
    }

    /// Requests in flight at a candidate, and the cost of what is there, in its group too.
    fn there(&self, index: usize) -> (u32, u64) {
        let (running, own) = ahead(self.fleet, index);
        (running, self.groups.weigh(self.fleet.group(index), own))
    }

    /// Offers those who hold enough, longest match first, as long as that can be cheaper.
    fn offer_holders(&mut self, tree: &Tree) {
        for level in tree.levels() {
            let own = OWN * self.prompt.uncached(level.blocks);
            if !self.is_enough(level.blocks) || self.cheapest.beats(self.least.saturating_add(own)) {
                return;
            }
            // Among those who hold it, as much as its rest: several rests are a queue.
            self.cheapest.finer(self.prompt.uncached(level.blocks) / GRAIN);
            self.offer_level(&level, own);
        }
    }

    fn offer_level(&mut self, level: &Level<'_>, own: u64) {
        for slot in level.slots() {
            let Some(index) = self.fleet.find(slot) else {
                continue;
            };
            if !self.fleet.eligible(index) {
                continue;
            }
            self.is_held = true;
            let (running, there) = self.there(index);
            if !self.is_too_busy(running) {
                self.offer(Offer { index, cost: there.saturating_add(own), held: level.blocks });
            }
        }
    }

    /// Who it is, and why.
    fn end(self, tree: &Tree, crowding: &mut Crowding) -> Option<(usize, Reason)> {
        let index = self.cheapest.get()?.index;
        let held = tree.blocks_held_by(self.fleet.slot(index));
        Some(if self.eligible == 1 {
            (index, Reason::OnlyCandidate)
        } else if self.is_enough(held) {
            match self.spreads(index, held, crowding) {
                true => (self.elsewhere, Reason::SpillLoad),
                false => (index, Reason::PrefixHit),
            }
        } else if self.is_held || self.is_held_by_anybody(tree) {
            (index, Reason::SpillLoad)
        } else {
            (index, Reason::MissLeastCost)
        })
    }

    /// Whether the prefix that `holder` has should have one more holder: the one who is cheapest elsewhere.
    fn spreads(&self, holder: usize, held: usize, crowding: &mut Crowding) -> bool {
        let Some(&prefix) = held.checked_sub(1).and_then(|last| self.prompt.key.blocks().get(last)) else {
            return false;
        };
        let (there, elsewhere) = (self.there(holder).1, self.there(self.elsewhere).1);
        let price = self.prompt.uncached(0) - self.prompt.uncached(held);
        let (slot, workers) = (self.fleet.slot(holder), self.eligible);
        let found = Match { prefix, holder: slot, there, elsewhere, price, workers, choice: self.choice };
        let given = |slot| self.warmth.given(slot).ever;
        let pending = |slot| self.fleet.find(slot).map_or(0, |i| self.fleet.pending_tokens(i));
        let work = |slot| Work { given: given(slot), pending: pending(slot) };
        let crowded = crowding.is_crowded(&found, work) && elsewhere < there;
        if crowded {
            let to = self.fleet.slot(self.elsewhere);
            crowding.spread(&found, to, given(to));
        }
        crowded
    }

    /// Looks at the holders that were too expensive to be offered.
    fn is_held_by_anybody(&self, tree: &Tree) -> bool {
        let widest = tree.levels().take_while(|level| self.is_enough(level.blocks)).last();
        let eligible = |slot| self.fleet.find(slot).is_some_and(|i| self.fleet.eligible(i));
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
