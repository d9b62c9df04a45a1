//! The cheapest of some candidates: least cost, then longest match, then least given, then drawn.

use std::cmp::{Ordering, Reverse};

use crate::draws::Draw;

/// Keeps the cheapest candidate offered so far.
#[derive(Debug)]
pub(super) struct Cheapest {
    /// Costs that differ by less are equal: a shift, since it is asked for each candidate.
    coarse: u32,
    best: Option<Offer>,
    equals: usize,
}

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
        Self { coarse: (grain | 1).ilog2(), best: None, equals: 0 }
    }

    /// Considers a candidate. `given` tells what a candidate was given so far: work, then requests.
    pub(super) fn offer(&mut self, offer: Offer, given: impl Fn(usize) -> (u64, u64), draw: &mut Draw) {
        let order = self.best.map_or(Ordering::Less, |best| {
            let need = |offer: Offer| (offer.cost >> self.coarse, Reverse(offer.held));
            let by_need = need(offer).cmp(&need(best));
            by_need.then_with(|| given(offer.index).cmp(&given(best.index)))
        });
        match order {
            Ordering::Less => (self.best, self.equals) = (Some(offer), 1),
            Ordering::Equal => {
                self.equals += 1;
                if draw.below(self.equals) == 0 {
                    self.best = Some(offer);
                }
            }
            Ordering::Greater => {}
        }
    }

    /// Whoever costs at least this much is not the cheapest.
    pub(super) fn beats(&self, cost: u64) -> bool {
        self.best.is_some_and(|best| best.cost < cost)
    }

    pub(super) const fn get(&self) -> Option<Offer> {
        self.best
    }
}
