//! The fleet by the settings: how its workers are chosen and probed, and who is known from the start. Asks nobody.

use std::sync::Arc;

use forebay_discovery::probe::Probe;
use forebay_discovery::{Misfit, ProbeSettings, Watcher};
use forebay_workers::{Reader, Role, WorkerUrl, Writer, registry};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::Fleet;
use crate::settings::Settings;

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

/// Workers known from the start, in their roles.
pub(crate) fn known(settings: &Settings) -> Vec<(WorkerUrl, Role)> {
    let regular = settings.worker_urls.iter().map(|url| (url.clone(), Role::Regular));
    let others = settings.roles.iter().flat_map(|roles| roles.workers.iter().cloned());
    regular.chain(others).collect()
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
