//! Ids of pairs: whole numbers that no other pair of any replica has. Draws nothing itself.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ids have 63 bits, since their readers have signed numbers.
const MASK: u64 = u64::MAX >> 1;

/// The id of one pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Room(u64);

/// Hands out rooms.
#[derive(Debug)]
pub struct Rooms {
    nonce: u64,
    handed_out: AtomicU64,
}

impl Rooms {
    /// `nonce` is drawn when the process starts, never from the seed of a trial: two replicas whose nonces differ by
    /// more than they ever serve have no room in common.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, handed_out: AtomicU64::new(0) }
    }

    /// A room that was not handed out before.
    pub fn next(&self) -> Room {
        Room(self.nonce.wrapping_add(self.handed_out.fetch_add(1, Ordering::Relaxed)) & MASK)
    }
}

impl Room {
    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The rooms of a batch of so many prompts begin with this one; the others are hashed from it, so that they meet no
    /// neighbour.
    pub(crate) fn of_prompt(self, index: u64) -> Self {
        // An odd factor is a bijection: rooms of one batch differ from each other.
        Self((self.0 ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) & MASK)
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rooms_differ_and_fit_a_signed_number_also_where_the_nonce_runs_over() {
        let rooms = Rooms::new(u64::MAX - 500);
        let seen: HashSet<u64> = (0..1000).map(|_| rooms.next().number()).collect();
        assert_eq!(seen.len(), 1000);
        assert!(seen.iter().all(|room| i64::try_from(*room).is_ok()));
    }

    #[test]
    fn the_prompts_of_a_batch_have_rooms_of_their_own() {
        let room = Rooms::new(7).next();
        let rooms: HashSet<_> = (0..1024).map(|index| room.of_prompt(index)).collect();
        assert_eq!((rooms.len(), room.of_prompt(0)), (1024, room));
    }
}
