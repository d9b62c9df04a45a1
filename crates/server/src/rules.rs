//! What each kind of value must look like: its range, its unit, and how a refusal says so. Knows no flag.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use forebay_discovery::{Range, RankCount};
use forebay_pd::Connector;
use forebay_pd::lmcache::{Receiver, is_host, registry};
use forebay_policy::{HashKeyKind, MIN_TREE_BYTES, MOST_GROUP_WEIGHT, PolicyKind};
use forebay_router::{AccessFormat, Inject, hash_source};
use forebay_workers::{Ranks, WorkerUrl};
use http::{HeaderName, HeaderValue};

use crate::admin::MetricsPrefix;
use crate::cors;
use crate::given::{Given, Rejected};
use crate::settings::{Listen, LogFormat, LogLevel};

/// What a value must look like.
pub(crate) struct Rule<T> {
    /// Completes "… is not"; names the unit.
    pub(crate) allowed: &'static str,
    read: fn(&str) -> Option<T>,
}

pub(crate) const IP: Rule<IpAddr> =
    Rule { allowed: "an IP address such as 127.0.0.1 or ::1", read: |text| text.parse().ok() };
/// A TCP port; 0 takes a free one.
pub(crate) const PORT: Rule<u16> =
    Rule { allowed: "a port number from 0 to 65535", read: |text| text.parse().ok() };
pub(crate) const BOOL: Rule<bool> = Rule { allowed: "true or false", read: |text| text.parse().ok() };
/// How many simulated workers.
pub(crate) const WORKERS: Rule<u16> = Rule {
    allowed: "a number of workers from 1 to 64",
    read: |text| text.parse().ok().filter(|count| (1..=64).contains(count)),
};
/// Ranks of a simulated worker.
pub(crate) const SIMULATED_RANKS: Rule<u32> = Rule {
    allowed: "a number of ranks from 1 to 64",
    read: |text| text.parse().ok().filter(|count| (1..=64).contains(count)),
};
/// How many of them prefill.
pub(crate) const PREFILLERS: Rule<u16> = Rule {
    allowed: "a number of workers from 0 to 63",
    read: |text| text.parse().ok().filter(|count| *count <= 63),
};
pub(crate) const THREADS: Rule<usize> = Rule {
    allowed: "a number of threads from 1 to 1024",
    read: |text| text.parse().ok().filter(|count| (1..=1024).contains(count)),
};
pub(crate) const BYTES: Rule<usize> = Rule {
    allowed: "a number of bytes; at least 1",
    read: |text| text.parse().ok().filter(|&bytes| bytes > 0),
};
pub(crate) const TREE_BYTES: Rule<u64> = Rule {
    allowed: "a usable number of bytes; at least 1048576 (1 MiB)",
    read: |text| text.parse().ok().filter(|&bytes| bytes >= MIN_TREE_BYTES),
};
pub(crate) const DURATION: Rule<Duration> = Rule {
    allowed: "a number of seconds from 0.001 to 31536000 (a year)",
    read: |text| {
        let seconds = text.parse().ok().filter(|seconds| (0.001..=31_536_000.0).contains(seconds))?;
        Duration::try_from_secs_f64(seconds).ok()
    },
};
pub(crate) const PLACES: Rule<usize> = Rule {
    allowed: "a number of requests from 0 to 1000000",
    read: |text| text.parse().ok().filter(|&count| count <= 1_000_000),
};
/// A time limit; `None` is none.
pub(crate) const LIMIT: Rule<Option<Duration>> = Rule {
    allowed: "a number of seconds from 0 (off) to 31536000 (a year)",
    read: |text| {
        let seconds: f64 = text.parse().ok().filter(|seconds| (0.0..=31_536_000.0).contains(seconds))?;
        Some(Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero()))
    },
};
pub(crate) const MILLISECONDS: Rule<Duration> = Rule {
    allowed: "a whole number of milliseconds from 1 to 3600000 (an hour)",
    read: |text| {
        let ms = text.parse().ok().filter(|ms| (1..=3_600_000).contains(ms))?;
        Some(Duration::from_millis(ms))
    },
};
pub(crate) const SECONDS_OR_NEVER: Rule<u64> = Rule {
    allowed: "a whole number of seconds from 0 (never) to 31536000 (a year)",
    read: |text| text.parse().ok().filter(|&seconds| seconds <= 31_536_000),
};
pub(crate) const POLICY: Rule<PolicyKind> = Rule {
    allowed: "cache_aware, power_of_two, consistent_hash, round_robin, random or least_loaded",
    read: |text| text.parse().ok(),
};
pub(crate) const WORKER_URL: Rule<WorkerUrl> = Rule {
    allowed: "a worker URL; http://HOST:PORT[/PREFIX], https://… or unix:/PATH is expected",
    read: |text| text.parse().ok(),
};
/// A prefill worker's bootstrap server, if it has one.
pub(crate) const PORT_OR_NONE: Rule<Option<u16>> = Rule {
    allowed: "a port number from 1 to 65535, or none",
    read: |text| match text {
        "none" | "None" => Some(None),
        _ => text.parse().ok().filter(|&port| port > 0).map(Some),
    },
};
pub(crate) const CONNECTOR: Rule<Connector> =
    Rule { allowed: "nixl, nixl_push, bootstrap, nccl or lmcache", read: Connector::from_name };
pub(crate) const INJECT: Rule<Inject> = Rule {
    allowed: "auto, always or never",
    read: |text| match text {
        "auto" => Some(Inject::Auto),
        "always" => Some(Inject::Always),
        "never" => Some(Inject::Never),
        _ => None,
    },
};
/// Where decode workers take in blocks, by their URLs.
pub(crate) const REGISTRY: Rule<BTreeMap<String, Receiver>> = Rule {
    allowed: r#"JSON of the form {"URL": {"receiver_host": "h", "receiver_init_port": [1], "receiver_alloc_port": [2]}}, with one port of each kind for each rank"#,
    read: |text| {
        let by_url = |(url, receiver): (String, Receiver)| {
            Some((url.parse::<WorkerUrl>().ok()?.as_str().to_owned(), receiver))
        };
        registry(text).ok()?.into_iter().map(by_url).collect()
    },
};
/// Where a decode worker takes in blocks.
pub(crate) const KV_HOST: Rule<()> =
    Rule { allowed: "a host name or an IP address", read: |text| is_host(text).then_some(()) };
/// The same of one rank.
pub(crate) const KV_PORT: Rule<u16> = Rule {
    allowed: "a port number from 1 to 65535",
    read: |text| text.parse().ok().filter(|&port| port > 0),
};
/// Where to listen.
pub(crate) const LISTEN: Rule<Listen> = Rule {
    allowed: "an IP address with a port, such as 0.0.0.0:30001",
    read: |text| {
        let at: SocketAddr = text.parse().ok()?;
        Some(Listen { host: at.ip(), port: at.port() })
    },
};
pub(crate) const RANGE: Rule<Range> =
    Rule { allowed: "an IP address or a range of them, such as 10.0.0.0/8", read: |text| text.parse().ok() };
/// Time that blocks are kept; a hand-over is not sent in its last five seconds.
pub(crate) const LEASE: Rule<Duration> = Rule {
    allowed: "a number of seconds from 6 to 86400 (a day)",
    read: |text| {
        let seconds = text.parse().ok().filter(|seconds| (6.0..=86_400.0).contains(seconds))?;
        Duration::try_from_secs_f64(seconds).ok()
    },
};
pub(crate) const SEED: Rule<u64> =
    Rule { allowed: "a whole number from 0 to 18446744073709551615", read: |text| text.parse().ok() };
pub(crate) const SHARE: Rule<f64> = Rule {
    allowed: "a share from 0 to 1",
    read: |text| text.parse().ok().filter(|share| (0.0..=1.0).contains(share)),
};
pub(crate) const FACTOR: Rule<f64> = Rule {
    allowed: "a finite factor of at least 1",
    read: |text| text.parse().ok().filter(|factor: &f64| *factor >= 1.0 && factor.is_finite()),
};
pub(crate) const REQUESTS: Rule<u32> =
    Rule { allowed: "a number of requests from 0 to 4294967295", read: |text| text.parse().ok() };
pub(crate) const TOKENS: Rule<u64> =
    Rule { allowed: "a number of tokens from 0 to 18446744073709551615", read: |text| text.parse().ok() };
/// Tokens in a second.
pub(crate) const RATE: Rule<f64> = Rule {
    allowed: "a number of tokens per second from 0.001 to 1000000000",
    read: |text| text.parse().ok().filter(|rate| (0.001..=1e9).contains(rate)),
};
pub(crate) const TOKENS_OF_CACHE: Rule<u64> = Rule {
    allowed: "a number of tokens; at least 1",
    read: |text| text.parse().ok().filter(|&tokens| tokens > 0),
};
pub(crate) const COUNT: Rule<u32> = Rule {
    allowed: "a number from 1 to 100000",
    read: |text| text.parse().ok().filter(|count| (1..=100_000).contains(count)),
};
pub(crate) const RANKS: Rule<RankCount> = Rule {
    allowed: "auto, or a number of ranks from 1 to 1024",
    read: |text| match text {
        "auto" => Some(RankCount::Asked),
        _ => text.parse().ok().and_then(Ranks::first).map(RankCount::Given),
    },
};
/// How much one load counts against another one.
pub(crate) const WEIGHT: Rule<f64> = Rule {
    allowed: "a weight from 0 to 100",
    read: |text| text.parse().ok().filter(|weight| (0.0..=MOST_GROUP_WEIGHT).contains(weight)),
};
pub(crate) const PROBES: Rule<u32> = Rule {
    allowed: "a number of probes from 1 to 4294967295",
    read: |text| text.parse().ok().filter(|&count| count > 0),
};
pub(crate) const PATH: Rule<String> = Rule {
    allowed: "a path that starts with / and has no spaces, as /health",
    read: |text| {
        let fits = text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        fits.then(|| text.to_owned())
    },
};
pub(crate) const FILE: Rule<PathBuf> =
    Rule { allowed: "the name of a file", read: |text| (!text.is_empty()).then(|| text.into()) };
pub(crate) const HEADER: Rule<HeaderName> =
    Rule { allowed: "the name of a header", read: |text| HeaderName::from_bytes(text.as_bytes()).ok() };
pub(crate) const HASH_SOURCE: Rule<HashKeyKind> = Rule {
    allowed: "one of x-session-id, x-user-id, body, authorization, client-ip, body-hash",
    read: hash_source,
};
pub(crate) const ORIGIN: Rule<HeaderValue> = Rule {
    allowed: "an origin as browsers send it, as https://app.example or http://localhost:8080, or *",
    read: cors::origin,
};
pub(crate) const ALIAS: Rule<(String, String)> = Rule {
    allowed: "two names that differ, as ALIAS=MODEL",
    read: |text| {
        let (alias, model) = text.split_once('=')?;
        let fits = !alias.is_empty() && !model.is_empty() && alias != model;
        fits.then(|| (alias.to_owned(), model.to_owned()))
    },
};
pub(crate) const METRICS_PREFIX: Rule<MetricsPrefix> = Rule {
    allowed: "forebay or vllm_router",
    read: |text| match text {
        "forebay" => Some(MetricsPrefix::Forebay),
        "vllm_router" => Some(MetricsPrefix::VllmRouter),
        _ => None,
    },
};
pub(crate) const LOG_LEVEL: Rule<LogLevel> =
    Rule { allowed: "error, warn, info, debug or trace", read: log_level };
pub(crate) const LOG_FORMAT: Rule<LogFormat> = Rule {
    allowed: "text or json",
    read: |text| match text {
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    },
};

pub(crate) const ACCESS_LOG: Rule<Option<AccessFormat>> = Rule {
    allowed: "none, json or text",
    read: |text| match text {
        "none" => Some(None),
        "json" => Some(Some(AccessFormat::Json)),
        "text" => Some(Some(AccessFormat::Text)),
        _ => None,
    },
};
pub(crate) const LOG_FILE: Rule<Option<PathBuf>> = Rule {
    allowed: "a file name, or - for stdout",
    read: |text| match text {
        "" => None,
        _ if text.ends_with('/') => None,
        "-" => Some(None),
        _ => Some(Some(PathBuf::from(text))),
    },
};

impl<T> Rule<T> {
    /// The value of `given`.
    pub(crate) fn of(&self, key: &'static str, given: &Given) -> Result<T, Rejected> {
        (self.read)(given.text()).ok_or_else(|| given.reject(key, format!("{given} is not {}", self.allowed)))
    }

    /// The value of `given`, or `default`.
    pub(crate) fn read(&self, key: &'static str, given: Option<Given>, default: T) -> Result<T, Rejected> {
        given.map_or(Ok(default), |given| self.of(key, &given))
    }
}

fn log_level(name: &str) -> Option<LogLevel> {
    match name {
        "error" | "critical" => Some(LogLevel::Error),
        "warn" | "warning" => Some(LogLevel::Warn),
        "info" => Some(LogLevel::Info),
        "debug" => Some(LogLevel::Debug),
        "trace" => Some(LogLevel::Trace),
        _ => None,
    }
}
