//! Which prefixes draw more work than their holders can take, told from queues that stay longer than others'. It
//! watches the prefixes where matches end and chooses nobody.

use crate::fleet::Slot;

/// Prefixes that are watched at once. Two that want the same place take turns, which delays what is told of them.
const PLACES: usize = 1024;

/// Choices after which an excess is forgotten, for each worker: about what one worker is given while it drops little
/// of what it holds.
const MEMORY: u64 = 32;

/// Excess that a prefix is worth computing elsewhere for, against the price of that.
const PATIENCE: u64 = 4;

/// Sums of how much longer holders' queues were than the shortest, for each prefix.
#[derive(Debug)]
pub(super) struct Crowding {
    places: Box<[Place]>,
}

/// Tokens of work that a worker was ever given, and those of them that it has yet to compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) given: u64,
    pub(super) pending: u64,
}

/// One prefix that is watched.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    prefix: u64,
    excess: u64,
    /// Number of the choice that last looked here.
    choice: u64,
    /// The holder that may be computing the prefix still, and the work that it has done once it has.
    slot: Slot,
    done: u64,
}

/// A match that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match {
    /// Hash where it ends.
    pub(super) prefix: u64,
    /// The holder it would go to.
    pub(super) holder: Slot,
    /// Cost of what is at that holder already, and at the one who would compute it otherwise.
    pub(super) there: u64,
    pub(super) elsewhere: u64,
    /// Tokens it takes to compute the prefix elsewhere.
    pub(super) price: u64,
    /// Eligible workers.
    pub(super) workers: usize,
    /// Choices before this one.
    pub(super) choice: u64,
}

impl Crowding {
    pub(super) fn new() -> Self {
        Self { places: vec![Place::default(); PLACES].into() }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// Whether the prefix should have one more holder. `work` tells what a slot was given.
    pub(super) fn is_crowded(&mut self, found: &Match, work: impl Fn(Slot) -> Work) -> bool {
        let place = &mut self.places[found.prefix as usize % PLACES];
        if place.prefix != found.prefix {
            let done = work(found.holder).given;
            *place =
                Place { prefix: found.prefix, excess: 0, choice: found.choice, slot: found.holder, done };
        }
        let memory = MEMORY * found.workers as u64;
        let gone = (found.choice - place.choice).min(memory);
        place.excess -= (u128::from(place.excess) * u128::from(gone) / u128::from(memory.max(1))) as u64;
        if place.excess > 0 {
            place.choice = found.choice;
        }
        // Who waits for the prefix itself would wait as long for it elsewhere.
        let Work { given, pending } = work(place.slot);
        if given.saturating_sub(pending) >= place.done {
            let excess = (place.excess + found.there).saturating_sub(found.elsewhere);
            if excess != place.excess {
                (place.excess, place.choice) = (excess, found.choice);
            }
        }
        place.excess > PATIENCE * found.price
    }

    /// The prefix that was found will be computed at `slot` too, which was `given` so many tokens before.
    pub(super) fn spread(&mut self, found: &Match, slot: Slot, given: u64) {
        let Match { prefix, price, choice, .. } = *found;
        let place = &mut self.places[prefix as usize % PLACES];
        *place = Place { prefix, excess: 0, choice, slot, done: given.saturating_add(price) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: Slot = Slot(1);

    fn found(there: u64, elsewhere: u64) -> Match {
        Match { prefix: 77, holder: HOLDER, there, elsewhere, price: 1000, workers: 4, choice: 0 }
    }

    const IDLE: Work = Work { given: 0, pending: 0 };

    /// Looks at the same match so many times in a row; gives when it was crowded first.
    fn looks(crowding: &mut Crowding, found: &Match, work: Work, times: usize) -> Option<usize> {
        (0..times).find(|look| {
            let found = Match { choice: found.choice + *look as u64, ..*found };
            crowding.is_crowded(&found, |_| work)
        })
    }

    #[test]
    fn a_queue_that_stays_longer_than_another_is_a_crowd() {
        let mut crowding = Crowding::new();
        assert_eq!(looks(&mut crowding, &found(1500, 1000), IDLE, 20), Some(8));
        crowding.spread(&found(1500, 1000), Slot(2), 0);
        assert_eq!(looks(&mut crowding, &found(1500, 1000), IDLE, 4), None);
    }

    #[test]
    fn queues_that_are_longer_now_and_shorter_then_are_none() {
        let mut crowding = Crowding::new();
        for round in 0..1000 {
            let at = |found: Match, choice| Match { choice, ..found };
            assert_eq!(looks(&mut crowding, &at(found(1500, 1000), 2 * round), IDLE, 1), None);
            assert_eq!(looks(&mut crowding, &at(found(300, 1000), 2 * round + 1), IDLE, 1), None);
        }
    }

    #[test]
    fn waiting_for_the_prefix_itself_is_no_crowd() {
        let mut crowding = Crowding::new();
        let work = |pending| Work { given: 1000, pending };
        assert_eq!(looks(&mut crowding, &found(1000, 250), work(1000), 50), None);
        // Once it is computed, waiting counts.
        assert!(looks(&mut crowding, &found(1000, 250), work(0), 50).is_some());
    }

    #[test]
    fn a_prefix_that_is_seldom_asked_for_is_none() {
        let mut crowding = Crowding::new();
        for round in 0..200 {
            let found = Match { choice: 121 * round, ..found(1900, 1000) };
            assert_eq!(looks(&mut crowding, &found, IDLE, 1), None);
        }
    }
}
