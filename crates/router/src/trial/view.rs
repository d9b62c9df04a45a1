//! A trial as it is to be reported: how it began, how it ended or stands, what it came to. It counts nothing.

use std::sync::Arc;
use std::time::SystemTime;

use forebay_policy::Slot;
use forebay_workers::{Auditor, BreakerState, Changes, Models, Worker, World};

use crate::trial::figures::Figures;
use crate::trial::named::{Forgotten, NamedView};

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
    pub warm: Warmth,
    /// Requests of earlier trials that were still under way.
    pub from_before: u64,
    /// Workers whose prefix caches should have been emptied and were not.
    pub not_emptied: Vec<String>,
    pub(crate) marks: Marks,
}

/// Choices that policies had made when a trial began that did not reset them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Warmth {
    /// Of workers that answer.
    pub answering: u64,
    /// Of prefill workers.
    pub prefilling: u64,
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
    changes: Changes,
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
    /// Which part of requests it takes.
    pub role: &'static str,
    /// Engine version, if it told one.
    pub version: Option<String>,
    /// Names that it serves; `None` if it would not say.
    pub models: Option<Vec<String>>,
    slot: Slot,
}

/// Counters that only grow, at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks {
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
    /// The trials that its requests named, in the order in which they last had one.
    pub named: Vec<NamedView>,
    /// Those of them that are forgotten.
    pub(crate) forgotten: Forgotten,
}

/// What happened to one worker in the course of a trial.
#[derive(Debug, Clone, Copy, Default)]
pub struct Incidents {
    /// Changes of its circuit breaker, by the state it changed to.
    pub transitions: [u64; BreakerState::ALL.len()],
    /// Most legs that were in flight on it at the same time.
    pub peak: u32,
    /// Times it left rotation because of its health.
    pub left: u64,
    /// Whether its health keeps it out of rotation at the end.
    pub is_down: bool,
    /// Whether its circuit breaker was not closed when the trial began.
    pub began_open: bool,
}

impl Standing {
    /// If `world` is how things are.
    pub(crate) fn of(world: &World, auditor: &Auditor, ended: Option<SystemTime>) -> Self {
        Self {
            ended,
            seed: world.seed(),
            fleet: world.carriers().map(|worker| Member::of(worker)).collect(),
            changes: world.changes(),
            marks: Marks::of(world, auditor),
        }
    }
}

impl Marks {
    pub(crate) fn of(world: &World, auditor: &Auditor) -> Self {
        let of = |worker: &Arc<Worker>| {
            let incidents = Incidents {
                transitions: BreakerState::ALL.map(|to| worker.breaker_transitions(to)),
                peak: worker.peak(),
                left: worker.host().left_rotation(),
                is_down: !worker.is_well(),
                began_open: worker.breaker_state() != BreakerState::Closed,
            };
            (worker.slot(), incidents)
        };
        Self {
            workers: world.carriers().map(of).collect(),
            checks: auditor.audits(),
            violations: auditor.violations(),
        }
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
            let left = after.left.saturating_sub(before.left);
            (member, Incidents { transitions, left, began_open: before.began_open, ..after })
        })
    }

    /// Looks at the loads in its course, and what they found broken.
    pub fn invariants(&self) -> (u64, u64) {
        let (before, after) = (&self.opening.marks, &self.standing.marks);
        (after.checks.saturating_sub(before.checks), after.violations.saturating_sub(before.violations))
    }

    /// How many trials its requests named, if it was not one alone that all of them named.
    pub fn shared_by(&self) -> Option<usize> {
        let trials = self.named.len() + self.forgotten.trials;
        let ended: u64 = self.named.iter().map(|named| named.figures.requests.ended).sum();
        let are_several = match trials {
            0 => false,
            1 => ended + self.forgotten.ended < self.figures.requests.ended,
            _ => true,
        };
        are_several.then_some(trials)
    }

    /// Whether workers came, went or became others since its first request.
    pub fn fleet_changed(&self) -> bool {
        self.figures.before.is_some_and(|before| before.fleet != self.standing.changes.fleet)
    }

    /// Whether somebody had prefix caches emptied, or workers put to rest, since its first request.
    pub fn caches_emptied(&self) -> bool {
        self.figures.before.is_some_and(|before| before.caches != self.standing.changes.caches)
    }
}

impl Member {
    fn of(worker: &Worker) -> Self {
        Self {
            name: worker.name().to_owned(),
            url: worker.url().to_string(),
            dp_rank: worker.dp_rank(),
            role: worker.host().role().as_str(),
            version: (*worker.host().version()).clone(),
            models: match &*worker.host().models() {
                Models::Named(served) => Some(served.iter().map(|model| model.id.clone()).collect()),
                Models::Unread | Models::Any => None,
            },
            slot: worker.slot(),
        }
    }
}
