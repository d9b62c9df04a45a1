//! The two handles on the fleet: a [`Reader`] for whoever routes, a [`Writer`] for whoever learns about workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use forebay_policy::{Policy, PolicySettings};
use tokio::sync::watch;

use crate::blocker::{Blocker, Rest};
use crate::breaker::BreakerSettings;
use crate::health::HealthSettings;
use crate::ledger::Ledger;
use crate::places::Places;
use crate::ranks::Ranks;
use crate::role::Role;
use crate::served::Models;
use crate::state::{Parts, State};
use crate::url::WorkerUrl;
use crate::worker::host::Host;
use crate::world::World;

/// Makes an empty fleet in epoch 1.
pub fn registry(
    policy: PolicySettings,
    seed: u64,
    health: HealthSettings,
    breaking: BreakerSettings,
) -> (Reader, Writer) {
    let mut state = State::new(policy, seed, health, breaking);
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
    /// Reads the fleet that this one changes.
    pub fn reader(&self) -> Reader {
        Reader(Arc::clone(&self.0))
    }

    /// Registers a URL, behind which there is one worker until somebody says otherwise. One that is already there is
    /// given back as it is.
    pub fn add(&self, url: WorkerUrl) -> Arc<Host> {
        self.add_as(url, Role::default())
    }

    /// The same for a URL whose workers have a role.
    pub fn add_as(&self, url: WorkerUrl, role: Role) -> Arc<Host> {
        self.change(|state| state.add(url, role))
    }

    /// The same for one that says where other workers reach it to hand blocks over, which holds from now on.
    pub fn add_announced(&self, url: WorkerUrl, role: Role, kv_address: &str) -> Arc<Host> {
        let host = self.add_as(url, role);
        self.reached_at(&host, kv_address);
        host
    }

    /// Whether a URL was registered before, or fewer than so many others were. What is registered once keeps its number.
    pub fn has_room_for(&self, url: &WorkerUrl, most: usize) -> bool {
        let state = self.state();
        state.urls.len() < most || state.urls.contains(url)
    }

    /// It says where other workers reach it.
    pub fn reached_at(&self, host: &Host, kv_address: &str) {
        host.reached_at(kv_address);
    }

    /// From now on prefill workers are chosen in this way. Said before there are any.
    pub fn prefill_by(&self, policy: PolicySettings) {
        self.change(|state| state.prefill_policy = Some(policy));
    }

    /// Takes a URL and all workers behind it off the list. Their legs in flight end on their own.
    pub fn remove(&self, host: &Arc<Host>) {
        host.block(Blocker::Removed);
        if self.0.world.load().hosts().iter().any(|known| Arc::ptr_eq(known, host)) {
            self.change(|state| state.remove(host));
        }
        // Whoever keeps asking it finds out.
        host.look_now();
    }

    /// No request is given to a URL any more. What is under way there ends on its own; then [`Self::remove_drained`]
    /// takes it off the list.
    pub fn drain(&self, host: &Arc<Host>) {
        if host.block(Blocker::Draining) {
            self.change(|state| state.changes.fleet += 1);
        }
    }

    /// Takes a drain back. False if the URL is off the list already.
    pub fn undrain(&self, host: &Host) -> bool {
        {
            let _not_removed_meanwhile = self.state();
            if host.blocked_by(Blocker::Removed) {
                return false;
            }
            if !host.unblock(Blocker::Draining) {
                return true;
            }
        }
        self.change(|state| state.changes.fleet += 1);
        true
    }

    /// Takes the URLs off the list that are drained; gives them.
    pub fn remove_drained(&self) -> Vec<Arc<Host>> {
        let world = self.0.world.load_full();
        let drained: Vec<_> = {
            let _not_undrained_meanwhile = self.state();
            let drained: Vec<_> = world.hosts().iter().filter(|host| host.is_drained()).cloned().collect();
            for host in &drained {
                host.block(Blocker::Removed);
            }
            drained
        };
        drained.iter().for_each(|host| self.remove(host));
        drained
    }

    /// Says which ranks are behind a URL: each becomes a worker of its own, and those that are there already stay as they
    /// are. `None` makes it one worker. True if that was not known.
    pub fn ranks(&self, host: &Arc<Host>, ranks: Option<Ranks>) -> bool {
        if host.ranks() == ranks {
            return false;
        }
        self.change(|state| state.set_ranks(host, ranks))
    }

    /// Bounds the legs in flight at each worker that is registered from now on.
    pub fn bound(&self, most: u32) {
        self.change(|state| state.bound = Some(Arc::new(Places::new(most))));
    }

    /// Takes the result of a health probe. True if the URL is in rotation after it.
    pub fn probed(&self, host: &Arc<Host>, good: bool) -> bool {
        let settings = self.state().health.clone();
        // A refused connection, or a request that failed, and a failed probe agree: no need to wait for more of them.
        let was_suspect = host.blocked_by(Blocker::Suspect);
        let agreed = (host.take_accused() || was_suspect) && !good;
        let up = {
            let mut health = host.health();
            let mut up = health.probed(good, &settings);
            while up && agreed {
                up = health.probed(false, &settings);
            }
            up
        };
        let changed = if up { host.unblock(Blocker::Unhealthy) } else { host.block(Blocker::Unhealthy) };
        let cleared = host.unblock(Blocker::Suspect);
        if changed || cleared {
            self.state().note_probed(host, up);
        }
        if changed && !up {
            // Else it had left before.
            if !was_suspect {
                host.note_left();
            }
            // What restarts comes back with an empty cache.
            self.forget(host);
        }
        if changed && up {
            host.forgive();
        }
        if (changed || cleared) && up {
            self.change(|state| state.changes.fleet += 1);
        } else if changed || cleared {
            self.changed();
        }
        up
    }

    /// A URL has carried out an order to rest, or to end its rest. True if that is news.
    pub fn rests(&self, host: &Host, rest: Rest, rests: bool) -> bool {
        self.rest_is_news(host, rests, host.ordered(rest.into(), rests))
    }

    /// Takes what a probe that began at `asked` (of [`Host::news`]) heard of a URL's rest. True if that is news. Orders that
    /// were carried out since are newer.
    pub fn heard_of_rest(&self, host: &Host, rest: Rest, rests: bool, asked: u64) -> bool {
        self.rest_is_news(host, rests, host.heard(rest.into(), rests, asked))
    }

    fn rest_is_news(&self, host: &Host, rests: bool, is_news: bool) -> bool {
        if is_news && rests {
            // Who sleeps gives its memory back; who is stopped empties its cache, unless it is told not to.
            self.emptied(host);
        } else if is_news {
            self.change(|state| state.changes.caches += 1);
        }
        is_news
    }

    /// Takes what a URL says it serves, and its version.
    pub fn learnt(&self, host: &Arc<Host>, models: Models, version: Option<String>) {
        let (old, old_version) = (host.models(), host.version());
        let other_version = old_version.is_some() && version.is_some() && *old_version != version;
        host.set_version(version);
        let is_other = other_version || old.is_other_engine_than(&models);
        if is_other {
            // Another process, or other weights: nothing of what it held is left.
            self.forget(host);
        }
        let is_news = *old != models;
        if is_news {
            host.set_models(models);
        }
        if is_news || is_other {
            self.change(|state| state.changes.fleet += u64::from(is_other));
        }
    }

    /// Takes how many tokens the prefix cache of one rank holds at most; 0 if that is not known.
    pub fn cache_holds(&self, host: &Host, tokens: u64) {
        self.state().set_capacity(host, tokens);
    }

    /// Somebody had the prefix caches behind a URL emptied: no policy believes in them any more.
    pub fn emptied(&self, host: &Host) {
        self.forget(host);
        self.change(|state| state.changes.caches += 1);
    }

    fn forget(&self, host: &Host) {
        let state = self.state();
        host.workers().iter().for_each(|worker| state.forget(worker.slot()));
    }

    /// From now on choices are noted here. The policies begin anew, so that the record has all that they know.
    pub fn note_in(&self, ledger: Arc<Ledger>) {
        self.change(|state| {
            state.note_in(ledger);
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
        drop(state);
        self.changed();
        result
    }

    /// Whoever waits for another view looks at it.
    fn changed(&self) {
        self.0.changes.send_modify(|n| *n += 1);
        let bound = self.state().bound.clone();
        if let Some(places) = bound {
            places.call_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
