//! The policies of a log by number, each as it began. Asks them nothing.

use std::collections::BTreeMap;

use forebay_policy::{Policy, PolicyKind, PolicySettings, Slot};

use crate::decisions::line::{Line, PolicyLine};

/// Resets for which policies are kept that were reset: requests live on in the trial that they began in.
const RESETS: u64 = 16;

struct Judge {
    policy: Policy,
    /// Number of the reset that ended its time.
    ended: Option<u64>,
}

/// The policies in use.
#[derive(Default)]
pub(crate) struct Judges {
    kept: BTreeMap<u32, Judge>,
    /// Resets of policies so far.
    resets: u64,
    /// This one takes the place of all.
    instead: Option<PolicyKind>,
}

impl Judges {
    /// Policies of this kind, with the knobs and seeds of those that are in the log.
    pub(crate) fn all(kind: PolicyKind) -> Self {
        Self { instead: Some(kind), ..Self::default() }
    }

    /// Takes what a line says of policies; what is wrong with it otherwise.
    pub(crate) fn take(&mut self, line: &Line) -> Result<(), String> {
        match line {
            Line::Policy(made) => self.begin(made),
            Line::Forget { policy, slot, .. } => {
                if let Some(policy) = self.get(*policy) {
                    policy.forget(Slot(*slot));
                }
                Ok(())
            }
            Line::Reset { policies: true, .. } => {
                self.reset();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, made: &PolicyLine) -> Result<(), String> {
        let kind = self.instead.unwrap_or(made.settings.kind);
        let settings = PolicySettings { kind, ..made.settings.clone() };
        settings.validate().map_err(|error| error.to_string())?;
        let policy = Policy::new(&settings, made.seed);
        self.kept.insert(made.policy, Judge { policy, ended: None });
        Ok(())
    }

    fn reset(&mut self) {
        self.resets += 1;
        let resets = self.resets;
        self.kept.retain(|_, judge| *judge.ended.get_or_insert(resets) + RESETS > resets);
    }

    /// The policy of this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Policy> {
        self.kept.get(&number).map(|judge| &judge.policy)
    }
}
