//! All data threads' rolls together, and the trials that were. Nothing here is on a request's way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use forebay_policy::Slot;
use forebay_workers::{Auditor, BreakerState, Models, Worker, World};

use crate::trial::figures::Figures;
use crate::trial::gate::{Gate, Hold};
use crate::trial::roll::{Roll, UnderWay};
use crate::trial::tally::Tally;

/// Trials whose reports are kept, with the current one.
const KEPT: usize = 100;

/// Every trial that is remembered.
pub struct Trials {
    gate: Arc<Gate>,
    rolls: Mutex<Vec<Arc<Roll>>>,
    /// Of requests that are refused before they come to a data thread's roll.
    lobby: Arc<Roll>,
    auditor: Arc<Auditor>,
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

/// How a trial began.
#[derive(Debug)]
pub struct Opening {
    /// Its number.
    pub epoch: u64,
    /// Its name, if it was given one.
    pub name: Option<Arc<str>>,
    /// When.
    pub at: SystemTime,
    /// Whether it began with a reset, and not with the process.
    pub by_reset: bool,
    /// Choices that its policies had made before.
    pub warm: u64,
    /// Requests of earlier trials that were still under way.
    pub from_before: u64,
    /// Workers whose prefix caches should have been emptied and were not.
    pub not_emptied: Vec<String>,
    marks: Marks,
}

/// How things stood at the end of a trial, or stand now.
#[derive(Debug, Clone)]
pub struct Standing {
    /// When it ended; `None` if it has not.
    pub ended: Option<SystemTime>,
    /// What its policies drew from.
    pub seed: u64,
    /// Its workers, in slot order.
    pub fleet: Vec<Member>,
    /// Changes of the fleet since the process began.
    fleet_changes: u64,
    marks: Marks,
}

/// A worker, by what matters to whoever compares trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// `url`, or `url@rank`.
    pub name: String,
    /// Where it is reached.
    pub url: String,
    /// Data-parallel rank behind the URL, if ranks are told apart.
    pub dp_rank: Option<u32>,
    /// Engine version, if it told one.
    pub version: Option<String>,
    /// Names that it serves; `None` if it would not say.
    pub models: Option<Vec<String>>,
    slot: Slot,
}

/// Counters that only grow, at one moment.
#[derive(Debug, Clone, Default)]
struct Marks {
    workers: Vec<(Slot, Incidents)>,
    checks: u64,
    violations: u64,
}

/// A trial as it is to be reported.
#[derive(Debug, Clone)]
pub struct TrialView {
    /// How it began.
    pub opening: Arc<Opening>,
    /// How it ended, or stands.
    pub standing: Standing,
    /// What it came to.
    pub figures: Arc<Figures>,
    /// Whether it is over, and nothing of it is under way: nothing of this will change.
    pub is_final: bool,
}

/// What happened to one worker in the course of a trial.
#[derive(Debug, Clone, Copy, Default)]
pub struct Incidents {
    /// Changes of its circuit breaker, by the state it changed to.
    pub transitions: [u64; BreakerState::ALL.len()],
    /// Times it left rotation because of its health.
    pub left: u64,
}

/// What a new trial begins with, apart from the world.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    pub name: Option<Arc<str>>,
    pub warm: u64,
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
            warm: 0,
            from_before: 0,
            not_emptied: Vec::new(),
            marks: Marks::default(),
        };
        let first = Trial { opening: Arc::new(opening), closing: None, last: None };
        let rolls = Mutex::new(vec![Arc::clone(&lobby)]);
        Self { gate, rolls, lobby, auditor, list: Mutex::new(VecDeque::from([first])) }
    }

    /// A roll for one more data thread.
    pub(crate) fn roll(&self) -> Arc<Roll> {
        let list = self.list();
        let epoch = list.back().map_or(1, |trial| trial.opening.epoch);
        let roll = Arc::new(Roll::new(&self.gate, epoch));
        self.rolls().push(Arc::clone(&roll));
        roll
    }

    /// Where requests are counted that were never under way.
    pub(crate) fn lobby(&self) -> &Roll {
        &self.lobby
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

    /// Closes the current trial, which `old` was the last view of, and begins the next one, of which `new` is the first.
    /// Requests must be held.
    pub(crate) fn begin(&self, old: &World, new: &World, beginning: Beginning) {
        let now = SystemTime::now();
        let mut list = self.list();
        if let Some(trial) = list.back_mut() {
            trial.closing = Some(self.standing(old, Some(now)));
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
            marks: self.marks(new),
        };
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

    fn view_of(&self, trial: &mut Trial, world: &World) -> TrialView {
        let figures = self.figures(trial);
        let now = || self.standing(world, None);
        TrialView {
            opening: Arc::clone(&trial.opening),
            standing: trial.closing.clone().unwrap_or_else(now),
            figures,
            is_final: trial.last.is_some(),
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

    fn standing(&self, world: &World, ended: Option<SystemTime>) -> Standing {
        Standing {
            ended,
            seed: world.seed(),
            fleet: world.carriers().map(|worker| Member::of(worker)).collect(),
            fleet_changes: world.fleet_changes(),
            marks: self.marks(world),
        }
    }

    fn marks(&self, world: &World) -> Marks {
        let of = |worker: &Arc<Worker>| {
            let transitions = BreakerState::ALL.map(|to| worker.breaker_transitions(to));
            (worker.slot(), Incidents { transitions, left: worker.host().left_rotation() })
        };
        Marks {
            workers: world.carriers().map(of).collect(),
            checks: self.auditor.audits(),
            violations: self.auditor.violations(),
        }
    }

    fn rolls(&self) -> MutexGuard<'_, Vec<Arc<Roll>>> {
        self.rolls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Trial>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrialView {
    /// What happened to each worker of [`Standing::fleet`].
    pub fn incidents(&self) -> impl Iterator<Item = (&Member, Incidents)> {
        let at = |marks: &Marks, slot| {
            let found = marks.workers.iter().find(|(known, _)| *known == slot);
            found.map(|(_, incidents)| *incidents).unwrap_or_default()
        };
        self.standing.fleet.iter().map(move |member| {
            let before = at(&self.opening.marks, member.slot);
            let after = at(&self.standing.marks, member.slot);
            let transitions =
                std::array::from_fn(|i| after.transitions[i].saturating_sub(before.transitions[i]));
            (member, Incidents { transitions, left: after.left.saturating_sub(before.left) })
        })
    }

    /// Looks at the loads in its course, and what they found broken.
    pub fn invariants(&self) -> (u64, u64) {
        let (before, after) = (&self.opening.marks, &self.standing.marks);
        (after.checks.saturating_sub(before.checks), after.violations.saturating_sub(before.violations))
    }

    /// Whether workers came, went or became others since its first request.
    pub fn fleet_changed(&self) -> bool {
        let before = self.figures.fleet_before;
        before.is_some_and(|before| before != self.standing.fleet_changes)
    }
}

impl Member {
    fn of(worker: &Worker) -> Self {
        Self {
            name: worker.name().to_owned(),
            url: worker.url().to_string(),
            dp_rank: worker.dp_rank(),
            version: (*worker.host().version()).clone(),
            models: match &*worker.host().models() {
                Models::Named(served) => Some(served.iter().map(|model| model.id.clone()).collect()),
                Models::Unread | Models::Any => None,
            },
            slot: worker.slot(),
        }
    }
}
