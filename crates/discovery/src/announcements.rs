//! The socket on which workers announce themselves, and the task behind it. Whoever may not is not listened to.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval, timeout};
use tracing::{debug, warn};

use crate::allow::Range;
use crate::announced::{Announced, Heard, MOST};
use crate::announcement::Announcement;
use crate::watch::Watcher;
use crate::zmtp::{Message, Peer};

/// Connections at a time. One that restarts may have two for a while.
const CONNECTIONS: usize = 2 * MOST;

/// Longest time that a peer may take to greet, and between two messages.
const GREETING: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of announcements.
#[derive(Clone)]
pub struct AnnouncementMetrics {
    results: [IntCounter; Taken::ALL.len()],
}

/// What became of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It is believed.
    Heard,
    /// It is none, or its connection speaks something else.
    Malformed,
    /// It comes from elsewhere, or names an address elsewhere.
    Refused,
    /// There are too many workers or connections.
    TooMany,
    /// Its URL is on the list in another role.
    OtherRole,
}

impl Taken {
    const ALL: [Self; 5] = [Self::Heard, Self::Malformed, Self::Refused, Self::TooMany, Self::OtherRole];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Heard => "heard",
            Self::Malformed => "malformed",
            Self::Refused => "refused",
            Self::TooMany => "too_many",
            Self::OtherRole => "other_role",
        }
    }
}

impl AnnouncementMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// They are registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let family = IntCounterVec::new(
            Opts::new(
                "forebay_discovery_announcements_total",
                "Announcements of workers, and connections for them, by what became of them.",
            ),
            &["result"],
        )?;
        registry.register(Box::new(family.clone()))?;
        Ok(Self { results: Taken::ALL.map(|taken| family.with_label_values(&[taken.as_str()])) })
    }

    fn count(&self, taken: Taken) {
        self.results[taken as usize].inc();
    }
}

/// Where workers announce themselves.
pub struct Announcements {
    watcher: Watcher,
    allow: Vec<Range>,
    metrics: AnnouncementMetrics,
    announced: Mutex<Announced>,
}

impl Announcements {
    /// Whom `allow` does not have is not listened to.
    pub fn new(watcher: Watcher, allow: Vec<Range>, metrics: AnnouncementMetrics) -> Self {
        let (reader, writer) = (watcher.probe.reader.clone(), watcher.probe.writer.clone());
        let announced = Mutex::new(Announced::new(reader, writer));
        Self { watcher, allow, metrics, announced }
    }

    /// Listens until the probes are stopped.
    ///
    /// # Errors
    /// The listener cannot be used.
    pub async fn run(self, listener: std::net::TcpListener) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let (this, places) = (Arc::new(self), Arc::new(Semaphore::new(CONNECTIONS)));
        let mut every_second = interval(Duration::from_secs(1));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                now = every_second.tick() => {
                    this.announced().pass(now);
                    continue;
                }
                () = this.watcher.probe.stop.cancelled() => return Ok(()),
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    warn!(%error, "cannot accept a connection for announcements");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if !this.allows(peer.ip()) {
                this.dropped(Taken::Refused, peer, "its address is not in --discovery-allow");
                continue;
            }
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                this.dropped(Taken::TooMany, peer, "there are too many connections");
                continue;
            };
            let (this, stop) = (Arc::clone(&this), this.watcher.probe.stop.clone());
            this.watcher.tasks.clone().spawn(async move {
                let _place = place;
                tokio::select! {
                    () = this.listen_to(stream, peer) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }

    /// One connection, until it ends or is of no use.
    async fn listen_to(&self, stream: TcpStream, peer: SocketAddr) {
        let mut socket = match timeout(GREETING, Peer::greet(stream)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return self.dropped(Taken::Malformed, peer, &error.to_string()),
            Err(_) => return self.dropped(Taken::Malformed, peer, "it does not greet"),
        };
        loop {
            match timeout(PATIENCE, socket.message()).await {
                Ok(Ok(Some(message))) => self.take(&message, peer),
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.dropped(Taken::Malformed, peer, &error.to_string());
                }
                // It has left, or is silent: then it may connect again.
                Ok(Ok(None) | Err(_)) | Err(_) => return,
            }
        }
    }

    fn take(&self, message: &Message, peer: SocketAddr) {
        let Message::Single(payload) = message else {
            return self.dropped(Taken::Malformed, peer, "it has several frames");
        };
        let said = match Announcement::read(payload, &self.allow) {
            Ok(said) => said,
            Err(why) => {
                let taken = if why.is_refusal() { Taken::Refused } else { Taken::Malformed };
                return self.dropped(taken, peer, &why.to_string());
            }
        };
        let heard = self.announced().heard(said, Instant::now());
        match heard {
            Heard::Known => self.metrics.count(Taken::Heard),
            Heard::New(host) => {
                self.metrics.count(Taken::Heard);
                self.watcher.watch(host.url().clone(), host.role());
            }
            Heard::TooMany => self.dropped(Taken::TooMany, peer, "there are too many workers"),
            Heard::OtherRole => {
                self.dropped(Taken::OtherRole, peer, "its URL is on the list in another role");
            }
        }
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|range| range.contains(address))
    }

    /// Whoever sends much of it must not fill the log.
    fn dropped(&self, taken: Taken, peer: SocketAddr, why: &str) {
        self.metrics.count(taken);
        let count = self.metrics.results[taken as usize].get();
        if count.is_power_of_two() {
            warn!(%peer, why, count, "announcements of workers are dropped");
        } else {
            debug!(%peer, why, "an announcement of a worker is dropped");
        }
    }

    fn announced(&self) -> MutexGuard<'_, Announced> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
