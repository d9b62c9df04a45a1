//! The settings that a trial's numbers depend on, as its report shows them.

use forebay_policy::{CacheAwareSettings, HashKeyKind, LoadKind, PolicyKind, PolicySettings, Reason};
use forebay_router::trial::Opening;
use serde::Serialize;

use crate::settings::Settings;

/// What reports say of the settings.
#[derive(Debug, Clone)]
pub struct Config {
    policy: PolicySettings,
    pairs: Option<PairConfig>,
    hash_key: Vec<&'static str>,
    worker_cache_tokens: u64,
    max_inflight_per_worker: u32,
    threads: usize,
    retries: u32,
    breakers: bool,
    pub(super) instance: String,
}

/// Of prefill/decode pairs.
#[derive(Debug, Clone)]
struct PairConfig {
    connector: &'static str,
    prefill: PolicySettings,
}

impl Config {
    /// Of these settings; `instance` differs between processes.
    pub fn of(settings: &Settings, instance: u64) -> Self {
        let retry = &settings.router.retry;
        let pairs = settings.router.pairs.as_ref().zip(settings.roles.as_ref());
        Self {
            policy: settings.policy.clone(),
            pairs: pairs.map(|(pairs, roles)| PairConfig {
                connector: pairs.connector.as_str(),
                prefill: roles.prefill_policy.clone(),
            }),
            hash_key: settings.router.hash_key.iter().map(|kind| name_of(*kind)).collect(),
            worker_cache_tokens: settings.worker_cache_tokens,
            max_inflight_per_worker: settings.max_inflight_per_worker,
            threads: settings.threads,
            retries: if retry.enabled { retry.attempts.saturating_sub(1) } else { 0 },
            breakers: settings.breaker.enabled,
            instance: format!("{instance:016x}"),
        }
    }
}

fn name_of(kind: HashKeyKind) -> &'static str {
    Reason::from(kind).as_str()
}

/// The settings in force in a trial.
#[derive(Serialize)]
pub(super) struct ConfigInForce<'a> {
    #[serde(flatten)]
    policy: PolicyInForce<'a>,
    seed: u64,
    /// `None` without prefill/decode pairs. With them, `policy` is that of decode workers.
    pairs: Option<PairsInForce<'a>>,
    /// Tokens that a worker's prefix cache holds where it does not tell; 0 if that is not known.
    worker_cache_tokens: u64,
    /// 0 is no limit.
    max_inflight_per_worker: u32,
    threads: usize,
    retries: u32,
    breakers: bool,
}

#[derive(Serialize)]
struct PolicyInForce<'a> {
    policy: PolicyKind,
    parameters: Parameters<'a>,
    /// What the ranks behind a URL have to do counts so much against what a rank has to do itself.
    group_weight: f64,
    load_signal: &'static str,
    /// `cold`, or `warm(n)` after n choices; `none` for a policy without a tree.
    tree: String,
}

#[derive(Serialize)]
struct PairsInForce<'a> {
    connector: &'static str,
    prefill: PolicyInForce<'a>,
}

/// Of the policy in force.
#[derive(Serialize)]
#[serde(untagged)]
enum Parameters<'a> {
    CacheAware(&'a CacheAwareSettings),
    ConsistentHash { hash_key: &'a [&'static str] },
    None {},
}

impl<'a> ConfigInForce<'a> {
    pub(super) fn of(config: &'a Config, seed: u64, opening: &Opening) -> Self {
        let &Config { worker_cache_tokens, max_inflight_per_worker, threads, retries, breakers, .. } = config;
        Self {
            policy: PolicyInForce::of(&config.policy, &config.hash_key, opening.warm.answering),
            seed,
            pairs: config.pairs.as_ref().map(|pairs| PairsInForce {
                connector: pairs.connector,
                prefill: PolicyInForce::of(&pairs.prefill, &config.hash_key, opening.warm.prefilling),
            }),
            worker_cache_tokens,
            max_inflight_per_worker,
            threads,
            retries,
            breakers,
        }
    }
}

impl<'a> PolicyInForce<'a> {
    fn of(settings: &'a PolicySettings, hash_key: &'a [&'static str], warm: u64) -> Self {
        let kind = settings.kind;
        let by_load = match settings.load {
            LoadKind::Requests => "requests_in_flight",
            LoadKind::Tokens => "pending_prefill_tokens",
        };
        let (parameters, load_signal) = match kind {
            PolicyKind::CacheAware => {
                (Parameters::CacheAware(&settings.cache), "pending_prefill_tokens_and_requests_in_flight")
            }
            PolicyKind::ConsistentHash => (Parameters::ConsistentHash { hash_key }, "none"),
            PolicyKind::PowerOfTwo | PolicyKind::LeastLoaded => (Parameters::None {}, by_load),
            PolicyKind::RoundRobin | PolicyKind::Random => (Parameters::None {}, "none"),
        };
        let tree = match (kind, warm) {
            (PolicyKind::CacheAware, 0) => "cold".to_owned(),
            (PolicyKind::CacheAware, choices) => format!("warm({choices})"),
            _ => "none".to_owned(),
        };
        Self { policy: kind, parameters, group_weight: settings.group_weight, load_signal, tree }
    }
}
