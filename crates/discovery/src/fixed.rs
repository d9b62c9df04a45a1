//! The list of workers given at start.

use forebay_workers::WorkerUrl;
use tokio_util::task::TaskTracker;

use crate::probe::Probe;

/// Registers the workers in the order of the list and keeps asking each of them.
pub fn watch_all(probe: &Probe, urls: &[WorkerUrl], tasks: &TaskTracker) {
    for url in urls {
        let host = probe.writer.add(url.clone());
        probe.settings.ranks.given().map(|ranks| probe.writer.ranks(&host, Some(ranks)));
        tasks.spawn(probe.clone().run(host));
    }
}
