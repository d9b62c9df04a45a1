//! The fleet by the settings: how its workers are chosen, and who is known from the start. Asks nobody.

use forebay_workers::{Reader, Role, WorkerUrl, Writer, registry};

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
