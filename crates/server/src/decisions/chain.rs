//! Keys of prompts as they are written and read: a line holds only what no earlier line does. Knows hashes, not lines.

use std::collections::HashMap;
use std::fmt::Write as _;

/// Hashes that the writer remembers before keys begin anew. It bounds what writer and reader keep: 32 MiB or so each.
const REMEMBERED: usize = 1 << 20;

/// A key as it is written: blocks of an earlier line's key, then new ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortened<'a> {
    /// Number of the earlier line, and how many of its blocks.
    pub(crate) earlier: Option<(u64, usize)>,
    /// The blocks that follow.
    pub(crate) new: &'a [u64],
}

/// The keys written so far.
#[derive(Debug)]
pub(crate) struct Written {
    /// Of each hash the line that has it first, and its place in that line's key.
    lines: HashMap<u64, (u64, usize)>,
    most: usize,
}

impl Default for Written {
    fn default() -> Self {
        Self { lines: HashMap::new(), most: REMEMBERED }
    }
}

impl Written {
    /// Whether so much is remembered that keys have to begin anew; from then on they do.
    pub(crate) fn begins_anew(&mut self) -> bool {
        let full = self.lines.len() > self.most;
        if full {
            self.lines = HashMap::new();
        }
        full
    }

    /// What line `number` has to hold of its key.
    pub(crate) fn shorten<'a>(&mut self, number: u64, blocks: &'a [u64]) -> Shortened<'a> {
        let known = (0..blocks.len()).rev().find_map(|at| {
            let (line, place) = self.lines.get(&blocks[at]).copied()?;
            (place == at).then_some((line, at + 1))
        });
        let from = known.map_or(0, |(_, blocks)| blocks);
        let new = &blocks[from..];
        self.lines.extend(new.iter().zip(from..).map(|(&hash, place)| (hash, (number, place))));
        Shortened { earlier: known, new }
    }
}

/// The keys read so far.
#[derive(Debug, Default)]
pub(crate) struct Read {
    lines: HashMap<u64, Part>,
}

#[derive(Debug)]
struct Part {
    earlier: Option<(u64, usize)>,
    new: Vec<u64>,
}

impl Read {
    /// No key refers to what was before.
    pub(crate) fn begin_anew(&mut self) {
        self.lines.clear();
    }

    /// The whole key of line `number`; `None` if it refers to something that is not there.
    pub(crate) fn whole(
        &mut self,
        number: u64,
        earlier: Option<(u64, usize)>,
        new: Vec<u64>,
    ) -> Option<Vec<u64>> {
        let len = earlier.map_or(0, |(_, blocks)| blocks) + new.len();
        let mut parts = vec![&*new];
        let (mut next, mut missing) = (earlier, len - new.len());
        while let Some((line, blocks)) = next {
            let part = self.lines.get(&line)?;
            let before = part.earlier.map_or(0, |(_, blocks)| blocks);
            let used = blocks.min(missing);
            let own = used.saturating_sub(before);
            parts.push(part.new.get(..own)?);
            missing = used - own;
            next = part.earlier.filter(|_| missing > 0);
        }
        if missing > 0 {
            return None;
        }
        let whole: Vec<u64> = parts.iter().rev().copied().flatten().copied().collect();
        if !new.is_empty() {
            self.lines.insert(number, Part { earlier, new });
        }
        Some(whole)
    }
}

/// 16 digits for each hash.
pub(crate) fn to_hex(hashes: &[u64]) -> String {
    let mut hex = String::with_capacity(hashes.len() * 16);
    for hash in hashes {
        let _infallible = write!(hex, "{hash:016x}");
    }
    hex
}

/// The hashes that such digits stand for.
pub(crate) fn from_hex(hex: &str) -> Option<Vec<u64>> {
    let (groups, rest) = hex.as_bytes().as_chunks::<16>();
    let read = |group: &[u8; 16]| {
        let text = std::str::from_utf8(group).ok().filter(|text| !text.starts_with('+'))?;
        u64::from_str_radix(text, 16).ok()
    };
    rest.is_empty().then(|| groups.iter().map(read).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain whose hashes depend on all before, from the words of a prompt.
    fn chain(words: &[u64]) -> Vec<u64> {
        let step = |chained: &mut u64, word: &u64| {
            *chained = (*chained ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
            Some(*chained)
        };
        words.iter().scan(7, step).collect()
    }

    #[test]
    fn what_is_shortened_is_whole_again() {
        let (mut written, mut read) = (Written::default(), Read::default());
        let mut new = 0;
        for number in 0..400_u64 {
            // Conversations that grow, branch, repeat, and are cut.
            let talk = number % 7;
            let len = (number * 13 % 41) as usize;
            let words: Vec<u64> = (0..len as u64).map(|i| if i < 5 { i } else { i ^ talk << 8 }).collect();
            let blocks = chain(&words);
            let Shortened { earlier, new: tail } = written.shorten(number, &blocks);
            new += tail.len();
            let tail = from_hex(&to_hex(tail)).unwrap();
            assert_eq!(read.whole(number, earlier, tail), Some(blocks), "{number}");
        }
        assert_eq!(new, 5 + 7 * 35, "each prefix is written once");
    }

    #[test]
    fn a_reference_to_nothing_is_no_key() {
        let mut read = Read::default();
        assert_eq!(read.whole(1, Some((0, 3)), vec![4]), None);
        assert_eq!(read.whole(2, None, vec![1, 2]), Some(vec![1, 2]));
        assert_eq!(read.whole(3, Some((2, 3)), vec![4]), None, "it has two blocks only");
        assert_eq!(read.whole(3, Some((2, 1)), vec![4]), Some(vec![1, 4]));
        read.begin_anew();
        assert_eq!(read.whole(4, Some((2, 1)), vec![]), None);
    }

    #[test]
    fn memory_is_bounded_by_beginning_anew() {
        let mut written = Written { most: 10, ..Written::default() };
        written.shorten(0, &chain(&[1; 20]));
        assert!(written.begins_anew() && !written.begins_anew());
        assert_eq!(written.shorten(1, &chain(&[1; 20])).earlier, None);
    }

    #[test]
    fn digits_that_are_none_are_refused() {
        for bad in ["1", "00000000000000000", "zzzzzzzzzzzzzzzz", "+000000000000001", "0x00000000000001"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
        assert_eq!(from_hex(""), Some(vec![]));
    }
}
