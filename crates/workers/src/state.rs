//! What only writers see: who is a member, which slot and policy belongs to whom, and the view that follows from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use forebay_policy::{Policy, PolicySettings, Slot};

use crate::blocker::Blocker;
use crate::breaker::BreakerSettings;
use crate::by::By;
use crate::health::HealthSettings;
use crate::ledger::Ledger;
use crate::note::{Note, PolicyMade};
use crate::places::Places;
use crate::pool::{Candidate, Pool, places_of};
use crate::pools::{Base, Pools};
use crate::ranks::Ranks;
use crate::role::Role;
use crate::served::{Catalogue, Models};
use crate::url::WorkerUrl;
use crate::worker::Worker;
use crate::worker::host::Host;
use crate::world::{Changes, World};

/// The fleet as its writers see it.
pub(crate) struct State {
    policy: PolicySettings,
    /// Of prefill workers, if there are any.
    pub(crate) prefill_policy: Option<PolicySettings>,
    pub(crate) health: HealthSettings,
    breaking: Arc<BreakerSettings>,
    pub(crate) epoch: u64,
    pub(crate) seed: u64,
    generation: u64,
    pub(crate) changes: Changes,
    /// In order of their numbers.
    members: Vec<Member>,
    /// Every URL ever registered, by number, and every identity, by slot: what returns gets its old one.
    pub(crate) urls: Vec<WorkerUrl>,
    slots: Vec<(u32, Option<u32>)>,
    /// Number of each model name ever served.
    labels: HashMap<Arc<str>, u32>,
    // Of the current epoch:
    policies: HashMap<PoolKey, Numbered>,
    served: HashMap<Slot, Arc<AtomicU64>>,
    /// Policies of earlier epochs, kept so that no data thread pays for taking a tree apart.
    pub(crate) retired: Vec<Arc<Policy>>,
    /// Numbers given to policies.
    policies_made: u32,
    /// Where choices and what changes policies are noted, if they are.
    ledger: Option<Arc<Ledger>>,
    /// How many legs a worker may have, if there is a bound.
    pub(crate) bound: Option<Arc<Places>>,
}

/// A policy and its number in the record.
#[derive(Clone)]
struct Numbered {
    number: u32,
    policy: Arc<Policy>,
}

/// A URL on the list.
struct Member {
    host: Arc<Host>,
    /// Stands for the URL: all of it if ranks are not told apart, else for requests that no rank can be told.
    whole: Arc<Worker>,
    ranks: Vec<Arc<Worker>>,
}

/// What a new trial begins afresh with. The rest goes on as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Trees, cursors, draws, and what was learnt of tokens and speeds.
    pub policies: bool,
    /// Circuit breakers with their windows and streaks, and what workers asked for: to be left alone for a while.
    pub breakers: bool,
    /// Streaks of probes, and suspicions: a worker that is down returns with its first good probe.
    pub health: bool,
}

impl Parts {
    /// What a plain reset does: everything but health, which is no fault of the trial before.
    pub const USUAL: Self = Self { policies: true, breakers: true, health: false };
    /// Nothing: only the counts begin anew.
    pub const NONE: Self = Self { policies: false, breakers: false, health: false };
}

type PoolKey = (Kind, Serving);

/// What a set of pools is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Answering(By),
    Prefilling,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Serving {
    Model(Arc<str>),
    Any,
    All,
}

impl State {
    /// Nobody, in epoch 1.
    pub(crate) fn new(
        policy: PolicySettings,
        seed: u64,
        health: HealthSettings,
        breaking: BreakerSettings,
    ) -> Self {
        Self {
            policy,
            prefill_policy: None,
            health,
            breaking: Arc::new(breaking),
            epoch: 1,
            seed,
            generation: 0,
            changes: Changes::default(),
            members: Vec::new(),
            urls: Vec::new(),
            slots: Vec::new(),
            labels: HashMap::new(),
            policies: HashMap::new(),
            served: HashMap::new(),
            retired: Vec::new(),
            policies_made: 0,
            ledger: None,
            bound: None,
        }
    }

    pub(crate) fn add(&mut self, url: WorkerUrl, role: Role) -> Arc<Host> {
        if let Some(member) = self.members.iter().find(|member| *member.host.url() == url) {
            return Arc::clone(&member.host);
        }
        let number = place(&mut self.urls, &url);
        let host = Host::new(number, url, Arc::clone(&self.breaking), self.epoch).in_role(role);
        let host = Arc::new(host);
        let whole = self.worker(&host, None);
        self.changes.fleet += 1;
        let at = self.members.partition_point(|member| member.host.number() < number);
        self.members.insert(at, Member { host: Arc::clone(&host), whole, ranks: Vec::new() });
        host
    }

    pub(crate) fn remove(&mut self, host: &Arc<Host>) {
        for worker in host.workers() {
            self.note(|| Note::Removed { slot: worker.slot() });
            self.forget(worker.slot());
        }
        self.members.retain(|member| !Arc::ptr_eq(&member.host, host));
        self.changes.fleet += 1;
    }

    /// True if these ranks are new to the host.
    pub(crate) fn set_ranks(&mut self, host: &Arc<Host>, ranks: Option<Ranks>) -> bool {
        let Some(at) = self.members.iter().position(|member| Arc::ptr_eq(&member.host, host)) else {
            return false;
        };
        let mut known = std::mem::take(&mut self.members[at].ranks);
        let mut stay = Vec::new();
        for rank in ranks.map(Ranks::iter).into_iter().flatten() {
            let there = known.iter().position(|worker| worker.dp_rank() == Some(rank));
            stay.push(match there {
                Some(there) => known.swap_remove(there),
                None => self.worker(host, Some(rank)),
            });
        }
        for gone in known {
            host.left_by(&gone);
            gone.block(Blocker::Removed);
            self.note(|| Note::Removed { slot: gone.slot() });
            self.forget(gone.slot());
        }
        let changed = host.ranks() != ranks;
        host.set_ranks(ranks);
        self.changes.fleet += u64::from(changed);
        self.members[at].ranks = stay;
        changed
    }

    /// A new worker behind the host.
    fn worker(&mut self, host: &Arc<Host>, dp_rank: Option<u32>) -> Arc<Worker> {
        let slot = Slot(place(&mut self.slots, &(host.number(), dp_rank)));
        let mut worker = Worker::new(slot, host, dp_rank, (Arc::clone(&self.breaking), self.epoch));
        worker.bound.clone_from(&self.bound);
        let worker = Arc::new(worker);
        worker.pace.reset(self.epoch);
        host.joined_by(&worker);
        self.note(|| added(&worker));
        worker
    }

    /// Takes what the prefix cache of each rank of a host holds; all of them together are the host's.
    pub(crate) fn set_capacity(&self, host: &Host, tokens: u64) {
        let ranks = u64::from(host.ranks().map_or(1, Ranks::count));
        for worker in host.workers() {
            let tokens = if worker.dp_rank().is_some() { tokens } else { tokens.saturating_mul(ranks) };
            if worker.cache_tokens() != tokens {
                self.note(|| Note::Capacity { slot: worker.slot(), tokens });
            }
            worker.set_cache_tokens(tokens);
        }
    }

    pub(crate) fn note_probed(&self, host: &Host, up: bool) {
        for worker in host.workers() {
            self.note(|| Note::Probed { slot: worker.slot(), up });
        }
    }

    /// From now on choices are noted here.
    pub(crate) fn note_in(&mut self, ledger: Arc<Ledger>) {
        self.ledger = Some(ledger);
        self.retire_policies();
        for worker in self.members.iter().flat_map(|member| member.host.workers()) {
            self.note(|| added(&worker));
        }
    }

    pub(crate) fn forget(&self, slot: Slot) {
        for Numbered { number, policy } in self.policies.values() {
            policy.forget_and(slot, || self.note(|| Note::Forgot { policy: *number, slot }));
        }
    }

    fn retire_policies(&mut self) {
        let old = self.policies.drain().map(|(_, numbered)| numbered.policy);
        self.retired.extend(old);
    }

    fn note(&self, note: impl FnOnce() -> Note) {
        if let Some(ledger) = &self.ledger {
            ledger.note(note());
        }
    }

    /// The next epoch. What is not reset goes on in it, and hears no more of the requests of the one before.
    pub(crate) fn begin(&mut self, parts: Parts, seed: Option<u64>) {
        self.epoch += 1;
        let (epoch, next_seed) = (self.epoch, seed.unwrap_or(self.seed));
        self.note(|| Note::Reset { epoch, seed: next_seed, policies: parts.policies });
        if parts.policies {
            self.seed = next_seed;
            self.retire_policies();
            self.served.clear();
        }
        for host in self.members.iter().map(|member| &member.host) {
            for worker in host.workers() {
                if parts.policies { worker.pace.reset(epoch) } else { worker.pace.carry(epoch) }
            }
            if parts.breakers {
                host.reset_breakers(epoch);
            } else {
                host.carry_breakers(epoch);
            }
            if parts.health {
                host.reset_health();
            }
        }
    }

    /// The view as of now.
    pub(crate) fn build(&mut self) -> World {
        self.generation += 1;
        let hosts: Box<[_]> = self.members.iter().map(|member| Arc::clone(&member.host)).collect();
        let wholes: Vec<_> = self.members.iter().map(|member| Arc::clone(&member.whole)).collect();
        let mut workers: Vec<_> = self.members.iter().flat_map(Member::choosable).cloned().collect();
        workers.sort_by_key(|worker| worker.slot());
        let is_ranked = workers.len() != wholes.len() || workers.iter().any(|w| w.dp_rank().is_some());
        let models: Vec<_> = hosts.iter().map(|host| host.models()).collect();
        let catalogue = Catalogue::of(&models);
        World {
            epoch: self.epoch,
            seed: self.seed,
            changes: self.changes,
            by_rank: self.pools(Kind::Answering(By::Rank), &workers, &catalogue),
            by_url: is_ranked.then(|| self.pools(Kind::Answering(By::Url), &wholes, &catalogue)),
            prefill: self
                .prefill_policy
                .is_some()
                .then(|| self.pools(Kind::Prefilling, &workers, &catalogue)),
            hosts,
            workers: workers.into(),
            wholes: wholes.into(),
        }
    }

    fn pools(&mut self, kind: Kind, workers: &[Arc<Worker>], catalogue: &Catalogue) -> Pools {
        let models: Vec<_> = workers.iter().map(|worker| worker.models()).collect();
        let pick = |wanted: &dyn Fn(&Models) -> bool| -> Vec<Arc<Worker>> {
            let has_role = |worker: &Worker| worker.host().role().answers() == (kind != Kind::Prefilling);
            let fits = workers.iter().zip(&models).filter(|(worker, m)| has_role(worker) && wanted(m));
            fits.map(|(worker, _)| Arc::clone(worker)).collect()
        };
        let mut by_model = HashMap::new();
        for name in &catalogue.names {
            let pool = self.pool((kind, Serving::Model(Arc::clone(name))), pick(&|m| m.serves(name)));
            by_model.insert(Box::from(&**name), pool);
        }
        let base = match catalogue.bases.as_slice() {
            [] => Base::None,
            [(_, name)] => by_model.get(&**name).map_or(Base::None, |pool| Base::One(Arc::clone(pool))),
            _ => Base::Several,
        };
        let any = pick(&|m| *m == Models::Any);
        Pools {
            any: (!any.is_empty()).then(|| self.pool((kind, Serving::Any), any)),
            all: self.pool((kind, Serving::All), workers.to_vec()),
            read: models.iter().any(|m| **m != Models::Unread),
            by_model,
            base,
        }
    }

    fn pool(&mut self, key: PoolKey, workers: Vec<Arc<Worker>>) -> Arc<Pool> {
        let (kind, serving) = &key;
        let by = if let Kind::Answering(by) = kind { *by } else { By::Rank };
        let model: Arc<str> = match serving {
            Serving::Model(name) => Arc::clone(name),
            Serving::Any | Serving::All => "".into(),
        };
        let label = number_of(&mut self.labels, &model);
        let Numbered { number, policy } = self.policy(key, &model);
        let served = &mut self.served;
        let candidates: Box<[_]> = workers
            .into_iter()
            .map(|worker| Candidate { served: Arc::clone(served.entry(worker.slot()).or_default()), worker })
            .collect();
        let places = places_of(&candidates);
        let (generation, epoch) = (self.generation, self.epoch);
        let (ledger, bound) = (self.ledger.clone(), self.bound.clone());
        Arc::new(Pool {
            model,
            label,
            generation,
            epoch,
            by,
            candidates,
            places,
            policy,
            number,
            ledger,
            bound,
        })
    }

    /// The policy of a pool in this epoch.
    fn policy(&mut self, key: PoolKey, model: &Arc<str>) -> Numbered {
        if let Some(known) = self.policies.get(&key) {
            return known.clone();
        }
        let (number, seed, epoch) = (self.policies_made, self.seed, self.epoch);
        self.policies_made += 1;
        let settings = match (key.0, &self.prefill_policy) {
            (Kind::Prefilling, Some(policy)) => policy,
            (Kind::Prefilling, None) | (Kind::Answering(_), _) => &self.policy,
        };
        let policy = Arc::new(Policy::new(settings, seed));
        self.note(|| {
            let (model, settings) = (Arc::clone(model), settings.clone());
            Note::Policy(PolicyMade { policy: number, epoch, model, seed, settings })
        });
        let numbered = Numbered { number, policy };
        self.policies.insert(key, numbered.clone());
        numbered
    }
}

impl Member {
    /// Those that a request with a prompt may be given to.
    fn choosable(&self) -> &[Arc<Worker>] {
        if self.ranks.is_empty() { std::slice::from_ref(&self.whole) } else { &self.ranks }
    }
}

fn added(worker: &Worker) -> Note {
    Note::Added { slot: worker.slot(), name: worker.name().into(), rank: worker.dp_rank() }
}

/// The number of `what` in the list, at whose end it is put if it is new.
#[expect(clippy::cast_possible_truncation, reason = "fewer than 2^32 workers are ever registered")]
fn place<T: PartialEq + Clone>(list: &mut Vec<T>, what: &T) -> u32 {
    let known = list.iter().position(|it| it == what);
    known.unwrap_or_else(|| {
        list.push(what.clone());
        list.len() - 1
    }) as u32
}

fn number_of(labels: &mut HashMap<Arc<str>, u32>, model: &Arc<str>) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "fewer than 2^32 names are ever served")]
    let next = labels.len() as u32;
    *labels.entry(Arc::clone(model)).or_insert(next)
}
