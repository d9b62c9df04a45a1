//! The prompt of a request as parts that are borrowed from the body; must not know how a body is laid out.

use memchr::{memchr, memchr_iter, memmem};

use crate::strip::Strip;

/// What a request asks the engine to read, in an order in which two requests with a common beginning have a common beginning
/// of their concatenated parts.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// There is no prompt, or not where this kind of body has it.
    None,
    /// Text: JSON string bytes as they are in the body, escapes included, with control bytes between the parts.
    Text(Parts<'a>),
    /// Token ids in decimal with commas, without whitespace.
    Ids(Parts<'a>),
}

/// The parts of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    body: &'a [u8],
    bytes: &'a [u8],
    parts: &'a [Part],
}

/// Room that reading needs, kept by the caller from request to request, so that reading allocates nothing.
#[derive(Debug)]
pub struct Scratch {
    pub(crate) parts: Vec<Part>,
    pub(crate) ordered: Vec<Part>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) others: Vec<Other>,
    pub(crate) strips: Vec<Strip>,
    unicode_escape: memmem::Finder<'static>,
}

/// A place in the body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A member of a message that is neither role nor content: its key and its value.
pub(crate) type Other = (Span, Span);

/// Where the bytes of one part are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Body(Span),
    Scratch(Span),
    Static(&'static [u8]),
}

/// Scratch bytes kept between two requests at most; one giant prompt must not pin its size per connection.
const KEPT_BYTES: usize = 1 << 20;

/// Strings shorter than this are looked through byte by byte rather than with a substring search.
const SHORT: usize = 32;

impl Default for Scratch {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            ordered: Vec::new(),
            bytes: Vec::new(),
            others: Vec::new(),
            strips: Vec::new(),
            unicode_escape: memmem::Finder::new(b"\\u"),
        }
    }
}

impl Scratch {
    /// Empties it for the next body.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.ordered.clear();
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.others.clear();
        self.strips.clear();
    }

    /// True if a string may hold a `\uXXXX`.
    #[inline]
    pub(crate) fn has_unicode_escape(&self, raw: &[u8]) -> bool {
        match memchr(b'\\', raw) {
            None => false,
            Some(at) if raw.len() - at < SHORT => raw[at..].windows(2).any(|pair| pair == b"\\u"),
            Some(at) => self.unicode_escape.find(&raw[at..]).is_some(),
        }
    }
}

impl Span {
    #[inline]
    pub(crate) fn of(self, body: &[u8]) -> &[u8] {
        &body[self.start..self.end]
    }
}

impl<'a> Parts<'a> {
    pub(crate) fn new(body: &'a [u8], bytes: &'a [u8], parts: &'a [Part]) -> Self {
        Self { body, bytes, parts }
    }

    /// The parts in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (body, bytes) = (self.body, self.bytes);
        self.parts.iter().map(move |part| match part {
            Part::Body(span) => span.of(body),
            Part::Scratch(span) => span.of(bytes),
            Part::Static(text) => text,
        })
    }

    /// Bytes in all parts together.
    pub fn len(&self) -> usize {
        self.iter().map(<[u8]>::len).sum()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends all parts to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        self.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// How many token ids there are, if these are ids. Counts commas, so it costs a look at all bytes.
    pub fn id_count(&self) -> usize {
        let ids = |part: &Part| !matches!(part, Part::Static(_));
        self.parts
            .iter()
            .zip(self.iter())
            .filter(|(part, bytes)| ids(part) && !bytes.is_empty())
            .map(|(_, bytes)| memchr_iter(b',', bytes).count() + 1)
            .sum()
    }
}

impl<'a> Prompt<'a> {
    /// The parts, whatever they hold.
    pub fn parts(&self) -> Option<Parts<'a>> {
        match self {
            Self::None => None,
            Self::Text(parts) | Self::Ids(parts) => Some(*parts),
        }
    }

    /// Bytes in all parts together; 0 without a prompt.
    pub fn len(&self) -> usize {
        self.parts().map_or(0, |parts| parts.len())
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
