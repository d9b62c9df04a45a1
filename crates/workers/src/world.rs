//! The immutable view that a request is routed by: an epoch, its pools and their policies.

use std::sync::Arc;

use forebay_policy::{PolicyKind, Slot};

use crate::by::{By, PoolError};
use crate::ledger::Ledger;
use crate::pool::Pool;
use crate::pools::Pools;
use crate::worker::Worker;
use crate::worker::host::Host;

/// What has happened to a fleet that makes what is measured before and after it differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Changes {
    /// Times that a worker came, went, was drained, returned to rotation, or became another one (other version or weights).
    pub fleet: u64,
    /// Times that prefix caches were emptied, or their worker put to rest or woken up, in the midst of an epoch.
    pub caches: u64,
}

/// One epoch's view of the fleet. A request keeps the one it was admitted under.
pub struct World {
    pub(crate) epoch: u64,
    pub(crate) seed: u64,
    pub(crate) changes: Changes,
    pub(crate) hosts: Box<[Arc<Host>]>,
    pub(crate) workers: Box<[Arc<Worker>]>,
    /// One for each host.
    pub(crate) wholes: Box<[Arc<Worker>]>,
    pub(crate) by_rank: Pools,
    /// `None` if ranks are told apart nowhere: it would be the same.
    pub(crate) by_url: Option<Pools>,
    /// Prefill workers, if there is such a role.
    pub(crate) prefill: Option<Pools>,
}

impl World {
    /// Number of the current trial, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Seed that the policies of this epoch draw from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Where choices, and how their requests ended, are noted, if they are.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.by_rank.all.ledger.as_deref()
    }

    /// What has happened to the fleet since the process began.
    pub fn changes(&self) -> Changes {
        self.changes
    }

    /// Every worker that a request with a prompt may be given to, in slot order: ranks where they are told apart.
    pub fn workers(&self) -> &[Arc<Worker>] {
        &self.workers
    }

    /// The worker of this slot, or the URL, if it is on the list.
    pub fn worker(&self, slot: Slot) -> Option<&Arc<Worker>> {
        let among = |list: &'_ [Arc<Worker>]| list.binary_search_by_key(&slot, |worker| worker.slot()).ok();
        let of_workers = among(&self.workers).map(|at| &self.workers[at]);
        of_workers.or_else(|| among(&self.wholes).map(|at| &self.wholes[at]))
    }

    /// Every URL, in order of registration.
    pub fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }

    /// Every URL as the one worker that stands for it, in order of registration.
    pub fn wholes(&self) -> &[Arc<Worker>] {
        &self.wholes
    }

    /// Everybody who carries load: workers, and URLs that have ranks.
    pub fn carriers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.iter().chain(self.wholes.iter().filter(|whole| whole.host().is_ranked()))
    }

    /// Whether a worker could be chosen now.
    pub fn ready(&self) -> bool {
        self.workers.iter().any(|worker| worker.eligible() && worker.host().role().answers())
    }

    /// The pool of all workers, for requests that no model decides.
    pub fn all(&self, by: By) -> &Arc<Pool> {
        &self.by(by).all
    }

    /// The pools of those that answer, by the name that requests give, in no order: of ranks, and of URLs where ranks are told
    /// apart.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.by_rank.named().chain(self.by_url.iter().flat_map(Pools::named))
    }

    /// The pools of prefill workers, the one of all included, in no order.
    pub fn prefill_pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        let pools = self.prefill.iter();
        pools.flat_map(|pools| pools.named().chain([&pools.all]))
    }

    /// The pool for a request that names `model`, or none.
    pub fn pool(&self, by: By, model: Option<&str>) -> Result<&Arc<Pool>, PoolError> {
        self.by(by).find(model)
    }

    /// The prefill workers for a request that names `model`, if there are any.
    pub fn prefill_pool(&self, model: Option<&str>) -> Option<&Pool> {
        self.prefill.as_ref()?.find(model).ok().map(|pool| &**pool)
    }

    /// Times the worker was chosen in this epoch, whatever its role.
    pub fn served(&self, slot: Slot) -> u64 {
        let prefill = self.prefill.as_ref().map_or(0, |pools| pools.all.served(slot));
        prefill.max(self.by_rank.all.served(slot))
    }

    /// The policies that a request may be decided by.
    pub fn policies(&self, by: By) -> [PolicyKind; 2] {
        let kind = self.all(by).policy().kind();
        [kind, self.prefill.as_ref().map_or(kind, |pools| pools.all.policy().kind())]
    }

    fn by(&self, by: By) -> &Pools {
        match (by, &self.by_url) {
            (By::Url, Some(pools)) => pools,
            (By::Rank, _) | (By::Url, None) => &self.by_rank,
        }
    }
}
