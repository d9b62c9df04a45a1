//! What a policy sees of the workers it chooses from. It never learns how load or health come about.

use crate::settings::LoadKind;

/// Small stable number of a worker `(url, dp_rank)`, given in registration order and kept when the worker
/// leaves and returns. Policies keep arrays indexed by it, so numbers should stay dense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// The candidates of one choice. Implementors are cheap to ask (atomics, slices); nothing is cached across
/// calls except what [`Fleet::generation`] stands for. An answer may change between two calls.
pub trait Fleet {
    /// Number of candidates. They are numbered `0..len` in ascending slot order.
    fn len(&self) -> usize;

    /// True if there is no candidate at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slot of candidate `i`; ascending in `i`.
    fn slot(&self, i: usize) -> Slot;

    /// Name of candidate `i` (`http://h:8000`, `http://h:8000@3`): its identity on the hash ring.
    fn name(&self, i: usize) -> &str;

    /// May candidate `i` be chosen: healthy, breaker lets through, not draining, not tried by this request.
    fn eligible(&self, i: usize) -> bool;

    /// Requests in flight at candidate `i`.
    fn in_flight(&self, i: usize) -> u32;

    /// Estimated prefill work in flight at candidate `i`, in tokens; 0 if not known.
    fn pending_tokens(&self, i: usize) -> u64;

    /// Tokens that the prefix cache of candidate `i` holds at most; 0 if not known: it is then taken to keep
    /// everything.
    fn cache_tokens(&self, i: usize) -> u64 {
        let _ = i;
        0
    }

    /// Requests that chose candidate `i` in this epoch.
    fn served(&self, i: usize) -> u64;

    /// Data-parallel rank of candidate `i` behind its URL; 0 if it has none.
    fn rank(&self, i: usize) -> u32 {
        let _ = i;
        0
    }

    /// Small number of what candidate `i` steps together with: its URL. Who is alone there is a group of one.
    fn group(&self, i: usize) -> u32 {
        self.slot(i).0
    }

    /// Number of the candidate with this slot. Dense fleets answer in one step.
    fn find(&self, slot: Slot) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        let guess = slot.0 as usize;
        if guess < high && self.slot(guess) == slot {
            return Some(guess);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.slot(middle) < slot {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < self.len() && self.slot(low) == slot).then_some(low)
    }

    /// Changes whenever the set of candidates changes.
    fn generation(&self) -> u64;
}

/// Load of candidate `i`, for policies that compare loads.
pub(crate) fn load<F: Fleet>(fleet: &F, kind: LoadKind, i: usize) -> u64 {
    match kind {
        LoadKind::Requests => u64::from(fleet.in_flight(i)),
        LoadKind::Tokens => fleet.pending_tokens(i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sample;

    #[test]
    fn a_slot_is_found_in_dense_and_in_gappy_fleets() {
        let dense = Sample::new(5);
        assert_eq!(dense.find(Slot(3)), Some(3));
        assert_eq!(dense.find(Slot(5)), None);
        let gappy = Sample::with_slots(&[2, 3, 7, 40]);
        assert_eq!(gappy.find(Slot(2)), Some(0));
        assert_eq!(gappy.find(Slot(40)), Some(3));
        assert_eq!(gappy.find(Slot(7)), Some(2));
        assert_eq!(gappy.find(Slot(8)), None);
    }
}
