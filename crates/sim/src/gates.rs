//! Gates hold requests at a stage of their answer until a test lets them go.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore};

use crate::lock::Held;

/// A place in the life of a request where it can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The head was read, the body was not (beyond what came along with the head).
    BeforeBody,
    /// The request was read whole, nothing was answered.
    BeforeHead,
    /// So many records of a streamed answer were sent.
    AfterChunks(usize),
}

#[derive(Debug)]
struct Gate {
    stage: Stage,
    pass: Semaphore,
    held: AtomicUsize,
    changed: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Gates {
    armed: AtomicUsize,
    gates: Mutex<Vec<Arc<Gate>>>,
}

impl Gates {
    /// Whether any gate is closed: asked on every request, so it costs one load.
    pub(crate) fn any(&self) -> bool {
        self.armed.load(Relaxed) > 0
    }

    pub(crate) fn hold(self: &Arc<Self>, stage: Stage) -> HoldGate {
        let gate = Arc::new(Gate {
            stage,
            pass: Semaphore::new(0),
            held: AtomicUsize::new(0),
            changed: Notify::new(),
        });
        self.gates.held().push(gate.clone());
        self.armed.fetch_add(1, Relaxed);
        HoldGate { gate, gates: self.clone() }
    }

    /// Returns when every gate at this stage let the request go.
    pub(crate) async fn pass(&self, stage: Stage) {
        if !self.any() {
            return;
        }
        let here: Vec<_> = self.gates.held().iter().filter(|gate| gate.stage == stage).cloned().collect();
        for gate in here {
            let _held = InGate::enter(&gate);
            if let Ok(permit) = gate.pass.acquire().await {
                permit.forget();
            }
        }
    }
}

/// One held request in the count, also if its client leaves.
struct InGate<'a>(&'a Gate);

impl<'a> InGate<'a> {
    fn enter(gate: &'a Gate) -> Self {
        gate.held.fetch_add(1, Relaxed);
        gate.changed.notify_waiters();
        Self(gate)
    }
}

impl Drop for InGate<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Relaxed);
        self.0.changed.notify_waiters();
    }
}

/// A closed gate. It holds requests that carry a prompt; dropping it lets all of them go.
#[derive(Debug)]
pub struct HoldGate {
    gate: Arc<Gate>,
    gates: Arc<Gates>,
}

impl HoldGate {
    /// Requests held here now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.gate.held.load(Relaxed)
    }

    /// Waits until exactly `count` requests are held here.
    pub async fn wait_held(&self, count: usize) {
        loop {
            let changed = self.gate.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.held() == count {
                return;
            }
            changed.await;
        }
    }

    /// Lets one request go: the one that waited longest, or the next to come.
    pub fn release_one(&self) {
        self.gate.pass.add_permits(1);
    }

    /// Opens the gate for good.
    pub fn release(self) {}
}

impl Drop for HoldGate {
    fn drop(&mut self) {
        self.gates.gates.held().retain(|gate| !Arc::ptr_eq(gate, &self.gate));
        self.gates.armed.fetch_sub(1, Relaxed);
        self.gate.pass.close();
    }
}
