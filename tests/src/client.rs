//! A client that sends exactly the bytes it is given and reads answers with a parser of its own.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection to an HTTP server.
pub struct Client {
    stream: TcpStream,
    /// Bytes that were read and not yet taken.
    pending: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Names in lower case, and values, in order.
    pub headers: Vec<(String, Vec<u8>)>,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its head.
    pub head: Head,
    /// Its body without chunk framing.
    pub body: Vec<u8>,
}

/// A request with a length where there is a body. The header `host: localhost` is always the first.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if !body.is_empty() || method == "POST" {
        bytes.extend_from_slice(
            format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()).as_bytes(),
        );
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// A POST whose body goes out in chunks of `size` bytes.
pub fn chunked(target: &str, headers: &[(&str, &str)], body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = format!("POST {target} HTTP/1.1\r\nhost: localhost\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

impl Client {
    /// Connects to `http://host:port`.
    pub async fn connect(url: &str) -> Self {
        let addr: SocketAddr = url.trim_start_matches("http://").parse().expect("an address");
        let stream = TcpStream::connect(addr).await.expect("a connection");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream, pending: Vec::new() }
    }

    /// Sends these bytes. A server that has closed is found out when its answer is read.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _closed = self.stream.write_all(bytes).await;
    }

    /// Sends these bytes in writes of `size`, so that each is a segment of its own.
    pub async fn send_in_pieces(&mut self, bytes: &[u8], size: usize) {
        for piece in bytes.chunks(size) {
            self.send(piece).await;
            tokio::task::yield_now().await;
        }
    }

    /// Sends a request and reads its answer.
    pub async fn ask(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(&request(method, target, headers, body)).await;
        self.answer_to(method).await.expect("a whole answer")
    }

    /// Sends a POST without headers of its own and reads the answer.
    pub async fn post(&mut self, target: &str, body: impl AsRef<[u8]>) -> Answer {
        self.ask("POST", target, &[], body.as_ref()).await
    }

    /// Sends a GET and reads the answer.
    pub async fn get(&mut self, target: &str) -> Answer {
        self.ask("GET", target, &[], b"").await
    }

    /// Reads a whole answer; an error if the server ended it too early.
    pub async fn answer(&mut self) -> io::Result<Answer> {
        self.answer_to("POST").await
    }

    /// Reads the whole answer to a request with this method.
    pub async fn answer_to(&mut self, method: &str) -> io::Result<Answer> {
        let head = self.head().await?;
        let body = self.body(&head, method).await?;
        Ok(Answer { head, body })
    }

    /// Reads the whole body that follows this head, in the answer to a request with this method.
    pub async fn body(&mut self, head: &Head, method: &str) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(body);
        }
        if head.text("transfer-encoding").as_deref() == Some("chunked") {
            while let Some(chunk) = self.chunk().await? {
                body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = head.text("content-length") {
            body = self.take(length.parse().expect("a length")).await?;
        } else {
            while self.fill().await? > 0 {}
            body = std::mem::take(&mut self.pending);
        }
        Ok(body)
    }

    /// Reads a head.
    pub async fn head(&mut self) -> io::Result<Head> {
        let end = loop {
            if let Some(end) = find(&self.pending, b"\r\n\r\n") {
                break end;
            }
            self.fill_or_fail().await?;
        };
        let bytes: Vec<u8> = self.pending.drain(..end + 4).collect();
        let mut lines =
            bytes[..end].split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        assert!(first.starts_with("HTTP/1."), "{first}");
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let headers = lines
            .map(|line| {
                let colon = line.iter().position(|b| *b == b':').expect("a colon");
                let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
                (name, line[colon + 1..].trim_ascii().to_vec())
            })
            .collect();
        Ok(Head { status, headers })
    }

    /// The body behind this head as far as it came, and whether it came to its end.
    pub async fn body_so_far(&mut self, head: &Head) -> (Vec<u8>, bool) {
        // What was short enough to come in one piece has a length.
        if head.text("transfer-encoding").is_none() {
            return self.body(head, "POST").await.map_or((Vec::new(), false), |body| (body, true));
        }
        let mut bytes = Vec::new();
        loop {
            match self.chunk().await {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => return (bytes, true),
                Err(_) => return (bytes, false),
            }
        }
    }

    /// Reads one chunk of a chunked body; `None` is its end.
    pub async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let end = loop {
            if let Some(end) = find(&self.pending, b"\r\n") {
                break end;
            }
            self.fill_or_fail().await?;
        };
        let line = String::from_utf8_lossy(&self.pending[..end]).into_owned();
        self.pending.drain(..end + 2);
        let size = usize::from_str_radix(&line, 16).expect("a chunk size");
        let chunk = self.take(size).await?;
        assert_eq!(self.take(2).await?, b"\r\n", "a chunk ends with its line");
        Ok((size > 0).then_some(chunk))
    }

    /// Reads so many bytes of a chunked body, which have to end with a chunk.
    pub async fn chunks(&mut self, bytes: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < bytes {
            body.extend(self.chunk().await.expect("a chunk").expect("more of the body"));
        }
        body
    }

    /// What has come beyond what was read, without waiting.
    pub fn has_more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        if let Ok(read) = self.stream.try_read(&mut buffer) {
            self.pending.extend_from_slice(&buffer[..read]);
        }
        !self.pending.is_empty()
    }

    /// Everything until the server closes (or resets) the connection.
    pub async fn rest(mut self) -> Vec<u8> {
        while let Ok(1..) = self.fill().await {}
        self.pending
    }

    /// Sends no more, but goes on reading.
    pub async fn half_close(&mut self) {
        let _closed = self.stream.shutdown().await;
    }

    /// Leaves at once, with a reset.
    pub fn reset(self) {
        self.stream.set_zero_linger().expect("linger");
    }

    async fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.pending.len() < bytes {
            self.fill_or_fail().await?;
        }
        Ok(self.pending.drain(..bytes).collect())
    }

    async fn fill_or_fail(&mut self) -> io::Result<()> {
        if self.fill().await? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.pending.reserve(16 * 1024);
        self.stream.read_buf(&mut self.pending).await
    }
}

impl Head {
    /// First value of a header as text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.all(name).into_iter().next()
    }

    /// All values of a header, in order.
    pub fn all(&self, name: &str) -> Vec<String> {
        let values = self.headers.iter().filter(|(known, _)| known == name);
        values.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
    }
}

impl Answer {
    /// Status code.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// First value of a header as text, empty if there is none.
    pub fn header(&self, name: &str) -> String {
        self.head.text(name).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// Where `wanted` begins in `bytes`.
pub fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
