//! An event stream on its way to the client: only whole records go on, so that a last one can be added when the worker
//! breaks off. It neither reads nor writes anything itself.

use bytes::{Bytes, BytesMut};
use forebay_openai::{RecordKind, SoFar, SseScanner, Usage};

/// Longest part of a record that is held back, in bytes. A stream with a longer one passes as it comes from then on.
const HELD: usize = 64 * 1024;

/// One event stream.
#[derive(Default)]
pub(crate) struct Records {
    scanner: SseScanner,
    /// The beginning of a record whose end has not come yet.
    held: BytesMut,
    /// Nothing is held back.
    is_raw: bool,
    is_done: bool,
    has_error: bool,
    /// Records that were neither comments nor the end.
    told: u64,
    /// The stream's first bytes, which tell its id.
    begin: Bytes,
}

impl Records {
    /// A stream to which nothing can be added, since its length is known. It is only looked at.
    pub(crate) fn raw() -> Self {
        Self { is_raw: true, ..Self::default() }
    }

    /// Takes what came and gives what may go on; empty if no record has ended. Chunks that end with a record, as an
    /// engine's do, pass without a copy.
    pub(crate) fn pass(&mut self, chunk: Bytes) -> Bytes {
        let Self { scanner, is_done, has_error, told, begin, .. } = self;
        if begin.is_empty() {
            *begin = chunk.clone();
        }
        let whole = scanner.feed(&chunk, |record| match record.kind {
            RecordKind::Done => *is_done = true,
            RecordKind::Error => {
                *has_error = true;
                *told += 1;
            }
            RecordKind::Comment => {}
            RecordKind::Data | RecordKind::Usage => *told += 1,
        });
        if self.is_raw || (self.held.is_empty() && whole == chunk.len()) {
            return chunk;
        }
        let mut goes = if self.held.is_empty() {
            chunk.slice(..whole)
        } else if whole > 0 {
            self.held.extend_from_slice(&chunk[..whole]);
            self.rest()
        } else {
            Bytes::new()
        };
        self.held.extend_from_slice(&chunk[whole..]);
        if self.held.len() > HELD {
            self.is_raw = true;
            // What goes is empty here unless the chunk itself was that long.
            goes = [goes, self.rest()].concat().into();
        }
        goes
    }

    /// What is still held back, at the end of a stream that ended inside a record by itself.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// Whether a record can be added behind what has gone on, and would be read.
    pub(crate) fn takes_more(&self) -> bool {
        !self.is_raw && !self.is_done
    }

    /// What a last record can go on with.
    pub(crate) fn so_far(&self) -> SoFar<'_> {
        SoFar { id: first_id(&self.begin).unwrap_or_default(), records: self.told }
    }

    /// The last token counts that the worker told.
    pub(crate) fn usage(&self) -> Usage {
        self.scanner.usage()
    }

    /// Whether a record came that is neither a comment nor the end.
    pub(crate) fn has_token(&self) -> bool {
        self.told > 0
    }

    /// Whether the record came that is the stream's last: whoever leaves now has everything.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Whether the worker reported a failure.
    pub(crate) fn has_error(&self) -> bool {
        self.has_error
    }
}

/// The first id in an answer that begins so.
pub(crate) fn first_id(begin: &[u8]) -> Option<&str> {
    const ID: &[u8] = b"\"id\":\"";
    let behind = &begin[memchr::memmem::find(begin, ID)? + ID.len()..];
    let id = behind.get(..memchr::memchr(b'"', behind)?)?;
    // An id with an escape in it is none that an engine makes.
    std::str::from_utf8(id).ok().filter(|id| !id.contains('\\'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] = b"data: {\"a\":1}\n\n: ping\n\nevent: x\r\ndata: 2\r\n\r\ndata: [DONE]\n\n";

    #[test]
    fn a_chunk_of_whole_records_is_passed_as_it_is() {
        let mut records = Records::default();
        let chunk = Bytes::from_static(STREAM);
        let gone = records.pass(chunk.clone());
        assert_eq!(gone.as_ptr(), chunk.as_ptr());
        assert!(records.held.is_empty() && !records.takes_more(), "behind [DONE] nobody reads");
    }

    #[test]
    fn part_of_a_record_waits_for_its_end() {
        let mut records = Records::default();
        assert_eq!(records.pass(Bytes::from_static(b"data: 1\n\nda")), "data: 1\n\n");
        assert_eq!(records.pass(Bytes::from_static(b"ta: 2\n")), "");
        assert!(records.takes_more() && !records.held.is_empty());
        assert_eq!(records.pass(Bytes::from_static(b"\ndata: 3")), "data: 2\n\n");
        assert_eq!(records.rest(), "data: 3");
    }

    #[test]
    fn a_record_that_is_too_long_makes_the_stream_pass_raw() {
        let mut records = Records::default();
        assert_eq!(records.pass(Bytes::from(vec![b'a'; HELD])), "");
        assert_eq!(records.pass(Bytes::from_static(b"b")).len(), HELD + 1);
        assert_eq!(records.pass(Bytes::from_static(b"c")), "c");
        assert!(!records.takes_more() && records.held.is_empty());
    }

    #[test]
    fn an_error_record_is_seen() {
        let mut records = Records::default();
        records.pass(Bytes::from_static(b"data: {\"error\":{\"code\":500}}\n\n"));
        assert!(records.has_error());
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_or_moved(cuts in prop::collection::vec(1_usize..30, 1..30)) {
            let mut records = Records::default();
            let (mut gone, mut at) = (Vec::new(), 0);
            for cut in cuts {
                let end = (at + cut).min(STREAM.len());
                gone.extend_from_slice(&records.pass(Bytes::copy_from_slice(&STREAM[at..end])));
                prop_assert!(STREAM.starts_with(&gone));
                at = end;
            }
            gone.extend_from_slice(&records.rest());
            prop_assert_eq!(&gone[..], &STREAM[..at]);
        }
    }
}
