//! A raw HTTP/1.1 client: it shows answers as they came, broken ones included.

use std::time::Duration;

use bytes::BytesMut;
use forebay_sim::Worker;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The HTTP chunks, if it came in chunks.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The `data:` lines of a stream, parsed; `[DONE]` becomes a string.
    pub(crate) fn data(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.split("\n\n").filter_map(|record| record.split_once("data: ")).map(|(_, data)| data);
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))).collect()
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buf: BytesMut,
}

impl Client {
    pub(crate) async fn connect(worker: &Worker) -> Self {
        let stream = TcpStream::connect(worker.addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buf: BytesMut::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str, headers: &str) -> Answer {
        self.send(post(path, body, headers).as_bytes()).await;
        self.answer().await
    }

    pub(crate) async fn call(&mut self, method: &str, path: &str) -> Answer {
        self.send(format!("{method} {path} HTTP/1.1\r\nhost: w\r\n\r\n").as_bytes()).await;
        self.answer().await
    }

    async fn more(&mut self) -> bool {
        within(self.stream.read_buf(&mut self.buf)).await.unwrap() > 0
    }

    async fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.buf.windows(2).position(|pair| pair == b"\r\n") {
                return self.buf.split_to(end + 2).to_vec();
            }
            assert!(self.more().await, "closed within a line: {}", String::from_utf8_lossy(&self.buf));
        }
    }

    async fn take(&mut self, len: usize) -> Vec<u8> {
        while self.buf.len() < len {
            assert!(self.more().await, "closed within a body");
        }
        self.buf.split_to(len).to_vec()
    }

    /// The next head, as text without its blank line.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = String::new();
        loop {
            let line = String::from_utf8(self.line().await).unwrap();
            if line == "\r\n" {
                return head;
            }
            head.push_str(&line);
        }
    }

    /// The next HTTP chunk; empty at the end.
    pub(crate) async fn chunk(&mut self) -> Vec<u8> {
        let size = String::from_utf8(self.line().await).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = self.take(size + 2).await;
        chunk.truncate(size);
        chunk
    }

    /// The next complete answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let status = head[9..12].parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new(), chunks: Vec::new() };
        match answer.header("content-length").map(|length| length.parse::<usize>().unwrap()) {
            Some(length) => answer.body = self.take(length).await,
            None => loop {
                let chunk = self.chunk().await;
                if chunk.is_empty() {
                    break;
                }
                answer.body.extend_from_slice(&chunk);
                answer.chunks.push(chunk);
            },
        }
        answer
    }

    /// Everything up to the end of the connection, and how it ended.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, End) {
        loop {
            match within(self.stream.read_buf(&mut self.buf)).await {
                Ok(0) => return (std::mem::take(&mut self.buf).to_vec(), End::Closed),
                Ok(_) => {}
                Err(_) => return (std::mem::take(&mut self.buf).to_vec(), End::Reset),
            }
        }
    }

    /// Reads until so many bytes are there, and shows all that are.
    pub(crate) async fn at_least(&mut self, len: usize) -> String {
        while self.buf.len() < len {
            assert!(self.more().await);
        }
        String::from_utf8_lossy(&self.buf).into_owned()
    }

    /// Whether nothing more came so far.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.buf.is_empty() && self.stream.try_read_buf(&mut self.buf).is_err()
    }
}

/// A POST as bytes; `headers` are whole lines.
pub(crate) fn post(path: &str, body: &str, headers: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

/// A test that waits longer than this is broken.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("this takes too long")
}
