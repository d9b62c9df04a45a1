//! Loads that stand still for the time of one choice, so that a record of them tells all that the choice saw.

use std::cell::OnceCell;
use std::sync::Arc;

use forebay_policy::{Fleet, Slot};

use crate::note::Seen;

/// A fleet as it is when a policy first looks, which it does under its lock.
pub(crate) struct Frozen<'a, F> {
    fleet: &'a F,
    seen: OnceCell<Arc<[Seen]>>,
}

impl<'a, F: Fleet> Frozen<'a, F> {
    pub(crate) fn new(fleet: &'a F) -> Self {
        Self { fleet, seen: OnceCell::new() }
    }

    /// What there is to see.
    pub(crate) fn seen(&self) -> Arc<[Seen]> {
        Arc::clone(self.seen.get_or_init(|| self.look()))
    }

    fn look(&self) -> Arc<[Seen]> {
        let fleet = self.fleet;
        let see = |i| Seen {
            slot: fleet.slot(i),
            eligible: fleet.eligible(i),
            in_flight: fleet.in_flight(i),
            pending_tokens: fleet.pending_tokens(i),
            cache_tokens: fleet.cache_tokens(i),
            served: fleet.served(i),
        };
        (0..fleet.len()).map(see).collect()
    }

    fn at(&self, i: usize) -> &Seen {
        &self.seen.get_or_init(|| self.look())[i]
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a default here would answer otherwise than the fleet that is recorded"
)]
impl<F: Fleet> Fleet for Frozen<'_, F> {
    fn len(&self) -> usize {
        self.fleet.len()
    }

    fn is_empty(&self) -> bool {
        self.fleet.is_empty()
    }

    fn slot(&self, i: usize) -> Slot {
        self.at(i).slot
    }

    fn name(&self, i: usize) -> &str {
        self.fleet.name(i)
    }

    fn eligible(&self, i: usize) -> bool {
        self.at(i).eligible
    }

    fn in_flight(&self, i: usize) -> u32 {
        self.at(i).in_flight
    }

    fn pending_tokens(&self, i: usize) -> u64 {
        self.at(i).pending_tokens
    }

    fn cache_tokens(&self, i: usize) -> u64 {
        self.at(i).cache_tokens
    }

    fn served(&self, i: usize) -> u64 {
        self.at(i).served
    }

    fn rank(&self, i: usize) -> u32 {
        self.fleet.rank(i)
    }

    fn group(&self, i: usize) -> u32 {
        self.fleet.group(i)
    }

    fn find(&self, slot: Slot) -> Option<usize> {
        self.fleet.find(slot)
    }

    fn generation(&self) -> u64 {
        self.fleet.generation()
    }
}
