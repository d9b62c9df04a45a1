//! One URL: what all workers behind it share, because one process answers for them. Whether it may be chosen is copied into
//! each worker when it changes, so that who chooses reads one word per worker and nothing here.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;

use super::Worker;
use crate::blocker::Blocker;
use crate::breaker::BreakerSettings;
use crate::circuit::Circuit;
use crate::health::Health;
use crate::ranks::Ranks;
use crate::role::Role;
use crate::served::Models;
use crate::url::WorkerUrl;

/// One URL and what is behind it: one worker, or one for each data-parallel rank.
pub struct Host {
    number: u32,
    url: WorkerUrl,
    role: Role,
    /// The bits of [`Ranks`]; 0 if ranks are not told apart.
    ranks: AtomicU64,
    behind: Mutex<Behind>,
    /// Hears of connections that fail, if ranks are told apart: a rank's own breaker hears of its answers.
    pub(crate) circuit: Circuit,
    /// Legs in flight at any of its workers, if ranks are told apart.
    pub(crate) in_flight: AtomicU32,
    health: Mutex<Health>,
    models: ArcSwap<Models>,
    version: ArcSwap<Option<String>>,
    /// Where other workers reach it to hand blocks over.
    kv_address: ArcSwapOption<String>,
    /// Times it left rotation because of its health.
    left_rotation: AtomicU64,
    /// Differs between versions; 0 if none is known.
    version_mark: AtomicU64,
    models_stale: AtomicBool,
    /// A request failed there since the last probe.
    accused: AtomicBool,
    /// Until when it is left alone.
    paused_until_ms: AtomicU64,
    look: Notify,
    /// Somebody keeps asking it.
    is_watched: AtomicBool,
}

/// Those who read what the host says.
struct Behind {
    /// Blockers of the host.
    blockers: u32,
    workers: Vec<Weak<Worker>>,
    /// Times that somebody knew better than a probe that was under way: see [`Host::news`].
    news: u64,
}

impl Host {
    pub(crate) fn new(number: u32, url: WorkerUrl, breaking: Arc<BreakerSettings>, epoch: u64) -> Self {
        Self {
            number,
            url,
            role: Role::default(),
            ranks: AtomicU64::new(0),
            behind: Mutex::new(Behind { blockers: Blocker::Unhealthy as u32, workers: Vec::new(), news: 0 }),
            circuit: Circuit::new(breaking, epoch),
            in_flight: AtomicU32::new(0),
            health: Mutex::new(Health::default()),
            models: ArcSwap::from_pointee(Models::Unread),
            version: ArcSwap::from_pointee(None),
            kv_address: ArcSwapOption::empty(),
            left_rotation: AtomicU64::new(0),
            version_mark: AtomicU64::new(0),
            models_stale: AtomicBool::new(false),
            accused: AtomicBool::new(false),
            paused_until_ms: AtomicU64::new(0),
            look: Notify::new(),
            is_watched: AtomicBool::new(false),
        }
    }

    /// The same in this role.
    pub(crate) fn in_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// What it is for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether both told the same version.
    pub fn is_of_version(&self, mark: u64) -> bool {
        mark != 0 && self.version_mark.load(Ordering::Relaxed) == mark
    }

    /// Differs between versions; 0 if none is known.
    pub fn version_mark(&self) -> u64 {
        self.version_mark.load(Ordering::Relaxed)
    }

    /// Small number of the URL, in order of registration: who keeps connections keeps them by it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where it is reached.
    pub fn url(&self) -> &WorkerUrl {
        &self.url
    }

    /// The ranks behind it, if they are told apart.
    pub fn ranks(&self) -> Option<Ranks> {
        Ranks::from_bits(self.ranks.load(Ordering::Relaxed))
    }

    pub(crate) fn set_ranks(&self, ranks: Option<Ranks>) {
        self.ranks.store(ranks.map_or(0, Ranks::bits), Ordering::Relaxed);
        if ranks.is_none() {
            // From now on the worker's own breaker hears of connections: nobody would close this one any more.
            self.connects();
        }
    }

    /// Whether ranks are told apart.
    pub fn is_ranked(&self) -> bool {
        self.ranks.load(Ordering::Relaxed) != 0
    }

    /// Every worker behind it: first the one that stands for the URL as a whole, then its ranks.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.behind().workers.iter().filter_map(Weak::upgrade).collect()
    }

    /// From now on the worker hears what is said of the host.
    pub(crate) fn joined_by(&self, worker: &Arc<Worker>) {
        let mut behind = self.behind();
        worker.take_blockers(behind.blockers);
        behind.workers.retain(|known| known.strong_count() > 0);
        behind.workers.push(Arc::downgrade(worker));
    }

    /// The worker is none of its own any more.
    pub(crate) fn left_by(&self, worker: &Arc<Worker>) {
        self.behind().workers.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(worker)));
    }

    /// Raises a blocker for all workers behind it; true if it was down before.
    pub(crate) fn block(&self, blocker: Blocker) -> bool {
        self.behind().set(blocker, true)
    }

    /// Lowers a blocker for all workers behind it; true if it was up before.
    pub(crate) fn unblock(&self, blocker: Blocker) -> bool {
        self.behind().set(blocker, false)
    }

    /// Raises or lowers a blocker because of something that a probe under way may not have seen; true if that is a change.
    pub(crate) fn ordered(&self, blocker: Blocker, up: bool) -> bool {
        let mut behind = self.behind();
        behind.news += 1;
        behind.set(blocker, up)
    }

    /// The same because of what a probe heard that began at `asked`. If there was news since, it may have heard what no
    /// longer holds, and changes nothing.
    pub(crate) fn heard(&self, blocker: Blocker, up: bool, asked: u64) -> bool {
        let mut behind = self.behind();
        behind.news == asked && behind.set(blocker, up)
    }

    /// Grows with each order to rest or to wake up that was carried out, and each connection that was refused: whoever
    /// asked before that may hear what no longer holds.
    pub fn news(&self) -> u64 {
        self.behind().news
    }

    /// Whether somebody found its connections refused since a probe began at `asked`.
    pub fn is_suspected_since(&self, asked: u64) -> bool {
        let behind = self.behind();
        behind.news != asked && behind.blockers & Blocker::Suspect as u32 != 0
    }

    /// Whether this blocker of the host is up.
    pub fn blocked_by(&self, blocker: Blocker) -> bool {
        self.behind().blockers & blocker as u32 != 0
    }

    /// Whether probes say that it is well, and nobody has found otherwise since.
    pub fn is_well(&self) -> bool {
        self.behind().blockers & (Blocker::Unhealthy as u32 | Blocker::Suspect as u32) == 0
    }

    /// Its breaker says whether it may be chosen.
    pub(crate) fn heed(&self, is_closed: bool) {
        if is_closed {
            self.unblock(Blocker::HostOpen);
        } else {
            self.block(Blocker::HostOpen);
        }
    }

    /// A new trial begins. That it asked to be left alone was because of the requests of the one before.
    pub(crate) fn reset_breakers(&self, epoch: u64) {
        self.paused_until_ms.store(0, Ordering::Relaxed);
        self.unblock(Blocker::Paused);
        self.circuit.reset(epoch, |is_closed| self.heed(is_closed));
        self.workers().iter().for_each(|worker| worker.reset_breaker(epoch));
    }

    /// A new trial begins with the breakers as they are.
    pub(crate) fn carry_breakers(&self, epoch: u64) {
        self.circuit.carry(epoch);
        self.workers().iter().for_each(|worker| worker.carry_breaker(epoch));
    }

    /// Forgets the streaks and suspicions of its health: one that is down returns with the first good probe, which is
    /// asked for now.
    pub(crate) fn reset_health(&self) {
        let mut health = self.health();
        *health = match *health {
            Health::Up(_) => Health::Up(0),
            Health::New | Health::Down(_) => Health::New,
        };
        drop(health);
        self.unblock(Blocker::Suspect);
        self.look_now();
    }

    /// What is known of connections that failed counts no more.
    pub(crate) fn connects(&self) {
        self.circuit.forgive(|is_closed| self.heed(is_closed));
    }

    /// It was away and is back: another process, as far as anybody knows.
    pub(crate) fn forgive(&self) {
        self.connects();
        self.workers().iter().for_each(|worker| worker.forgive());
    }

    /// A request found its connection refused: out of rotation until a probe has looked, which is asked for now.
    pub fn suspect(&self) {
        if self.ordered(Blocker::Suspect, true) {
            self.note_left();
            self.look_now();
        }
    }

    /// A request failed there: a probe is asked for, which finds out sooner than more requests whether it is dead.
    pub(crate) fn accuse(&self) {
        self.accused.store(true, Ordering::Relaxed);
        self.look_now();
    }

    /// Whether a request failed there since this was asked last.
    pub(crate) fn take_accused(&self) -> bool {
        self.accused.swap(false, Ordering::Relaxed)
    }

    /// It asked to be left alone until then: others are chosen meanwhile, if there are any.
    pub fn pause(&self, until_ms: u64) {
        self.paused_until_ms.fetch_max(until_ms, Ordering::Relaxed);
        self.block(Blocker::Paused);
    }

    /// Whether it is over that it is left alone.
    pub(crate) fn resumes(&self, now_ms: u64) -> bool {
        let is_over = now_ms >= self.paused_until_ms.load(Ordering::Relaxed);
        if is_over {
            self.unblock(Blocker::Paused);
        }
        is_over
    }

    /// Whether it is to be removed and nothing of it is under way any more.
    pub fn is_drained(&self) -> bool {
        self.blocked_by(Blocker::Draining) && self.workers().iter().all(|worker| worker.in_flight() == 0)
    }

    /// It left rotation because of its health.
    pub(crate) fn note_left(&self) {
        self.left_rotation.fetch_add(1, Ordering::Relaxed);
    }

    /// Times it left rotation because of its health, since it was registered.
    pub fn left_rotation(&self) -> u64 {
        self.left_rotation.load(Ordering::Relaxed)
    }

    /// Somebody is about to keep asking it; false if somebody does already.
    pub fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// A probe is asked for.
    pub fn look_now(&self) {
        self.look.notify_one();
    }

    /// Resolves when a probe is asked for.
    pub async fn look_asked(&self) {
        self.look.notified().await;
    }

    /// What it serves may have changed: a probe is asked for now, and to read the models again.
    pub fn may_serve_others(&self) {
        self.models_stale.store(true, Ordering::Relaxed);
        self.look_now();
    }

    /// Whether somebody said that the models may have changed, since this was asked last.
    pub fn take_models_stale(&self) -> bool {
        self.models_stale.swap(false, Ordering::Relaxed)
    }

    /// What it serves, as last read.
    pub fn models(&self) -> Arc<Models> {
        self.models.load_full()
    }

    pub(crate) fn set_models(&self, models: Models) {
        self.models.store(Arc::new(models));
    }

    /// Engine version, if it told one.
    pub fn version(&self) -> Arc<Option<String>> {
        self.version.load_full()
    }

    pub(crate) fn set_version(&self, version: Option<String>) {
        let mark = version.as_deref().map_or(0, mark_of);
        self.version_mark.store(mark, Ordering::Relaxed);
        self.version.store(Arc::new(version));
    }

    /// `host:port` where other workers reach it to hand blocks over, if it said so.
    pub fn kv_address(&self) -> Option<Arc<String>> {
        self.kv_address.load_full()
    }

    /// It said where other workers reach it.
    pub(crate) fn reached_at(&self, address: &str) {
        if self.kv_address().is_none_or(|known| *known != address) {
            self.kv_address.store(Some(Arc::new(address.to_owned())));
        }
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no probe has succeeded yet.
    pub fn never_well(&self) -> bool {
        *self.health() == Health::New
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Behind {
    /// Raises or lowers a blocker for all workers; true if that is a change.
    fn set(&mut self, blocker: Blocker, up: bool) -> bool {
        let was_up = self.blockers & blocker as u32 != 0;
        if up {
            self.blockers |= blocker as u32;
        } else {
            self.blockers &= !(blocker as u32);
        }
        for worker in self.workers.iter().filter_map(Weak::upgrade) {
            if up {
                worker.block(blocker)
            } else {
                worker.unblock(blocker)
            };
        }
        was_up != up
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({} {})", self.number, self.url)
    }
}

/// FNV-1a, never 0: two versions of one fleet do not share it.
fn mark_of(version: &str) -> u64 {
    let step = |mark: u64, byte: u8| (mark ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    version.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}
