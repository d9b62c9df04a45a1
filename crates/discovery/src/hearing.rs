//! A ZeroMQ socket on which workers say something: who may speak there, and for how long nothing is said. It does not know
//! what is said.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::allow::Range;
use crate::zmtp::{Message, Peer, Socket};

/// Longest time that a peer may take to greet.
const GREETING: Duration = Duration::from_secs(10);

/// Why something is not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// It is not what is said here, or not in that protocol.
    Malformed,
    /// It comes from elsewhere, or names an address elsewhere.
    Refused,
    /// There are too many.
    TooMany,
    /// It does not fit what is known.
    Unfitting,
    /// It names what is another's.
    Taken,
}

/// Who listens.
pub(crate) trait Listener: Send + Sync + 'static {
    /// A message came on the connection of this number.
    ///
    /// # Errors
    /// It is not heard, and why.
    fn hear(&self, message: &[u8], connection: u64) -> Result<(), (Unheard, String)>;

    /// Something was not heard. Gives how often that was so.
    fn count(&self, unheard: Unheard) -> u64;

    /// A second has passed.
    fn pass(&self, _now: Instant) {}
}

/// What there is of a socket.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub socket: Socket,
    /// Whom this does not have is not listened to.
    pub allow: Vec<Range>,
    /// Connections at a time.
    pub connections: usize,
    /// Longest silence between two messages. `None` is no limit.
    pub patience: Option<Duration>,
}

/// A socket.
pub(crate) struct Hearing<L> {
    pub listener: L,
    pub terms: Terms,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

impl<L: Listener> Hearing<L> {
    /// Listens until it is stopped.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub(crate) async fn run(self, socket: std::net::TcpListener) -> io::Result<()> {
        let socket = TcpListener::from_std(socket)?;
        let places = Arc::new(Semaphore::new(self.terms.connections));
        let (this, numbers) = (Arc::new(self), AtomicU64::new(0));
        let mut every_second = interval(Duration::from_secs(1));
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                now = every_second.tick() => {
                    this.listener.pass(now);
                    continue;
                }
                () = this.stop.cancelled() => return Ok(()),
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    warn!(%error, "cannot accept a connection of a worker");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if !this.allows(peer.ip()) {
                this.unheard(Unheard::Refused, peer, "its address is not in --discovery-allow");
                continue;
            }
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                this.unheard(Unheard::TooMany, peer, "there are too many connections");
                continue;
            };
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let this = Arc::clone(&this);
            this.tasks.clone().spawn(async move {
                let _place = place;
                tokio::select! {
                    () = this.listen_to(stream, (peer, number)) => {}
                    () = this.stop.cancelled() => {}
                }
            });
        }
    }

    /// One connection, until it ends or is of no use.
    async fn listen_to(&self, stream: TcpStream, (peer, number): (SocketAddr, u64)) {
        // One that may be silent for ever must not keep its place when its machine is gone.
        if let Err(error) = socket2::SockRef::from(&stream).set_keepalive(true) {
            debug!(%error, "a connection cannot be kept alive");
        }
        let mut worker = match timeout(GREETING, Peer::greet(stream, self.terms.socket)).await {
            Ok(Ok(worker)) => worker,
            Ok(Err(error)) => return self.unheard(Unheard::Malformed, peer, &error.to_string()),
            Err(_) => return self.unheard(Unheard::Malformed, peer, "it does not greet"),
        };
        loop {
            let said = match self.terms.patience {
                Some(limit) => match timeout(limit, worker.message()).await {
                    Ok(said) => said,
                    // It may connect again.
                    Err(_) => return,
                },
                None => worker.message().await,
            };
            match said {
                Ok(Some(Message::Single(message))) => {
                    if let Err((unheard, why)) = self.listener.hear(&message, number) {
                        self.unheard(unheard, peer, &why);
                    }
                }
                Ok(Some(Message::Several)) => self.unheard(Unheard::Malformed, peer, "it has several frames"),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.unheard(Unheard::Malformed, peer, &error.to_string());
                }
                // It has left.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.terms.allow.iter().any(|range| range.contains(address))
    }

    /// Whoever sends much of it must not fill the log.
    fn unheard(&self, unheard: Unheard, peer: SocketAddr, why: &str) {
        let count = self.listener.count(unheard);
        if count.is_power_of_two() {
            warn!(%peer, why, count, "what workers say is dropped");
        } else {
            debug!(%peer, why, "what a worker says is dropped");
        }
    }
}
