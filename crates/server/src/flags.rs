//! Every flag and every key of the config file, once: its name, its place in the help and what it means. Reads none.

use clap::Args;
use serde::Deserialize;

use crate::given::Given;

/// What can be said on the command line (`--key value`) and in the config file (`key: value`). `None` is the default.
#[derive(Args, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Flags {
    /// Address of the interface that clients connect to; 0.0.0.0 is all of them [default: 127.0.0.1]
    #[arg(long, value_name = "IP", help_heading = "Listener")]
    pub host: Option<Given>,
    /// TCP port that clients connect to; 0 takes a free one [default: 30000]
    #[arg(long, value_name = "PORT", help_heading = "Listener")]
    pub port: Option<Given>,
    /// Address of the interface for the admin API and the metrics [default: 127.0.0.1]
    #[arg(long, value_name = "IP", help_heading = "Listener", visible_alias = "prometheus-host")]
    #[serde(alias = "prometheus-host")]
    pub admin_host: Option<Given>,
    /// TCP port for the admin API and the metrics; 0 takes a free one [default: 29000]
    #[arg(long, value_name = "PORT", help_heading = "Listener", visible_alias = "prometheus-port")]
    #[serde(alias = "prometheus-port")]
    pub admin_port: Option<Given>,
    /// Threads that serve clients, from 1 to 1024 [default: one per core, at most 4]
    #[arg(long, value_name = "N", help_heading = "Listener")]
    pub threads: Option<Given>,
    /// Largest request body, in bytes; a larger one is answered with 413 [default: 536870912]
    #[arg(long, value_name = "BYTES", help_heading = "Listener")]
    pub max_payload_size: Option<Given>,
    /// Request headers that give the request id, the first that is there
    /// [default: x-request-id x-correlation-id x-trace-id request-id]
    #[arg(long, value_name = "NAME", help_heading = "Listener", num_args = 0..)]
    pub request_id_headers: Option<Vec<Given>>,
    /// Forward paths that no route is known for to any worker; otherwise they are answered with 404
    /// [default: true]
    #[arg(long, value_name = "BOOL", help_heading = "Listener")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub forward_unknown: Option<Given>,
    /// Origins whose pages may read answers in a browser, as https://app.example, or * for any; preflights are answered on
    /// every path. Nothing is said of that unless one is named [default: none]
    #[arg(long, value_name = "ORIGIN", help_heading = "Listener", num_args = 0..)]
    pub cors_allowed_origins: Option<Vec<Given>>,

    /// Workers known from the start: http://HOST:PORT[/PREFIX], each once [default: none]
    #[arg(long, value_name = "URL", help_heading = "Workers", num_args = 0..)]
    pub worker_urls: Option<Vec<Given>>,
    /// Data-parallel ranks behind each URL that are told apart: each is chosen, and told to the worker, by itself. 1 is
    /// none; auto asks each worker, and takes fleets where they differ [default: 1]
    #[arg(long, value_name = "N|auto", help_heading = "Workers")]
    pub intra_node_data_parallel_size: Option<Given>,
    /// Let clients name the rank that serves their request (of a pair the decode worker's), in X-data-parallel-rank;
    /// otherwise the header is taken out [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Workers")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub honor_client_dp_rank: Option<Given>,
    /// Seconds the start waits for the first ready worker before it fails; fractions allowed [default: 600]
    #[arg(long, value_name = "SECONDS", help_heading = "Workers")]
    pub worker_startup_timeout_secs: Option<Given>,
    /// Longest time between two probes of a worker that has never been ready, in seconds; fractions allowed
    /// [default: 30]
    #[arg(long, value_name = "SECONDS", help_heading = "Workers")]
    pub worker_startup_check_interval: Option<Given>,
    /// Time between two readings of a worker's model list, in seconds; fractions allowed [default: 30]
    #[arg(long, value_name = "SECONDS", help_heading = "Workers")]
    pub model_refresh_interval_secs: Option<Given>,
    /// Another name for a model that workers serve, as ALIAS=MODEL: requests may give it, workers are told MODEL, and
    /// answers have ALIAS where they name the model first; once for each [default: none]
    #[arg(long, value_name = "ALIAS=MODEL", help_heading = "Workers", num_args = 1..)]
    #[arg(action = clap::ArgAction::Append)]
    pub model_alias: Option<Vec<Given>>,
    /// Longest wait for a connection to a worker, in seconds; fractions allowed [default: 10]
    #[arg(long, value_name = "SECONDS", help_heading = "Workers")]
    pub connect_timeout_secs: Option<Given>,
    /// File of certificates (PEM) that are believed beside the system's own, for workers with https:// URLs
    /// [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Workers")]
    pub worker_ca_file: Option<Given>,

    /// How a worker is chosen: cache_aware, power_of_two, consistent_hash, round_robin, random or least_loaded
    /// [default: cache_aware]
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub policy: Option<Given>,
    /// What the policies' randomness starts from, from 0 to 18446744073709551615; the same seed gives the same
    /// choices [default: drawn at the start]
    #[arg(long, value_name = "N", help_heading = "Policy")]
    pub seed: Option<Given>,
    /// cache_aware: share of the prompt, from 0 to 1, that a worker must have seen, strictly more, to attract
    /// the request [default: 0.3]
    #[arg(long, value_name = "SHARE", help_heading = "Policy")]
    pub cache_threshold: Option<Given>,
    /// cache_aware: a worker is passed over if it has more than this many requests in flight above the least
    /// loaded one, and the relative threshold is exceeded as well [default: 64]
    #[arg(long, value_name = "REQUESTS", help_heading = "Policy")]
    pub balance_abs_threshold: Option<Given>,
    /// cache_aware: a worker is passed over if its load is more than this multiple of the least loaded one's,
    /// at least 1, and the absolute threshold is exceeded as well [default: 1.5]
    #[arg(long, value_name = "FACTOR", help_heading = "Policy")]
    pub balance_rel_threshold: Option<Given>,
    /// cache_aware: bound on the memory of one prefix tree (one model, all workers), in bytes, at least 1048576
    /// [default: 33554432]
    #[arg(long, value_name = "BYTES", help_heading = "Policy")]
    pub max_tree_size: Option<Given>,
    /// cache_aware: seconds after which an unused prefix is dropped; 0 keeps it until the room is needed
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Policy")]
    pub eviction_interval_secs: Option<Given>,
    /// cache_aware: tokens that a worker's prefix cache holds, for workers whose metrics do not tell; what a worker was
    /// given before that is taken to be gone; 0 takes it to keep everything [default: 0]
    #[arg(long, value_name = "TOKENS", help_heading = "Policy")]
    pub worker_cache_tokens: Option<Given>,
    /// cache_aware, power_of_two, least_loaded: weight of what all ranks behind a URL have to do, as a mean, against what a
    /// rank has to do itself, from 0 to 100. For expert-parallel engines, whose ranks step together: a busy one slows all
    /// [default: 0]
    #[arg(long, value_name = "WEIGHT", help_heading = "Policy")]
    pub dp_group_weight: Option<Given>,
    /// Tell clients in x-forebay-worker and x-forebay-decision which worker was chosen, and why [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Policy")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub expose_routing_headers: Option<Given>,
    /// consistent_hash: where the key of a request is looked for, in this order, separated by commas
    /// [default: x-session-id,x-user-id,body,authorization,client-ip,body-hash]
    #[arg(long, value_name = "SOURCES", help_heading = "Policy", value_delimiter = ',')]
    pub hash_key: Option<Vec<Given>>,

    /// Workers have roles: every prompt is prefilled by one and answered by another [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        help_heading = "Prefill and decode",
        visible_alias = "pd-disaggregation"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(alias = "pd-disaggregation")]
    pub vllm_pd_disaggregation: Option<Given>,
    /// A prefill worker, and the port of its bootstrap server if it has one; once for each. In the config file a list
    /// in which a port follows its URL [default: none]
    #[arg(long, value_names = ["URL", "PORT|none"], help_heading = "Prefill and decode")]
    #[arg(num_args = 1..=2, action = clap::ArgAction::Append)]
    pub prefill: Option<Vec<Given>>,
    /// A decode worker; once for each [default: none]
    #[arg(long, value_name = "URL", help_heading = "Prefill and decode", num_args = 1..)]
    #[arg(action = clap::ArgAction::Append)]
    pub decode: Option<Vec<Given>>,
    /// How prefill workers are chosen, as --policy; their load is the tokens that they have yet to prefill
    /// [default: that of --policy]
    #[arg(long, value_name = "NAME", help_heading = "Prefill and decode")]
    pub prefill_policy: Option<Given>,
    /// How decode workers are chosen, as --policy [default: that of --policy]
    #[arg(long, value_name = "NAME", help_heading = "Prefill and decode")]
    pub decode_policy: Option<Given>,
    /// Where workers may announce themselves (ZeroMQ, as the P2P NCCL connector's proxy_ip and proxy_port): ADDRESS:PORT to
    /// listen on. They are on the list from their first announcement until three are missed [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Prefill and decode")]
    pub vllm_discovery_address: Option<Given>,
    /// From which addresses workers may speak of themselves, and which addresses they may name: ranges such as 10.0.0.0/8,
    /// separated by commas [default: this machine and private networks]
    #[arg(long, value_name = "RANGES", help_heading = "Prefill and decode", value_delimiter = ',')]
    pub discovery_allow: Option<Vec<Given>>,
    /// How KV blocks are handed over: nixl (the decode worker pulls), nixl_push (the prefill worker pushes), bootstrap, nccl
    /// (P2P NCCL of vLLM up to 0.23; its workers announce themselves, need VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1 from 0.14
    /// on, and cannot answer without a prefill worker) or lmcache (chat and completions; the prefill worker makes the first
    /// token) [default: nixl]
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Prefill and decode",
        visible_alias = "disagg-connector-type"
    )]
    #[serde(alias = "disagg-connector-type")]
    pub kv_connector: Option<Given>,
    /// With lmcache, where decode workers take in blocks, one port of each kind for each tensor-parallel rank:
    /// {"http://d1:8000":{"receiver_host":"10.0.0.9","receiver_init_port":[7300],"receiver_alloc_port":[7400]}}
    /// [default: none]
    #[arg(long, value_name = "JSON", help_heading = "Prefill and decode")]
    pub decoder_registry: Option<Given>,
    /// With lmcache and one decode worker, the host where it takes in blocks [default: none]
    #[arg(long, value_name = "HOST", help_heading = "Prefill and decode")]
    pub decoder_host: Option<Given>,
    /// Its init ports, separated by commas [default: none]
    #[arg(long, value_name = "PORTS", help_heading = "Prefill and decode", value_delimiter = ',')]
    pub decoder_init_port: Option<Vec<Given>>,
    /// Its alloc ports, separated by commas [default: none]
    #[arg(long, value_name = "PORTS", help_heading = "Prefill and decode", value_delimiter = ',')]
    pub decoder_alloc_port: Option<Vec<Given>>,
    /// With lmcache, where prefill workers say that blocks are written (ZeroMQ, as their pd_proxy_host and pd_proxy_port):
    /// ADDRESS:PORT to listen on, for those in --discovery-allow [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Prefill and decode")]
    pub lmcache_proxy_address: Option<Given>,
    /// Longest wait for that, in seconds; a decode worker then computes the prompt itself [default: 10]
    #[arg(long, value_name = "SECONDS", help_heading = "Prefill and decode")]
    pub lmcache_ready_timeout_secs: Option<Given>,
    /// Name the prefill worker's bootstrap server in both legs of nixl pairs: auto (if it has a port), always or never
    /// [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = "Prefill and decode")]
    pub pd_inject_bootstrap: Option<Given>,
    /// Send both legs of nccl pairs at once. A prefill leg that fails may then leave the decode worker's engine waiting
    /// [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Prefill and decode")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pd_concurrent_legs: Option<Given>,
    /// Pair workers whose vLLM versions differ, or are not known; engines refuse that unless they were built for it
    /// [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Prefill and decode")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pd_allow_version_skew: Option<Given>,
    /// Prompts with fewer tokens go to a decode worker alone; 0 pairs all [default: 0]
    #[arg(
        long,
        value_name = "TOKENS",
        help_heading = "Prefill and decode",
        visible_alias = "routing-threshold"
    )]
    #[serde(alias = "routing-threshold")]
    pub pd_threshold_tokens: Option<Given>,
    /// Prompts of which the chosen decode worker lacks fewer tokens go to it alone; 0 does not ask [default: 0]
    #[arg(long, value_name = "TOKENS", help_heading = "Prefill and decode")]
    pub pd_uncached_threshold_tokens: Option<Given>,
    /// How long prefill workers keep blocks (kv_lease_duration), in seconds; in its last five no hand-over is sent any
    /// more [default: 30]
    #[arg(long, value_name = "SECONDS", help_heading = "Prefill and decode")]
    pub pd_kv_lease_secs: Option<Given>,
    /// Data-parallel ranks behind the URL of each prefill worker, as --intra-node-data-parallel-size [default: that]
    #[arg(long, value_name = "N|auto", help_heading = "Prefill and decode")]
    pub prefill_data_parallel_size: Option<Given>,
    /// Data-parallel ranks behind the URL of each decode worker, as --intra-node-data-parallel-size [default: that]
    #[arg(long, value_name = "N|auto", help_heading = "Prefill and decode")]
    pub decode_data_parallel_size: Option<Given>,
    /// Longest time of a prefill leg, in seconds; 0 is no limit [default: 300]
    #[arg(long, value_name = "SECONDS", help_heading = "Prefill and decode")]
    pub pd_prefill_timeout_secs: Option<Given>,
    /// Longest wait for the first record of a decode leg's answer, in seconds; 0 is no limit. What is not streamed comes
    /// at once when all of it is generated: raise it for such answers if they are long [default: 120]
    #[arg(long, value_name = "SECONDS", help_heading = "Prefill and decode")]
    pub pd_decode_first_byte_timeout_secs: Option<Given>,

    /// Path of a worker that is probed [default: /health]
    #[arg(long, value_name = "PATH", help_heading = "Health")]
    pub health_check_endpoint: Option<Given>,
    /// Time between two probes of one worker, in seconds; fractions allowed [default: 5]
    #[arg(long, value_name = "SECONDS", help_heading = "Health")]
    pub health_check_interval_secs: Option<Given>,
    /// Time after which a probe counts as failed, in seconds; fractions allowed [default: 5]
    #[arg(long, value_name = "SECONDS", help_heading = "Health")]
    pub health_check_timeout_secs: Option<Given>,
    /// Failed probes in a row after which a worker leaves rotation [default: 3]
    #[arg(long, value_name = "N", help_heading = "Health")]
    pub health_failure_threshold: Option<Given>,
    /// Good probes in a row after which it returns [default: 2]
    #[arg(long, value_name = "N", help_heading = "Health")]
    pub health_success_threshold: Option<Given>,

    /// Requests with a prompt, or for any worker, that are under way at once, from their heads until their clients have
    /// got everything; 0 is no limit [default: 0]
    #[arg(long, value_name = "N", help_heading = "Admission")]
    pub max_concurrent_requests: Option<Given>,
    /// Requests that are in flight at one worker at most, or at one rank where ranks are told apart, as vLLM's own
    /// --max-num-seqs counts; 0 is no limit. When each worker has as many, requests wait for
    /// a place, as many and as long as the next two say: a shorter queue in the worker, and a choice that is made later
    /// [default: 0]
    #[arg(long, value_name = "N", help_heading = "Admission")]
    pub max_inflight_per_worker: Option<Given>,
    /// Requests that may wait for a place, first come, first served; one more is answered with 429 [default: 100]
    #[arg(long, value_name = "N", help_heading = "Admission")]
    pub queue_size: Option<Given>,
    /// Longest wait for a place, in seconds; fractions allowed. After it a request is answered with 408 [default: 60]
    #[arg(long, value_name = "SECONDS", help_heading = "Admission")]
    pub queue_timeout_secs: Option<Given>,
    /// How long after its head a request may wait for a worker if none is well, in seconds; 0 answers with 503 at once
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Admission")]
    pub no_worker_wait_secs: Option<Given>,

    /// Attempts in all that a request gets, as in vllm-router; workers that cannot be reached do not count. Answers with
    /// 429, 502, 503 and 504, and 500 once, are worth another attempt, as long as retries are no more than a tenth of
    /// the traffic [default: 5]
    #[arg(long, value_name = "N", help_heading = "Retries")]
    pub retry_max_retries: Option<Given>,
    /// Ask one worker only, whatever comes of it, as in vllm-router: not even one that refuses the connection is left for
    /// another. --retry-max-retries 1 still does that [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Retries")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_retries: Option<Given>,
    /// Wait before busy workers are asked for the second time, in milliseconds; other workers are asked at once
    /// [default: 50]
    #[arg(long, value_name = "MS", help_heading = "Retries")]
    pub retry_initial_backoff_ms: Option<Given>,
    /// Longest such wait, in milliseconds [default: 30000]
    #[arg(long, value_name = "MS", help_heading = "Retries")]
    pub retry_max_backoff_ms: Option<Given>,
    /// Each wait is so many times the one before; at least 1 [default: 1.5]
    #[arg(long, value_name = "FACTOR", help_heading = "Retries")]
    pub retry_backoff_multiplier: Option<Given>,
    /// Share of a wait, from 0 to 1, by which it is longer or shorter at random [default: 0.2]
    #[arg(long, value_name = "SHARE", help_heading = "Retries")]
    pub retry_jitter_factor: Option<Given>,

    /// Longest wait for the head of a worker's answer, in seconds; 0 is no limit, since a long prompt may take minutes
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub response_header_timeout_secs: Option<Given>,
    /// Longest time without a byte inside a worker's answer, or in a tunnel either way, in seconds; 0 is no limit [default: 300]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub stream_idle_timeout_secs: Option<Given>,
    /// Longest time from a request's head to the end of its answer, all attempts together, in seconds; 0 is no limit
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub request_timeout_secs: Option<Given>,
    /// Longest wait for the head of a request, in seconds; fractions allowed [default: 60]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub client_header_timeout_secs: Option<Given>,
    /// Time that a connection is kept for the next request, in seconds; it may be up to twice that; fractions allowed
    /// [default: 60]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub client_idle_timeout_secs: Option<Given>,
    /// Longest wait for the whole body of a request, in seconds, or for the next piece of one that goes on while it comes;
    /// 0 is no limit [default: 300]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub client_body_timeout_secs: Option<Given>,
    /// After the first SIGTERM or SIGINT, how long to go on accepting while /readiness says 503 already, in seconds
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub drain_settle_secs: Option<Given>,
    /// How long answers may take to end after that, in seconds; then they are cut, and clients are told why. 0 is no limit
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Time limits")]
    pub drain_timeout_secs: Option<Given>,
    /// Take the end of standard input as a SIGTERM: a program that starts forebay with a pipe there takes it along,
    /// however it dies [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Time limits")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub end_with_stdin: Option<Given>,

    /// Failures within the window that open a worker's circuit breaker, so that it is not chosen, if the worker had no
    /// more successes than failures meanwhile; at most 100000. What clients did wrong, 429 and 503 are no failures
    /// [default: 10]
    #[arg(long, value_name = "N", help_heading = "Circuit breaker")]
    pub cb_failure_threshold: Option<Given>,
    /// Successes in a row until a half-open breaker closes, and requests at a time that it lets through
    /// [default: 3]
    #[arg(long, value_name = "N", help_heading = "Circuit breaker")]
    pub cb_success_threshold: Option<Given>,
    /// How long a breaker stays open before it is half-open, in seconds; fractions allowed [default: 60]
    #[arg(long, value_name = "SECONDS", help_heading = "Circuit breaker")]
    pub cb_timeout_duration_secs: Option<Given>,
    /// How long a failure counts, in seconds; fractions allowed [default: 120]
    #[arg(long, value_name = "SECONDS", help_heading = "Circuit breaker")]
    pub cb_window_duration_secs: Option<Given>,
    /// Choose workers however many requests they failed [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Circuit breaker")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_circuit_breaker: Option<Given>,

    /// Key shown to workers when forebay itself asks them. A command line is visible to other users: prefer the
    /// environment variable FOREBAY_API_KEY or the config file [default: none]
    #[arg(long, value_name = "KEY", help_heading = "Security")]
    pub api_key: Option<Given>,
    /// Key that gives the admin right. Prefer FOREBAY_ADMIN_API_KEY or the config file, as above [default: none]
    #[arg(long, value_name = "KEY", help_heading = "Security")]
    pub admin_api_key: Option<Given>,
    /// Believe X-Forwarded-For about who the client is; only behind a proxy that sets it [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Security")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub trust_forwarded: Option<Given>,
    /// Let clients send the headers and fields that steer an engine [default: false]
    #[arg(long, value_name = "BOOL", help_heading = "Security")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub trust_client_internals: Option<Given>,

    /// Least severe level that is logged: error, warn (or warning, critical is error), info, debug or trace
    /// [default: info]
    #[arg(long, value_name = "LEVEL", help_heading = "Logging")]
    pub log_level: Option<Given>,
    /// How a log line looks: text or json [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    pub log_format: Option<Given>,
    /// Names of series: forebay, or vllm_router for vllm-router's names beside forebay's own, where their meaning is the
    /// same [default: forebay]
    #[arg(long, value_name = "PREFIX", help_heading = "Logging")]
    pub metrics_prefix: Option<Given>,
    /// Write one line for each request at its end, as text or json; none writes nothing, and costs nothing. Prompts,
    /// keys, paths and queries are never in it [default: none]
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    pub access_log: Option<Given>,
    /// The file that these lines are added to; - is stdout, where the event lines are too [default: -]
    #[arg(long, value_name = "FILE", help_heading = "Logging", allow_hyphen_values = true)]
    pub access_log_file: Option<Given>,
    /// File for one JSON line for each choice of a worker, with all that it depended on, hashes instead of prompts; what
    /// `forebay replay` reads. What is in the file is replaced [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Logging")]
    pub decision_log: Option<Given>,
    /// Memory for lines of the decision log that wait to be written, in bytes; what has no room is dropped and counted,
    /// no request waits [default: 67108864]
    #[arg(long, value_name = "BYTES", help_heading = "Logging")]
    pub decision_log_buffer_size: Option<Given>,
}
