//! What the program uses: valid, typed settings, composed of each crate's own. Reads no flag, no file, no environment.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use forebay_discovery::{Range, RankCount};
use forebay_policy::PolicySettings;
use forebay_router::{AccessFormat, RouterSettings};
use forebay_workers::{BreakerSettings, HealthSettings, Role, WorkerUrl};

use crate::admin::MetricsPrefix;
use crate::cors::Cors;
use crate::decisions::DecisionLogSettings;

/// Most data threads that are started without being asked for.
const MAX_DEFAULT_THREADS: usize = 4;

/// Everything the program can be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients connect.
    pub listen: Listen,
    /// Where the admin API and the metrics are served.
    pub admin: Listen,
    /// Data threads, at least 1.
    pub threads: usize,
    /// Workers known from the start, each once; may be empty.
    pub worker_urls: Vec<WorkerUrl>,
    /// Data-parallel ranks behind each URL.
    pub ranks: RankCount,
    /// The same of prefill workers.
    pub prefill_ranks: RankCount,
    /// Workers that have roles; `None` if there are no prefill/decode pairs.
    pub roles: Option<RoleSettings>,
    /// How long the start waits for the first ready worker.
    pub startup_timeout: Duration,
    /// Longest time between two probes of a worker that has never been ready.
    pub startup_check_interval: Duration,
    /// Whose pages may read answers; `None` says nothing of that.
    pub cors: Option<Cors>,
    /// Which names series have.
    pub metrics_prefix: MetricsPrefix,
    /// Time between two readings of a worker's model list.
    pub model_refresh: Duration,
    /// Tokens that a worker's prefix cache holds, where its metrics do not tell; 0 if that is not known.
    pub worker_cache_tokens: u64,
    /// Which policy, and its knobs.
    pub policy: PolicySettings,
    /// What the policies' randomness starts from.
    pub seed: u64,
    /// Knobs of the health probe.
    pub health: HealthSettings,
    /// Longest wait for the head of a request.
    pub client_header: Duration,
    /// Longest time that a connection is kept without a request, in which it may be up to twice that.
    pub client_idle: Duration,
    /// Requests in flight at one worker at most; 0 is no limit.
    pub max_inflight_per_worker: u32,
    /// How the process ends.
    pub drain: DrainSettings,
    /// Whether the end of stdin is taken as a SIGTERM.
    pub end_with_stdin: bool,
    /// Knobs of the circuit breakers.
    pub breaker: BreakerSettings,
    /// Knobs of the request path.
    pub router: RouterSettings,
    /// What is logged, and how.
    pub log: LogSettings,
    /// The line for each request.
    pub access_log: AccessLogSettings,
    /// Where each choice is written down, if it is.
    pub decision_log: Option<DecisionLogSettings>,
}

/// The line for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// How it looks. `None` writes none.
    pub format: Option<AccessFormat>,
    /// The file that it is added to. `None` is stdout.
    pub file: Option<PathBuf>,
}

/// Workers that have roles.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleSettings {
    /// Prefill workers first, each URL once.
    pub workers: Vec<(WorkerUrl, Role)>,
    /// How prefill workers are chosen; decode workers are by the policy of all.
    pub prefill_policy: PolicySettings,
    /// Where others announce themselves, if they may.
    pub announced: Option<WorkerSocket>,
    /// Where prefill workers say that they have handed over, if they do.
    pub readiness: Option<WorkerSocket>,
}

/// A socket on which workers speak of themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSocket {
    /// Where they do.
    pub listen: Listen,
    /// From where, and for which addresses.
    pub allow: Vec<Range>,
}

/// How the process ends when it is asked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainSettings {
    /// How long it goes on accepting while the readiness page says no already. `None` is not at all.
    pub settle: Option<Duration>,
    /// How long answers may take to end after that. `None` is no limit.
    pub timeout: Option<Duration>,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address of the interface.
    pub host: IpAddr,
    /// TCP port; 0 takes a free one.
    pub port: u16,
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The least severe level that is logged.
    pub level: LogLevel,
    /// How a log line looks.
    pub format: LogFormat,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// What needs a human.
    Error,
    /// What may need one soon.
    Warn,
    /// What changed.
    #[default]
    Info,
    /// What a developer asks for.
    Debug,
    /// Everything.
    Trace,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Settings {
    /// What runs without any flag, except for the seed: 0 here, drawn by the command line.
    fn default() -> Self {
        Self {
            listen: Listen { host: Ipv4Addr::LOCALHOST.into(), port: 30000 },
            admin: Listen { host: Ipv4Addr::LOCALHOST.into(), port: 29000 },
            threads: default_threads(),
            worker_urls: Vec::new(),
            ranks: RankCount::default(),
            prefill_ranks: RankCount::default(),
            roles: None,
            startup_timeout: Duration::from_secs(600),
            startup_check_interval: Duration::from_secs(30),
            cors: None,
            metrics_prefix: MetricsPrefix::default(),
            model_refresh: Duration::from_secs(30),
            worker_cache_tokens: 0,
            policy: PolicySettings::default(),
            seed: 0,
            health: HealthSettings::default(),
            client_header: Duration::from_secs(60),
            client_idle: Duration::from_secs(60),
            max_inflight_per_worker: 0,
            drain: DrainSettings::default(),
            end_with_stdin: false,
            breaker: BreakerSettings::default(),
            router: RouterSettings::default(),
            log: LogSettings::default(),
            access_log: AccessLogSettings::default(),
            decision_log: None,
        }
    }
}

impl fmt::Display for Settings {
    /// One line for people: where it listens, what it does, for how many workers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "listen {}, admin {}, {} worker{}, policy {}, {} data thread{}",
            self.listen.addr(),
            self.admin.addr(),
            self.worker_count(),
            plural(self.worker_count()),
            self.policy.kind,
            self.threads,
            plural(self.threads),
        )
    }
}

impl Settings {
    /// Workers known from the start, in whatever role.
    pub fn worker_count(&self) -> usize {
        self.worker_urls.len() + self.roles.as_ref().map_or(0, |roles| roles.workers.len())
    }
}

impl Listen {
    /// The address to bind.
    pub fn addr(self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_DEFAULT_THREADS)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_one_line_that_says_where_what_and_how_many() {
        let mut settings = Settings { threads: 1, ..Settings::default() };
        settings.listen.host = "::1".parse().unwrap();
        settings.worker_urls = vec!["http://a:1".parse().unwrap(), "http://b:1".parse().unwrap()];
        assert_eq!(
            settings.to_string(),
            "listen [::1]:30000, admin 127.0.0.1:29000, 2 workers, policy cache_aware, 1 data thread"
        );
    }

    #[test]
    fn the_default_has_at_least_one_data_thread_and_at_most_four() {
        assert!((1..=MAX_DEFAULT_THREADS).contains(&Settings::default().threads));
    }
}
