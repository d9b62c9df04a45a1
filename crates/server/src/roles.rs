//! The flags of prefill/decode pairs in, settings out: which worker has which role, and how pairs are made.

use forebay_discovery::{Range, RankCount};
use forebay_pd::{Conditions, Connector};
use forebay_policy::{LoadKind, PolicySettings};
use forebay_router::{Inject, PairSettings};
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

impl Said {
    /// Key and value of what says something of pairs.
    fn given(&self) -> Vec<Keyed> {
        let first = |given: &Option<Vec<Given>>| given.as_ref().and_then(|given| given.first().cloned());
        let [of_prefill, of_decode] = &self.policies;
        let (registry, host, [init, alloc]) = &self.decoders;
        let [proxy, ready] = &self.readiness;
        let [connector, inject, skew, at_once] = &self.ways;
        let [threshold, uncached] = &self.thresholds;
        let [lease, prefill, first_byte] = &self.times;
        let all = [
            ("prefill", first(&self.prefill)),
            ("decode", first(&self.decode)),
            ("prefill-policy", of_prefill.clone()),
            ("decode-policy", of_decode.clone()),
            ("vllm-discovery-address", self.announced.0.clone()),
            ("discovery-allow", first(&self.announced.1)),
            ("kv-connector", connector.clone()),
            ("pd-concurrent-legs", at_once.clone()),
            ("decoder-registry", registry.clone()),
            ("decoder-host", host.clone()),
            ("decoder-init-port", first(init)),
            ("decoder-alloc-port", first(alloc)),
            ("lmcache-proxy-address", proxy.clone()),
            ("lmcache-ready-timeout-secs", ready.clone()),
            ("pd-inject-bootstrap", inject.clone()),
            ("pd-allow-version-skew", skew.clone()),
            ("pd-threshold-tokens", threshold.clone()),
            ("pd-uncached-threshold-tokens", uncached.clone()),
            ("pd-kv-lease-secs", lease.clone()),
            ("pd-prefill-timeout-secs", prefill.clone()),
            ("pd-decode-first-byte-timeout-secs", first_byte.clone()),
        ];
        all.into_iter().filter_map(|(key, given)| Some((key, given?))).collect()
    }
}

/// Keys with the first value of each.
type Keyed = (&'static str, Given);

/// Where there are no pairs, nothing may speak of them. Who says that there are to be none may have the rest of the
/// settings at hand; workers and sockets would be missed.
fn without_pairs(given: &[Keyed], switched_off: bool) -> Result<(), Rejected> {
    let missed = |key: &str| matches!(key, "prefill" | "decode" | "vllm-discovery-address");
    match given.iter().find(|(key, _)| !switched_off || missed(key)) {
        Some((key, one)) => Err(one.reject(key, NEEDS_PAIRS.to_owned())),
        None => Ok(()),
    }
}

/// What is for another connector than this one.
fn for_others(given: &[Keyed], pairs: &PairSettings) -> Result<(), Rejected> {
    let listens = given.iter().any(|(key, _)| *key == "vllm-discovery-address");
    let problem = |key: &str| match (key, pairs.connector) {
        ("prefill" | "decode", connector) if connector.names_workers() => {
            Some("with --kv-connector nccl workers announce themselves; take it out")
        }
        ("pd-inject-bootstrap", connector)
            if connector != Connector::Nixl && pairs.bootstrap != Inject::Auto =>
        {
            Some("is for --kv-connector nixl; the legs of others go as they must")
        }
        ("pd-concurrent-legs", connector) if !connector.may_be_concurrent() && pairs.concurrent_legs => {
            Some("is for --kv-connector nccl; the legs of others go as they must")
        }
        (_, Connector::Lmcache) => None,
        ("discovery-allow", _) if !listens => {
            Some("needs a socket that it is for: --vllm-discovery-address or --lmcache-proxy-address")
        }
        (key, _) if key.starts_with("decoder-") || key.starts_with("lmcache-") => {
            Some("is for --kv-connector lmcache")
        }
        _ => None,
    };
    match given.iter().find_map(|(key, one)| Some((key, one, problem(key)?))) {
        Some((key, one, problem)) => Err(one.reject(key, problem.to_owned())),
        None => Ok(()),
    }
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
    let given = said.given();
    let Said { enabled, prefill, decode, policies, announced, decoders, readiness, ways, thresholds, times } =
        said;
    let [of_prefill, of_decode] = policies;
    let connector = ways[0].clone();
    let mut pairs = pairs(ways, thresholds, times)?;
    let lmcache = lmcache::read(decoders, readiness)?;
    let (announced, allow) = self::announced(announced)?;
    let kind = |key, given| POLICY.read(key, given, policy.kind);
    let of_prefill = PolicySettings {
        kind: kind("prefill-policy", of_prefill)?,
        load: LoadKind::Tokens,
        ..policy.clone()
    };
    let of_decode = PolicySettings { kind: kind("decode-policy", of_decode)?, ..policy.clone() };
    let is_complete = announced.is_some()
        || [&prefill, &decode].iter().all(|urls| urls.as_ref().is_some_and(|urls| !urls.is_empty()));
    let mut workers = Vec::new();
    prefillers(prefill.unwrap_or_default(), &mut workers)?;
    for one in decode.unwrap_or_default() {
        let url = WORKER_URL.of("decode", &one)?;
        add(&mut workers, "decode", &one, (url, Role::Decode))?;
    }
    let wanted = enabled.as_ref().map_or(Ok(false), |given| BOOL.of("vllm-pd-disaggregation", given))?;
    if !wanted {
        return without_pairs(&given, enabled.is_some()).map(|()| None);
    }
    if let Some(enabled) = enabled.filter(|_| !is_complete || !others.is_empty()) {
        let problem = "needs at least one --prefill and one --decode, or --vllm-discovery-address, and no --worker-urls";
        return Err(enabled.reject("vllm-pd-disaggregation", problem.to_owned()));
    }
    for_others(&given, &pairs)?;
    let readiness = connector
        .filter(|_| pairs.connector == Connector::Lmcache)
        .map(|connector| lmcache::fit(lmcache, &connector, (&workers, allow), &mut pairs))
        .transpose()?;
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
    let Some(given) = connector.filter(|_| !ranks.iter().all(is_whole)) else { return Ok(ranks) };
    let problem = match CONNECTOR.of("kv-connector", given)? {
        Connector::Lmcache => "lmcache is for workers of one data-parallel rank: blocks are handed to a URL",
        Connector::Nccl => {
            "nccl is for workers of one data-parallel rank: the request id names the first of a URL, and each rank finds but its like"
        }
        Connector::Nixl | Connector::NixlPush | Connector::Bootstrap => return Ok(ranks),
    };
    Err(given.reject("kv-connector", problem.to_owned()))
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

fn pairs(
    [connector, inject, skew, at_once]: [Option<Given>; 4],
    [threshold, uncached]: [Option<Given>; 2],
    [lease, prefill, first_byte]: [Option<Given>; 3],
) -> Result<PairSettings, Rejected> {
    let or = PairSettings::default();
    let given = (threshold.clone(), uncached.clone());
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
    for (key, given, tokens) in [
        ("pd-threshold-tokens", given.0, threshold_tokens),
        ("pd-uncached-threshold-tokens", given.1, uncached_threshold_tokens),
    ] {
        if let (Some(given), false) = (given, pairs.connector.decodes_alone() || tokens == 0) {
            let problem = "it must be 0 with --kv-connector nccl, whose decode workers cannot prefill";
            return Err(given.reject(key, problem.to_owned()));
        }
    }
    Ok(pairs)
}
