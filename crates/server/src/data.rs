//! Data threads: each has a runtime, connections and idle upstream connections of its own, so that a request never
//! leaves the thread on which its client connected.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::door::Door;
use crate::drain::Drain;
use crate::fence::Post;
use crate::http1::connection;
use crate::http2;

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
    /// What is still under way has been told to end: it is polled for that.
    pub cut: CancellationToken,
    /// Everything ends now.
    pub now: CancellationToken,
}

impl DataThread {
    /// Starts the thread.
    pub(crate) fn start(number: usize, door: Door, post: Post, stop: Stop) -> io::Result<Self> {
        let (connections, incoming) = mpsc::channel(BACKLOG);
        let open = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let count = Arc::clone(&open);
        let run = move || runtime.block_on(serve(door, incoming, count, (post, stop)));
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
    (post, stop): (Post, Stop),
) {
    // Kept until everything else here has ended, and not waited for.
    TaskTracker::new().spawn(post.keep());
    let door = Arc::new(door);
    let tasks = TaskTracker::new();
    let drain = Arc::new(Drain::default());
    let mut every_second = tokio::time::interval(Duration::from_secs(1));
    let serving = async {
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
                    // Not before: what was accepted until the drain began is served, too.
                    None => break,
                },
                _ = every_second.tick() => door.shard.sweep(),
                () = stop.drain.cancelled(), if !drain.has_begun() => drain.begin(),
            }
        }
        drain.begin();
        tasks.close();
        tasks.wait().await;
    };
    let cut = async {
        stop.cut.cancelled().await;
        drain.wake();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serving => {}
        () = stop.now.cancelled() => {}
        () = cut => {}
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
pub(crate) async fn connection(stream: TcpStream, peer: SocketAddr, door: &Arc<Door>, drain: &Arc<Drain>) {
    let Ok(stream) = adopt(stream) else { return };
    let service = |head, body| door.enter(peer, head, body);
    if let Some(begun) = connection::serve(stream, service, door.patience, drain).await {
        // Boxed, since it is rare and would make every connection's future larger.
        Box::pin(http2::serve(begun, peer, door, drain)).await;
    }
}

fn adopt(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}
