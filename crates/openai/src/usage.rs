//! Finds token counts in the records of a stream, wherever the stream is split; must keep a bounded amount of it.

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

/// Looks through one record at a time.
#[derive(Debug)]
pub(crate) struct UsageScan {
    finder: memmem::Finder<'static>,
    /// The end of what was seen of a record that is not whole yet, shorter than [`NAME`].
    tail: Vec<u8>,
    /// What followed a name so far, while it is being collected.
    held: Option<Vec<u8>>,
    found: Usage,
}

impl Default for UsageScan {
    fn default() -> Self {
        Self {
            finder: memmem::Finder::new(NAME),
            tail: Vec::with_capacity(NAME.len() * 2),
            held: None,
            found: Usage::default(),
        }
    }
}

impl UsageScan {
    /// True if `chunk` can be passed over, except for the record that is not whole at its end.
    pub(crate) fn nothing_in(&self, chunk: &[u8]) -> bool {
        self.held.is_none() && self.tail.is_empty() && self.finder.find(chunk).is_none()
    }

    /// Looks through the rest of a record, and returns what was found in all of it.
    pub(crate) fn end(&mut self, piece: &[u8]) -> Usage {
        self.piece(piece);
        self.flush();
        self.tail.clear();
        std::mem::take(&mut self.found)
    }

    /// Looks through a piece of a record of which more will come.
    pub(crate) fn more(&mut self, piece: &[u8]) {
        self.piece(piece);
        let keep = NAME.len() - 1;
        self.tail
            .extend_from_slice(&piece[piece.len().saturating_sub(keep)..]);
        let surplus = self.tail.len().saturating_sub(keep);
        self.tail.drain(..surplus);
    }

    fn piece(&mut self, piece: &[u8]) {
        let mut at = self.straddling(piece);
        while let Some(offset) = self.finder.find(&piece[at..]) {
            self.hold(&piece[at..at + offset]);
            at += offset + NAME.len();
            self.flush();
            self.held = Some(Vec::new());
        }
        self.hold(&piece[at..]);
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
        self.flush();
        self.held = Some(Vec::new());
        offset + NAME.len() - before
    }

    fn hold(&mut self, bytes: &[u8]) {
        if let Some(held) = &mut self.held {
            let room = READ - held.len();
            held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    fn flush(&mut self) {
        if let Some(held) = self.held.take() {
            self.found.update(Usage::parse(&held));
        }
    }
}

impl Usage {
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
        let Some(object) = braced(text) else {
            return Self::default();
        };
        let any = |names: [&[u8]; 2]| names.into_iter().find_map(|name| number_after(object, name));
        Self {
            prompt_tokens: any([b"\"prompt_tokens\"", b"\"input_tokens\""]),
            completion_tokens: any([b"\"completion_tokens\"", b"\"output_tokens\""]),
            cached_tokens: any([b"\"cached_tokens\"", b"\"cache_read_input_tokens\""]),
        }
    }
}

/// The object at the start of `text`, or as much of it as there is.
fn braced(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii_start();
    if text.first() != Some(&b'{') {
        return None;
    }
    let mut depth = 0_usize;
    let end = text.iter().position(|byte| {
        depth = depth
            .saturating_add(usize::from(*byte == b'{'))
            .saturating_sub(usize::from(*byte == b'}'));
        depth == 0
    });
    Some(&text[..end.map_or(text.len(), |brace| brace + 1)])
}

fn number_after(object: &[u8], name: &[u8]) -> Option<u64> {
    let at = memmem::find(object, name)? + name.len();
    let value = object[at..]
        .trim_ascii_start()
        .strip_prefix(b":")?
        .trim_ascii_start();
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // Digits that reach the end of what was kept may be half a number.
    if digits == value.len() {
        return None;
    }
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(record: &[u8]) -> Usage {
        UsageScan::default().end(record)
    }

    fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Usage {
        Usage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(completion),
            cached_tokens: cached,
        }
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
                assert_eq!(
                    scan.end(&record[second..]),
                    usage(51, 22, None),
                    "{first} {second}"
                );
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_half_numbers_are_not_counts() {
        let mut scan = UsageScan::default();
        scan.more(br#"{"usage":{"pad":""#);
        for _ in 0..1000 {
            scan.more(b"xxxxxxxxxxxxxxxxxxxxxxxxx");
        }
        assert_eq!(scan.held.as_ref().map(Vec::len), Some(READ));
        let mut long = br#"{"usage":{"pad":""#.to_vec();
        long.resize(READ - 10, b'x');
        long.extend_from_slice(br#"","prompt_tokens":123456789}}"#);
        for cut in 0..20 {
            let start = cut.min(16);
            assert_eq!(
                super::number_after(&long[start..long.len() - 3 - cut], b"\"prompt_tokens\""),
                None
            );
        }
    }
}
