//! A worker that is well, tells no models, and leaves every other request to the test: its head, and the connection from
//! there on.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::find;

/// The worker. Dropping it ends it, but not what was taken.
pub struct Raw {
    url: String,
    taken: mpsc::Receiver<Taken>,
    _tasks: JoinSet<()>,
}

/// A request whose head was read.
pub struct Taken {
    /// The head as text, with the empty line behind it.
    pub head: String,
    /// What came behind it.
    pub came: Vec<u8>,
    /// The connection.
    pub stream: TcpStream,
}

impl Raw {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    /// Starts it at this address.
    pub async fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (give, taken) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let give = give.clone();
                connections.spawn(async move {
                    if let Some(taken) = take(stream).await {
                        let _over = give.send(taken).await;
                    }
                });
            }
        });
        Self { url, taken, _tasks: tasks }
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The next request that is no probe.
    pub async fn next(&mut self) -> Taken {
        self.taken.recv().await.expect("a request")
    }

    /// Whether there was none since.
    pub fn is_idle(&mut self) -> bool {
        self.taken.try_recv().is_err()
    }
}

/// What the router asks for on its own, and this worker does not know.
const UNKNOWN: [&str; 6] =
    ["/v1/models", "/version", "/metrics", "/is_sleeping", "/is_paused", "/kv_event_sources"];

/// Answers probes until something else is asked.
async fn take(mut stream: TcpStream) -> Option<Taken> {
    let mut came = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = find(&came, b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut came).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&came[..end]).into_owned();
        came.drain(..end);
        let target = head.split(' ').nth(1).unwrap_or_default();
        // Whatever prefix is before it.
        let asks = |paths: &[&str]| paths.iter().any(|path| target.ends_with(path));
        let status = match () {
            () if asks(&["/health"]) => "200 OK",
            () if asks(&UNKNOWN) => "404 Not Found",
            () => return Some(Taken { head, came, stream }),
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

impl Taken {
    /// Value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> String {
        let value =
            self.head.lines().filter_map(|line| line.split_once(": ")).find(|(known, _)| *known == name);
        value.map(|(_, value)| value.to_owned()).unwrap_or_default()
    }

    /// Reads until so many bytes have come behind the head.
    pub async fn read(&mut self, bytes: usize) -> &[u8] {
        while self.came.len() < bytes {
            let read = self.stream.read_buf(&mut self.came).await.expect("a read");
            assert!(read > 0, "the connection ended behind {} of {bytes} bytes", self.came.len());
        }
        &self.came
    }

    /// Reads until the other side closes (or resets).
    pub async fn rest(&mut self) -> &[u8] {
        while let Ok(1..) = self.stream.read_buf(&mut self.came).await {}
        &self.came
    }

    /// Sends these bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("a write");
    }
}
