//! The fleet by the settings: how its workers are chosen and probed, and who is known from the start. Asks nobody.

use std::net::TcpListener;
use std::sync::Arc;

use forebay_discovery::probe::Probe;
use forebay_discovery::{AnnouncementMetrics, Announcements, Misfit, ProbeSettings, Range, Watcher};
use forebay_workers::{Reader, Role, WorkerUrl, Writer, registry};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::Fleet;
use crate::settings::{Listen, Settings};

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

/// The socket on which workers announce themselves, if they may.
pub(crate) fn door<E>(
    settings: &Settings,
    listen: impl FnOnce(Listen) -> Result<TcpListener, E>,
) -> Result<Option<TcpListener>, E> {
    let announced = settings.roles.as_ref().and_then(|roles| roles.announced.as_ref());
    announced.map(|announced| listen(announced.listen)).transpose()
}

/// How workers come to be known.
pub(crate) struct Roster {
    /// From the start, in their roles.
    known: Vec<(WorkerUrl, Role)>,
    /// By announcing themselves.
    announced: Option<(TcpListener, Vec<Range>, AnnouncementMetrics)>,
}

impl Roster {
    pub(crate) fn of(
        settings: &Settings,
        door: Option<TcpListener>,
        metrics: Option<AnnouncementMetrics>,
    ) -> Self {
        let regular = settings.worker_urls.iter().map(|url| (url.clone(), Role::Regular));
        let others = settings.roles.iter().flat_map(|roles| roles.workers.iter().cloned());
        let known = regular.chain(others).collect();
        let announced = settings.roles.as_ref().and_then(|roles| roles.announced.as_ref());
        let announced = match (door, announced, metrics) {
            (Some(door), Some(announced), Some(metrics)) => Some((door, announced.allow.clone(), metrics)),
            _ => None,
        };
        Self { known, announced }
    }

    /// Keeps asking all of them, and listens for those who announce themselves.
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
        has_roles: settings.roles.is_some(),
    }
}
