//! Trials that requests name by a header: several on one router at the same time, each with its own counts. Only requests
//! that name one come here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::account::Account;
use crate::trial::figures::{Figures, ModelFigures};
use crate::trial::tally::Tally;

/// Named trials that are remembered.
pub(crate) const KEPT: usize = 100;

/// The last trials that were named.
#[derive(Default)]
pub(crate) struct NamedTrials {
    /// The one without a request for the longest time first.
    list: Mutex<VecDeque<Arc<NamedTrial>>>,
    /// Of those that are forgotten, by epoch.
    forgotten: Mutex<BTreeMap<u64, Forgotten>>,
}

/// What is still known of the named trials of one epoch that are forgotten.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Forgotten {
    /// How many they were.
    pub trials: usize,
    /// Requests of them that had ended.
    pub ended: u64,
}

/// One of them. A reset ends it: if it is named again, that is another one.
pub(crate) struct NamedTrial {
    epoch: u64,
    name: Arc<str>,
    at: SystemTime,
    counts: Mutex<Counts>,
}

struct Counts {
    tally: Tally,
    under_way: u64,
}

/// A named trial as it is to be reported.
#[derive(Debug, Clone)]
pub struct NamedView {
    /// Its name.
    pub name: Arc<str>,
    /// When its first request came.
    pub at: SystemTime,
    /// What it came to.
    pub figures: Figures,
}

impl NamedTrials {
    /// The trial of this name in this epoch. If it is one too many, the one that was without a request for the longest
    /// time is forgotten.
    pub(crate) fn find_or_begin(&self, epoch: u64, name: &Arc<str>) -> Arc<NamedTrial> {
        let mut list = self.list();
        let at = list.iter().rposition(|trial| trial.epoch == epoch && trial.name == *name);
        let found = at.and_then(|at| list.remove(at));
        let trial = found.unwrap_or_else(|| Arc::new(NamedTrial::begin(epoch, name)));
        list.push_back(Arc::clone(&trial));
        if list.len() > KEPT
            && let Some(oldest) = list.pop_front()
        {
            self.note_forgotten(&oldest);
        }
        trial
    }

    /// What is forgotten of this epoch.
    pub(crate) fn forgotten(&self, epoch: u64) -> Forgotten {
        self.lock_forgotten().get(&epoch).copied().unwrap_or_default()
    }

    fn note_forgotten(&self, trial: &NamedTrial) {
        let mut forgotten = self.lock_forgotten();
        let of_epoch = forgotten.entry(trial.epoch).or_default();
        of_epoch.trials += 1;
        of_epoch.ended += trial.counts().tally.models.iter().flat_map(|(_, counts)| counts).sum::<u64>();
        // No epoch is remembered for longer than its trial is.
        if forgotten.len() > super::trials::KEPT {
            forgotten.pop_first();
        }
    }

    /// Those of this epoch.
    pub(crate) fn views(&self, epoch: u64) -> Vec<NamedView> {
        self.of(|trial| trial.epoch == epoch).iter().map(|trial| trial.view()).collect()
    }

    /// Requests that have ended by model, for each of them that `wanted` wants by its epoch and name; the one that has had
    /// none for the longest time first.
    pub(crate) fn models(
        &self,
        wanted: impl Fn(u64, &Arc<str>) -> bool,
    ) -> Vec<(Arc<str>, Vec<ModelFigures>)> {
        let models = |trial: &Arc<NamedTrial>| ModelFigures::all_of(&trial.counts().tally.models);
        let named = self.of(|trial| wanted(trial.epoch, &trial.name));
        named.iter().map(|trial| (Arc::clone(&trial.name), models(trial))).collect()
    }

    fn of(&self, wanted: impl Fn(&NamedTrial) -> bool) -> Vec<Arc<NamedTrial>> {
        self.list().iter().filter(|trial| wanted(trial)).cloned().collect()
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<NamedTrial>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_forgotten(&self) -> MutexGuard<'_, BTreeMap<u64, Forgotten>> {
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NamedTrial {
    fn begin(epoch: u64, name: &Arc<str>) -> Self {
        let counts = Counts { tally: Tally::new(epoch), under_way: 0 };
        Self { epoch, name: Arc::clone(name), at: SystemTime::now(), counts: Mutex::new(counts) }
    }

    /// One of its requests is under way.
    pub(crate) fn entered(&self) {
        let mut counts = self.counts();
        counts.under_way += 1;
        counts.tally.peak = counts.tally.peak.max(counts.under_way);
    }

    /// One of its requests is no longer under way. Without an account it had not begun.
    pub(crate) fn left(&self, account: Option<&Account>) {
        let mut counts = self.counts();
        counts.under_way -= 1;
        if let Some(account) = account {
            counts.tally.count(account);
        }
    }

    /// One of its requests ended before it was under way.
    pub(crate) fn count(&self, account: &Account) {
        self.counts().tally.count(account);
    }

    /// Between two reads of a stream so much time went by.
    pub(crate) fn gap(&self, took: Duration) {
        self.counts().tally.times.gap.record(took);
    }

    fn view(&self) -> NamedView {
        let counts = self.counts();
        let figures = Figures::of(&counts.tally, counts.under_way);
        NamedView { name: Arc::clone(&self.name), at: self.at, figures }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_without_a_request_for_the_longest_time_is_forgotten_and_an_epoch_has_its_own() {
        let trials = NamedTrials::default();
        let names: Vec<Arc<str>> = (0..KEPT).map(|number| number.to_string().into()).collect();
        names.iter().for_each(|name| trials.find_or_begin(1, name).entered());
        trials.find_or_begin(1, &names[0]).entered();
        trials.find_or_begin(2, &names[5]);
        let kept = trials.views(1);
        assert_eq!((kept.len(), trials.views(2).len()), (KEPT - 1, 1));
        assert!(!kept.iter().any(|view| view.name == names[1]), "it was the one");
        let first = kept.iter().find(|view| view.name == names[0]).unwrap();
        assert_eq!((first.figures.requests.under_way, first.figures.load.under_way_at_most), (2, 2));
    }
}
