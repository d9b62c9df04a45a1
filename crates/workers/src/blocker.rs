//! Why a worker may not be chosen. Who says so is in the files of those who do.

/// Why a worker may not be chosen. A worker without any blocker is eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Blocker {
    /// Probes say that its host is down, or none has succeeded yet.
    Unhealthy = 1,
    /// A request met a refused connection at its host; the next probe decides.
    Suspect = 2,
    /// It was taken off the list.
    Removed = 4,
    /// Its circuit breaker is open or half-open.
    Open = 8,
    /// So is the one of its host.
    HostOpen = 16,
    /// It asked to be left alone for a while.
    Paused = 32,
    /// It is to be removed when its last leg has ended.
    Draining = 64,
    /// It sleeps: its weights may be gone.
    Asleep = 128,
    /// It was told to take no requests, as for an update of its weights.
    Stopped = 256,
}

/// Why a worker that is well takes no requests until it is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// vLLM's `/sleep`, until `/wake_up`.
    Asleep,
    /// vLLM's `/pause`, until `/resume`.
    Stopped,
}

impl From<Rest> for Blocker {
    fn from(rest: Rest) -> Self {
        match rest {
            Rest::Asleep => Self::Asleep,
            Rest::Stopped => Self::Stopped,
        }
    }
}

/// Blockers of a worker that answers all the same, be it with a refusal, or keeps requests for later.
pub(crate) const PATIENCE: u32 = Blocker::Paused as u32 | Blocker::Stopped as u32;

/// Blockers that let requests pass now and then.
pub(crate) const BREAKERS: u32 = Blocker::Open as u32 | Blocker::HostOpen as u32;
