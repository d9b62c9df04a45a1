//! What one data thread has under way, with its part of each trial's counts. Only that thread takes the lock, but for
//! somebody who reads a report or begins a trial.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_policy::Slot;
use forebay_workers::Reader;
use http::HeaderValue;

use crate::account::{Account, Place};
use crate::trial::gate::Gate;
use crate::trial::named::NamedTrial;
use crate::trial::tally::{ByModel, Tally, add_models};

/// The requests of one data thread.
pub(crate) struct Roll {
    gate: Arc<Gate>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    /// By place. Places are used again and again.
    entries: Vec<Option<Entry>>,
    places: Vec<Arc<Place>>,
    free: Vec<usize>,
    /// Oldest first; the last is the current trial's.
    tallies: Vec<Tally>,
}

struct Entry {
    epoch: u64,
    id: Option<HeaderValue>,
    route: &'static str,
    since: Instant,
}

/// A request that is under way.
#[derive(Debug, Clone)]
pub struct UnderWay {
    /// Its trial.
    pub epoch: u64,
    /// Its id.
    pub id: String,
    /// The route that it came by.
    pub route: &'static str,
    /// The worker it was given to.
    pub worker: Option<Slot>,
    /// Since its head came.
    pub age: Duration,
}

impl Roll {
    /// An empty one for the trial `epoch`.
    pub(crate) fn new(gate: &Arc<Gate>, epoch: u64) -> Self {
        let pages = Pages { tallies: vec![Tally::new(epoch)], ..Pages::default() };
        Self { gate: Arc::clone(gate), pages: Mutex::new(pages) }
    }

    /// Takes a request into the current trial; `None` while requests are held. From now on it lives by the world that is
    /// noted in its account.
    pub(crate) fn enter(self: &Arc<Self>, reader: &Reader, account: &mut Account) -> Option<Entered> {
        // Under the lock, so that whoever takes it after a hold began has seen the last one enter.
        let mut pages = self.pages();
        if self.gate.is_held() {
            return None;
        }
        if !reader.is_current(&account.world) {
            account.world = reader.world();
        }
        let epoch = account.world.epoch();
        let entry =
            Entry { epoch, id: account.id.clone(), route: account.route.template, since: account.started };
        let at = pages.take_place(entry);
        let place = Arc::clone(&pages.places[at]);
        let under_way = (pages.entries.len() - pages.free.len()) as u64;
        let tally = pages.tally(epoch);
        tally.peak = tally.peak.max(under_way);
        if tally.before.is_none() {
            tally.before = Some(account.world.changes());
        }
        drop(pages);
        account.attempts.place = Some(place);
        Some(Entered { roll: Arc::clone(self), named: None, at, epoch, is_open: true })
    }

    /// Counts a request that was never taken into a trial. It counts in the current one: what older ones came to may have
    /// been read for the last time.
    pub(crate) fn count(&self, account: &Account) {
        self.pages().tally(u64::MAX).count(account);
    }

    /// Begins a trial.
    pub(crate) fn begin(&self, epoch: u64) {
        let tally = Tally::new(epoch);
        self.pages().tallies.push(tally);
    }

    /// Adds to `sum` the requests that are counted here of this trial, by model and outcome.
    pub(crate) fn add_models_to(&self, epoch: u64, sum: &mut ByModel) {
        if let Some(tally) = self.pages().tallies.iter().find(|tally| tally.epoch == epoch) {
            add_models(sum, &tally.models);
        }
    }

    /// Adds to `sum` what is counted here of its trial; gives how many requests of it are under way.
    pub(crate) fn add_to(&self, sum: &mut Tally) -> u64 {
        let pages = self.pages();
        if let Some(tally) = pages.tallies.iter().find(|tally| tally.epoch == sum.epoch) {
            sum.add(tally);
        }
        pages.entries.iter().flatten().filter(|entry| entry.epoch == sum.epoch).count() as u64
    }

    /// Forgets a trial that is over and of which nothing is under way any more.
    pub(crate) fn forget(&self, epoch: u64) {
        let mut pages = self.pages();
        let forgotten: Vec<Tally> = pages.tallies.extract_if(.., |tally| tally.epoch == epoch).collect();
        drop(pages);
        drop(forgotten);
    }

    /// How many requests are under way.
    pub(crate) fn under_way(&self) -> usize {
        let pages = self.pages();
        pages.entries.len() - pages.free.len()
    }

    /// Who is under way.
    pub(crate) fn list(&self, into: &mut Vec<UnderWay>) {
        let pages = self.pages();
        let entries = pages.entries.iter().zip(&pages.places);
        into.extend(entries.filter_map(|(entry, place)| {
            let entry = entry.as_ref()?;
            let id = entry.id.as_ref().map_or(&b"-"[..], HeaderValue::as_bytes);
            Some(UnderWay {
                epoch: entry.epoch,
                id: String::from_utf8_lossy(id).into_owned(),
                route: entry.route,
                worker: place.worker(),
                age: entry.since.elapsed(),
            })
        }));
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn take_place(&mut self, entry: Entry) -> usize {
        if let Some(at) = self.free.pop() {
            self.places[at].clear();
            self.entries[at] = Some(entry);
            return at;
        }
        self.entries.push(Some(entry));
        self.places.push(Arc::default());
        self.entries.len() - 1
    }

    /// The counts of a trial; of the current one, if that trial is closed for good.
    fn tally(&mut self, epoch: u64) -> &mut Tally {
        let last = self.tallies.len() - 1;
        let at = self.tallies.iter().rposition(|tally| tally.epoch == epoch).unwrap_or(last);
        &mut self.tallies[at]
    }
}

/// A request under way. It leaves by drop.
pub(crate) struct Entered {
    roll: Arc<Roll>,
    /// The trial that it names.
    named: Option<Arc<NamedTrial>>,
    at: usize,
    epoch: u64,
    is_open: bool,
}

impl Entered {
    /// The request's trial.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The request names a trial.
    pub(crate) fn take_part_in(&mut self, named: Arc<NamedTrial>) {
        named.entered();
        self.named = Some(named);
    }

    /// The request has ended: it leaves, and counts in its own trial.
    pub(crate) fn close(mut self, account: &Account) {
        self.leave(Some(account));
    }

    /// Between two reads of its stream so much time went by.
    pub(crate) fn gap(&self, took: Duration) {
        self.roll.pages().tally(self.epoch).times.gap.record(took);
        if let Some(named) = &self.named {
            named.gap(took);
        }
    }

    fn leave(&mut self, account: Option<&Account>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let mut pages = self.roll.pages();
        let left = pages.entries[self.at].take();
        pages.free.push(self.at);
        if let Some(account) = account {
            pages.tally(self.epoch).count(account);
        }
        drop(pages);
        drop(left);
        if let Some(named) = &self.named {
            named.left(account);
        }
        self.roll.gate.one_left();
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.leave(None);
    }
}
