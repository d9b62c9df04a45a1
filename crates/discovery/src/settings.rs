//! The knobs of finding out about workers.

use std::time::Duration;

use forebay_dial::Dialer;
use forebay_workers::{HealthSettings, Ranks, Role};

/// How many data-parallel ranks are behind a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankCount {
    /// So many; one is none that would be told apart.
    Given(Ranks),
    /// As many as the worker says.
    Asked,
}

impl RankCount {
    /// The ranks to be told apart before any worker has been asked.
    pub(crate) fn given(self) -> Option<Ranks> {
        match self {
            Self::Given(ranks) => Some(ranks).filter(|ranks| ranks.count() > 1),
            Self::Asked => None,
        }
    }
}

impl Default for RankCount {
    fn default() -> Self {
        Self::Given(Ranks::ONE)
    }
}

/// How workers are asked.
#[derive(Debug, Clone)]
pub struct ProbeSettings {
    /// Endpoint, interval, time limit and thresholds of the health probe.
    pub health: HealthSettings,
    /// Longest time between two probes of a worker that has never been well.
    pub startup_interval: Duration,
    /// Between two reads of what a worker serves.
    pub model_refresh: Duration,
    /// Opens connections to workers.
    pub dialer: Dialer,
    /// Data-parallel ranks behind each URL.
    pub ranks: RankCount,
    /// The same of prefill workers.
    pub prefill_ranks: RankCount,
    /// Tokens that a worker's prefix cache holds, where its metrics do not tell; 0 if that is not known.
    pub cache_tokens: u64,
    /// Shown to workers as `Authorization: Bearer …`.
    pub api_key: Option<String>,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            health: HealthSettings::default(),
            startup_interval: Duration::from_secs(30),
            model_refresh: Duration::from_secs(30),
            dialer: Dialer::default(),
            ranks: RankCount::default(),
            prefill_ranks: RankCount::default(),
            cache_tokens: 0,
            api_key: None,
        }
    }
}

impl ProbeSettings {
    /// Data-parallel ranks behind a URL in this role.
    pub(crate) fn ranks_of(&self, role: Role) -> RankCount {
        if role.answers() { self.ranks } else { self.prefill_ranks }
    }
}
