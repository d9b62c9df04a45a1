//! A worker that is well, tells no models, and answers every other request with fixed bytes, right or wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::find;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 16;

/// How long nothing comes back from a port that is silent.
const UNANSWERED: Duration = Duration::from_millis(200);

/// What comes after the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The connection is closed.
    Close,
    /// It stays open for the next request.
    Keep,
    /// The first answer is kept open for a second request, which is closed on without an answer.
    CloseWhenReused,
    /// Nothing more is sent, but the other side may go on.
    HalfClose,
}

/// The worker. Dropping it ends it.
pub struct Scripted {
    addr: SocketAddr,
    /// Kept open when nobody accepts any more.
    _listener: Arc<TcpListener>,
    seen: Arc<Seen>,
    tasks: JoinSet<()>,
    /// Connections that nobody accepts.
    unheard: Vec<TcpStream>,
}

#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    changed: Notify,
}

impl Scripted {
    /// Answers each request with `bytes`.
    pub async fn start(bytes: impl Into<Vec<u8>>, then: Then) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), bytes, then).await
    }

    /// The same at an address of its own.
    pub async fn start_at(addr: SocketAddr, bytes: impl Into<Vec<u8>>, then: Then) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(addr).expect("a port");
        // Short, so that it can be filled.
        let listener = Arc::new(socket.listen(BACKLOG).expect("a listener"));
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::new(Seen::default());
        let (bytes, counted): (Arc<[u8]>, _) = (bytes.into().into(), Arc::clone(&seen));
        let (mut tasks, accepting) = (JoinSet::new(), Arc::clone(&listener));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = accepting.accept().await {
                connections.spawn(serve(stream, Arc::clone(&bytes), then, Arc::clone(&counted)));
            }
        });
        Self { addr, _listener: listener, seen, tasks, unheard: Vec::new() }
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Closes its connections and accepts no more, until the kernel answers nobody who wants to connect.
    pub async fn fall_silent(&mut self) {
        self.tasks.shutdown().await;
        let addr = self.addr;
        while let Ok(Ok(stream)) = tokio::time::timeout(UNANSWERED, TcpStream::connect(addr)).await {
            self.unheard.push(stream);
        }
    }

    /// Requests it got, probes not counted.
    pub fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// Waits until it got so many requests.
    pub async fn wait_requests(&self, count: usize) {
        loop {
            let changed = self.seen.changed.notified();
            if self.requests() >= count {
                return;
            }
            changed.await;
        }
    }
}

async fn serve(mut stream: TcpStream, bytes: Arc<[u8]>, then: Then, seen: Arc<Seen>) {
    let mut pending = Vec::new();
    let mut answered = 0;
    while let Some(path) = read_request(&mut stream, &mut pending).await {
        let probe = match path.as_str() {
            "/health" => Some("200 OK"),
            "/v1/models" | "/version" | "/metrics" | "/is_sleeping" | "/is_paused" => Some("404 Not Found"),
            _ => None,
        };
        if let Some(status) = probe {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            let _gone = stream.write_all(answer.as_bytes()).await;
            continue;
        }
        seen.requests.fetch_add(1, Ordering::SeqCst);
        seen.changed.notify_waiters();
        if then == Then::CloseWhenReused && answered == 1 {
            return;
        }
        answered += 1;
        if stream.write_all(&bytes).await.is_err() || then == Then::Close {
            return;
        }
        if then == Then::HalfClose {
            let _gone = stream.shutdown().await;
        }
    }
}

/// Reads a request with its body, and gives its path.
async fn read_request(stream: &mut TcpStream, pending: &mut Vec<u8>) -> Option<String> {
    let end = loop {
        if let Some(end) = find(pending, b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(pending).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&pending[..end]).into_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
    while pending.len() < end + length {
        if stream.read_buf(pending).await.ok()? == 0 {
            return None;
        }
    }
    pending.drain(..end + length);
    head.split(' ').nth(1).map(str::to_owned)
}
