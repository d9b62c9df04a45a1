//! Has workers probed, each by a task of its own beside the others, from the moment that somebody names them.

use std::sync::Arc;

use forebay_workers::{Host, Role, WorkerUrl};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::probe::Probe;

/// Puts workers on the list. Whoever learns of a worker names it here.
#[derive(Clone)]
pub struct Watcher {
    /// What each probe task works with.
    pub probe: Probe,
    /// Where probe tasks run, whoever named the worker.
    pub runtime: Handle,
    /// Who waits for their end.
    pub tasks: TaskTracker,
}

impl Watcher {
    /// Registers a URL in a role and has it probed from now on. One that is there already is given back as it is; says
    /// whether this one is new.
    pub fn watch(&self, url: WorkerUrl, role: Role) -> (Arc<Host>, bool) {
        let host = self.probe.writer.add_as(url, role);
        let is_new = host.begin_watch();
        if is_new {
            if let Some(ranks) = self.probe.settings.ranks_of(role).given() {
                self.probe.writer.ranks(&host, Some(ranks));
            }
            self.tasks.spawn_on(self.probe.clone().run(Arc::clone(&host)), &self.runtime);
        }
        (host, is_new)
    }

    /// The same for the workers of a list, in its order.
    pub fn watch_all(&self, workers: &[(WorkerUrl, Role)]) {
        for (url, role) in workers {
            self.watch(url.clone(), *role);
        }
    }
}
