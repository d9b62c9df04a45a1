//! Seeded randomness: choice number `k` of a policy draws from a stream that depends on seed and `k` only.

use crate::fleet::Fleet;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Misses before a random candidate is looked for by counting: with half of the fleet eligible one choice in
/// 65 000 gets there.
const TRIES: u32 = 16;

/// The random numbers of one choice.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    state: u64,
}

impl Draw {
    /// The stream of choice number `number`.
    pub(crate) const fn new(seed: u64, number: u64) -> Self {
        Self { state: mix(seed.wrapping_add(mix(number.wrapping_add(GOLDEN)))) }
    }

    /// The next number, uniform over all of `u64`.
    pub(crate) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// The next number below `bound`; 0 if there is none.
    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        ((self.next() as u128 * bound as u128) >> 64) as usize
    }

    /// A candidate, uniform over the eligible ones other than `except`.
    pub(crate) fn eligible<F: Fleet>(&mut self, fleet: &F, except: Option<usize>) -> Option<usize> {
        let may = |i: usize| Some(i) != except && fleet.eligible(i);
        let len = fleet.len();
        for _ in 0..if len == 0 { 0 } else { TRIES } {
            let i = self.below(len);
            if may(i) {
                return Some(i);
            }
        }
        // Reservoir of one: eligibility may change under us, so it is asked once for each candidate.
        let mut seen = 0;
        let mut drawn = None;
        for i in (0..len).filter(|&i| may(i)) {
            seen += 1;
            if self.below(seen) == 0 {
                drawn = Some(i);
            }
        }
        drawn
    }
}

/// The finaliser of splitmix64.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sample;

    #[test]
    fn streams_depend_on_seed_and_number_only() {
        let numbers = |seed, k| -> Vec<u64> {
            let mut draw = Draw::new(seed, k);
            (0..4).map(|_| draw.next()).collect()
        };
        assert_eq!(numbers(1, 2), numbers(1, 2));
        assert_ne!(numbers(1, 2), numbers(1, 3));
        assert_ne!(numbers(1, 2), numbers(2, 2));
    }

    #[test]
    fn draws_are_uniform_over_the_eligible_even_when_few_are() {
        let mut fleet = Sample::new(400);
        for worker in &mut fleet.workers {
            worker.eligible = false;
        }
        for i in [3, 77, 399] {
            fleet.workers[i].eligible = true;
        }
        let mut counts = [0_u32; 400];
        for k in 0..3000 {
            counts[Draw::new(9, k).eligible(&fleet, None).unwrap()] += 1;
        }
        for i in [3, 77, 399] {
            assert!((900..1100).contains(&counts[i]), "{i}: {}", counts[i]);
        }
        assert_eq!(counts.iter().sum::<u32>(), 3000);
    }

    #[test]
    fn an_exception_is_never_drawn() {
        let fleet = Sample::new(2);
        for k in 0..100 {
            assert_eq!(Draw::new(0, k).eligible(&fleet, Some(0)), Some(1));
        }
        assert_eq!(Draw::new(0, 0).eligible(&Sample::new(1), Some(0)), None);
        assert_eq!(Draw::new(0, 0).eligible(&Sample::new(0), None), None);
    }
}
