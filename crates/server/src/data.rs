//! Data threads: each has a runtime, connections and idle upstream connections of its own, so that a request never
//! leaves the thread on which its client connected.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::door::Door;
use crate::drain::Drain;

/// Bytes that hyper buffers for a connection in either direction. Bounds what a client costs that does not read, and
/// the size of a request's head.
const BUFFER: usize = 128 * 1024;

/// What a client gets whose request's head does not come to its end.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: 111\r\nconnection: close\r\n\r\n\
{\"error\":{\"message\":\"the request's head did not come in time\",\"type\":\"RequestTimeout\",\"param\":null,\"code\":408}}";

/// Connections that may wait for a data thread to take them.
const BACKLOG: usize = 1024;

/// The acceptor's end of a data thread.
pub(crate) struct DataThread {
    connections: mpsc::Sender<(TcpStream, SocketAddr)>,
    open: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// Tells data threads to end.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// Answers under way go on, idle connections close, no new request is read.
    pub drain: CancellationToken,
    /// Everything ends now.
    pub now: CancellationToken,
}

impl DataThread {
    /// Starts the thread.
    pub(crate) fn start(number: usize, door: Door, stop: Stop) -> io::Result<Self> {
        let (connections, incoming) = mpsc::channel(BACKLOG);
        let open = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let count = Arc::clone(&open);
        let run = move || runtime.block_on(serve(door, incoming, count, stop));
        let thread = std::thread::Builder::new().name(format!("data-{number}")).spawn(run)?;
        Ok(Self { connections, open, thread })
    }

    /// Connections that are open on it.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Gives it a connection.
    pub(crate) async fn take(&self, stream: TcpStream, peer: SocketAddr) {
        self.open.fetch_add(1, Ordering::Relaxed);
        if self.connections.send((stream, peer)).await.is_err() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        drop(self.connections);
        if self.thread.join().is_err() {
            tracing::error!("a data thread panicked");
        }
    }
}

async fn serve(
    door: Door,
    mut incoming: mpsc::Receiver<(TcpStream, SocketAddr)>,
    open: Arc<AtomicUsize>,
    stop: Stop,
) {
    let door = Arc::new(door);
    let tasks = TaskTracker::new();
    let drain = Arc::new(Drain::default());
    let mut every_second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            accepted = incoming.recv() => match accepted {
                Some((stream, peer)) => {
                    let counted = Counted(Arc::clone(&open));
                    let (door, drain) = (Arc::clone(&door), Arc::clone(&drain));
                    tasks.spawn(async move {
                        connection(stream, peer, &door, &drain).await;
                        drop(counted);
                    });
                }
                None => break,
            },
            _ = every_second.tick() => door.shard.sweep(),
            () = stop.drain.cancelled() => break,
        }
    }
    drain.begin();
    tasks.close();
    tokio::select! {
        () = tasks.wait() => {}
        () = stop.now.cancelled() => {}
    }
}

/// One more open connection, for as long as this lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection to its end. Its errors concern its client only, who has seen them.
pub(crate) async fn connection(stream: TcpStream, peer: SocketAddr, door: &Arc<Door>, drain: &Drain) {
    let Ok(stream) = adopt(stream) else { return };
    let service = service_fn(|request| door.enter(peer, request));
    let mut serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.head_timeout)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let ended = drain.watch(Pin::new(&mut serving), |serving| serving.graceful_shutdown()).await;
    if let Err(error) = ended {
        let left = serving.into_parts();
        // A connection that was only idle is closed without a word; one that began a request is told.
        if error.is_timeout() && !left.read_buf.is_empty() {
            let _gone = left.io.into_inner().try_write(TOO_SLOW);
        }
        tracing::debug!(%peer, %error, "connection ended");
    }
}

fn adopt(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}
