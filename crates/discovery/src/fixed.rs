//! The list of workers given at start.

use forebay_workers::{Role, WorkerUrl};
use tokio_util::task::TaskTracker;

use crate::probe::Probe;

/// Registers the workers in the order of the list and keeps asking each of them.
pub fn watch_all(probe: &Probe, workers: &[(WorkerUrl, Role)], tasks: &TaskTracker) {
    for (url, role) in workers {
        let host = probe.writer.add_as(url.clone(), *role);
        probe.settings.ranks_of(*role).given().map(|ranks| probe.writer.ranks(&host, Some(ranks)));
        tasks.spawn(probe.clone().run(host));
    }
}
