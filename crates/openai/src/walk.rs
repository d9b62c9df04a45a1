//! Walks the members of JSON objects and the elements of arrays without parsing them; must never recurse, copy or judge values.
//!
//! The rule: for every body that Python's `json.loads(bytes)` accepts, keys and values are found exactly where Python finds them.
//! A body that Python rejects may pass here, because the worker rejects it. That is what allows a nested value to be skipped by
//! counting one kind of bracket outside strings.

use std::ops::Range;

use memchr::{memchr, memchr3};

use crate::escape;

/// Why a body cannot be read. Offsets are bytes from the start of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The bytes are not valid UTF-8.
    #[error("the body is not valid UTF-8")]
    NotUtf8,
    /// The first bytes are what Python takes for UTF-16 or UTF-32, in which members would be at other places.
    #[error("the body is in UTF-16 or UTF-32, only UTF-8 is accepted")]
    WideEncoding,
    /// The members cannot be walked.
    #[error("the body is not a JSON object: {what} at byte {offset}")]
    Broken {
        /// Where the walk stopped.
        offset: usize,
        /// What was expected there.
        what: &'static str,
    },
}

/// The key of a member whose value has not been consumed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The key's bytes between its quotes.
    pub raw: Range<usize>,
    /// True if the key contains a backslash, so that its bytes are not its name.
    pub escaped: bool,
    /// Where the value starts.
    pub value_at: usize,
    /// The comma in front of this member, if it is not the first.
    pub comma_before: Option<usize>,
}

impl Key {
    /// The key's name, unescaped. A key that is too long to be any known name gives an empty name.
    #[inline]
    pub fn name<'b>(&self, body: &'b [u8], buffer: &'b mut KeyBuffer) -> &'b [u8] {
        let raw = &body[self.raw.clone()];
        if self.escaped { escape::unescape_short(raw, &mut buffer.0) } else { raw }
    }
}

/// Room for one unescaped key.
#[derive(Debug)]
pub struct KeyBuffer([u8; 64]);

impl Default for KeyBuffer {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// A cursor over the members of one object: ask for a key, then either skip its value or say where it ended.
#[derive(Debug)]
pub struct Object<'a> {
    body: &'a [u8],
    pos: usize,
    comma: Option<usize>,
    closed: bool,
}

/// A cursor over the elements of one array, used like [`Object`].
#[derive(Debug)]
pub struct Array<'a> {
    body: &'a [u8],
    pos: usize,
    first: bool,
    closed: bool,
}

/// Checks encoding and start of a body and returns where its top-level `{` is.
///
/// # Errors
/// [`BodyError`] if the body is not UTF-8 or does not start with an object.
pub fn document(body: &[u8]) -> Result<usize, BodyError> {
    // Python's `json.detect_encoding` decides by zero bytes at these two places; its byte order marks are not UTF-8 anyway.
    if matches!(body, [0, ..] | [_, 0, ..] | [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        return Err(BodyError::WideEncoding);
    }
    if simdutf8::basic::from_utf8(body).is_err() {
        return Err(BodyError::NotUtf8);
    }
    let start = if body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let at = skip_space(body, start);
    if body.get(at) == Some(&b'{') { Ok(at) } else { Err(broken(at, "an object was expected")) }
}

/// Checks that nothing but whitespace follows the top-level object that ended at `end`.
///
/// # Errors
/// [`BodyError::Broken`] if something follows.
pub fn document_end(body: &[u8], end: usize) -> Result<(), BodyError> {
    let at = skip_space(body, end);
    if at == body.len() { Ok(()) } else { Err(broken(at, "the end was expected")) }
}

/// Returns where the value that starts at `at` ends.
///
/// # Errors
/// [`BodyError::Broken`] if there is no value or it is not closed.
#[inline]
pub fn value_end(body: &[u8], at: usize) -> Result<usize, BodyError> {
    match body.get(at) {
        Some(b'"') => Ok(string_end(body, at)? + 1),
        Some(b'[') => nested_end(body, at, b'[', b']'),
        Some(b'{') => nested_end(body, at, b'{', b'}'),
        _ => scalar_end(body, at),
    }
}

/// Returns where the string that opens at `open` has its closing quote.
///
/// # Errors
/// [`BodyError::Broken`] if it is not closed.
#[inline]
pub fn string_end(body: &[u8], open: usize) -> Result<usize, BodyError> {
    let mut at = open + 1;
    loop {
        let Some(offset) = memchr(b'"', &body[at..]) else {
            return Err(broken(open, "a string is not closed"));
        };
        let quote = at + offset;
        // Looking back from quotes instead of stopping at every backslash keeps prompts full of `\n` at memory speed.
        // Runs of backslashes do not overlap, so this stays linear.
        if body[quote - 1] != b'\\' || backslashes_before(body, quote).is_multiple_of(2) {
            return Ok(quote);
        }
        at = quote + 1;
    }
}

fn backslashes_before(body: &[u8], quote: usize) -> usize {
    body[..quote].iter().rev().take_while(|byte| **byte == b'\\').count()
}

fn nested_end(body: &[u8], at: usize, open: u8, close: u8) -> Result<usize, BodyError> {
    let mut depth = 1_usize;
    let mut pos = at + 1;
    while let Some(offset) = memchr3(b'"', open, close, &body[pos..]) {
        let hit = pos + offset;
        let byte = body[hit];
        if byte == b'"' {
            pos = string_end(body, hit)? + 1;
            continue;
        }
        pos = hit + 1;
        if byte == open {
            depth += 1;
        } else {
            depth -= 1;
            if depth == 0 {
                return Ok(pos);
            }
        }
    }
    Err(broken(at, "an array or object is not closed"))
}

fn scalar_end(body: &[u8], at: usize) -> Result<usize, BodyError> {
    let rest = body.get(at..).unwrap_or_default();
    let stop = |byte: &u8| {
        matches!(byte, b',' | b'{' | b'}' | b'[' | b']' | b':' | b'"' | b' ' | b'\t' | b'\n' | b'\r')
    };
    match rest.iter().position(stop) {
        Some(0) => Err(broken(at, "a value was expected")),
        None => Err(broken(body.len(), "the body ends inside an object")),
        Some(length) => Ok(at + length),
    }
}

#[inline]
fn skip_space(body: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = body.get(at) {
        at += 1;
    }
    at
}

const fn broken(offset: usize, what: &'static str) -> BodyError {
    BodyError::Broken { offset, what }
}

impl<'a> Object<'a> {
    /// Starts at the `{` at `at`.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if there is no `{`.
    pub fn open(body: &'a [u8], at: usize) -> Result<Self, BodyError> {
        if body.get(at) != Some(&b'{') {
            return Err(broken(at, "an object was expected"));
        }
        let pos = skip_space(body, at + 1);
        let closed = body.get(pos) == Some(&b'}');
        Ok(Self { body, pos: pos + usize::from(closed), comma: None, closed })
    }

    /// The next key, or `None` after the closing brace. Its value has to be consumed before the next call.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if there is neither a key with a colon nor a closing brace.
    #[inline]
    pub fn next_key(&mut self) -> Result<Option<Key>, BodyError> {
        if self.closed {
            return Ok(None);
        }
        let open = skip_space(self.body, self.pos);
        if self.body.get(open) != Some(&b'"') {
            return Err(broken(open, "a key was expected"));
        }
        let close = string_end(self.body, open)?;
        let raw = open + 1..close;
        let colon = skip_space(self.body, close + 1);
        if self.body.get(colon) != Some(&b':') {
            return Err(broken(colon, "a colon was expected"));
        }
        let value_at = skip_space(self.body, colon + 1);
        self.pos = value_at;
        let escaped = memchr(b'\\', &self.body[raw.clone()]).is_some();
        Ok(Some(Key { raw, escaped, value_at, comma_before: self.comma }))
    }

    /// Skips the value of the last key and returns where it is.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if there is no value or it is not followed by a comma or brace.
    #[inline]
    pub fn skip_value(&mut self) -> Result<Range<usize>, BodyError> {
        let at = self.pos;
        let end = value_end(self.body, at)?;
        self.end_value(end)?;
        Ok(at..end)
    }

    /// Says that the value of the last key ends at `end`; for callers that walked into it.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if no comma or brace follows.
    #[inline]
    pub fn end_value(&mut self, end: usize) -> Result<(), BodyError> {
        let at = skip_space(self.body, end);
        match self.body.get(at) {
            Some(b',') => self.comma = Some(at),
            Some(b'}') => (self.comma, self.closed) = (None, true),
            _ => return Err(broken(at, "a comma or brace was expected")),
        }
        self.pos = at + 1;
        Ok(())
    }

    /// The comma behind the last consumed value; `None` if it was the last member.
    pub fn comma_after(&self) -> Option<usize> {
        self.comma
    }

    /// Where the object ends, once [`Self::next_key`] has returned `None`.
    pub fn end(&self) -> usize {
        self.pos
    }
}

impl<'a> Array<'a> {
    /// Starts at the `[` at `at`.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if there is no `[`.
    pub fn open(body: &'a [u8], at: usize) -> Result<Self, BodyError> {
        if body.get(at) != Some(&b'[') {
            return Err(broken(at, "an array was expected"));
        }
        Ok(Self { body, pos: at + 1, first: true, closed: false })
    }

    /// Where the next element starts, or `None` after the closing bracket. It has to be consumed before the next call.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if the body ends.
    #[inline]
    pub fn next_element(&mut self) -> Result<Option<usize>, BodyError> {
        if self.closed {
            return Ok(None);
        }
        self.pos = skip_space(self.body, self.pos);
        match self.body.get(self.pos) {
            Some(b']') if self.first => {
                self.pos += 1;
                self.closed = true;
                Ok(None)
            }
            Some(_) => {
                self.first = false;
                Ok(Some(self.pos))
            }
            None => Err(broken(self.pos, "an array is not closed")),
        }
    }

    /// Skips the last element and returns where it is.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if there is no value or it is not followed by a comma or bracket.
    #[inline]
    pub fn skip_element(&mut self) -> Result<Range<usize>, BodyError> {
        let at = self.pos;
        let end = value_end(self.body, at)?;
        self.end_element(end)?;
        Ok(at..end)
    }

    /// Says that the last element ends at `end`; for callers that walked into it.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if no comma or bracket follows.
    #[inline]
    pub fn end_element(&mut self, end: usize) -> Result<(), BodyError> {
        let at = skip_space(self.body, end);
        match self.body.get(at) {
            Some(b',') => {}
            Some(b']') => self.closed = true,
            _ => return Err(broken(at, "a comma or bracket was expected")),
        }
        self.pos = at + 1;
        Ok(())
    }

    /// Where the array ends, once [`Self::next_element`] has returned `None`.
    pub fn end(&self) -> usize {
        self.pos
    }
}

#[cfg(test)]
mod tests;
