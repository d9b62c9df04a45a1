//! What an open stream costs that waits for its next token: resident memory of the router, per stream.

use std::time::Duration;

use forebay_sim::WorkerOptions;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::case::{Prompt, request};
use crate::failure::Failure;
use crate::pairs::{ROUTER_CORE, Site};
use crate::router::{Places, Router};

const STREAMS: usize = 1000;

/// Streams that are opened at the same time.
const AT_ONCE: usize = 50;

/// Longest wait for the first token of a stream.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory of a router with its streams.
pub(crate) struct Held {
    /// Bytes before the first stream.
    pub(crate) before: u64,
    /// Bytes with all of them.
    pub(crate) with_streams: u64,
}

impl Held {
    pub(crate) fn per_stream(&self) -> f64 {
        self.with_streams.saturating_sub(self.before) as f64 / STREAMS as f64
    }
}

/// Opens the streams on a router that has answered a request, and looks at its memory once all wait.
pub(crate) async fn measure(router: Router, places: &Places) -> Result<Held, Failure> {
    // The second token is an hour away.
    let options = WorkerOptions { pace: Some(Duration::from_secs(3600)), ..WorkerOptions::instant(2) };
    let stream = request(Prompt::Text(2 << 10), Some(2), 0);
    let whole = request(Prompt::Text(2 << 10), None, 0);
    let site = Site::start(&options, vec![whole])?;
    let running = router.start(&site.launch(places, 1, ROUTER_CORE), &site.requests[0]).await?;
    let before = running.process.resident();
    let mut open = Vec::with_capacity(STREAMS);
    while open.len() < STREAMS {
        let mut batch = Vec::with_capacity(AT_ONCE);
        for _ in 0..AT_ONCE {
            let mut connection = TcpStream::connect(running.addr).await.map_err(Failure::at("stream"))?;
            connection.write_all(&stream).await.map_err(Failure::at("stream"))?;
            batch.push(connection);
        }
        for connection in &mut batch {
            let first = timeout(PATIENCE, first_token(connection)).await;
            first.map_err(|_| Failure::Refused("no first token".to_owned()))??;
        }
        open.append(&mut batch);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(Held { before, with_streams: running.process.resident() })
}

async fn first_token(connection: &mut TcpStream) -> Result<(), Failure> {
    let mut so_far = Vec::with_capacity(4096);
    while memmem::find(&so_far, b"data: ").is_none() {
        let read = connection.read_buf(&mut so_far).await.map_err(Failure::at("stream"))?;
        if read == 0 {
            return Err(Failure::Refused("a stream ended before its first token".to_owned()));
        }
    }
    if so_far.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    Err(Failure::Refused("a stream was refused".to_owned()))
}
