//! Which policy, and its knobs. Checks them; applies nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Smallest accepted [`CacheAwareSettings::max_tree_size`], in bytes.
pub const MIN_TREE_BYTES: u64 = 1 << 20;

/// Largest accepted [`PolicySettings::group_weight`]: from there on only the group counts.
pub const MOST_GROUP_WEIGHT: f64 = 100.0;

/// The routing policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The worker that has seen the longest prefix of the prompt, unless it is overloaded.
    #[default]
    CacheAware,
    /// The less loaded of two random workers.
    PowerOfTwo,
    /// A hash ring: the same key goes to the same worker.
    ConsistentHash,
    /// One after the other.
    RoundRobin,
    /// Uniformly random.
    Random,
    /// The one with the least load.
    LeastLoaded,
}

impl PolicyKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::CacheAware,
        Self::PowerOfTwo,
        Self::ConsistentHash,
        Self::RoundRobin,
        Self::Random,
        Self::LeastLoaded,
    ];

    /// The name in the command line, the config file and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CacheAware => "cache_aware",
            Self::PowerOfTwo => "power_of_two",
            Self::ConsistentHash => "consistent_hash",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoaded => "least_loaded",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = SettingsError;

    fn from_str(name: &str) -> Result<Self, SettingsError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| SettingsError::UnknownPolicy(name.to_owned()))
    }
}

/// A policy and its knobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// Which policy.
    pub kind: PolicyKind,
    /// What the load of a worker is, for policies that compare loads.
    pub load: LoadKind,
    /// What the ranks behind a URL have to do, as a mean, counts so much against what a rank has to do itself, for policies
    /// that compare loads: for ranks that step together. From 0 (nothing) to [`MOST_GROUP_WEIGHT`].
    pub group_weight: f64,
    /// Knobs of [`PolicyKind::CacheAware`]; the other policies have none.
    pub cache: CacheAwareSettings,
}

/// What the load of a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// Requests in flight.
    #[default]
    Requests,
    /// Tokens that are still to be prefilled: for workers that do nothing else.
    Tokens,
}

/// Knobs of the cache aware policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAwareSettings {
    /// Share of the prompt (0 to 1) that a worker must have seen, strictly more, to attract the request.
    pub cache_threshold: f64,
    /// A holder is passed over if it has more than this many requests in flight above the least loaded
    /// worker, and [`Self::balance_rel_threshold`] is exceeded as well.
    pub balance_abs_threshold: u32,
    /// A holder is passed over if its load is more than this multiple of the least loaded worker's, and
    /// [`Self::balance_abs_threshold`] is exceeded as well. At least 1.
    pub balance_rel_threshold: f64,
    /// Hard bound on the memory of one prefix tree (one model, all workers), in bytes.
    pub max_tree_size: u64,
    /// Prefixes not used for longer than this many seconds are dropped, checked once per such period;
    /// 0 keeps them until the room is needed.
    pub eviction_interval_secs: u64,
}

impl Default for CacheAwareSettings {
    fn default() -> Self {
        Self {
            cache_threshold: 0.3,
            balance_abs_threshold: 64,
            balance_rel_threshold: 1.5,
            max_tree_size: 32 << 20,
            eviction_interval_secs: 0,
        }
    }
}

impl PolicySettings {
    /// Checks the knobs of the chosen policy.
    ///
    /// # Errors
    /// The first knob out of range, with its unit.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if !(0.0..=MOST_GROUP_WEIGHT).contains(&self.group_weight) {
            return Err(SettingsError::GroupWeight(self.group_weight));
        }
        match self.kind {
            PolicyKind::CacheAware => self.cache.validate(),
            PolicyKind::PowerOfTwo
            | PolicyKind::ConsistentHash
            | PolicyKind::RoundRobin
            | PolicyKind::Random
            | PolicyKind::LeastLoaded => Ok(()),
        }
    }
}

impl CacheAwareSettings {
    /// Checks the knobs.
    ///
    /// # Errors
    /// The first knob out of range, with its unit.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if !(0.0..=1.0).contains(&self.cache_threshold) {
            return Err(SettingsError::CacheThreshold(self.cache_threshold));
        }
        if !(self.balance_rel_threshold >= 1.0 && self.balance_rel_threshold.is_finite()) {
            return Err(SettingsError::BalanceRelThreshold(self.balance_rel_threshold));
        }
        if self.max_tree_size < MIN_TREE_BYTES {
            return Err(SettingsError::MaxTreeSize(self.max_tree_size));
        }
        Ok(())
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SettingsError {
    /// The name stands for no policy.
    #[error(
        "unknown policy {0:?}: expected cache_aware, power_of_two, consistent_hash, round_robin, random or least_loaded"
    )]
    UnknownPolicy(String),
    /// Not a weight.
    #[error("group_weight is {0}: it weighs a mean and must lie between 0 and {MOST_GROUP_WEIGHT}")]
    GroupWeight(f64),
    /// Not a share.
    #[error("cache_threshold is {0}: it is a share of the prompt and must lie between 0 and 1")]
    CacheThreshold(f64),
    /// Would pass over workers that are no busier than the rest.
    #[error("balance_rel_threshold is {0}: it is a multiple of the lowest load and must be at least 1")]
    BalanceRelThreshold(f64),
    /// Too small to hold anything, most likely meant in another unit.
    #[error("max_tree_size is {0}: it is in bytes and must be at least {MIN_TREE_BYTES} (1 MiB)")]
    MaxTreeSize(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("{:?}", kind.as_str()));
        }
        let error = "cache-aware".parse::<PolicyKind>().unwrap_err();
        assert!(error.to_string().contains("\"cache-aware\""), "{error}");
    }

    #[test]
    fn every_default_is_valid() {
        for kind in PolicyKind::ALL {
            let settings = PolicySettings { kind, ..PolicySettings::default() };
            assert_eq!(settings.validate(), Ok(()));
        }
    }

    #[test]
    fn a_tree_size_meant_in_megabytes_is_refused_and_the_unit_named() {
        let cache = CacheAwareSettings { max_tree_size: 64, ..CacheAwareSettings::default() };
        let settings = PolicySettings { kind: PolicyKind::CacheAware, cache, ..PolicySettings::default() };
        let text = settings.validate().unwrap_err().to_string();
        assert!(text.contains("bytes") && text.contains("64"), "{text}");
        let unused = PolicySettings { kind: PolicyKind::Random, ..settings };
        assert_eq!(unused.validate(), Ok(()));
    }

    #[test]
    fn thresholds_out_of_range_are_refused() {
        for bad in [-0.1, 1.1, f64::NAN] {
            let cache = CacheAwareSettings { cache_threshold: bad, ..CacheAwareSettings::default() };
            assert!(matches!(cache.validate(), Err(SettingsError::CacheThreshold(_))));
        }
        for bad in [-0.1, 100.1, f64::NAN] {
            let settings = PolicySettings { group_weight: bad, ..PolicySettings::default() };
            assert!(matches!(settings.validate(), Err(SettingsError::GroupWeight(_))));
        }
        for bad in [0.5, f64::NAN, f64::INFINITY] {
            let cache = CacheAwareSettings { balance_rel_threshold: bad, ..CacheAwareSettings::default() };
            assert!(matches!(cache.validate(), Err(SettingsError::BalanceRelThreshold(_))));
        }
    }

    #[test]
    fn unknown_keys_are_an_error_and_missing_ones_default() {
        let settings: PolicySettings = serde_json::from_str(r#"{"kind":"power_of_two"}"#).unwrap();
        assert_eq!(settings.kind, PolicyKind::PowerOfTwo);
        assert_eq!(settings.cache, CacheAwareSettings::default());
        assert!(serde_json::from_str::<PolicySettings>(r#"{"cache":{"max_tree_sise":1}}"#).is_err());
    }
}
