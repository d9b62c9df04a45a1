//! What a request has been through, as far as it says who may not be asked.

use forebay_policy::Slot;

use crate::worker::Worker;
use crate::worker::host::Host;

/// The workers one request has tried, and the only rank and the only URL it may try. Empty for nearly every request, so it allocates only
/// when used.
#[derive(Debug, Clone, Default)]
pub struct Tried {
    slots: Vec<Slot>,
    rank: Option<u32>,
    /// Number of the URL that nobody else can stand in for.
    host: Option<u32>,
    /// Nobody of another version.
    version: Option<u64>,
}

impl Tried {
    /// Nobody yet. With a rank, workers that have another one are not asked.
    pub fn with_rank(rank: Option<u32>) -> Self {
        Self { rank, ..Self::default() }
    }

    /// The same, and of a URL that nobody else can stand in for only its own workers are asked.
    pub fn with_rank_of(host: Option<u32>, rank: Option<u32>) -> Self {
        Self { host, ..Self::with_rank(rank) }
    }

    /// Whether the worker may be asked.
    pub(crate) fn allows(&self, worker: &Worker) -> bool {
        self.rank.is_none_or(|rank| worker.dp_rank().is_none_or(|own| own == rank))
            && self.host.is_none_or(|host| worker.host().number() == host)
            && !self.contains(worker.slot())
            && self.version.is_none_or(|mark| worker.host().is_of_version(mark))
    }

    /// Notes a worker.
    pub fn add(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// Notes every worker behind a URL, since what one of them said holds for all.
    pub fn add_all_of(&mut self, host: &Host) {
        self.slots.extend(host.workers().iter().map(|worker| worker.slot()));
    }

    /// Whether it was tried.
    pub fn contains(&self, slot: Slot) -> bool {
        self.slots.contains(&slot)
    }

    /// How many were tried.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// From now on only workers are of use that told the same version as this one. If it told none, nobody is.
    pub fn only_version_of(&mut self, worker: &Worker) {
        self.version = Some(worker.host().version_mark());
    }
}
