//! The socket on which workers announce themselves. Whoever may not is not listened to.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

use crate::allow::Range;
use crate::announced::{Announced, Heard, MOST};
use crate::announcement::Announcement;
use crate::hearing::{Hearing, Listener, Terms, Unheard};
use crate::watch::Watcher;
use crate::zmtp::Socket;

/// Connections at a time. A worker that restarts may have two for a while.
const CONNECTIONS: usize = 2 * MOST;

/// Longest silence. Workers speak every three seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of announcements.
#[derive(Clone)]
pub struct AnnouncementMetrics {
    heard: IntCounter,
    unheard: [IntCounter; 5],
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
        let of = |result| family.with_label_values(&[result]);
        let unheard = ["malformed", "refused", "too_many", "other_role", "address_taken"].map(of);
        Ok(Self { heard: of("heard"), unheard })
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
        let terms = Terms {
            socket: Socket::Router,
            allow: self.allow.clone(),
            connections: CONNECTIONS,
            patience: Some(PATIENCE),
        };
        let (stop, tasks) = (self.watcher.probe.stop.clone(), self.watcher.tasks.clone());
        Hearing { listener: self, terms, stop, tasks }.run(listener).await
    }
}

impl Listener for Announcements {
    fn hear(&self, message: &[u8], _connection: u64) -> Result<(), (Unheard, String)> {
        let said = Announcement::read(message, &self.allow).map_err(|why| {
            let unheard = if why.is_refusal() { Unheard::Refused } else { Unheard::Malformed };
            (unheard, why.to_string())
        })?;
        let heard = self.announced.lock().unwrap_or_else(PoisonError::into_inner).heard(said, Instant::now());
        match heard {
            Heard::Known => {}
            Heard::New(host) => drop(self.watcher.watch(host.url().clone(), host.role())),
            Heard::TooMany => {
                return Err((
                    Unheard::TooMany,
                    "there are too many workers, or were since the start".to_owned(),
                ));
            }
            Heard::OtherRole => {
                return Err((Unheard::Unfitting, "its URL is on the list in another role".to_owned()));
            }
            Heard::Taken(other) => {
                return Err((
                    Unheard::Taken,
                    format!("its zmq_address is that of {other}, which is there: each needs one of its own"),
                ));
            }
        }
        self.metrics.heard.inc();
        Ok(())
    }

    fn count(&self, unheard: Unheard) -> u64 {
        let counter = &self.metrics.unheard[unheard as usize];
        counter.inc();
        counter.get()
    }

    fn pass(&self, now: Instant) {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).pass(now);
    }
}
