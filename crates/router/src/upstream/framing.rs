//! Where a message ends: by its length, by its chunks, or by the end of the connection.
//!
//! A decoder takes what one read gave and hands out the payload in it, all at once. It never allocates per chunk.

use bytes::{Bytes, BytesMut};

/// Longest chunk-size line with extensions, and longest trailer section, that is read before giving up.
const LINE_LIMIT: u32 = 16 * 1024;

/// How the rest of a message is told from what follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoder {
    /// No body, or all of it was read.
    Done,
    /// This many bytes are still to come.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(Chunked),
    /// Everything until the connection ends.
    UntilClose,
}

/// The message broke its own framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// A chunk size that is not a hexadecimal number of at most 16 digits.
    #[error("invalid chunk size")]
    ChunkSize,
    /// Chunk data not followed by a line end.
    #[error("chunk data without its line end")]
    ChunkEnd,
    /// A line feed without its carriage return, where that is not forgiven.
    #[error("chunk line without its line end")]
    LineEnd,
    /// A chunk extension or trailer beyond 16 KiB.
    #[error("chunk line too long")]
    LineTooLong,
    /// The connection ended before the message did.
    #[error("connection ended inside the message")]
    Truncated,
}

impl Decoder {
    /// For a body of this length.
    pub fn length(bytes: u64) -> Self {
        if bytes == 0 { Self::Done } else { Self::Length(bytes) }
    }

    /// For a chunked body.
    pub fn chunked() -> Self {
        Self::Chunked(Chunked::default())
    }

    /// For a chunked body of a client: lines end with CR LF, since another reader might see other lines.
    pub fn strictly_chunked() -> Self {
        Self::Chunked(Chunked { strict: true, ..Chunked::default() })
    }

    /// Whether the message is complete.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Takes what one read gave. Returns the payload in it and how many bytes belong to the message; what is left
    /// over was sent by a worker that has not understood its own message.
    pub fn decode(&mut self, input: &[u8]) -> Result<(Bytes, usize), FramingError> {
        match self {
            Self::Done => Ok((Bytes::new(), 0)),
            Self::UntilClose => Ok((Bytes::copy_from_slice(input), input.len())),
            Self::Length(left) => {
                let take = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= take as u64;
                if *left == 0 {
                    *self = Self::Done;
                }
                Ok((Bytes::copy_from_slice(&input[..take]), take))
            }
            Self::Chunked(chunked) => {
                let mut out = BytesMut::with_capacity(input.len());
                let used = chunked.decode(input, &mut out)?;
                if chunked.state == State::End {
                    *self = Self::Done;
                }
                Ok((out.freeze(), used))
            }
        }
    }

    /// Takes the end of the connection.
    pub fn end(&mut self) -> Result<(), FramingError> {
        match self {
            Self::Done | Self::UntilClose => {
                *self = Self::Done;
                Ok(())
            }
            Self::Length(_) | Self::Chunked(_) => Err(FramingError::Truncated),
        }
    }
}

/// Reader of the chunked coding, byte by byte between chunks and slice by slice inside them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunked {
    state: State,
    /// Bytes still to come of the chunk at hand, or its size while that is being read.
    size: u64,
    /// Digits of the size read, or length of the line at hand.
    line: u32,
    /// A bare line feed is an error.
    strict: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerLine,
    TrailerLf,
    LastLf,
    End,
}

impl Chunked {
    fn decode(&mut self, input: &[u8], out: &mut BytesMut) -> Result<usize, FramingError> {
        let mut at = 0;
        while at < input.len() && self.state != State::End {
            at += match self.state {
                State::Data => self.data(&input[at..], out),
                State::Size if self.line == 0 => match size_line(&input[at..]) {
                    Some((size, length)) => {
                        self.size = size;
                        self.state = self.sized();
                        length
                    }
                    None => self.step(input[at])?,
                },
                _ => self.step(input[at])?,
            };
        }
        Ok(at)
    }

    /// Chunk data, and the line end behind it if that came too.
    fn data(&mut self, input: &[u8], out: &mut BytesMut) -> usize {
        let take = usize::try_from(self.size).map_or(input.len(), |size| size.min(input.len()));
        out.extend_from_slice(&input[..take]);
        self.size -= take as u64;
        if self.size > 0 {
            return take;
        }
        if input[take..].starts_with(b"\r\n") {
            self.state = State::Size;
            return take + 2;
        }
        self.state = State::DataCr;
        take
    }

    /// One byte outside of chunk data. A bare line feed of a worker ends a line as well as CR LF does.
    fn step(&mut self, byte: u8) -> Result<usize, FramingError> {
        let behind_return =
            matches!(self.state, State::SizeEnd | State::DataLf | State::TrailerLf | State::LastLf);
        if self.strict && byte == b'\n' && !behind_return {
            return Err(FramingError::LineEnd);
        }
        self.state = match (self.state, byte) {
            (State::Extension, b'\r') if self.strict => State::SizeEnd,
            (State::TrailerLine, b'\r') if self.strict => State::TrailerLf,
            (State::Size, b'\r') if self.line > 0 => State::SizeEnd,
            (State::Size | State::SizeEnd, b'\n') if self.line > 0 => self.sized(),
            (State::Size, b';' | b' ' | b'\t') if self.line > 0 => self.long_line(State::Extension)?,
            (State::Size, digit) => self.digit(digit)?,
            (State::Extension, b'\n') => self.sized(),
            (State::Extension, _) => self.long_line(State::Extension)?,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataCr | State::DataLf, b'\n') => State::Size,
            (State::DataCr | State::DataLf, _) => return Err(FramingError::ChunkEnd),
            (State::TrailerStart, b'\r') => State::LastLf,
            (State::TrailerStart | State::LastLf, b'\n') => State::End,
            (State::TrailerLine | State::TrailerLf, b'\n') => State::TrailerStart,
            (State::TrailerStart | State::TrailerLine, _) => self.long_line(State::TrailerLine)?,
            (State::SizeEnd | State::TrailerLf | State::LastLf, _) => return Err(FramingError::ChunkSize),
            (State::Data | State::End, _) => self.state,
        };
        Ok(1)
    }

    fn digit(&mut self, byte: u8) -> Result<State, FramingError> {
        let digit = char::from(byte).to_digit(16).ok_or(FramingError::ChunkSize)?;
        if self.line == 16 {
            return Err(FramingError::ChunkSize);
        }
        self.line += 1;
        self.size = self.size << 4 | u64::from(digit);
        Ok(State::Size)
    }

    fn long_line(&mut self, state: State) -> Result<State, FramingError> {
        self.line += 1;
        if self.line > LINE_LIMIT { Err(FramingError::LineTooLong) } else { Ok(state) }
    }

    fn sized(&mut self) -> State {
        self.line = 0;
        if self.size == 0 { State::TrailerStart } else { State::Data }
    }
}

/// A size line as nearly all workers write it, whole and without extension: its size and its length.
fn size_line(input: &[u8]) -> Option<(u64, usize)> {
    let mut size = 0;
    for (at, byte) in input.iter().enumerate().take(17) {
        match (char::from(*byte).to_digit(16), at) {
            (Some(digit), 0..16) => size = size << 4 | u64::from(digit),
            (None, 1..) if input[at..].starts_with(b"\r\n") => return Some((size, at + 2)),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(decoder: &mut Decoder, wire: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, usize), FramingError> {
        let (mut out, mut used, mut at) = (Vec::new(), 0, 0);
        let ends = cuts.iter().map(|c| c % (wire.len() + 1)).chain([wire.len()]);
        for end in ends {
            if end > at {
                let (payload, n) = decoder.decode(&wire[at..end])?;
                out.extend_from_slice(&payload);
                used += n;
                at = end;
            }
        }
        Ok((out, used))
    }

    fn chunked(wire: &[u8]) -> Result<(Vec<u8>, usize, bool), FramingError> {
        let mut decoder = Decoder::chunked();
        let (out, used) = all(&mut decoder, wire, &[])?;
        Ok((out, used, decoder.is_done()))
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_payload(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..20),
            mut cuts in prop::collection::vec(any::<usize>(), 0..20),
            trailer in any::<bool>(),
        ) {
            let mut wire = Vec::new();
            for part in &parts {
                wire.extend_from_slice(format!("{:X};ext=1\r\n", part.len()).as_bytes());
                wire.extend_from_slice(part);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(if trailer { b"0\r\nx: y\r\n\r\n" } else { b"0\r\n\r\n" });
            let whole = wire.len();
            wire.extend_from_slice(b"HTTP/1.1 200 OK");
            cuts.iter_mut().for_each(|c| *c %= wire.len());
            cuts.sort_unstable();
            let mut decoder = Decoder::chunked();
            let (out, used) = all(&mut decoder, &wire, &cuts).unwrap();
            prop_assert!(decoder.is_done());
            prop_assert_eq!(out, parts.concat());
            prop_assert_eq!(used, whole);
        }

        #[test]
        fn garbage_never_panics(wire in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = chunked(&wire);
        }
    }

    #[test]
    fn sizes_that_are_not_sizes_are_refused() {
        for wire in [&b"\r\n"[..], b"g\r\n", b"-1\r\n", b"11111111111111111\r\n", b" 5\r\n", b"5\rx"] {
            assert_eq!(chunked(wire), Err(FramingError::ChunkSize), "{wire:?}");
        }
        assert_eq!(chunked(b"3\r\nabcd"), Err(FramingError::ChunkEnd));
        assert_eq!(chunked(&[b"1;", &[b'x'; 20_000][..]].concat()), Err(FramingError::LineTooLong));
    }

    #[test]
    fn a_clients_lines_end_with_both_bytes() {
        let read = |wire: &[u8]| all(&mut Decoder::strictly_chunked(), wire, &[]);
        let whole = b"3;a=b\r\nabc\r\n0\r\nx: y\r\n\r\n";
        assert_eq!(read(whole), Ok((b"abc".to_vec(), whole.len())));
        for wire in
            [&b"3\nabc"[..], b"3;a\nabc", b"3\r\nabc\n", b"0\r\n\n", b"0\r\nx: y\n\r\n", b"3;a\rb\r\n"]
        {
            assert!(read(wire).is_err(), "{wire:?}");
            let forgiven = wire[1] != b';' || wire[2..4] == *b"a\n";
            assert!(!forgiven || all(&mut Decoder::chunked(), wire, &[]).is_ok(), "{wire:?}");
        }
    }

    #[test]
    fn a_body_cut_short_is_told_from_one_that_ended() {
        for mut decoder in [Decoder::Length(1), Decoder::chunked()] {
            assert_eq!(decoder.end(), Err(FramingError::Truncated));
        }
        assert_eq!(Decoder::UntilClose.end(), Ok(()));
        let mut length = Decoder::length(3);
        assert_eq!(length.decode(b"abcdef"), Ok((Bytes::from_static(b"abc"), 3)));
        assert!(length.is_done());
    }
}
