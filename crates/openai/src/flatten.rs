//! Turns prompts, messages and content into parts while walking them once; must not recurse, and must not fail on anything
//! that is valid JSON: what it does not understand takes part as it is written.

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    prompt::{Part, Scratch, Span},
    shape::Reading,
    walk::{Array, BodyError, Key, KeyBuffer, Object, string_end, value_end},
};

// Control bytes cannot occur inside a JSON string, so no content can look like one of these.
pub(crate) const SLOT: &[u8] = b"\x1d";
const ROLE: &[u8] = b"\x01";
const USER: &[u8] = b"user";
const CONTENT: &[u8] = b"\x02";
const NEXT_PART: &[u8] = b"\x03";
const MEDIA: &[u8] = b"\x04";
const OTHER: &[u8] = b"\x05";
const VALUE: &[u8] = b"\x06";
const CONVERSATION: &[u8] = b"\x07";
const NEXT_ITEM: &[u8] = b"\x1e";

/// Bytes that are looked at once for whitespace between ids, so that spaced ids are found after one block.
const BLOCK: usize = 4096;

/// Writes parts of one body into a scratch.
pub(crate) struct Flatten<'a, 's> {
    pub(crate) body: &'a [u8],
    pub(crate) scratch: &'s mut Scratch,
}

/// What a value turned out to be.
pub(crate) struct Flat {
    /// Where it ends in the body.
    pub(crate) end: usize,
    /// True if its parts are token ids.
    pub(crate) ids: bool,
}

impl Flatten<'_, '_> {
    /// Appends the parts of the value of `key`.
    pub(crate) fn value(&mut self, key: &Key, reading: Reading) -> Result<Flat, BodyError> {
        let at = key.value_at;
        let first = self.body.get(at).copied();
        let end = match (reading, first) {
            (Reading::Ids, Some(b'[')) => {
                return Ok(Flat { end: self.ids(at)?, ids: true });
            }
            (Reading::Input, Some(b'[')) => return self.list(at),
            (Reading::Input | Reading::Content, Some(b'"')) => self.string(at)?,
            (Reading::Content, Some(b'[')) => self.content_list(at)?,
            (Reading::Items, Some(b'"')) => {
                self.marks([ROLE, USER, CONTENT]);
                self.string(at)?
            }
            (Reading::Messages | Reading::Items, Some(b'[')) => self.conversations(at)?,
            (Reading::Raw, Some(_)) => return self.named_raw(key),
            _ => self.raw(at)?,
        };
        Ok(Flat { end, ids: false })
    }

    fn mark(&mut self, mark: &'static [u8]) {
        self.scratch.parts.push(Part::Static(mark));
    }

    fn marks(&mut self, marks: [&'static [u8]; 3]) {
        self.scratch.parts.extend(marks.map(Part::Static));
    }

    fn span_part(&mut self, span: Span) -> Part {
        let raw = span.of(self.body);
        if !self.scratch.has_unicode_escape(raw) {
            return Part::Body(span);
        }
        let start = self.scratch.bytes.len();
        crate::escape::write_canonical(raw, &mut self.scratch.bytes);
        Part::Scratch(Span { start, end: self.scratch.bytes.len() })
    }

    fn push(&mut self, span: Span) {
        let part = self.span_part(span);
        self.scratch.parts.push(part);
    }

    fn string(&mut self, at: usize) -> Result<usize, BodyError> {
        let end = string_end(self.body, at)?;
        self.push(Span { start: at + 1, end });
        Ok(end + 1)
    }

    /// A value as it is written; null is nothing.
    fn raw(&mut self, at: usize) -> Result<usize, BodyError> {
        let end = value_end(self.body, at)?;
        let span = Span { start: at, end };
        if span.of(self.body) != b"null" {
            self.push(span);
        }
        Ok(end)
    }

    fn named_raw(&mut self, key: &Key) -> Result<Flat, BodyError> {
        let end = value_end(self.body, key.value_at)?;
        let value = Span { start: key.value_at, end };
        if value.of(self.body) != b"null" {
            self.other((Span { start: key.raw.start, end: key.raw.end }, value));
        }
        Ok(Flat { end, ids: false })
    }

    fn other(&mut self, (key, value): (Span, Span)) {
        self.mark(OTHER);
        self.push(key);
        self.mark(VALUE);
        self.push(value);
    }

    /// A list of token ids, without brackets and whitespace.
    fn ids(&mut self, at: usize) -> Result<usize, BodyError> {
        let end = value_end(self.body, at)?;
        let span = Span { start: at + 1, end: end - 1 };
        let raw = span.of(self.body);
        let spaced =
            raw.chunks(BLOCK).any(|block| block.iter().fold(false, |any, byte| any | (*byte <= b' ')));
        if !spaced {
            self.scratch.parts.push(Part::Body(span));
            return Ok(end);
        }
        let bytes = &mut self.scratch.bytes;
        let start = bytes.len();
        compact(raw, bytes);
        let part = Part::Scratch(Span { start, end: bytes.len() });
        self.scratch.parts.push(part);
        Ok(end)
    }

    /// Texts, token ids or lists of token ids.
    fn list(&mut self, at: usize) -> Result<Flat, BodyError> {
        let mut array = Array::open(self.body, at)?;
        let mut ids = false;
        let mut first = true;
        while let Some(element) = array.next_element()? {
            let byte = self.body[element];
            if first && matches!(byte, b'0'..=b'9' | b'-') {
                return Ok(Flat { end: self.ids(at)?, ids: true });
            }
            if !first {
                self.mark(NEXT_ITEM);
            }
            let end = match byte {
                b'"' => self.string(element)?,
                b'[' => {
                    ids |= first;
                    self.ids(element)?
                }
                _ => self.raw(element)?,
            };
            array.end_element(end)?;
            first = false;
        }
        Ok(Flat { end: array.end(), ids })
    }

    /// A list of messages, or a list of such lists.
    fn conversations(&mut self, at: usize) -> Result<usize, BodyError> {
        let mut array = Array::open(self.body, at)?;
        while let Some(element) = array.next_element()? {
            let end = if self.body[element] == b'[' {
                self.mark(CONVERSATION);
                self.conversation(element)?
            } else {
                self.message(element)?
            };
            array.end_element(end)?;
        }
        Ok(array.end())
    }

    fn conversation(&mut self, at: usize) -> Result<usize, BodyError> {
        let mut array = Array::open(self.body, at)?;
        while let Some(element) = array.next_element()? {
            let end = self.message(element)?;
            array.end_element(end)?;
        }
        Ok(array.end())
    }

    /// Role, content, then all other members in their order.
    fn message(&mut self, at: usize) -> Result<usize, BodyError> {
        if self.body.get(at) != Some(&b'{') {
            self.mark(CONVERSATION);
            return self.raw(at);
        }
        let body = self.body;
        let role = self.scratch.parts.len() + 1;
        self.marks([ROLE, b"", CONTENT]);
        let content = self.scratch.parts.len();
        self.scratch.others.clear();
        let mut buffer = KeyBuffer::default();
        let mut object = Object::open(body, at)?;
        while let Some(key) = object.next_key()? {
            match key.name(body, &mut buffer) {
                b"role" => {
                    let value = object.skip_value()?;
                    self.scratch.parts[role] = self.span_part(inside(body, value.start, value.end));
                }
                b"content" => {
                    // A duplicate replaces what came before, as in Python.
                    self.scratch.parts.truncate(content);
                    object.end_value(self.content(key.value_at)?)?;
                }
                name => {
                    let value = object.skip_value()?;
                    let value = Span { start: value.start, end: value.end };
                    if !is_default(name, value.of(body)) {
                        let key = Span { start: key.raw.start, end: key.raw.end };
                        self.scratch.others.push((key, value));
                    }
                }
            }
        }
        for index in 0..self.scratch.others.len() {
            self.other(self.scratch.others[index]);
        }
        Ok(object.end())
    }

    fn content(&mut self, at: usize) -> Result<usize, BodyError> {
        match self.body.get(at) {
            Some(b'"') => self.string(at),
            Some(b'[') => self.content_list(at),
            _ => self.raw(at),
        }
    }

    /// A list of content parts. One text part alone gives the same as a plain text.
    fn content_list(&mut self, at: usize) -> Result<usize, BodyError> {
        let mut array = Array::open(self.body, at)?;
        let mut first = true;
        while let Some(element) = array.next_element()? {
            if !first {
                self.mark(NEXT_PART);
            }
            first = false;
            let end = match self.body[element] {
                b'"' => self.string(element)?,
                b'{' => self.content_part(element)?,
                _ => self.raw(element)?,
            };
            array.end_element(end)?;
        }
        Ok(array.end())
    }

    fn content_part(&mut self, at: usize) -> Result<usize, BodyError> {
        let body = self.body;
        let mut buffer = KeyBuffer::default();
        let mut object = Object::open(body, at)?;
        while let Some(key) = object.next_key()? {
            let value = object.skip_value()?;
            let value = Span { start: value.start, end: value.end };
            match key.name(body, &mut buffer) {
                b"text" => self.push(inside(body, value.start, value.end)),
                b"image_url" | b"video_url" | b"audio_url" => self.media(value)?,
                b"input_audio" | b"source" | b"file" | b"file_data" | b"data" => {
                    self.mark(MEDIA);
                    self.digest(value);
                }
                name if is_default(name, value.of(body)) => {}
                _ => self.other((Span { start: key.raw.start, end: key.raw.end }, value)),
            }
        }
        Ok(object.end())
    }

    /// An image, sound or video: its address, or a digest of its bytes if they are in the body.
    fn media(&mut self, value: Span) -> Result<(), BodyError> {
        let mut url = value;
        if value.of(self.body).first() == Some(&b'{') {
            let mut object = Object::open(self.body, value.start)?;
            while let Some(key) = object.next_key()? {
                let member = object.skip_value()?;
                if key.name(self.body, &mut KeyBuffer::default()) == b"url" {
                    url = Span { start: member.start, end: member.end };
                }
            }
        }
        self.mark(MEDIA);
        let url = inside(self.body, url.start, url.end);
        if url.of(self.body).starts_with(b"data:") {
            self.digest(url);
        } else {
            self.push(url);
        }
        Ok(())
    }

    fn digest(&mut self, span: Span) {
        let start = self.scratch.bytes.len();
        let digest = xxh3_64(span.of(self.body)).to_le_bytes();
        self.scratch.bytes.extend_from_slice(&digest);
        self.scratch.parts.push(Part::Scratch(Span { start, end: start + digest.len() }));
    }
}

/// What is between the quotes of a string; any other value as it is.
fn inside(body: &[u8], start: usize, end: usize) -> Span {
    match &body[start..end] {
        [b'"', .., b'"'] => Span { start: start + 1, end: end - 1 },
        _ => Span { start, end },
    }
}

/// True for members that do not change what is rendered, so that clients that write them out share prefixes with others.
fn is_default(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"type" => matches!(value, b"\"message\"" | b"\"text\"" | b"\"input_text\"" | b"\"output_text\""),
        // A mark that Anthropic clients move to the last message in every turn.
        b"cache_control" | b"status" => true,
        _ => value == b"null",
    }
}

/// Appends `raw` without whitespace.
fn compact(raw: &[u8], out: &mut Vec<u8>) {
    const WORD: usize = size_of::<u64>();
    let mut at = out.len();
    out.resize(at + raw.len(), 0);
    let mut rest = raw;
    // A word at a time up to the next whitespace: going byte by byte costs several times as much for long lists.
    while let Some(word) = rest.first_chunk::<WORD>() {
        out[at..at + WORD].copy_from_slice(word);
        let kept = first_space(u64::from_le_bytes(*word));
        at += kept;
        rest = &rest[(kept + 1).min(WORD)..];
    }
    for byte in rest {
        out[at] = *byte;
        at += usize::from(*byte > b' ');
    }
    out.truncate(at);
}

/// How many bytes of a word, from its lowest, come before one that is not above a space.
fn first_space(word: u64) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let found = word.wrapping_sub(ONES * (b' ' as u64 + 1)) & !word & (ONES << 7);
    found.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests;
