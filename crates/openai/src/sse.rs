//! Finds where the records of an event stream end and what kind they are, wherever the stream is split; must not buffer it.

use memchr::memchr2;

use crate::usage::{Usage, UsageScan};

/// What a record is. Of several that fit, the last in this order is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKind {
    /// Only comment lines, such as keep-alives.
    Comment,
    /// Anything else.
    Data,
    /// It reports token counts, perhaps among other things.
    Usage,
    /// The `[DONE]` that ends OpenAI streams.
    Done,
    /// The worker reports a failure.
    Error,
}

/// One whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: RecordKind,
    /// Where it ends in the chunk that was fed, in bytes. If the chunk ends between CR and LF, the LF counts for the next.
    pub end: usize,
}

/// Goes along a stream. Its state does not grow with the stream or its records.
#[derive(Debug, Default)]
pub struct SseScanner {
    head: Head,
    /// True if the chunk before ended inside a line.
    in_line: bool,
    /// True if the chunk before ended with a CR, of which the LF may follow.
    after_cr: bool,
    /// True if the record has had a line.
    in_record: bool,
    kind: Option<RecordKind>,
    scan: UsageScan,
    usage: Usage,
}

/// The first bytes of a line, as many as tell what it is.
#[derive(Debug)]
struct Head {
    bytes: [u8; HEAD],
    length: usize,
}

const HEAD: usize = 64;

impl Default for Head {
    fn default() -> Self {
        Self { bytes: [0; HEAD], length: 0 }
    }
}

impl SseScanner {
    /// Goes over the next bytes of the stream, calls `on` for each record that ends in them, and returns how many of these bytes
    /// belong to whole records.
    pub fn feed(&mut self, chunk: &[u8], mut on: impl FnMut(Record)) -> usize {
        let mut pos = self.line_feed_of_earlier_cr(chunk);
        let mut whole = if self.in_record || self.in_line { 0 } else { pos };
        let mut record = pos;
        let skip_usage = self.scan.nothing_in(chunk);
        while let Some(end) = line_end(chunk, pos) {
            let blank = end == pos && !self.in_line;
            if !blank {
                self.line(&chunk[pos..end]);
            }
            pos = self.next_line(chunk, end);
            if blank {
                if let Some(kind) = self.record_end(&chunk[record..end], skip_usage) {
                    on(Record { kind, end: pos });
                }
                (whole, record) = (pos, pos);
            }
        }
        self.in_line |= pos < chunk.len();
        self.head.push(&chunk[pos..]);
        if self.in_record || self.in_line {
            self.scan.more(&chunk[record..]);
        }
        whole
    }

    /// The last token counts that were reported.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// True if all bytes so far belong to whole records, so that one may be added.
    pub fn at_boundary(&self) -> bool {
        !self.in_record && !self.in_line
    }

    fn line_feed_of_earlier_cr(&mut self, chunk: &[u8]) -> usize {
        if chunk.is_empty() {
            return 0;
        }
        usize::from(std::mem::take(&mut self.after_cr) && chunk[0] == b'\n')
    }

    fn next_line(&mut self, chunk: &[u8], end: usize) -> usize {
        if chunk[end] == b'\n' {
            return end + 1;
        }
        self.after_cr = end + 1 == chunk.len();
        end + 1 + usize::from(chunk.get(end + 1) == Some(&b'\n'))
    }

    /// Takes in the rest of a line.
    fn line(&mut self, rest: &[u8]) {
        let kind = if self.in_line {
            self.head.push(rest);
            kind_of_line(&self.head.bytes[..self.head.length])
        } else {
            kind_of_line(&rest[..rest.len().min(HEAD)])
        };
        self.head.length = 0;
        self.in_line = false;
        self.in_record = true;
        self.kind = self.kind.max(Some(kind));
    }

    fn record_end(&mut self, piece: &[u8], skip_usage: bool) -> Option<RecordKind> {
        if !std::mem::take(&mut self.in_record) {
            return None;
        }
        let mut kind = self.kind.take().unwrap_or(RecordKind::Data);
        if !skip_usage {
            let found = self.scan.end(piece);
            if !found.is_empty() {
                self.usage.update(found);
                kind = kind.max(RecordKind::Usage);
            }
        }
        Some(kind)
    }
}

impl Head {
    fn push(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(HEAD - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
    }
}

/// Where the line that goes on at `pos` ends.
fn line_end(chunk: &[u8], pos: usize) -> Option<usize> {
    match chunk.get(pos)? {
        b'\n' | b'\r' => Some(pos),
        _ => Some(pos + memchr2(b'\n', b'\r', &chunk[pos..])?),
    }
}

fn kind_of_line(line: &[u8]) -> RecordKind {
    if let Some(data) = line.strip_prefix(b"data:") {
        return kind_of_data(data.trim_ascii_start());
    }
    if let Some(event) = line.strip_prefix(b"event:") {
        return match event.trim_ascii() {
            b"error" | b"response.failed" => RecordKind::Error,
            _ => RecordKind::Data,
        };
    }
    if line.starts_with(b":") { RecordKind::Comment } else { RecordKind::Data }
}

fn kind_of_data(data: &[u8]) -> RecordKind {
    match data.first() {
        Some(b'[') if data.trim_ascii_end() == b"[DONE]" => RecordKind::Done,
        Some(b'{') if error_comes_first(&data[1..]) => RecordKind::Error,
        _ => RecordKind::Data,
    }
}

/// True if the first member of an object is an error that is not null.
fn error_comes_first(members: &[u8]) -> bool {
    members
        .trim_ascii_start()
        .strip_prefix(b"\"error\"")
        .and_then(|rest| rest.trim_ascii_start().strip_prefix(b":"))
        .is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
}

#[cfg(test)]
mod tests;
