//! Flags in, settings out: reads every value by its rule and says what is wrong with it.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use forebay_dial::Dialer;
use forebay_policy::{CacheAwareSettings, PolicySettings};
use forebay_router::{RouterSettings, Secret};
use forebay_workers::HealthSettings;

use crate::decisions::{DECISION_BUFFER_BYTES, DecisionLogSettings};
use crate::flags::Flags;
use crate::given::{Given, Rejected};
use crate::limits;
use crate::lists;
use crate::roles;
use crate::rules::{
    ACCESS_LOG, BOOL, BYTES, DURATION, FACTOR, FILE, HEADER, IP, LOG_FILE, LOG_FORMAT, LOG_LEVEL,
    METRICS_PREFIX, PATH, POLICY, PORT, PROBES, RANKS, REQUESTS, SECONDS_OR_NEVER, SEED, SHARE, THREADS,
    TOKENS, TREE_BYTES, WEIGHT,
};
use crate::settings::{AccessLogSettings, Listen, LogSettings, Settings};

/// The settings that `flags` stand for; what is not given has its default. Draws the seed if none is given.
///
/// # Errors
/// The first value that cannot be used.
// Taken apart without `..`: a flag that nobody applies does not compile.
#[expect(clippy::too_many_lines, reason = "a table: one entry per flag, all in one place")]
pub fn settings(
    Flags {
        host,
        port,
        admin_host,
        admin_port,
        threads,
        max_payload_size,
        request_id_headers,
        forward_unknown,
        cors_allowed_origins,
        worker_urls,
        intra_node_data_parallel_size,
        honor_client_dp_rank,
        worker_startup_timeout_secs,
        worker_startup_check_interval,
        model_refresh_interval_secs,
        model_alias,
        connect_timeout_secs,
        worker_ca_file,
        policy,
        seed,
        cache_threshold,
        balance_abs_threshold,
        balance_rel_threshold,
        max_tree_size,
        eviction_interval_secs,
        worker_cache_tokens,
        dp_group_weight,
        expose_routing_headers,
        hash_key,
        vllm_pd_disaggregation,
        prefill,
        decode,
        prefill_policy,
        decode_policy,
        vllm_discovery_address,
        discovery_allow,
        kv_connector,
        pd_concurrent_legs,
        decoder_registry,
        decoder_host,
        decoder_init_port,
        decoder_alloc_port,
        lmcache_proxy_address,
        lmcache_ready_timeout_secs,
        pd_inject_bootstrap,
        pd_allow_version_skew,
        pd_threshold_tokens,
        pd_uncached_threshold_tokens,
        pd_kv_lease_secs,
        prefill_data_parallel_size,
        decode_data_parallel_size,
        pd_prefill_timeout_secs,
        pd_decode_first_byte_timeout_secs,
        health_check_endpoint,
        health_check_interval_secs,
        health_check_timeout_secs,
        health_failure_threshold,
        health_success_threshold,
        max_concurrent_requests,
        max_inflight_per_worker,
        queue_size,
        queue_timeout_secs,
        no_worker_wait_secs,
        retry_max_retries,
        disable_retries,
        retry_initial_backoff_ms,
        retry_max_backoff_ms,
        retry_backoff_multiplier,
        retry_jitter_factor,
        response_header_timeout_secs,
        stream_idle_timeout_secs,
        request_timeout_secs,
        client_header_timeout_secs,
        client_idle_timeout_secs,
        client_body_timeout_secs,
        drain_settle_secs,
        drain_timeout_secs,
        end_with_stdin,
        cb_failure_threshold,
        cb_success_threshold,
        cb_timeout_duration_secs,
        cb_window_duration_secs,
        disable_circuit_breaker,
        api_key,
        admin_api_key,
        trust_forwarded,
        trust_client_internals,
        log_level,
        log_format,
        metrics_prefix,
        access_log,
        access_log_file,
        decision_log,
        decision_log_buffer_size,
    }: Flags,
) -> Result<Settings, Rejected> {
    let or = Settings::default();
    let (listen, admin) = listeners([host, port], [admin_host, admin_port], &or)?;
    let startup = [worker_startup_timeout_secs, worker_startup_check_interval, model_refresh_interval_secs];
    let [startup_timeout, startup_check_interval, model_refresh] = startup_times(startup, &or)?;
    let worker_urls = lists::workers(worker_urls.unwrap_or_default())?;
    let cache = [cache_threshold, max_tree_size, eviction_interval_secs];
    let policy = PolicySettings {
        kind: POLICY.read("policy", policy, or.policy.kind)?,
        load: or.policy.load,
        group_weight: WEIGHT.read("dp-group-weight", dp_group_weight, or.policy.group_weight)?,
        cache: cache_aware(cache, [balance_abs_threshold, balance_rel_threshold], &or.policy.cache)?,
    };
    let ranks = RANKS.read("intra-node-data-parallel-size", intra_node_data_parallel_size, or.ranks)?;
    let sizes = [prefill_data_parallel_size, decode_data_parallel_size];
    let [prefill_ranks, ranks] =
        roles::ranks(sizes, (vllm_pd_disaggregation.as_ref(), kv_connector.as_ref()), ranks)?;
    let said = roles::Said {
        enabled: vllm_pd_disaggregation,
        prefill,
        decode,
        policies: [prefill_policy, decode_policy],
        announced: (vllm_discovery_address, discovery_allow),
        decoders: (decoder_registry, decoder_host, [decoder_init_port, decoder_alloc_port]),
        readiness: [lmcache_proxy_address, lmcache_ready_timeout_secs],
        ways: [kv_connector, pd_inject_bootstrap, pd_allow_version_skew, pd_concurrent_legs],
        thresholds: [pd_threshold_tokens, pd_uncached_threshold_tokens],
        times: [pd_kv_lease_secs, pd_prefill_timeout_secs, pd_decode_first_byte_timeout_secs],
    };
    let (roles, pairs, policy) = match roles::read(said, &worker_urls, &policy)? {
        Some((roles, pairs, policy)) => (Some(roles), Some(pairs), policy),
        None => (None, None, policy),
    };
    let probing = [health_check_interval_secs, health_check_timeout_secs];
    let thresholds = [health_failure_threshold, health_success_threshold];
    let client = [client_header_timeout_secs, client_idle_timeout_secs];
    let [client_header, client_idle] = client_times(client, &or)?;
    let upstream = [connect_timeout_secs, response_header_timeout_secs, stream_idle_timeout_secs];
    let whole = [request_timeout_secs, client_body_timeout_secs];
    let backoff =
        [retry_initial_backoff_ms, retry_max_backoff_ms, retry_backoff_multiplier, retry_jitter_factor];
    let admission = [max_concurrent_requests, queue_size, queue_timeout_secs, no_worker_wait_secs];
    let breaking = [cb_failure_threshold, cb_success_threshold];
    let lasting = [cb_timeout_duration_secs, cb_window_duration_secs];
    let router = RouterSettings {
        dialer: worker_ca_file.map_or_else(|| Ok(Dialer::default()), |file| dialer(&file))?,
        times: limits::times(upstream, whole, &or.router.times)?,
        retry: limits::retry([disable_retries, retry_max_retries], backoff, &or.router.retry)?,
        pairs,
        admission: limits::admission(admission, &or.router.admission)?,
        ..or.router
    };
    let trust = [trust_forwarded, trust_client_internals, honor_client_dp_rank];
    let router = clients([max_payload_size, forward_unknown, expose_routing_headers], trust, router)?;
    let router = RouterSettings { aliases: lists::aliases(&model_alias.unwrap_or_default())?, ..router };
    let router = names(hash_key, request_id_headers, [api_key, admin_api_key], router)?;
    Ok(Settings {
        listen,
        admin,
        threads: THREADS.read("threads", threads, or.threads)?,
        worker_urls,
        roles,
        ranks,
        prefill_ranks,
        startup_timeout,
        startup_check_interval,
        cors: lists::cors(&cors_allowed_origins.unwrap_or_default())?,
        metrics_prefix: METRICS_PREFIX.read("metrics-prefix", metrics_prefix, or.metrics_prefix)?,
        model_refresh,
        worker_cache_tokens: TOKENS.read(
            "worker-cache-tokens",
            worker_cache_tokens,
            or.worker_cache_tokens,
        )?,
        policy,
        seed: seed.map_or_else(|| Ok(drawn_seed()), |seed| SEED.of("seed", &seed))?,
        health: health(health_check_endpoint, probing, thresholds, or.health)?,
        client_idle,
        client_header,
        max_inflight_per_worker: REQUESTS.read(
            "max-inflight-per-worker",
            max_inflight_per_worker,
            or.max_inflight_per_worker,
        )?,
        drain: limits::drain([drain_settle_secs, drain_timeout_secs], &or.drain)?,
        end_with_stdin: BOOL.read("end-with-stdin", end_with_stdin, or.end_with_stdin)?,
        breaker: limits::breaker(disable_circuit_breaker, breaking, lasting, &or.breaker)?,
        router,
        log: LogSettings {
            level: LOG_LEVEL.read("log-level", log_level, or.log.level)?,
            format: LOG_FORMAT.read("log-format", log_format, or.log.format)?,
        },
        access_log: self::access_log(access_log, access_log_file, or.access_log)?,
        decision_log: decisions(decision_log, decision_log_buffer_size)?,
    })
}

/// Where clients connect, and where operators do.
fn listeners(
    [host, port]: [Option<Given>; 2],
    [admin_host, admin_port]: [Option<Given>; 2],
    or: &Settings,
) -> Result<(Listen, Listen), Rejected> {
    let clash = admin_port.clone().or_else(|| port.clone());
    let listen = Listen {
        host: IP.read("host", host, or.listen.host)?,
        port: PORT.read("port", port, or.listen.port)?,
    };
    let admin = Listen {
        host: IP.read("admin-host", admin_host, or.admin.host)?,
        port: PORT.read("admin-port", admin_port, or.admin.port)?,
    };
    match clash.filter(|_| overlap(listen, admin)) {
        Some(given) => {
            let problem = format!("{} is also --port; the two must differ", admin.port);
            Err(given.reject("admin-port", problem))
        }
        None => Ok((listen, admin)),
    }
}

/// How long the start waits, how often it looks, and how often models are read.
fn startup_times(
    [timeout, check, refresh]: [Option<Given>; 3],
    or: &Settings,
) -> Result<[Duration; 3], Rejected> {
    Ok([
        DURATION.read("worker-startup-timeout-secs", timeout, or.startup_timeout)?,
        DURATION.read("worker-startup-check-interval", check, or.startup_check_interval)?,
        DURATION.read("model-refresh-interval-secs", refresh, or.model_refresh)?,
    ])
}

/// How long clients may take for a head, and between two requests.
fn client_times([header, idle]: [Option<Given>; 2], or: &Settings) -> Result<[Duration; 2], Rejected> {
    Ok([
        DURATION.read("client-header-timeout-secs", header, or.client_header)?,
        DURATION.read("client-idle-timeout-secs", idle, or.client_idle)?,
    ])
}

/// What clients may send, and what they are told.
fn clients(
    [payload, unknown, expose]: [Option<Given>; 3],
    [forwarded, internals, rank]: [Option<Given>; 3],
    or: RouterSettings,
) -> Result<RouterSettings, Rejected> {
    Ok(RouterSettings {
        max_payload_bytes: BYTES.read("max-payload-size", payload, or.max_payload_bytes)?,
        forward_unknown: BOOL.read("forward-unknown", unknown, or.forward_unknown)?,
        expose_routing_headers: BOOL.read("expose-routing-headers", expose, or.expose_routing_headers)?,
        trust_forwarded: BOOL.read("trust-forwarded", forwarded, or.trust_forwarded)?,
        trust_client_internals: BOOL.read("trust-client-internals", internals, or.trust_client_internals)?,
        honor_client_dp_rank: BOOL.read("honor-client-dp-rank", rank, or.honor_client_dp_rank)?,
        ..or
    })
}

/// Where names are found in requests, and the keys.
fn names(
    hash_key: Option<Vec<Given>>,
    request_ids: Option<Vec<Given>>,
    [api_key, admin_api_key]: [Option<Given>; 2],
    or: RouterSettings,
) -> Result<RouterSettings, Rejected> {
    Ok(RouterSettings {
        hash_key: hash_key.map_or(Ok(or.hash_key), |given| lists::sources(&given))?,
        request_id_headers: request_ids.map_or(Ok(or.request_id_headers), |given| {
            given.iter().map(|name| HEADER.of("request-id-headers", name)).collect()
        })?,
        api_key: api_key.map(|key| secret("api-key", &key)).transpose()?,
        admin_api_key: admin_api_key.map(|key| secret("admin-api-key", &key)).transpose()?,
        ..or
    })
}

/// Both would want the same socket.
fn overlap(one: Listen, other: Listen) -> bool {
    let same_host = one.host == other.host || one.host.is_unspecified() || other.host.is_unspecified();
    same_host && one.port == other.port && one.port != 0
}

fn cache_aware(
    [share, bytes, eviction]: [Option<Given>; 3],
    [absolute, relative]: [Option<Given>; 2],
    or: &CacheAwareSettings,
) -> Result<CacheAwareSettings, Rejected> {
    Ok(CacheAwareSettings {
        cache_threshold: SHARE.read("cache-threshold", share, or.cache_threshold)?,
        balance_abs_threshold: REQUESTS.read("balance-abs-threshold", absolute, or.balance_abs_threshold)?,
        balance_rel_threshold: FACTOR.read("balance-rel-threshold", relative, or.balance_rel_threshold)?,
        max_tree_size: TREE_BYTES.read("max-tree-size", bytes, or.max_tree_size)?,
        eviction_interval_secs: SECONDS_OR_NEVER.read(
            "eviction-interval-secs",
            eviction,
            or.eviction_interval_secs,
        )?,
    })
}

fn health(
    endpoint: Option<Given>,
    [interval, timeout]: [Option<Given>; 2],
    [failures, successes]: [Option<Given>; 2],
    or: HealthSettings,
) -> Result<HealthSettings, Rejected> {
    Ok(HealthSettings {
        endpoint: PATH.read("health-check-endpoint", endpoint, or.endpoint)?,
        interval: DURATION.read("health-check-interval-secs", interval, or.interval)?,
        timeout: DURATION.read("health-check-timeout-secs", timeout, or.timeout)?,
        failure_threshold: PROBES.read("health-failure-threshold", failures, or.failure_threshold)?,
        success_threshold: PROBES.read("health-success-threshold", successes, or.success_threshold)?,
    })
}

/// Who names a file wants lines in it.
fn access_log(
    format: Option<Given>,
    file: Option<Given>,
    or: AccessLogSettings,
) -> Result<AccessLogSettings, Rejected> {
    let (is_said, given) = (format.is_some(), file.clone());
    let read = AccessLogSettings {
        format: ACCESS_LOG.read("access-log", format, or.format)?,
        file: LOG_FILE.read("access-log-file", file, or.file)?,
    };
    match given.filter(|_| !is_said && read.file.is_some()) {
        Some(given) => Err(given.reject("access-log-file", "needs --access-log text or json".to_owned())),
        None => Ok(read),
    }
}

fn decisions(file: Option<Given>, buffer: Option<Given>) -> Result<Option<DecisionLogSettings>, Rejected> {
    let buffer_bytes = BYTES.read("decision-log-buffer-size", buffer, DECISION_BUFFER_BYTES)?;
    let file = file.map(|file| FILE.of("decision-log", &file)).transpose()?;
    Ok(file.map(|file| DecisionLogSettings { file, buffer_bytes }))
}

fn dialer(file: &Given) -> Result<Dialer, Rejected> {
    const KEY: &str = "worker-ca-file";
    Dialer::with_ca_file(&FILE.of(KEY, file)?).map_err(|error| file.reject(KEY, error.to_string()))
}

/// Never shows the value.
fn secret(key: &'static str, given: &Given) -> Result<Secret, Rejected> {
    let problem = match given.text() {
        "" => "it is empty; at least one character is needed",
        text if !text.bytes().all(|b| b.is_ascii_graphic()) => {
            "it has a character that no key can have; printable ASCII without spaces is allowed"
        }
        text => return Ok(Secret::new(text.to_owned())),
    };
    Err(given.reject(key, problem.to_owned()))
}

/// Differs from start to start: the keys of the standard library's hasher come from the operating system.
fn drawn_seed() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests;
