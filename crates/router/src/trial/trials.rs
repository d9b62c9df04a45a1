//! All data threads' rolls together, and the trials that were. Nothing here is on a request's way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use forebay_workers::{Auditor, World};

use crate::account::Account;
use crate::trial::figures::{Figures, ModelFigures};
use crate::trial::gate::{Gate, Hold};
use crate::trial::named::{NamedTrial, NamedTrials};
use crate::trial::roll::{Roll, UnderWay};
use crate::trial::tally::{ByModel, Tally};
use crate::trial::view::{Marks, Opening, Standing, TrialView, Warmth};

/// Trials whose reports are kept, with the current one.
pub(crate) const KEPT: usize = 100;

/// Every trial that is remembered.
pub struct Trials {
    gate: Arc<Gate>,
    rolls: Mutex<Vec<Arc<Roll>>>,
    /// Of requests that are refused before they come to a data thread's roll.
    lobby: Arc<Roll>,
    auditor: Arc<Auditor>,
    /// Those that requests name.
    named: NamedTrials,
    /// Oldest first; the last is the current one.
    list: Mutex<VecDeque<Trial>>,
}

struct Trial {
    opening: Arc<Opening>,
    /// How it stood when the next one began.
    closing: Option<Standing>,
    /// What it came to, once nothing of it is under way any more.
    last: Option<Arc<Figures>>,
}

/// What a new trial begins with, apart from the world.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    pub name: Option<Arc<str>>,
    pub warm: Warmth,
    pub not_emptied: Vec<String>,
}

impl Trials {
    /// The first trial begins with the process.
    pub fn new(world: &World, auditor: Arc<Auditor>) -> Self {
        let gate = Arc::<Gate>::default();
        let lobby = Arc::new(Roll::new(&gate, world.epoch()));
        let opening = Opening {
            epoch: world.epoch(),
            name: None,
            at: SystemTime::now(),
            by_reset: false,
            warm: Warmth::default(),
            from_before: 0,
            not_emptied: Vec::new(),
            marks: Marks::default(),
        };
        let first = Trial { opening: Arc::new(opening), closing: None, last: None };
        let rolls = Mutex::new(vec![Arc::clone(&lobby)]);
        let (named, list) = (NamedTrials::default(), Mutex::new(VecDeque::from([first])));
        Self { gate, rolls, lobby, auditor, named, list }
    }

    /// A roll for one more data thread.
    pub(crate) fn roll(&self) -> Arc<Roll> {
        let list = self.list();
        let epoch = list.back().map_or(1, |trial| trial.opening.epoch);
        let roll = Arc::new(Roll::new(&self.gate, epoch));
        self.rolls().push(Arc::clone(&roll));
        roll
    }

    /// Counts a request that was never under way.
    pub(crate) fn count(&self, account: &Account) {
        self.lobby.count(account);
        if let Some(name) = &account.trial {
            self.named(self.current().0, name).count(account);
        }
    }

    /// The trial that a request of this epoch names.
    pub(crate) fn named(&self, epoch: u64, name: &Arc<str>) -> Arc<NamedTrial> {
        self.named.find_or_begin(epoch, name)
    }

    /// Whoever counts what must not be.
    pub(crate) fn auditor(&self) -> &Auditor {
        &self.auditor
    }

    /// The gate that requests pass.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Holds new requests. When this returns, whoever was just entering has entered.
    pub(crate) fn hold(&self) -> Hold<'_> {
        let hold = self.gate.hold();
        let _entered = self.under_way();
        hold
    }

    /// How many requests are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.rolls().iter().map(|roll| roll.under_way()).sum()
    }

    /// Who is under way, oldest first.
    pub(crate) fn list_under_way(&self) -> Vec<UnderWay> {
        let mut list = Vec::new();
        self.rolls().iter().for_each(|roll| roll.list(&mut list));
        list.sort_by_key(|request| std::cmp::Reverse(request.age));
        list
    }

    /// How the current trial ends, if this is its last view: told before anything is reset.
    pub(crate) fn closing(&self, last: &World) -> Standing {
        Standing::of(last, &self.auditor, Some(SystemTime::now()))
    }

    /// Closes the current trial, and begins the next one, of which `new` is the first view. Requests must be held.
    pub(crate) fn begin(&self, closing: Standing, new: &World, beginning: Beginning) {
        let now = closing.ended.unwrap_or_else(SystemTime::now);
        let mut list = self.list();
        if let Some(trial) = list.back_mut() {
            trial.closing = Some(closing);
        }
        let Beginning { name, warm, not_emptied } = beginning;
        let opening = Opening {
            epoch: new.epoch(),
            name,
            at: now,
            by_reset: true,
            warm,
            from_before: self.under_way() as u64,
            not_emptied,
            marks: Marks::of(new, &self.auditor),
        };
        new.carriers().for_each(|worker| worker.begin_peak());
        self.rolls().iter().for_each(|roll| roll.begin(new.epoch()));
        list.push_back(Trial { opening: Arc::new(opening), closing: None, last: None });
        list.iter_mut().for_each(|trial| drop(self.figures(trial)));
        while list.len() > KEPT {
            if let Some(trial) = list.pop_front() {
                self.rolls().iter().for_each(|roll| roll.forget(trial.opening.epoch));
            }
        }
    }

    /// The trial with this number, or the current one, as it stands if `world` is how things are.
    pub fn view(&self, epoch: Option<u64>, world: &World) -> Option<TrialView> {
        let mut list = self.list();
        let trial = match epoch {
            Some(epoch) => list.iter_mut().find(|trial| trial.opening.epoch == epoch)?,
            None => list.back_mut()?,
        };
        Some(self.view_of(trial, world))
    }

    /// All trials that are remembered, oldest first.
    pub fn views(&self, world: &World) -> Vec<TrialView> {
        self.list().iter_mut().map(|trial| self.view_of(trial, world)).collect()
    }

    /// Number and name of the current trial.
    pub(crate) fn current(&self) -> (u64, Option<Arc<str>>) {
        let list = self.list();
        list.back().map_or((1, None), |trial| (trial.opening.epoch, trial.opening.name.clone()))
    }

    /// The requests of every trial that has a name, by model: first those that began by a reset, oldest first. Requests that
    /// name the very trial that a reset began are among its own.
    pub(crate) fn runs(&self) -> Vec<(Arc<str>, Vec<ModelFigures>)> {
        let named = |trial: &Trial| Some((trial.opening.name.clone()?, self.models(trial)));
        let list = self.list();
        let mut runs: Vec<_> = list.iter().filter_map(named).collect();
        runs.extend(self.named.models(|epoch, name| {
            !list
                .iter()
                .any(|trial| trial.opening.epoch == epoch && trial.opening.name.as_ref() == Some(name))
        }));
        runs
    }

    fn models(&self, trial: &Trial) -> Vec<ModelFigures> {
        if let Some(last) = &trial.last {
            return last.models.clone();
        }
        let mut sum = ByModel::new();
        self.rolls().iter().for_each(|roll| roll.add_models_to(trial.opening.epoch, &mut sum));
        ModelFigures::all_of(&sum)
    }

    fn view_of(&self, trial: &mut Trial, world: &World) -> TrialView {
        let figures = self.figures(trial);
        let now = || Standing::of(world, &self.auditor, None);
        TrialView {
            opening: Arc::clone(&trial.opening),
            standing: trial.closing.clone().unwrap_or_else(now),
            figures,
            is_final: trial.last.is_some(),
            named: self.named.views(trial.opening.epoch),
            forgotten: self.named.forgotten(trial.opening.epoch),
        }
    }

    /// What a trial came to up to now. Once nothing can be added, only that is kept.
    fn figures(&self, trial: &mut Trial) -> Arc<Figures> {
        if let Some(last) = &trial.last {
            return Arc::clone(last);
        }
        let rolls = self.rolls();
        let mut sum = Tally::new(trial.opening.epoch);
        let under_way = rolls.iter().map(|roll| roll.add_to(&mut sum)).sum();
        let figures = Arc::new(Figures::of(&sum, under_way));
        if trial.closing.is_some() && under_way == 0 {
            trial.last = Some(Arc::clone(&figures));
            rolls.iter().for_each(|roll| roll.forget(trial.opening.epoch));
        }
        figures
    }

    fn rolls(&self) -> MutexGuard<'_, Vec<Arc<Roll>>> {
        self.rolls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Trial>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
