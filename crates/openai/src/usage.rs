//! Finds token counts in the records of a stream, wherever the stream is split; must keep a bounded amount of it.

use std::sync::LazyLock;

use memchr::memmem;

/// Token counts as a worker reported them. Counts that a later report leaves out keep their last value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens that were generated.
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: Option<u64>,
}

/// What a usage object starts with.
const NAME: &[u8] = b"\"usage\":";

/// Bytes behind [`NAME`] that are read at most.
const READ: usize = 512;

/// Looks through one record of a stream at a time, or through a whole answer.
#[derive(Debug)]
pub struct UsageScan {
    finder: memmem::Finder<'static>,
    /// The end of what was seen of a record that is not whole yet, shorter than [`NAME`].
    tail: Vec<u8>,
    /// What followed the last name so far, if that may go on in the next piece.
    held: Vec<u8>,
    /// Bytes that followed it, of which `held` keeps the first.
    behind: usize,
    holding: bool,
    found: Usage,
}

impl Default for UsageScan {
    fn default() -> Self {
        Self {
            finder: memmem::Finder::new(NAME),
            tail: Vec::with_capacity(NAME.len() * 2),
            held: Vec::new(),
            behind: 0,
            holding: false,
            found: Usage::default(),
        }
    }
}

impl UsageScan {
    /// True if `chunk` can be passed over, except for the record that is not whole at its end.
    pub(crate) fn nothing_in(&self, chunk: &[u8]) -> bool {
        !self.holding && self.tail.is_empty() && self.finder.find(chunk).is_none()
    }

    /// Looks through the rest of a record, and returns what was found in all of it.
    pub fn end(&mut self, piece: &[u8]) -> Usage {
        let last = self.piece(piece);
        self.close(last);
        self.tail.clear();
        std::mem::take(&mut self.found)
    }

    /// Looks through a piece of a record of which more will come.
    pub fn more(&mut self, piece: &[u8]) {
        let last = self.piece(piece);
        self.hold(last);
        let keep = NAME.len() - 1;
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(keep)..]);
        let surplus = self.tail.len().saturating_sub(keep);
        self.tail.drain(..surplus);
    }

    /// Reads all that is closed by another name; returns what follows the last name, or the whole piece.
    fn piece<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let mut rest = &piece[self.straddling(piece)..];
        while let Some(offset) = self.finder.find(rest) {
            self.close(&rest[..offset]);
            self.holding = true;
            rest = &rest[offset + NAME.len()..];
        }
        rest
    }

    /// Looks for a name that began in an earlier piece; returns where the search goes on.
    fn straddling(&mut self, piece: &[u8]) -> usize {
        if self.tail.is_empty() {
            return 0;
        }
        let before = self.tail.len();
        let mut joint = [0; NAME.len() * 2];
        let taken = piece.len().min(NAME.len() - 1);
        joint[..before].copy_from_slice(&self.tail);
        joint[before..before + taken].copy_from_slice(&piece[..taken]);
        let Some(offset) = memmem::find(&joint[..before + taken], NAME) else {
            return 0;
        };
        // What was kept behind the name before may hold the beginning of this one.
        self.held.truncate(self.behind.saturating_sub(before - offset));
        self.close(&[]);
        self.holding = true;
        offset + NAME.len() - before
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.holding {
            self.behind += bytes.len();
            let room = READ - self.held.len();
            self.held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// Reads what followed the last name, of which `bytes` is the end.
    fn close(&mut self, bytes: &[u8]) {
        if !std::mem::take(&mut self.holding) {
            return;
        }
        if self.held.is_empty() {
            self.found.update(Usage::parse(&bytes[..bytes.len().min(READ)]));
        } else {
            self.holding = true;
            self.hold(bytes);
            self.holding = false;
            self.found.update(Usage::parse(&self.held));
            self.held.clear();
        }
        self.behind = 0;
    }
}

impl Usage {
    /// What the last usage object in the end of a whole answer reports. Text that a model wrote cannot be taken for one,
    /// since its quotes are escaped.
    pub fn at_end(end: &[u8]) -> Self {
        // Forwards, since only that search is vectorised.
        static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(NAME));
        let last = FINDER.find_iter(end).last();
        last.map(|at| Self::parse(&end[at + NAME.len()..])).unwrap_or_default()
    }

    /// True if nothing was reported.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes over what `newer` reports.
    pub(crate) fn update(&mut self, newer: Self) {
        self.prompt_tokens = newer.prompt_tokens.or(self.prompt_tokens);
        self.completion_tokens = newer.completion_tokens.or(self.completion_tokens);
        self.cached_tokens = newer.cached_tokens.or(self.cached_tokens);
    }

    /// Reads a usage object; `text` is what follows its name.
    fn parse(text: &[u8]) -> Self {
        let mut usage = Self::default();
        let mut depth = 0_usize;
        let mut rest = text.trim_ascii_start();
        if rest.first() != Some(&b'{') {
            return usage;
        }
        // Names and numbers are a few bytes each: to step over them costs less than to call a search.
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'{' | b'}' | b'"')) {
            let byte = rest[at];
            rest = &rest[at + 1..];
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 1 => break,
                b'}' => depth -= 1,
                _ => {
                    let Some(close) = quote(rest) else { break };
                    let (name, behind) = rest.split_at(close);
                    rest = &behind[1..];
                    usage.member(name, rest);
                }
            }
        }
        usage
    }

    fn member(&mut self, name: &[u8], behind: &[u8]) {
        let Some(of) = name.strip_suffix(b"_tokens") else { return };
        let place = match of {
            b"prompt" | b"input" => &mut self.prompt_tokens,
            b"completion" | b"output" => &mut self.completion_tokens,
            b"cached" | b"cache_read_input" => &mut self.cached_tokens,
            _ => return,
        };
        *place = place.or_else(|| number(behind));
    }
}

/// The number behind a name and its colon.
fn number(behind: &[u8]) -> Option<u64> {
    let value = behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // Digits that reach the end of what was kept may be half a number.
    if digits == 0 || digits == value.len() {
        return None;
    }
    value[..digits]
        .iter()
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Where the first quote is. Eight bytes at a time: for a name that costs less than to call a search.
fn quote(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 0xff;
    let (words, rest) = text.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        // A zero byte is a quote; the lowest one is found without fail.
        let zeros = u64::from_le_bytes(*word) ^ (ONES * b'"' as u64);
        let found = zeros.wrapping_sub(ONES) & !zeros & (ONES << 7);
        if found != 0 {
            return Some(place * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|byte| *byte == b'"')?;
    Some(text.len() - rest.len() + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(record: &[u8]) -> Usage {
        UsageScan::default().end(record)
    }

    fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Usage {
        Usage { prompt_tokens: Some(prompt), completion_tokens: Some(completion), cached_tokens: cached }
    }

    #[test]
    fn the_names_of_all_three_apis_are_read() {
        let chat = br#"{"choices":[],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        assert_eq!(scan(chat), usage(5, 2, Some(4)));
        let responses = br#"{"response":{"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2 }}}"#;
        assert_eq!(scan(responses), usage(5, 2, Some(1)));
        let messages = br#"{"usage":{"input_tokens":5,"cache_read_input_tokens":3,"output_tokens":2}}"#;
        assert_eq!(scan(messages), usage(5, 2, Some(3)));
    }

    #[test]
    fn text_that_talks_about_usage_is_not_usage() {
        assert!(scan(br#"{"delta":{"content":"\"usage\":{\"prompt_tokens\":5}"}}"#).is_empty());
        assert!(scan(br#"{"usage":null}"#).is_empty());
        assert!(
            scan(br#"{"tools":[{"properties":{"usage":{"type":"string"}}}],"prompt_tokens":9}"#).is_empty()
        );
    }

    #[test]
    fn a_tool_parameter_named_usage_does_not_hide_the_counts() {
        let record =
            br#"{"tools":[{"usage":{"type":"string"}}],"usage":{"input_tokens":5,"output_tokens":2}}"#;
        assert_eq!(scan(record), usage(5, 2, None));
    }

    #[test]
    fn every_split_in_three_gives_the_same_counts() {
        let record = br#"{"a":{"usage":{"x":1}},"usage": {"prompt_tokens":51,"completion_tokens":22}}"#;
        for first in 0..record.len() {
            for second in first..record.len() {
                let mut scan = UsageScan::default();
                scan.more(&record[..first]);
                scan.more(&record[first..second]);
                assert_eq!(scan.end(&record[second..]), usage(51, 22, None), "{first} {second}");
            }
        }
    }

    #[test]
    fn a_name_that_is_split_does_not_end_the_number_before_it() {
        let record = br#"{"usage":{"prompt_tokens":6"usage":{}"#;
        let unsplit = scan(record);
        for cut in 0..record.len() {
            let mut scan = UsageScan::default();
            scan.more(&record[..cut]);
            assert_eq!(scan.end(&record[cut..]), unsplit, "{cut}");
        }
    }

    #[test]
    fn the_first_quote_is_found_wherever_it_stands() {
        for length in 0..30 {
            for at in 0..length {
                let mut text: Vec<u8> = (0..length).map(|byte| b"!#\x00\xa2\xff"[byte % 5]).collect();
                text[at..].fill(b'"');
                assert_eq!(quote(&text), Some(at));
                assert_eq!(quote(&text[..at]), None);
            }
        }
    }

    #[test]
    fn a_number_that_is_too_large_is_no_count() {
        assert_eq!(number(b": 18446744073709551615,"), Some(u64::MAX));
        assert_eq!(number(b":18446744073709551616,"), None);
        assert_eq!(number(b":,"), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut scan = UsageScan::default();
        scan.more(br#"{"usage":{"pad":""#);
        for _ in 0..1000 {
            scan.more(b"xxxxxxxxxxxxxxxxxxxxxxxxx");
        }
        assert_eq!(scan.held.len(), READ);
    }

    #[test]
    fn half_a_number_is_not_a_count() {
        for length in 0..200 {
            let pad = "x".repeat(READ - 100 + length);
            let record = format!("{{\"usage\":{{\"pad\":\"{pad}\",\"prompt_tokens\":123456}}}}");
            assert!(matches!(scan(record.as_bytes()).prompt_tokens, None | Some(123_456)), "{length}");
        }
    }
}
