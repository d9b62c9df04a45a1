//! Workers that came back or joined with an empty cache: nothing would draw a prompt that others hold to them, so they are
//! given some. And what each worker was given lately, which decides between equals.

use crate::fleet::{Fleet, Slot};

/// One prompt in so many that others hold goes to a cold worker, as long as there is one.
const EVERY: u64 = 8;

/// Prompts that warm a worker, whatever becomes of them.
const PROMPTS: u32 = 64;

/// Choices for each worker after which what was given counts half.
const MEMORY: u64 = 256;

/// Slots from here on are not watched.
const SLOTS: usize = 1 << 16;

/// The choices so far, as far as they tell cold workers from warm ones.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    /// By slot.
    given: Vec<Given>,
    cold: Vec<Cold>,
    /// Number of the choice that last made what was given fade.
    faded: u64,
    generation: Option<u64>,
}

/// What a worker was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    /// Tokens to compute, fading.
    pub(super) tokens: u64,
    /// Prompts, in parts of one so that they can fade.
    pub(super) prompts: u64,
    /// Tokens to compute since it was first seen.
    pub(super) ever: u64,
}

/// Parts of one prompt in [`Given::prompts`].
const ONE: u64 = 1024;

#[derive(Clone, Copy, Debug)]
struct Cold {
    slot: Slot,
    /// Prompts that it may still get.
    left: u32,
    /// Choices made, and those that it got, since it was found to be cold.
    choices: u64,
    got: u64,
}

impl Warmth {
    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.given.capacity() * size_of::<Given>() + self.cold.capacity() * size_of::<Cold>()
    }

    /// What a slot was given. One that is not watched was given nothing.
    pub(super) fn given(&self, slot: Slot) -> Given {
        self.given.get(slot.0 as usize).copied().unwrap_or_default()
    }

    /// The worker's cache is empty.
    pub(super) fn forget(&mut self, slot: Slot, choices: u64) {
        if choices > 0 && (slot.0 as usize) < SLOTS {
            self.cold.retain(|cold| cold.slot != slot);
            self.cold.push(Cold { slot, left: PROMPTS, choices: 0, got: 0 });
            self.level(slot);
        }
    }

    /// Looks who has joined. Those who are there from the start are as cold as everybody.
    pub(super) fn look<F: Fleet>(&mut self, fleet: &F, choices: u64) {
        if self.generation == Some(fleet.generation()) {
            return;
        }
        self.generation = Some(fleet.generation());
        for slot in (0..fleet.len()).map(|i| fleet.slot(i)).filter(|slot| (slot.0 as usize) < SLOTS) {
            let at = slot.0 as usize;
            if at >= self.given.len() {
                self.given.resize(at + 1, Given::default());
                self.forget(slot, choices);
            }
        }
    }

    /// As if the worker had been given what the others were: who was away must not win every tie until it has made up.
    fn level(&mut self, slot: Slot) {
        let at = slot.0 as usize;
        let others = self.given.iter().enumerate().filter(|(other, _)| *other != at);
        let (count, tokens, prompts) =
            others.fold((0_u64, 0_u64, 0_u64), |(count, tokens, prompts), (_, given)| {
                (count + 1, tokens + given.tokens, prompts + given.prompts)
            });
        if let Some(given) = self.given.get_mut(at) {
            let count = count.max(1);
            (given.tokens, given.prompts) = (tokens / count, prompts / count);
        }
    }

    /// A choice was made, after so many `choices` before it.
    pub(super) fn chose(&mut self, slot: Slot, tokens: u64, workers: usize, choices: u64) {
        if choices - self.faded >= MEMORY * workers as u64 {
            self.faded = choices + 1;
            self.given
                .iter_mut()
                .for_each(|given| (given.tokens, given.prompts) = (given.tokens / 2, given.prompts / 2));
        }
        if let Some(given) = self.given.get_mut(slot.0 as usize) {
            given.tokens += tokens;
            given.prompts += ONE;
            given.ever += tokens;
        }
        for cold in &mut self.cold {
            cold.choices += 1;
            cold.got += u64::from(cold.slot == slot);
        }
    }

    /// A cold worker that should get this prompt although `holder`, of so many eligible workers, holds it, and that has no more
    /// to do than that one; its number in the fleet.
    pub(super) fn wants<F: Fleet>(
        &mut self,
        fleet: &F,
        (holder, workers): (usize, usize),
        choices: u64,
    ) -> Option<usize> {
        if self.cold.is_empty() || !choices.is_multiple_of(EVERY) {
            return None;
        }
        // Half of its fair share, beside what it is given here, is enough: that draws more.
        self.cold.retain(|cold| {
            let early = cold.choices < EVERY * workers as u64;
            let drawn = cold.got.saturating_sub(u64::from(PROMPTS - cold.left));
            cold.left > 0 && (early || drawn * 2 * (workers as u64) < cold.choices)
        });
        let load = |i| (fleet.pending_tokens(i), fleet.in_flight(i));
        let idle = |i: usize| i != holder && fleet.eligible(i) && load(i) <= load(holder);
        let eligible = |slot| fleet.find(slot).filter(|&i| idle(i));
        let (cold, index) =
            self.cold.iter_mut().find_map(|cold| eligible(cold.slot).map(|index| (cold, index)))?;
        cold.left -= 1;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sample;

    fn started(workers: u32) -> (Warmth, Sample) {
        let (mut warmth, fleet) = (Warmth::default(), Sample::new(workers));
        warmth.look(&fleet, 0);
        warmth.chose(Slot(0), 10, 4, 0);
        (warmth, fleet)
    }

    /// Prompts that cold workers want among so many that are held by slot 0.
    fn wanted(warmth: &mut Warmth, fleet: &Sample, choices: usize) -> Vec<usize> {
        (1..=choices as u64)
            .filter_map(|choices| {
                let wanted = warmth.wants(fleet, (0, fleet.workers.len()), choices);
                warmth.chose(Slot(wanted.unwrap_or(0) as u32), 10, fleet.workers.len(), choices);
                wanted
            })
            .collect()
    }

    #[test]
    fn nobody_is_cold_from_the_start() {
        let (mut warmth, fleet) = started(4);
        assert!(wanted(&mut warmth, &fleet, 100).is_empty());
    }

    #[test]
    fn who_returns_or_joins_gets_some_of_what_others_hold_and_not_for_ever() {
        let (mut warmth, _) = started(3);
        warmth.forget(Slot(2), 1);
        let fleet = Sample::new(4);
        warmth.look(&fleet, 1);
        let all = wanted(&mut warmth, &fleet, 5000);
        assert!((60..=128).contains(&all.len()), "{}", all.len());
        assert!(all.contains(&2) && all.contains(&3) && all.iter().all(|&i| i > 1));
    }

    #[test]
    fn who_gets_half_of_a_fair_share_by_itself_is_warm() {
        let (mut warmth, fleet) = started(4);
        warmth.forget(Slot(1), 1);
        let mut wanted = 0;
        for i in 0..1000 {
            wanted += usize::from(warmth.wants(&fleet, (0, 4), u64::from(i) + 1).is_some());
            warmth.chose(Slot(i % 4), 10, 4, u64::from(i) + 1);
        }
        assert!(wanted <= 5, "{wanted}");
    }

    #[test]
    fn the_ineligible_get_nothing() {
        let (mut warmth, mut fleet) = started(2);
        warmth.forget(Slot(1), 1);
        fleet.workers[1].eligible = false;
        assert!(wanted(&mut warmth, &fleet, 100).is_empty());
    }

    #[test]
    fn who_was_away_has_nothing_to_make_up() {
        let (mut warmth, _) = started(3);
        (0..90).for_each(|i| warmth.chose(Slot(i % 2), 100, 3, u64::from(i) + 1));
        warmth.forget(Slot(2), 91);
        let (others, back) = (warmth.given(Slot(1)), warmth.given(Slot(2)));
        assert!(back.tokens.abs_diff(others.tokens) <= 10 && back.prompts.abs_diff(others.prompts) <= ONE);
    }

    #[test]
    fn what_was_given_fades() {
        let (mut warmth, _) = started(2);
        warmth.chose(Slot(1), 1000, 2, 1);
        (2..602).for_each(|choices| warmth.chose(Slot(0), 0, 2, choices));
        assert_eq!((warmth.given(Slot(0)).tokens, warmth.given(Slot(1)).tokens), (5, 500));
    }
}
