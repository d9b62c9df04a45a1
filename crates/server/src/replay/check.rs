//! Each choice of a log once more, by the policy that made it, from all that it saw.

use forebay_policy::PolicyKind;
use serde::Serialize;

use super::judges::Judges;
use super::scene::{Names, Scene, ask, candidates};
use crate::decisions::line::{ChoiceLine, ChosenLine, Line};
use crate::decisions::reader::{Entry, LogError, LogReader};

/// The check under way.
#[derive(Default)]
pub(crate) struct Check {
    judges: Judges,
    names: Names,
    kind: Option<PolicyKind>,
    checked: Checked,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Checked {
    /// Choices in the log, those included where nobody could be chosen.
    pub(crate) recorded: u64,
    /// Those that came out the same.
    pub(crate) reproduced: u64,
    /// Those whose policy is not in the log, or too old.
    pub(crate) unknown: u64,
    /// The first that came out otherwise.
    pub(crate) first_difference: Option<Difference>,
}

/// A choice that came out otherwise.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) seq: u64,
    pub(crate) request: String,
    pub(crate) recorded: Option<ChosenLine>,
    pub(crate) replayed: Option<ChosenLine>,
}

impl Check {
    /// Takes the next line.
    pub(crate) fn take(&mut self, entry: &Entry, reader: &LogReader) -> Result<(), LogError> {
        self.judges.take(&entry.line).map_err(|problem| reader.broken(&problem))?;
        self.names.take(&entry.line);
        match &entry.line {
            Line::Policy(made) => self.kind = self.kind.or(Some(made.settings.kind)),
            Line::Choice(line) => {
                self.choice(line, entry).map_err(|problem| reader.broken(&problem))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn choice(&mut self, line: &ChoiceLine, entry: &Entry) -> Result<(), String> {
        let prefix = entry.prefix.as_ref();
        let seen = candidates(line, prefix)?;
        self.checked.recorded += 1;
        let Some(policy) = self.judges.get(line.policy) else {
            self.checked.unknown += 1;
            return Ok(());
        };
        let scene = Scene { names: &self.names, seen: &seen, generation: line.generation };
        let question = ask(line, prefix, Some(line.tokens));
        let replayed =
            policy.decide(&question, &scene, |decision| decision.choice.as_ref().map(ChosenLine::from));
        if replayed == line.chosen {
            self.checked.reproduced += 1;
        } else if self.checked.first_difference.is_none() {
            let (request, recorded) = (line.request.clone(), line.chosen.clone());
            self.checked.first_difference = Some(Difference { seq: line.seq, request, recorded, replayed });
        }
        Ok(())
    }

    /// Which policy the log is of.
    pub(crate) fn recorded_kind(&self) -> Option<PolicyKind> {
        self.kind
    }

    /// The workers of the log.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// What came of it.
    pub(crate) fn end(self) -> Checked {
        self.checked
    }
}
