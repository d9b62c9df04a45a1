//! The two handles on the fleet: a [`Reader`] for whoever routes, a [`Writer`] for whoever learns about workers.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use forebay_policy::{Policy, PolicySettings, Slot};
use tokio::sync::watch;

use crate::breaker::BreakerSettings;
use crate::health::HealthSettings;
use crate::ledger::Ledger;
use crate::note::{Note, PolicyMade};
use crate::served::{Catalogue, Models};
use crate::url::WorkerUrl;
use crate::worker::{Blocker, Worker};
use crate::world::{Base, Candidate, Pool, World};

/// Makes an empty fleet in epoch 1.
pub fn registry(
    policy: PolicySettings,
    seed: u64,
    health: HealthSettings,
    breaking: BreakerSettings,
) -> (Reader, Writer) {
    let mut state = State {
        policy,
        health,
        breaking: Arc::new(breaking),
        epoch: 1,
        seed,
        generation: 0,
        members: Vec::new(),
        slots: Vec::new(),
        labels: HashMap::new(),
        policies: HashMap::new(),
        policies_made: 0,
        ledger: None,
        served: HashMap::new(),
        retired: Vec::new(),
    };
    let world = ArcSwap::from_pointee(state.build());
    let shared = Arc::new(Shared { world, changes: watch::Sender::new(0), state: Mutex::new(state) });
    (Reader(Arc::clone(&shared)), Writer(shared))
}

/// Reads the fleet.
#[derive(Clone)]
pub struct Reader(Arc<Shared>);

/// Changes the fleet. Its calls are serialised; none of them waits for anything.
#[derive(Clone)]
pub struct Writer(Arc<Shared>);

struct Shared {
    world: ArcSwap<World>,
    changes: watch::Sender<u64>,
    state: Mutex<State>,
}

/// What only writers see.
struct State {
    policy: PolicySettings,
    health: HealthSettings,
    breaking: Arc<BreakerSettings>,
    epoch: u64,
    seed: u64,
    generation: u64,
    members: Vec<Arc<Worker>>,
    /// Every identity ever registered, by slot: one that returns gets its old slot.
    slots: Vec<(WorkerUrl, Option<u32>)>,
    /// Number of each model name ever served.
    labels: HashMap<Arc<str>, u32>,
    // Of the current epoch:
    policies: HashMap<PoolKey, Numbered>,
    served: HashMap<Slot, Arc<AtomicU64>>,
    /// Policies of earlier epochs, kept so that no data thread pays for taking a tree apart.
    retired: Vec<Arc<Policy>>,
    /// Numbers given to policies.
    policies_made: u32,
    /// Where choices and what changes policies are noted, if they are.
    ledger: Option<Arc<Ledger>>,
}

/// A policy and its number in the record.
#[derive(Clone)]
struct Numbered {
    number: u32,
    policy: Arc<Policy>,
}

/// What a new trial begins afresh with. The rest goes on as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Trees, cursors, draws, and what was learnt of tokens and speeds.
    pub policies: bool,
    /// Circuit breakers with their windows and streaks.
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum PoolKey {
    Model(Arc<str>),
    Any,
    All,
}

impl Reader {
    /// The view as of now.
    pub fn world(&self) -> Arc<World> {
        self.0.world.load_full()
    }

    /// Whether this is still the view.
    pub fn is_current(&self, world: &Arc<World>) -> bool {
        Arc::ptr_eq(&self.0.world.load(), world)
    }

    /// Resolves to the view as soon as `wanted` holds of it.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&World) -> bool) -> Arc<World> {
        let mut changes = self.0.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let world = self.world();
            if wanted(&world) {
                return world;
            }
            if changes.changed().await.is_err() {
                return world;
            }
        }
    }
}

impl Writer {
    /// Registers a worker. One that is already there is given back as it is.
    pub fn add(&self, url: WorkerUrl, dp_rank: Option<u32>) -> Arc<Worker> {
        self.change(|state| {
            let known = state.members.iter().find(|w| *w.url() == url && w.dp_rank() == dp_rank);
            if let Some(worker) = known {
                return Arc::clone(worker);
            }
            let identity = (url, dp_rank);
            let slot = state.slots.iter().position(|s| *s == identity).unwrap_or_else(|| {
                state.slots.push(identity.clone());
                state.slots.len() - 1
            });
            #[expect(
                clippy::cast_possible_truncation,
                reason = "fewer than 2^32 workers are ever registered"
            )]
            let slot = Slot(slot as u32);
            let breaking = Arc::clone(&state.breaking);
            let worker = Arc::new(Worker::new(slot, identity.0, identity.1, breaking));
            worker.reset_breaker(state.epoch);
            worker.pace.reset(state.epoch);
            state.note(|| Note::Added { slot, name: worker.name().into() });
            let at = state.members.partition_point(|w| w.slot() < worker.slot());
            state.members.insert(at, Arc::clone(&worker));
            worker
        })
    }

    /// Takes a worker off the list. Its legs in flight end on their own.
    pub fn remove(&self, worker: &Arc<Worker>) {
        worker.block(Blocker::Removed);
        self.change(|state| {
            state.members.retain(|w| !Arc::ptr_eq(w, worker));
            state.note(|| Note::Removed { slot: worker.slot() });
            state.forget(worker.slot());
        });
    }

    /// Takes the result of a health probe. True if the worker is in rotation after it.
    pub fn probed(&self, worker: &Arc<Worker>, good: bool) -> bool {
        let settings = self.state().health.clone();
        // A refused connection and a failed probe agree: no need to wait for more of them.
        let agreed = !good && worker.blocked_by(Blocker::Suspect);
        let up = {
            let mut health = worker.health();
            let mut up = health.probed(good, &settings);
            while up && agreed {
                up = health.probed(false, &settings);
            }
            up
        };
        let changed = if up { worker.unblock(Blocker::Unhealthy) } else { worker.block(Blocker::Unhealthy) };
        let cleared = worker.unblock(Blocker::Suspect);
        if changed || cleared {
            self.state().note(|| Note::Probed { slot: worker.slot(), up });
        }
        if changed && !up {
            // What restarts comes back with an empty cache.
            self.forget(worker);
        }
        if changed && up {
            worker.forgive();
        }
        if changed || cleared {
            self.0.changes.send_modify(|n| *n += 1);
        }
        up
    }

    /// Takes what the worker says it serves, and its version.
    pub fn learnt(&self, worker: &Arc<Worker>, models: Models, version: Option<String>) {
        let (old, old_version) = (worker.models(), worker.version());
        let other_version = old_version.is_some() && version.is_some() && *old_version != version;
        worker.set_version(version);
        if other_version || old.is_other_engine_than(&models) {
            // Another process, or other weights: nothing of what it held is left.
            self.forget(worker);
        }
        if *old != models {
            worker.set_models(models);
            self.change(|_| ());
        }
    }

    /// Takes how many tokens the worker's prefix cache holds at most; 0 if that is not known.
    pub fn cache_holds(&self, worker: &Worker, tokens: u64) {
        if worker.cache_tokens() != tokens {
            self.state().note(|| Note::Capacity { slot: worker.slot(), tokens });
        }
        worker.set_cache_tokens(tokens);
    }

    /// The worker's prefix cache is empty or void: no policy believes in it any more.
    pub fn forget(&self, worker: &Worker) {
        self.state().forget(worker.slot());
    }

    /// From now on choices are noted here. The policies begin anew, so that the record has all that they know.
    pub fn note_in(&self, ledger: Arc<Ledger>) {
        self.change(|state| {
            state.ledger = Some(ledger);
            state.retire_policies();
            for worker in &state.members {
                state.note(|| Note::Added { slot: worker.slot(), name: worker.name().into() });
            }
        });
    }

    /// Starts the next epoch with these parts fresh, with the same seed unless another is given. Loads stay as they are.
    pub fn reset(&self, parts: Parts, seed: Option<u64>) -> Arc<World> {
        self.change(|state| state.begin(parts, seed));
        self.0.world.load_full()
    }

    /// Policies of earlier epochs that no request holds any more. Dropping them takes trees apart, which can take
    /// milliseconds: whoever calls this does it where nobody waits.
    #[must_use]
    pub fn take_retired(&self) -> Vec<Arc<Policy>> {
        self.state().retired.extract_if(.., |policy| Arc::strong_count(policy) == 1).collect()
    }

    /// Applies a change and publishes the view that follows from it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let world = state.build();
        self.0.world.store(Arc::new(world));
        self.0.changes.send_modify(|n| *n += 1);
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next epoch. What is not reset goes on in it, and hears no more of the requests of the one before.
    fn begin(&mut self, parts: Parts, seed: Option<u64>) {
        self.epoch += 1;
        let (epoch, next_seed) = (self.epoch, seed.unwrap_or(self.seed));
        self.note(|| Note::Reset { epoch, seed: next_seed });
        if parts.policies {
            self.seed = next_seed;
            self.retire_policies();
            self.served.clear();
            self.members.iter().for_each(|worker| worker.pace.reset(epoch));
        } else {
            self.members.iter().for_each(|worker| worker.pace.carry(epoch));
        }
        for worker in &self.members {
            if parts.breakers {
                worker.reset_breaker(epoch);
            } else {
                worker.carry_breaker(epoch);
            }
            if parts.health {
                worker.reset_health();
            }
        }
    }

    fn forget(&self, slot: Slot) {
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

    fn build(&mut self) -> World {
        self.generation += 1;
        let members = self.members.clone();
        let models: Vec<_> = members.iter().map(|w| w.models()).collect();
        let pick = |wanted: &dyn Fn(&Models) -> bool| -> Vec<Arc<Worker>> {
            members.iter().zip(&models).filter(|(_, m)| wanted(m)).map(|(w, _)| Arc::clone(w)).collect()
        };
        let catalogue = Catalogue::of(&models);
        let mut by_model = HashMap::new();
        for name in &catalogue.names {
            let pool = self.pool(PoolKey::Model(Arc::clone(name)), pick(&|m| m.serves(name)));
            by_model.insert(Box::from(&**name), pool);
        }
        let base = match catalogue.bases.as_slice() {
            [] => Base::None,
            [(_, name)] => by_model.get(&**name).map_or(Base::None, |pool| Base::One(Arc::clone(pool))),
            _ => Base::Several,
        };
        let any = pick(&|m| *m == Models::Any);
        World {
            epoch: self.epoch,
            seed: self.seed,
            any: (!any.is_empty()).then(|| self.pool(PoolKey::Any, any)),
            all: self.pool(PoolKey::All, members.clone()),
            read: models.iter().any(|m| **m != Models::Unread),
            workers: members.into(),
            by_model,
            base,
        }
    }

    fn pool(&mut self, key: PoolKey, workers: Vec<Arc<Worker>>) -> Arc<Pool> {
        let model: Arc<str> = match &key {
            PoolKey::Model(name) => Arc::clone(name),
            PoolKey::Any | PoolKey::All => "".into(),
        };
        #[expect(clippy::cast_possible_truncation, reason = "fewer than 2^32 names are ever served")]
        let next = self.labels.len() as u32;
        let label = *self.labels.entry(Arc::clone(&model)).or_insert(next);
        let Numbered { number, policy } = self.policy(key, &model);
        let served = &mut self.served;
        let candidates = workers
            .into_iter()
            .map(|worker| Candidate { served: Arc::clone(served.entry(worker.slot()).or_default()), worker })
            .collect();
        let (generation, epoch, ledger) = (self.generation, self.epoch, self.ledger.clone());
        Arc::new(Pool { model, label, generation, epoch, candidates, policy, number, ledger })
    }

    /// The policy of a pool in this epoch.
    fn policy(&mut self, key: PoolKey, model: &Arc<str>) -> Numbered {
        if let Some(known) = self.policies.get(&key) {
            return known.clone();
        }
        let (number, seed, epoch) = (self.policies_made, self.seed, self.epoch);
        self.policies_made += 1;
        let policy = Arc::new(Policy::new(&self.policy, seed));
        self.note(|| {
            let (model, settings) = (Arc::clone(model), self.policy.clone());
            Note::Policy(PolicyMade { policy: number, epoch, model, seed, settings })
        });
        let numbered = Numbered { number, policy };
        self.policies.insert(key, numbered.clone());
        numbered
    }
}

#[cfg(test)]
mod tests;
