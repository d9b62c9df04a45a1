//! The fleet by the settings: how its workers are chosen and probed, and who is known from the start. Asks nobody.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use forebay_discovery::probe::Probe;
use forebay_discovery::{
    AnnouncementMetrics, Announcements, Misfit, ProbeSettings, Range, Readiness, Watcher,
};
use forebay_workers::{Reader, Role, WorkerUrl, Writer, registry};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::Fleet;
use crate::settings::{Listen, Settings, WorkerSocket};

/// The fleet, empty.
pub(crate) fn fleet(settings: &Settings) -> (Reader, Writer) {
    let (policy, health, breaker) = (&settings.policy, &settings.health, &settings.breaker);
    let (reader, writer) = registry(policy.clone(), settings.seed, health.clone(), breaker.clone());
    if settings.max_inflight_per_worker > 0 {
        writer.bound(settings.max_inflight_per_worker);
    }
    if let Some(roles) = &settings.roles {
        writer.prefill_by(roles.prefill_policy.clone());
    }
    (reader, writer)
}

/// The sockets on which workers speak of themselves, as far as they may.
#[derive(Default)]
pub(crate) struct Doors {
    announcements: Option<TcpListener>,
    readiness: Option<TcpListener>,
}

/// Where they are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DoorAddresses {
    pub announcements: Option<SocketAddr>,
    pub readiness: Option<SocketAddr>,
}

impl Doors {
    /// Opens them with `listen`, which is told the flag that says where.
    pub(crate) fn open<E>(
        settings: &Settings,
        listen: impl Fn(&'static str, Listen) -> Result<TcpListener, E>,
    ) -> Result<Self, E> {
        let Some(roles) = &settings.roles else { return Ok(Self::default()) };
        let open = |flag, socket: &Option<WorkerSocket>| {
            socket.as_ref().map(|socket| listen(flag, socket.listen)).transpose()
        };
        Ok(Self {
            announcements: open("--vllm-discovery-address", &roles.announced)?,
            readiness: open("--lmcache-proxy-address", &roles.readiness)?,
        })
    }

    /// Where they are.
    pub(crate) fn addresses<E>(
        &self,
        local: impl Fn(&TcpListener) -> Result<SocketAddr, E>,
    ) -> Result<DoorAddresses, E> {
        Ok(DoorAddresses {
            announcements: self.announcements.as_ref().map(&local).transpose()?,
            readiness: self.readiness.as_ref().map(&local).transpose()?,
        })
    }
}

/// How workers come to be known, and how they speak of themselves.
pub(crate) struct Roster {
    /// From the start, in their roles.
    known: Vec<(WorkerUrl, Role)>,
    /// By announcing themselves.
    announced: Option<(TcpListener, Vec<Range>, AnnouncementMetrics)>,
    /// They say when they have handed over.
    readiness: Option<(TcpListener, Readiness)>,
}

impl Roster {
    pub(crate) fn of(
        settings: &Settings,
        doors: Doors,
        announcements: Option<AnnouncementMetrics>,
        readiness: Option<Readiness>,
    ) -> Self {
        let regular = settings.worker_urls.iter().map(|url| (url.clone(), Role::Regular));
        let others = settings.roles.iter().flat_map(|roles| roles.workers.iter().cloned());
        let known = regular.chain(others).collect();
        let announced = settings.roles.as_ref().and_then(|roles| roles.announced.as_ref());
        let announced = match (doors.announcements, announced, announcements) {
            (Some(door), Some(announced), Some(metrics)) => Some((door, announced.allow.clone(), metrics)),
            _ => None,
        };
        Self { known, announced, readiness: doors.readiness.zip(readiness) }
    }

    /// Keeps asking all of them, and listens to those who speak of themselves.
    pub(crate) fn watch(self, watcher: &Watcher) {
        watcher.watch_all(&self.known);
        if let Some((door, allow, metrics)) = self.announced {
            let announcements = Announcements::new(watcher.clone(), allow, metrics);
            watcher.tasks.spawn(async move {
                if let Err(error) = announcements.run(door).await {
                    tracing::error!(%error, "workers cannot announce themselves");
                }
            });
        }
        if let Some((door, readiness)) = self.readiness {
            let (stop, connections) = (watcher.probe.stop.clone(), watcher.tasks.clone());
            watcher.tasks.spawn(async move {
                if let Err(error) = readiness.run(door, stop, connections).await {
                    tracing::error!(%error, "workers cannot say that they have handed over");
                }
            });
        }
    }
}

/// The fleet as whoever changes it needs it; workers are probed on this runtime.
pub(crate) fn kept(
    settings: &Settings,
    (reader, writer): (&Reader, Writer),
    misfit: watch::Sender<Option<Misfit>>,
    runtime: &Handle,
) -> Fleet {
    let probing = ProbeSettings {
        health: settings.health.clone(),
        startup_interval: settings.startup_check_interval,
        model_refresh: settings.model_refresh,
        dialer: settings.router.dialer.clone(),
        ranks: settings.ranks,
        prefill_ranks: settings.prefill_ranks,
        cache_tokens: settings.worker_cache_tokens,
        api_key: settings.router.api_key.as_ref().map(|key| key.expose().to_owned()),
    };
    let probe = Probe {
        reader: reader.clone(),
        writer: writer.clone(),
        misfit,
        settings: Arc::new(probing),
        stop: CancellationToken::new(),
    };
    Fleet {
        reader: reader.clone(),
        writer,
        watcher: Watcher { probe, runtime: runtime.clone(), tasks: TaskTracker::new() },
        startup_timeout: settings.startup_timeout,
        pairs: settings.router.pairs.clone(),
    }
}
