//! The flags of prefill/decode pairs in, settings out: which worker has which role, and how pairs are made.

use forebay_discovery::{Range, RankCount};
use forebay_pd::{Conditions, Connector};
use forebay_policy::{LoadKind, PolicySettings};
use forebay_router::PairSettings;
use forebay_workers::{Role, WorkerUrl};

use crate::given::{Given, Rejected};
use crate::lmcache;
use crate::rules::{
    BOOL, CONNECTOR, INJECT, LEASE, LIMIT, LISTEN, POLICY, PORT_OR_NONE, RANGE, RANKS, TOKENS, WORKER_URL,
};
use crate::settings::{RoleSettings, WorkerSocket};

const NEEDS_PAIRS: &str = "needs --vllm-pd-disaggregation";

/// What was said of pairs.
pub(crate) struct Said {
    /// Whether there are any.
    pub enabled: Option<Given>,
    /// Prefill workers, each with its port behind it if it was given.
    pub prefill: Option<Vec<Given>>,
    pub decode: Option<Vec<Given>>,
    /// Policies of both.
    pub policies: [Option<Given>; 2],
    /// Where workers announce themselves, and from where they may.
    pub announced: (Option<Given>, Option<Vec<Given>>),
    /// Where decode workers take in blocks: all in JSON, or one in parts.
    pub decoders: (Option<Given>, Option<Given>, [Option<Vec<Given>>; 2]),
    /// Where prefill workers say that they have written, and the longest wait for that.
    pub readiness: [Option<Given>; 2],
    /// Connector, injection, version skew, legs at once.
    pub ways: [Option<Given>; 4],
    /// Thresholds in tokens.
    pub thresholds: [Option<Given>; 2],
    /// Lease, limit of the prefill leg, limit of the decode leg's first byte.
    pub times: [Option<Given>; 3],
}

/// Roles, pairs and the decode workers' policy. `None` if there are no pairs.
///
/// # Errors
/// A value that cannot be used, or workers that do not fit.
pub(crate) fn read(
    said: Said,
    others: &[WorkerUrl],
    policy: &PolicySettings,
) -> Result<Option<(RoleSettings, PairSettings, PolicySettings)>, Rejected> {
    let Said { enabled, prefill, decode, policies, announced, decoders, readiness, ways, thresholds, times } =
        said;
    let [of_prefill, of_decode] = policies;
    let (listens, connector) = (announced.0.clone(), ways[0].clone());
    let pairs = pairs(ways, thresholds, times)?;
    let lmcache = lmcache::read(decoders, readiness)?;
    let (announced, allow) = self::announced(announced)?;
    let kind = |key, given| POLICY.read(key, given, policy.kind);
    let of_prefill = PolicySettings {
        kind: kind("prefill-policy", of_prefill)?,
        load: LoadKind::Tokens,
        ..policy.clone()
    };
    let of_decode = PolicySettings { kind: kind("decode-policy", of_decode)?, ..policy.clone() };
    let first = [("prefill", &prefill), ("decode", &decode)]
        .into_iter()
        .find_map(|(key, urls)| Some((key, urls.as_ref()?.first()?.clone())));
    let is_complete = announced.is_some()
        || [&prefill, &decode].iter().all(|urls| urls.as_ref().is_some_and(|urls| !urls.is_empty()));
    let mut workers = Vec::new();
    prefillers(prefill.unwrap_or_default(), &mut workers)?;
    for one in decode.unwrap_or_default() {
        let url = WORKER_URL.of("decode", &one)?;
        add(&mut workers, "decode", &one, (url, Role::Decode))?;
    }
    let wanted = enabled.as_ref().map_or(Ok(false), |given| BOOL.of("vllm-pd-disaggregation", given))?;
    match (wanted, &enabled, &first) {
        (true, Some(given), _) if !is_complete || !others.is_empty() => {
            let problem = "needs at least one --prefill and one --decode, or --vllm-discovery-address, and no --worker-urls";
            return Err(given.reject("vllm-pd-disaggregation", problem.to_owned()));
        }
        (false, _, Some((key, one))) => {
            return Err(one.reject(key, NEEDS_PAIRS.to_owned()));
        }
        (false, _, None) => {
            let needs = |given: Given| given.reject("vllm-discovery-address", NEEDS_PAIRS.to_owned());
            return listens.map_or(Ok(None), |given| Err(needs(given)));
        }
        (true, _, _) => {}
    }
    if let (true, Some((key, one))) = (pairs.connector.names_workers(), first) {
        let problem = "with --kv-connector nccl workers announce themselves; take it out";
        return Err(one.reject(key, problem.to_owned()));
    }
    let (readiness, pairs) = lmcache::fit(lmcache, connector, (&workers, &allow), pairs)?;
    let roles = RoleSettings { workers, prefill_policy: of_prefill, announced, readiness };
    Ok(Some((roles, pairs, of_decode)))
}

/// Data-parallel ranks of prefill workers, and of those that answer. Those that are not said are as many as `all` have.
///
/// # Errors
/// A value that cannot be used, or no pairs.
pub(crate) fn ranks(
    [prefill, decode]: [Option<Given>; 2],
    (enabled, connector): (Option<&Given>, Option<&Given>),
    all: RankCount,
) -> Result<[RankCount; 2], Rejected> {
    let wanted = enabled.map_or(Ok(false), |given| BOOL.of("vllm-pd-disaggregation", given))?;
    let read = |key, given: Option<Given>| match (given.clone(), RANKS.read(key, given, all)?) {
        (Some(given), _) if !wanted => Err(given.reject(key, NEEDS_PAIRS.to_owned())),
        (_, ranks) => Ok(ranks),
    };
    let ranks = [read("prefill-data-parallel-size", prefill)?, read("decode-data-parallel-size", decode)?];
    let is_whole = |ranks: &RankCount| matches!(ranks, RankCount::Given(ranks) if ranks.count() == 1);
    match connector {
        Some(given)
            if !ranks.iter().all(is_whole) && CONNECTOR.of("kv-connector", given)? == Connector::Lmcache =>
        {
            let problem = "lmcache is for workers of one data-parallel rank: blocks are handed to a URL";
            Err(given.reject("kv-connector", problem.to_owned()))
        }
        _ => Ok(ranks),
    }
}

/// URLs, each perhaps followed by its port.
fn prefillers(given: Vec<Given>, workers: &mut Vec<(WorkerUrl, Role)>) -> Result<(), Rejected> {
    let mut has_port = true;
    for one in given {
        match workers.last_mut() {
            Some((_, Role::Prefill { bootstrap_port })) if !has_port && !one.text().contains(':') => {
                *bootstrap_port = PORT_OR_NONE.of("prefill", &one)?;
                has_port = true;
            }
            _ => {
                let url = WORKER_URL.of("prefill", &one)?;
                add(workers, "prefill", &one, (url, Role::Prefill { bootstrap_port: None }))?;
                has_port = false;
            }
        }
    }
    Ok(())
}

fn add(
    workers: &mut Vec<(WorkerUrl, Role)>,
    key: &'static str,
    given: &Given,
    worker: (WorkerUrl, Role),
) -> Result<(), Rejected> {
    if workers.iter().any(|(known, _)| *known == worker.0) {
        let problem = format!("{} is given twice; each worker is given once, in one role", worker.0);
        return Err(given.reject(key, problem));
    }
    workers.push(worker);
    Ok(())
}

/// Where workers announce themselves, and from where workers may speak.
fn announced(
    (listen, allow): (Option<Given>, Option<Vec<Given>>),
) -> Result<(Option<WorkerSocket>, Vec<Range>), Rejected> {
    let listen = listen.map(|given| LISTEN.of("vllm-discovery-address", &given)).transpose()?;
    let allow = match allow {
        Some(given) => given.iter().map(|one| RANGE.of("discovery-allow", one)).collect::<Result<_, _>>()?,
        None => Range::usual(),
    };
    Ok((listen.map(|listen| WorkerSocket { listen, allow: allow.clone() }), allow))
}

/// What does not go together with the connector.
fn fit(
    connector: Connector,
    thresholds: [(&'static str, &Option<Given>, u64); 2],
    at_once: (Option<&Given>, bool),
) -> Result<(), Rejected> {
    for (key, given, tokens) in thresholds {
        if let (Some(given), false) = (given, connector.decodes_alone() || tokens == 0) {
            let problem = "it must be 0 with --kv-connector nccl, whose decode workers cannot prefill";
            return Err(given.reject(key, problem.to_owned()));
        }
    }
    match at_once {
        (Some(given), true) if !connector.may_be_concurrent() => {
            let problem = "is for --kv-connector nccl; the legs of others go as they must";
            Err(given.reject("pd-concurrent-legs", problem.to_owned()))
        }
        _ => Ok(()),
    }
}

fn pairs(
    [connector, inject, skew, at_once]: [Option<Given>; 4],
    [threshold, uncached]: [Option<Given>; 2],
    [lease, prefill, first_byte]: [Option<Given>; 3],
) -> Result<PairSettings, Rejected> {
    let or = PairSettings::default();
    let given = (threshold.clone(), uncached.clone(), at_once.clone());
    let pairs = PairSettings {
        connector: CONNECTOR.read("kv-connector", connector, or.connector)?,
        concurrent_legs: BOOL.read("pd-concurrent-legs", at_once, or.concurrent_legs)?,
        bootstrap: INJECT.read("pd-inject-bootstrap", inject, or.bootstrap)?,
        allow_version_skew: BOOL.read("pd-allow-version-skew", skew, or.allow_version_skew)?,
        conditions: Conditions {
            threshold_tokens: TOKENS.read(
                "pd-threshold-tokens",
                threshold,
                or.conditions.threshold_tokens,
            )?,
            uncached_threshold_tokens: TOKENS.read(
                "pd-uncached-threshold-tokens",
                uncached,
                or.conditions.uncached_threshold_tokens,
            )?,
        },
        lease: LEASE.read("pd-kv-lease-secs", lease, or.lease)?,
        prefill_timeout: LIMIT.read("pd-prefill-timeout-secs", prefill, or.prefill_timeout)?,
        first_byte_timeout: LIMIT.read(
            "pd-decode-first-byte-timeout-secs",
            first_byte,
            or.first_byte_timeout,
        )?,
        ..or
    };
    let Conditions { threshold_tokens, uncached_threshold_tokens } = pairs.conditions;
    let thresholds = [
        ("pd-threshold-tokens", &given.0, threshold_tokens),
        ("pd-uncached-threshold-tokens", &given.1, uncached_threshold_tokens),
    ];
    fit(pairs.connector, thresholds, (given.2.as_ref(), pairs.concurrent_legs))?;
    Ok(pairs)
}
