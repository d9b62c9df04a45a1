//! What a test can see of a worker and do to it while it runs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::watch;

use crate::counters::Stats;
use crate::engine::EngineLoad;
use crate::faults::{Fault, FaultRule, Scope, When};
use crate::gates::{HoldGate, Stage};
use crate::lock::Held;
use crate::record::Recorded;
use crate::serve::Served;

/// What a worker's port does with new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// They are accepted.
    Accepting,
    /// They are completed by the kernel, but the worker does not take them up.
    Paused,
    /// They are refused; the port stays reserved for the worker.
    Refusing,
}

/// Handle on a running worker. Clones are handles on the same worker.
#[derive(Clone, Debug)]
pub struct Control {
    pub(crate) served: Arc<Served>,
    pub(crate) listening: watch::Sender<Listening>,
    /// What the accept loop has got to.
    pub(crate) reached: watch::Receiver<Listening>,
}

impl Control {
    /// The worker's counts now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.served.state.counters.stats()
    }

    /// Requests whose head was read and that are not over.
    #[must_use]
    pub fn open_requests(&self) -> u64 {
        self.stats().open_requests
    }

    /// Requests answered to the last byte.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.stats().served
    }

    /// Requests given up because the client left.
    #[must_use]
    pub fn aborted(&self) -> u64 {
        self.stats().aborted
    }

    /// Waits until the counts are as wanted, and returns them.
    pub async fn wait_until(&self, mut wanted: impl FnMut(&Stats) -> bool) -> Stats {
        let counters = &self.served.state.counters;
        counters.wait_for(|| Some(counters.stats()).filter(&mut wanted)).await
    }

    /// Requests running and waiting in the engine model.
    #[must_use]
    pub fn engine_load(&self) -> EngineLoad {
        let now = self.served.state.now();
        self.served.state.engine.held().load(now)
    }

    /// Blocks in the engine's prefix cache.
    #[must_use]
    pub fn cached_blocks(&self) -> usize {
        self.served.state.engine.held().cached_blocks()
    }

    /// Tokens asked of the prefix cache of each rank, and those of them that were there.
    #[must_use]
    pub fn rank_tokens(&self) -> Vec<(u64, u64)> {
        let engines = self.served.state.engine.held();
        engines.each().map(|(_, engine)| (engine.queried_tokens(), engine.hit_tokens())).collect()
    }

    /// Has other data-parallel ranks from now on. Those that stay keep their caches.
    pub fn set_ranks(&self, ranks: std::ops::Range<u32>) {
        self.served.state.engine.held().resize(ranks);
    }

    /// Serves this base model alone from now on, as another worker in its place would.
    pub fn swap(&self, model: &str) {
        self.served.state.become_another(model);
    }

    /// Requests recorded so far, in order, the oldest possibly dropped.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.served.state.recorder.all()
    }

    /// Recorded requests for one path (without query).
    #[must_use]
    pub fn requests_to(&self, path: &str) -> Vec<Recorded> {
        self.requests().into_iter().filter(|recorded| recorded.path() == path).collect()
    }

    /// Takes the recorded requests out of the recorder.
    #[must_use]
    pub fn take_requests(&self) -> Vec<Recorded> {
        self.served.state.recorder.take()
    }

    /// Waits until `count` requests for a path are recorded, and returns them.
    pub async fn wait_requests_to(&self, path: &str, count: usize) -> Vec<Recorded> {
        let enough = || Some(self.requests_to(path)).filter(|requests| requests.len() >= count);
        self.served.state.counters.wait_for(enough).await
    }

    /// Switches the recorder.
    pub fn record(&self, on: bool) {
        self.served.state.recorder.switch(on);
    }

    /// Closes a gate; close it before the request is sent.
    #[must_use = "the gate opens when the handle is dropped"]
    pub fn hold(&self, stage: Stage) -> HoldGate {
        self.served.state.gates.hold(stage)
    }

    /// Adds a rule; rules are asked in the order in which they were added.
    pub fn add_fault(&self, rule: FaultRule) {
        self.served.state.faults.add(rule);
    }

    /// The next `count` requests that carry a prompt meet this fault.
    pub fn fail_next(&self, count: usize, fault: Fault) {
        self.add_fault(FaultRule { fault, when: When::Next(count), scope: Scope::Inference });
    }

    /// Every request that carries a prompt meets this fault.
    pub fn fail_always(&self, fault: Fault) {
        self.add_fault(FaultRule { fault, when: When::Always, scope: Scope::Inference });
    }

    /// Removes all rules.
    pub fn clear_faults(&self) {
        self.served.state.faults.clear();
    }

    /// What `/health` answers: 200, or a dead engine's 503. With anything but 200, prompts are answered with 500.
    pub fn set_health(&self, status: u16) {
        self.served.state.health.store(status, Relaxed);
    }

    /// Sets what the port does with new connections, and returns when it does.
    pub async fn listen(&self, listening: Listening) {
        self.listening.send_replace(listening);
        let mut reached = self.reached.clone();
        // An error means that the worker was stopped: then nothing listens any more.
        let _ = reached.wait_for(|now| *now == listening).await;
    }

    /// Stops taking up new connections; the kernel still completes them.
    pub async fn pause_accept(&self) {
        self.listen(Listening::Paused).await;
    }

    /// Refuses new connections.
    pub async fn refuse_connections(&self) {
        self.listen(Listening::Refusing).await;
    }

    /// Accepts connections again.
    pub async fn accept(&self) {
        self.listen(Listening::Accepting).await;
    }
}
