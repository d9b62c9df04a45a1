//! Names that a router gives to models, read from answers: where the model's name stands first. Must not decide which
//! answers have one.

use std::ops::Range;

use bytes::Bytes;

use crate::escape;

/// Members behind whose key an object is looked into, since the answer itself is in there.
const INNER: [&[u8]; 2] = [b"response", b"message"];

/// The place of a model's name in the beginning of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelPlace {
    /// The value of `model`, its quotes included.
    At(Range<usize>),
    /// Not in this beginning: more of the answer is needed to tell.
    Later,
    /// There is none, or not as a string.
    Nowhere,
}

impl ModelPlace {
    /// In the beginning of a JSON object: in its own member `model`, or in that of `response` or `message`, whichever
    /// stands first.
    pub fn find(json: &[u8]) -> Self {
        let mut walk = Walk { json, at: 0 };
        walk.object(true).unwrap_or(Self::Later)
    }
}

/// A walk over JSON that may break off anywhere; `None` says that it did.
struct Walk<'a> {
    json: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    /// The byte at which something stands that is no blank.
    fn next(&mut self) -> Option<u8> {
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.json.get(self.at..)?.iter().take_while(blank).count();
        self.json.get(self.at).copied()
    }

    fn object(&mut self, is_outer: bool) -> Option<ModelPlace> {
        if self.next()? != b'{' {
            return Some(ModelPlace::Nowhere);
        }
        self.at += 1;
        if self.next()? == b'}' {
            self.at += 1;
            return Some(ModelPlace::Nowhere);
        }
        loop {
            if self.next()? != b'"' {
                return Some(ModelPlace::Nowhere);
            }
            let key = self.string()?;
            let key = &self.json[key.start + 1..key.end - 1];
            if self.next()? != b':' {
                return Some(ModelPlace::Nowhere);
            }
            self.at += 1;
            let first = self.next()?;
            if key == b"model" {
                return Some(if first == b'"' {
                    ModelPlace::At(self.string()?)
                } else {
                    ModelPlace::Nowhere
                });
            }
            if is_outer && first == b'{' && INNER.contains(&key) {
                let found = self.object(false)?;
                if found != ModelPlace::Nowhere {
                    return Some(found);
                }
            } else {
                self.skip()?;
            }
            match self.next()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Some(ModelPlace::Nowhere);
                }
                _ => return Some(ModelPlace::Nowhere),
            }
        }
    }

    /// A string with its quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let mut at = start + 1;
        loop {
            match self.json.get(at)? {
                b'"' => break,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        self.at = at + 1;
        Some(start..self.at)
    }

    /// Any value. What comes behind it is not in it.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.next()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    self.at += 1;
                }
                b',' | b':' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    let plain = |byte: &&u8| !b",:{}[]\" \t\r\n".contains(byte);
                    self.at += self.json[self.at..].iter().take_while(plain).count();
                    // A number may go on.
                    self.json.get(self.at)?;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// Two names of one model, as JSON strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renaming {
    /// As workers call it.
    from: Bytes,
    /// As clients do.
    to: Bytes,
}

impl Renaming {
    /// Of answers: `from` becomes `to`.
    pub fn new(from: &str, to: &str) -> Self {
        let quoted = |name: &str| {
            let mut text = Vec::new();
            escape::write_string(name, &mut text);
            Bytes::from(text)
        };
        Self { from: quoted(from), to: quoted(to) }
    }

    /// What workers call the model, as a JSON string.
    pub fn from(&self) -> &Bytes {
        &self.from
    }

    /// The place to be renamed in the beginning of an answer; an answer with another name stays as it is.
    pub fn find(&self, json: &[u8]) -> ModelPlace {
        match ModelPlace::find(json) {
            ModelPlace::At(place) if json[place.clone()] != *self.from => ModelPlace::Nowhere,
            found => found,
        }
    }

    /// The bytes with the name at this place, as [`Self::find`] gave it, replaced.
    pub fn at(&self, bytes: &[u8], place: Range<usize>) -> Bytes {
        [&bytes[..place.start], &self.to, &bytes[place.end..]].concat().into()
    }

    /// Whole records of an event stream, renamed in each that has the name. The same bytes if none has.
    pub fn of_records(&self, records: Bytes) -> Bytes {
        const DATA: &[u8] = b"data:";
        let mut renamed = Vec::new();
        let mut done = 0;
        let mut at = 0;
        for line in records.split_inclusive(|byte| *byte == b'\n') {
            if let Some(json) = line.strip_prefix(DATA)
                && let ModelPlace::At(place) = self.find(json)
            {
                let start = at + DATA.len();
                renamed.extend_from_slice(&records[done..start + place.start]);
                renamed.extend_from_slice(&self.to);
                done = start + place.end;
            }
            at += line.len();
        }
        if done == 0 {
            return records;
        }
        renamed.extend_from_slice(&records[done..]);
        renamed.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(json: &str) -> Option<&str> {
        match ModelPlace::find(json.as_bytes()) {
            ModelPlace::At(place) => Some(&json[place]),
            ModelPlace::Later | ModelPlace::Nowhere => None,
        }
    }

    #[test]
    fn the_name_is_found_where_it_stands_first() {
        for (json, name) in [
            (
                r#"{"id":"x","object":"chat.completion","created":17,"model":"tiny","choices":[]}"#,
                Some("\"tiny\""),
            ),
            (
                r#"{ "a" : [1,{"model":"no"},"]"], "b":{"model":"no"}, "model" : "t\"}iny" }"#,
                Some(r#""t\"}iny""#),
            ),
            (
                r#"{"type":"response.created","response":{"id":"r","model":"tiny"},"model":"late"}"#,
                Some("\"tiny\""),
            ),
            (
                r#"{"type":"message_start","message":{"id":"m","content":[],"model":"tiny"}}"#,
                Some("\"tiny\""),
            ),
            (r#"{"response":{"id":1},"model":"tiny"}"#, Some("\"tiny\"")),
            (r#"{"choices":[{"text":"\"model\":\"no\""}]}"#, None),
            (r#"{"model":null}"#, None),
            (r#"{"model":"cut"#, None),
            ("[DONE]", None),
            ("{}", None),
            ("", None),
        ] {
            assert_eq!(found(json), name, "{json}");
        }
    }

    #[test]
    fn records_are_renamed_each_by_itself_and_others_are_the_same_bytes() {
        let renaming = Renaming::new("tiny", "nick\"name");
        let records = Bytes::from_static(
            b"data: {\"id\":1,\"model\":\"tiny\",\"x\":\"tiny\"}\n\nevent: a\ndata:{\"model\":\"other\"}\r\n\r\ndata: {\"model\":\"tiny\"}\n\ndata: [DONE]\n\n",
        );
        assert_eq!(
            renaming.of_records(records),
            &b"data: {\"id\":1,\"model\":\"nick\\\"name\",\"x\":\"tiny\"}\n\nevent: a\ndata:{\"model\":\"other\"}\r\n\r\ndata: {\"model\":\"nick\\\"name\"}\n\ndata: [DONE]\n\n"[..]
        );
        let plain = Bytes::from_static(b"data: {\"text\":\"tiny\"}\n\n");
        assert_eq!(renaming.of_records(plain.clone()).as_ptr(), plain.as_ptr());
    }

    proptest! {
        #[test]
        fn a_beginning_says_later_or_the_same_as_the_whole(cut in 0_usize..80) {
            let json = br#"{"id":"a\\\"b","n":[1,-2.5e3,{"k":[]}],"response":{"ok":true,"model":"tiny"},"z":1}"#;
            let whole = ModelPlace::find(json);
            let part = ModelPlace::find(&json[..cut.min(json.len())]);
            prop_assert!(part == whole || part == ModelPlace::Later, "{:?}", part);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(prop::sample::select(b"{}[]\":,\\m model1".to_vec()), 0..60)) {
            let _found = ModelPlace::find(&bytes);
        }
    }
}
