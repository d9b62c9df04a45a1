//! The cheapest of some candidates: least cost, then longest match, then fewest served, then drawn.

use std::cmp::{Ordering, Reverse};

use crate::draws::Draw;
use crate::fleet::Fleet;

/// Keeps the cheapest candidate offered so far.
#[derive(Debug, Default)]
pub(super) struct Cheapest {
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
    /// Considers a candidate.
    pub(super) fn offer<F: Fleet>(&mut self, fleet: &F, offer: Offer, draw: &mut Draw) {
        let order = self.best.map_or(Ordering::Less, |best| {
            let by_need = (offer.cost, Reverse(offer.held)).cmp(&(best.cost, Reverse(best.held)));
            by_need.then_with(|| fleet.served(offer.index).cmp(&fleet.served(best.index)))
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
