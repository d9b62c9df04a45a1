//! The cheapest of some candidates: least cost, then longest match, then least given, then drawn.

use std::cmp::{Ordering, Reverse};

use crate::draws::Draw;

/// Keeps the cheapest candidate offered so far.
#[derive(Debug)]
pub(super) struct Cheapest {
    /// Costs that differ by less are equal: a shift, since it is asked for each candidate.
    coarse: u32,
    best: Option<Offer>,
    /// What the best was given, once that was asked for.
    given: Option<Weight>,
    equals: usize,
}

/// What a candidate was given so far: work or prompts lately, then requests.
pub(super) type Weight = (u64, u64);

/// A candidate with its cost in tokens and the blocks of the prompt that it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) index: usize,
    pub(super) cost: u64,
    pub(super) held: usize,
}

impl Cheapest {
    /// Costs that differ by less than `grain`, or up to half of that, are equal.
    pub(super) const fn new(grain: u64) -> Self {
        Self { coarse: (grain | 1).ilog2(), best: None, given: None, equals: 0 }
    }

    /// From now on smaller differences count, if `grain` is smaller than before.
    pub(super) fn finer(&mut self, grain: u64) {
        self.coarse = self.coarse.min((grain | 1).ilog2());
    }

    /// Considers a candidate. `weight` tells what a candidate was given.
    pub(super) fn offer(&mut self, offer: Offer, weight: impl Fn(&Offer) -> Weight, draw: &mut Draw) {
        let Some(best) = self.best else {
            return self.take(offer, None);
        };
        let need = |offer: Offer| (offer.cost >> self.coarse, Reverse(offer.held));
        match need(offer).cmp(&need(best)) {
            Ordering::Less => self.take(offer, None),
            Ordering::Greater => {}
            Ordering::Equal => {
                let least = *self.given.get_or_insert_with(|| weight(&best));
                let given = weight(&offer);
                match given.cmp(&least) {
                    Ordering::Less => self.take(offer, Some(given)),
                    Ordering::Greater => {}
                    Ordering::Equal => {
                        self.equals += 1;
                        if draw.below(self.equals) == 0 {
                            self.best = Some(offer);
                        }
                    }
                }
            }
        }
    }

    const fn take(&mut self, offer: Offer, given: Option<Weight>) {
        (self.best, self.given, self.equals) = (Some(offer), given, 1);
    }

    /// Whoever costs at least this much is not the cheapest.
    pub(super) fn beats(&self, cost: u64) -> bool {
        self.best.is_some_and(|best| best.cost < cost)
    }

    pub(super) const fn get(&self) -> Option<Offer> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who wins of offers given as cost, match and weight.
    fn winner(grain: u64, offers: &[(u64, usize, u64)], number: u64) -> usize {
        let (mut cheapest, mut draw) = (Cheapest::new(grain), Draw::new(1, number));
        for (index, &(cost, held, _)) in offers.iter().enumerate() {
            cheapest.offer(Offer { index, cost, held }, |offer| (offers[offer.index].2, 0), &mut draw);
        }
        cheapest.get().unwrap().index
    }

    #[test]
    fn cost_goes_before_match_and_match_before_what_was_given() {
        assert_eq!(winner(1, &[(6, 9, 0), (5, 1, 9), (7, 9, 0)], 1), 1);
        assert_eq!(winner(1, &[(5, 1, 0), (5, 2, 9), (5, 1, 0)], 1), 1);
        assert_eq!(winner(1, &[(5, 1, 3), (5, 1, 4), (5, 1, 2), (5, 1, 2 + 1)], 1), 2);
    }

    #[test]
    fn small_differences_are_none() {
        assert_eq!(winner(64, &[(130, 0, 5), (150, 0, 4), (129, 0, 6)], 1), 1);
        assert_eq!(winner(64, &[(130, 0, 5), (350, 0, 4)], 1), 0);
    }

    #[test]
    fn a_finer_grain_tells_those_apart_that_were_equal_before_it() {
        for (grain, expected) in [(64, 1), (4, 0), (128, 1)] {
            let mut cheapest = Cheapest::new(64);
            let weight = |offer: &Offer| (2 - offer.index as u64, 0);
            cheapest.offer(Offer { index: 0, cost: 130, held: 0 }, weight, &mut Draw::new(1, 1));
            cheapest.finer(grain);
            cheapest.offer(Offer { index: 1, cost: 140, held: 0 }, weight, &mut Draw::new(1, 1));
            assert_eq!(cheapest.get().unwrap().index, expected, "{grain}");
        }
    }

    #[test]
    fn equals_are_drawn_evenly() {
        let mut wins = [0; 3];
        (0..300).for_each(|number| wins[winner(1, &[(5, 0, 0); 3], number)] += 1);
        assert!(wins.iter().all(|count| (70..130).contains(count)), "{wins:?}");
    }
}
