//! What forwarding gives, and what it tells on the way. Data only.

use std::sync::Arc;

use forebay_pd::lmcache::Continuation;
use forebay_pd::{Correction, Room};
use forebay_policy::{Choice, Policy};
use forebay_workers::Selected;

use crate::account::{Attempts, Paired};
use crate::leg::Leg;
use crate::line::InLine;
use crate::pairs::PairOutcome;
use crate::upstream::Answer;

/// A worker's answer, and the load that goes with it.
pub(crate) struct Forwarded {
    pub answer: Answer,
    pub leg: Leg,
    /// What was chosen, unless the request named its worker.
    pub chosen: Option<Chosen>,
    /// What has to be put right in the answer, if a pair gave it.
    pub correction: Option<Correction>,
    /// What goes in front of a stream, and how that is rewritten.
    pub continuation: Option<Box<Continuation>>,
}

impl Forwarded {
    /// An answer of which no more is known.
    pub(crate) fn of_leg(answer: Answer, leg: Leg) -> Self {
        Self { answer, leg, chosen: None, correction: None, continuation: None }
    }
}

impl<'q> Progress<'_, 'q> {
    /// A worker was chosen.
    pub(crate) fn chosen(&mut self, selected: &Selected) {
        self.attempts.note(selected.choice, selected.noted);
    }

    /// An attempt at a pair begins under this id. If nothing else is told of it, the client has left.
    pub(crate) fn paired(&mut self, room: Room) {
        self.attempts.pair = Some(Paired { room: room.number(), outcome: PairOutcome::Abandoned });
    }

    /// The pair has ended, if there was an attempt at it.
    pub(crate) fn pair_ended(&mut self, outcome: PairOutcome) {
        if let Some(pair) = &mut self.attempts.pair {
            pair.outcome = outcome;
        }
    }

    /// The same for somebody else, for a while, who will note `first` again if there is one.
    pub(crate) fn lend(&mut self, first: Option<&Selected>) -> Progress<'_, 'q> {
        if first.is_some() {
            self.attempts.count = self.attempts.count.saturating_sub(1);
        }
        Progress { attempts: self.attempts, line: self.line }
    }
}

/// How far a request has come, told as it goes.
pub(crate) struct Progress<'a, 'q> {
    pub attempts: &'a mut Attempts,
    /// Its place among those who wait for a worker; given up with the first choice.
    pub line: &'a mut Option<InLine<'q>>,
}

/// A choice, and whose it was.
pub(crate) struct Chosen {
    pub choice: Choice,
    pub policy: Arc<Policy>,
    /// Bytes of the prompt if it was text and they are known, else 0.
    pub text_bytes: u32,
}
