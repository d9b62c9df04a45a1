//! The data-parallel ranks behind one URL, as numbers.

use std::fmt;
use std::ops::Range;

/// Ranks that a URL takes in `X-data-parallel-rank`: a range that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    first: u32,
    end: u32,
}

/// Most ranks that are believed of one URL: far above what vLLM runs, and a bound on what a worker can make us keep.
pub const MOST_RANKS: u32 = 1024;

impl Ranks {
    /// Rank 0 alone.
    pub const ONE: Self = Self { first: 0, end: 1 };

    /// The ranks from `range.start` up to `range.end`; `None` if there are none, or more than [`MOST_RANKS`].
    pub fn new(range: Range<u32>) -> Option<Self> {
        let count = range.end.checked_sub(range.start)?;
        (1..=MOST_RANKS).contains(&count).then_some(Self { first: range.start, end: range.end })
    }

    /// The ranks 0 to `count - 1`.
    pub fn first(count: u32) -> Option<Self> {
        Self::new(0..count)
    }

    /// How many.
    pub fn count(self) -> u32 {
        self.end - self.first
    }

    /// Each of them.
    pub fn iter(self) -> Range<u32> {
        self.first..self.end
    }

    /// Whether this is one of them.
    pub fn contains(self, rank: u32) -> bool {
        self.iter().contains(&rank)
    }

    /// Never 0, since the end is above the beginning.
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.first) << 32 | u64::from(self.end)
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        Self::new((bits >> 32) as u32..bits as u32)
    }
}

impl fmt::Display for Ranks {
    /// As vLLM writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.first, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_never_none_and_never_too_many() {
        let ranks = Ranks::new(4..8).unwrap();
        assert_eq!((ranks.count(), ranks.to_string().as_str()), (4, "[4, 8)"));
        assert!(ranks.contains(4) && ranks.contains(7) && !ranks.contains(8) && !ranks.contains(0));
        assert_eq!(Ranks::from_bits(ranks.bits()), Some(ranks));
        assert_eq!((Ranks::first(0), Ranks::first(MOST_RANKS + 1), Ranks::from_bits(0)), (None, None, None));
        assert_eq!(Ranks::new(Range { start: 3, end: 1 }), None);
    }
}
