//! Reads one answer from a socket and counts what it holds: length, records, whether it was complete. Keeps no payload.

use std::io;

use memchr::{memchr, memmem};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const BUFFER: usize = 64 * 1024;

/// What ends a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// What an answer held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Payload, in bytes.
    pub(crate) length: usize,
    /// Blank lines in the payload: the records of a stream, `[DONE]` included.
    pub(crate) records: u64,
    /// The payload ended with `[DONE]`.
    pub(crate) done: bool,
    /// The connection will be closed.
    pub(crate) close: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("ended inside the answer")]
    Ended,
    #[error("no HTTP: {0}")]
    Head(#[from] httparse::Error),
    #[error("neither content-length nor chunked")]
    Unframed,
    #[error("bad chunk")]
    Chunk,
    #[error("bytes after the answer")]
    TooMuch,
    #[error("expected {expected:?}, got {got:?}")]
    Other { expected: Answer, got: Answer },
}

enum Framing {
    Length(usize),
    /// Inside a chunk, with so many bytes left, CRLF included.
    Chunk(usize),
    /// Before or inside a size line, or the trailer.
    Size,
    End,
}

/// A buffer and the state of the answer that is being read.
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// Bytes of an incomplete head or size line.
    held: usize,
    /// The last bytes of the payload so far.
    tail: Vec<u8>,
    answer: Answer,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER], held: 0, tail: Vec::with_capacity(64), answer: Answer::default() }
    }

    /// Reads the next answer; `progress` gets the number of new records after each read.
    pub(crate) async fn read(
        &mut self,
        io: &mut TcpStream,
        mut progress: impl FnMut(u64),
    ) -> Result<Answer, Wrong> {
        (self.held, self.answer) = (0, Answer::default());
        self.tail.clear();
        let mut framing = None;
        loop {
            if self.held == self.buffer.len() {
                return Err(Wrong::Chunk);
            }
            let read = io.read(&mut self.buffer[self.held..]).await?;
            if read == 0 {
                return Err(Wrong::Ended);
            }
            let (filled, before) = (self.held + read, self.answer.records);
            let mut at = 0;
            if framing.is_none()
                && let Some((found, length)) = self.head(filled)?
            {
                (framing, at) = (Some(found), length);
            }
            if let Some(framing) = &mut framing {
                at = self.body(framing, at, filled)?;
            }
            self.held = filled - at;
            self.buffer.copy_within(at..filled, 0);
            if self.answer.records > before {
                progress(self.answer.records - before);
            }
            if matches!(framing, Some(Framing::End)) {
                self.answer.done = self.tail.ends_with(DONE);
                return if self.held == 0 { Ok(self.answer) } else { Err(Wrong::TooMuch) };
            }
        }
    }

    fn head(&mut self, filled: usize) -> Result<Option<(Framing, usize)>, Wrong> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(length) = response.parse(&self.buffer[..filled])? else {
            return Ok(None);
        };
        self.answer.status = response.code.unwrap_or_default();
        let mut framing = None;
        for header in response.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(header.value).unwrap_or_default();
                framing = Some(Framing::Length(text.parse().map_err(|_| Wrong::Unframed)?));
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Some(Framing::Size);
            } else if header.name.eq_ignore_ascii_case("connection") {
                self.answer.close = header.value.eq_ignore_ascii_case(b"close");
            }
        }
        if let Some(Framing::Length(0)) = framing {
            framing = Some(Framing::End);
        }
        framing.map(|framing| Some((framing, length))).ok_or(Wrong::Unframed)
    }

    /// Takes what it can of `at..filled`; returns where it stopped.
    fn body(&mut self, framing: &mut Framing, mut at: usize, filled: usize) -> Result<usize, Wrong> {
        loop {
            let rest = filled - at;
            match framing {
                Framing::End => return Ok(at),
                _ if rest == 0 => return Ok(at),
                Framing::Length(left) => {
                    let taken = rest.min(*left);
                    *left -= taken;
                    if *left == 0 {
                        *framing = Framing::End;
                    }
                    self.payload(at, taken);
                    at += taken;
                }
                Framing::Chunk(left) => {
                    let taken = rest.min(*left);
                    let data = taken.min(left.saturating_sub(2));
                    *left -= taken;
                    if *left == 0 {
                        *framing = Framing::Size;
                    }
                    self.payload(at, data);
                    at += taken;
                }
                Framing::Size => match self.size(at, filled)? {
                    None => return Ok(at),
                    Some((next, length)) => {
                        *framing = next;
                        at += length;
                    }
                },
            }
        }
    }

    /// What a size line leads to, and how long it is; `None` if it is incomplete. No trailers: no router here sends any.
    fn size(&self, at: usize, filled: usize) -> Result<Option<(Framing, usize)>, Wrong> {
        let rest = &self.buffer[at..filled];
        let Some(end) = memchr(b'\n', rest) else {
            return Ok(None);
        };
        let line = rest[..end].trim_ascii();
        let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
        let text = std::str::from_utf8(digits).map_err(|_| Wrong::Chunk)?;
        let size = usize::from_str_radix(text, 16).map_err(|_| Wrong::Chunk)?;
        if size > 0 {
            return Ok(Some((Framing::Chunk(size + 2), end + 1)));
        }
        match &rest[end + 1..] {
            [b'\r', b'\n', ..] => Ok(Some((Framing::End, end + 3))),
            [] | [b'\r'] => Ok(None),
            _ => Err(Wrong::Chunk),
        }
    }

    fn payload(&mut self, at: usize, length: usize) {
        let bytes = &self.buffer[at..at + length];
        self.answer.length += length;
        let split = self.tail.ends_with(b"\n") && bytes.starts_with(b"\n");
        self.answer.records += u64::from(split) + memmem::find_iter(bytes, b"\n\n").count() as u64;
        if length >= DONE.len() {
            self.tail.clear();
        } else {
            let surplus = (self.tail.len() + length).saturating_sub(DONE.len()).min(self.tail.len());
            self.tail.drain(..surplus);
        }
        self.tail.extend_from_slice(&bytes[length.saturating_sub(DONE.len())..]);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn read(wire: &[u8]) -> Result<Answer, Wrong> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        server.write_all(wire).await.unwrap();
        drop(server);
        Reader::new().read(&mut client, |_| {}).await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn records_are_counted_even_if_chunks_split_them() {
        let wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: a\n\r\n7\r\n\ndata: \r\n8\r\n[DONE]\n\n\r\n0\r\n\r\n";
        let answer = read(wire).await.unwrap();
        assert_eq!(answer, Answer { status: 200, length: 23, records: 2, done: true, close: false });
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_whole_answer_is_its_length() {
        let answer =
            read(b"HTTP/1.1 500 No\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc").await.unwrap();
        assert_eq!(answer, Answer { status: 500, length: 3, records: 0, done: false, close: true });
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_that_breaks_off_is_wrong() {
        assert!(matches!(read(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab").await, Err(Wrong::Ended)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn more_than_the_answer_is_wrong() {
        let wire = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab";
        assert!(matches!(read(wire).await, Err(Wrong::TooMuch)));
    }
}
