//! Reading HTTP/1.1 requests from a socket, byte for byte. It never writes an answer, except the `100 Continue` that
//! asks for a body.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest head, and most bytes taken in while an answer is under way.
const BUFFER_LIMIT: usize = 4 << 20;
const MAX_HEADERS: usize = 256;

/// Methods that some route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Method {
    Get,
    Post,
    Delete,
    Head,
    Other,
}

impl Method {
    fn of(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "POST" => Self::Post,
            "DELETE" => Self::Delete,
            "HEAD" => Self::Head,
            _ => Self::Other,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
            Self::Head => "HEAD",
            Self::Other => "OTHER",
        }
    }
}

/// How the length of a request's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
}

/// What the connection must know of a head. Offsets count from the head's first byte.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) method: Method,
    pub(crate) target: Range<usize>,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
    pub(crate) fault: Option<Range<usize>>,
}

/// Where a body that was read is.
#[derive(Debug)]
pub(crate) enum Body {
    /// The next so many bytes after the head, in the connection's buffer.
    Buffered(usize),
    /// Decoded from chunks that took `wire` bytes.
    Decoded { bytes: Vec<u8>, wire: usize },
}

/// Why there is no request, or not all of one.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// The client closed or reset the connection.
    Gone,
    /// Nothing came within the idle time.
    Idle,
    /// The bytes are not HTTP.
    Invalid,
}

impl From<io::Error> for ReadEnd {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// A client's connection and the bytes read from it that belong to the current request or to later ones.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) id: u64,
    buf: Vec<u8>,
    start: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, id: u64) -> Self {
        Self { stream, id, buf: Vec::with_capacity(8 << 10), start: 0 }
    }

    /// Bytes from the head of the current request on.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buf[self.start..]
    }

    /// The body that belongs to `head`.
    pub(crate) fn body<'a>(&'a self, head: &Head, body: &'a Body) -> &'a [u8] {
        match body {
            Body::Buffered(len) => &self.pending()[head.len..head.len + len],
            Body::Decoded { bytes, .. } => bytes,
        }
    }

    /// Drops the current request from the buffer.
    pub(crate) fn consume(&mut self, head: &Head, body: &Body) {
        self.start += head.len
            + match body {
                Body::Buffered(len) => *len,
                Body::Decoded { wire, .. } => *wire,
            };
        if self.start >= self.buf.len() {
            self.buf.clear();
            self.buf.shrink_to(1 << 20);
            self.start = 0;
        } else if self.start > 1 << 20 {
            self.buf.drain(..self.start);
            self.start = 0;
        }
    }

    /// The next head. `idle` limits the wait for its first byte.
    pub(crate) async fn read_head(&mut self, idle: Option<Duration>) -> Result<Head, ReadEnd> {
        loop {
            if !self.pending().is_empty() {
                if let Some(head) = parse_head(self.pending())? {
                    return Ok(head);
                }
                if self.pending().len() > BUFFER_LIMIT {
                    return Err(ReadEnd::Invalid);
                }
            }
            match idle.filter(|_| self.pending().is_empty()) {
                None => self.fill(8 << 10).await?,
                Some(idle) => match tokio::time::timeout(idle, self.fill(8 << 10)).await {
                    Ok(read) => read?,
                    Err(_) => return Err(ReadEnd::Idle),
                },
            }
        }
    }

    /// Reads the body behind `head`; with `stop_after`, no more than so many bytes of it as they are on the wire.
    pub(crate) async fn read_body(
        &mut self,
        head: &Head,
        stop_after: Option<usize>,
    ) -> Result<Body, ReadEnd> {
        let stop = stop_after.unwrap_or(usize::MAX);
        let there = |connection: &Self| connection.pending().len() - head.len;
        if head.expects_continue && there(self) == 0 && stop > 0 {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        match head.framing {
            Framing::Length(len) => {
                let wanted = len.min(stop);
                while there(self) < wanted {
                    let missing = wanted - there(self);
                    self.fill(missing.clamp(8 << 10, 1 << 20)).await?;
                }
                Ok(Body::Buffered(wanted))
            }
            Framing::Chunked => loop {
                match decode_chunks(&self.pending()[head.len..])? {
                    Some((bytes, wire)) => return Ok(Body::Decoded { bytes, wire }),
                    None if there(self) >= stop => {
                        return Ok(Body::Decoded { bytes: Vec::new(), wire: there(self) });
                    }
                    None => self.fill(64 << 10).await?,
                }
            },
        }
    }

    async fn fill(&mut self, room: usize) -> Result<(), ReadEnd> {
        self.buf.reserve(room);
        match self.stream.read_buf(&mut self.buf).await? {
            0 => Err(ReadEnd::Gone),
            _ => Ok(()),
        }
    }

    /// The socket's two directions and the buffer, for writing an answer while looking out for the client.
    pub(crate) fn split(&mut self) -> (tokio::net::tcp::WriteHalf<'_>, ClientWatch<'_>) {
        let (read, write) = self.stream.split();
        (write, ClientWatch { read, buf: &mut self.buf })
    }

    /// Reads and forgets until the client closes, so that closing does not reset what was written.
    pub(crate) async fn drain(&mut self) {
        let _ = self.stream.shutdown().await;
        let mut sink = [0; 4096];
        while matches!(self.stream.read(&mut sink).await, Ok(read) if read > 0) {}
    }
}

/// Sees a client leave while its answer is under way. What it sends meanwhile is kept for the next request.
pub(crate) struct ClientWatch<'a> {
    read: tokio::net::tcp::ReadHalf<'a>,
    buf: &'a mut Vec<u8>,
}

impl ClientWatch<'_> {
    /// Returns when the client closed or reset the connection.
    pub(crate) async fn gone(&mut self) {
        loop {
            if self.buf.len() > BUFFER_LIMIT {
                std::future::pending::<()>().await;
            }
            match self.read.read_buf(self.buf).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, ReadEnd> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(ReadEnd::Invalid),
    };
    let range = |part: &[u8]| {
        let from = part.as_ptr() as usize - bytes.as_ptr() as usize;
        from..from + part.len()
    };
    let mut head = Head {
        len,
        method: Method::of(request.method.unwrap_or_default()),
        target: range(request.path.unwrap_or_default().as_bytes()),
        framing: Framing::Length(0),
        keep_alive: request.version == Some(1),
        expects_continue: false,
        fault: None,
    };
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        match header.name.len() {
            6 if is("expect") => head.expects_continue = header.value.eq_ignore_ascii_case(b"100-continue"),
            10 if is("connection") => head.keep_alive = keep_alive(header.value, head.keep_alive),
            11 if is("x-sim-fault") => head.fault = Some(range(header.value)),
            14 if is("content-length") && head.framing != Framing::Chunked => {
                head.framing = Framing::Length(number(header.value, 10)?);
            }
            17 if is("transfer-encoding") => head.framing = Framing::Chunked,
            _ => {}
        }
    }
    Ok(Some(head))
}

fn keep_alive(value: &[u8], default: bool) -> bool {
    let has = |wanted: &[u8]| {
        value.split(|&b| b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(wanted))
    };
    !has(b"close") && (default || has(b"keep-alive"))
}

fn number(digits: &[u8], radix: u32) -> Result<usize, ReadEnd> {
    let text = std::str::from_utf8(digits.trim_ascii()).map_err(|_| ReadEnd::Invalid)?;
    usize::from_str_radix(text, radix).map_err(|_| ReadEnd::Invalid)
}

/// The body in some chunks and the bytes they took, once the last chunk and its trailer are there.
fn decode_chunks(wire: &[u8]) -> Result<Option<(Vec<u8>, usize)>, ReadEnd> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = memchr::memmem::find(&wire[at..], b"\r\n") else {
            return Ok(None);
        };
        let digits = wire[at..at + line].split(|&b| b == b';').next().unwrap_or_default();
        let size = number(digits, 16)?;
        at += line + 2;
        if size == 0 {
            return Ok(trailer_end(&wire[at..]).map(|trailer| (body, at + trailer)));
        }
        let Some(chunk) = wire.get(at..at.saturating_add(size).saturating_add(2)) else {
            return Ok(None);
        };
        body.extend_from_slice(&chunk[..size]);
        at += size + 2;
    }
}

fn trailer_end(rest: &[u8]) -> Option<usize> {
    match rest.starts_with(b"\r\n") {
        true => Some(2),
        false => memchr::memmem::find(rest, b"\r\n\r\n").map(|end| end + 4),
    }
}

/// The first value of a header in a raw head.
pub(crate) fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    request.parse_with_uninit_headers(head, &mut headers).ok()?;
    request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_complete_only_with_its_blank_line() {
        let whole = b"POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        for cut in 0..whole.len() - 3 {
            assert!(cut == 0 || parse_head(&whole[..cut]).unwrap().is_none(), "{cut}");
        }
        let head = parse_head(whole).unwrap().unwrap();
        assert_eq!(head.len, whole.len() - 3);
        assert_eq!(&whole[head.target.clone()], b"/v1/x?a=b");
        assert_eq!(head.framing, Framing::Length(3));
        assert!(head.keep_alive);
    }

    #[test]
    fn chunks_are_decoded_with_extensions_and_trailers_and_what_follows_is_left() {
        let wire = b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nt: v\r\n\r\nNEXT";
        let (body, taken) = decode_chunks(wire).unwrap().unwrap();
        assert_eq!(body, b"abc0123456789");
        assert_eq!(&wire[taken..], b"NEXT");
        for cut in 0..taken {
            assert!(decode_chunks(&wire[..cut]).unwrap().is_none(), "{cut}");
        }
        assert!(decode_chunks(b"zz\r\n").is_err());
        assert!(decode_chunks(b"ffffffffffffffff\r\nabc").unwrap().is_none());
    }

    #[test]
    fn connection_close_is_seen_in_a_list() {
        assert!(!keep_alive(b"te, Close", true));
        assert!(keep_alive(b"Keep-Alive", false));
        assert!(!keep_alive(b"te", false));
    }
}
