use super::*;
use forebay_discovery::{Range, RankCount};
use forebay_workers::Ranks;

fn run(arguments: &str) -> Result<Command, StartupError> {
    with_environment(arguments, |_| None)
}

fn with_environment(
    arguments: &str,
    environment: impl Fn(&'static str) -> Option<OsString>,
) -> Result<Command, StartupError> {
    let arguments = arguments.split(' ').filter(|argument| !argument.is_empty());
    parse(std::iter::once("forebay").chain(arguments).map(Into::into), environment)
}

fn served(arguments: &str) -> Settings {
    match run(arguments) {
        Ok(Command::Serve(settings)) => *settings,
        Ok(_) => panic!("{arguments}: not serve"),
        Err(error) => panic!("{arguments}: {error}"),
    }
}

fn refused(arguments: &str) -> String {
    match run(arguments) {
        Ok(_) => panic!("{arguments}: accepted"),
        Err(error) => {
            assert_eq!(error.exit_code(), 2);
            assert!(!error.to_string().contains('\n'), "{error}");
            error.to_string()
        }
    }
}

fn valid(name: &str) -> String {
    format!("{}/../../config/tests/valid/{name}.yaml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table: one entry per flag")]
fn each_flag_refuses_a_bad_value_by_name_and_says_what_is_allowed() {
    let cases = [
        ("host", "localhost", "an IP address such as 127.0.0.1 or ::1"),
        ("port", "99999", "a port number from 0 to 65535"),
        ("admin-host", "x", "an IP address such as 127.0.0.1 or ::1"),
        ("admin-port", "-1", "a port number from 0 to 65535"),
        ("threads", "0", "a number of threads from 1 to 1024"),
        ("max-payload-size", "0", "a number of bytes; at least 1"),
        ("request-id-headers", "x:y", "the name of a header"),
        ("forward-unknown", "1", "true or false"),
        (
            "cors-allowed-origins",
            "https://app.example/",
            "an origin as browsers send it, as https://app.example or http://localhost:8080, or *",
        ),
        (
            "worker-urls",
            "h:1",
            "a worker URL; http://HOST:PORT[/PREFIX], https://… or unix:/PATH is expected",
        ),
        ("worker-startup-timeout-secs", "0", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("worker-startup-check-interval", "NaN", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("model-refresh-interval-secs", "inf", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("model-alias", "a=", "two names that differ, as ALIAS=MODEL"),
        ("metrics-prefix", "vllm", "forebay or vllm_router"),
        ("connect-timeout-secs", "10s", "a number of seconds from 0.001 to 31536000 (a year)"),
        (
            "policy",
            "cache-aware",
            "cache_aware, power_of_two, consistent_hash, round_robin, random or least_loaded",
        ),
        ("seed", "-1", "a whole number from 0 to 18446744073709551615"),
        ("cache-threshold", "1.01", "a share from 0 to 1"),
        ("balance-abs-threshold", "1.5", "a number of requests from 0 to 4294967295"),
        ("balance-rel-threshold", "0.99", "a finite factor of at least 1"),
        ("max-tree-size", "1048575", "a usable number of bytes; at least 1048576 (1 MiB)"),
        ("eviction-interval-secs", "-1", "a whole number of seconds from 0 (never) to 31536000 (a year)"),
        ("hash-key", "x", "one of x-session-id, x-user-id, body, authorization, client-ip, body-hash"),
        ("vllm-pd-disaggregation", "1", "true or false"),
        ("prefill", "h:1", "a worker URL; http://HOST:PORT[/PREFIX], https://… or unix:/PATH is expected"),
        ("decode", "h:1", "a worker URL; http://HOST:PORT[/PREFIX], https://… or unix:/PATH is expected"),
        (
            "prefill-policy",
            "best",
            "cache_aware, power_of_two, consistent_hash, round_robin, random or least_loaded",
        ),
        (
            "decode-policy",
            "best",
            "cache_aware, power_of_two, consistent_hash, round_robin, random or least_loaded",
        ),
        ("vllm-discovery-address", "30001", "an IP address with a port, such as 0.0.0.0:30001"),
        ("discovery-allow", "10.0.0.0/33", "an IP address or a range of them, such as 10.0.0.0/8"),
        ("kv-connector", "nxl", "nixl, nixl_push, bootstrap, nccl or lmcache"),
        ("pd-concurrent-legs", "1", "true or false"),
        (
            "decoder-registry",
            "[]",
            r#"JSON of the form {"URL": {"receiver_host": "h", "receiver_init_port": [1], "receiver_alloc_port": [2]}}, with one port of each kind for each rank"#,
        ),
        ("decoder-host", "a/b", "a host name or an IP address"),
        ("decoder-init-port", "0", "a port number from 1 to 65535"),
        ("decoder-alloc-port", "65536", "a port number from 1 to 65535"),
        ("lmcache-proxy-address", "7500", "an IP address with a port, such as 0.0.0.0:30001"),
        ("lmcache-ready-timeout-secs", "0", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("pd-inject-bootstrap", "yes", "auto, always or never"),
        ("pd-allow-version-skew", "1", "true or false"),
        ("pd-threshold-tokens", "-1", "a number of tokens from 0 to 18446744073709551615"),
        ("pd-uncached-threshold-tokens", "x", "a number of tokens from 0 to 18446744073709551615"),
        ("pd-kv-lease-secs", "5", "a number of seconds from 6 to 86400 (a day)"),
        ("pd-prefill-timeout-secs", "-1", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("pd-decode-first-byte-timeout-secs", "x", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("health-check-endpoint", "health", "a path that starts with / and has no spaces, as /health"),
        ("health-check-interval-secs", "0", "a whole number of seconds from 1 to 31536000 (a year)"),
        ("health-check-timeout-secs", "0.5", "a whole number of seconds from 1 to 31536000 (a year)"),
        ("health-failure-threshold", "0", "a number of probes from 1 to 4294967295"),
        ("health-success-threshold", "0", "a number of probes from 1 to 4294967295"),
        ("max-concurrent-requests", "-1", "a number of requests from 0 to 1000000"),
        ("max-inflight-per-worker", "-1", "a number of requests from 0 to 4294967295"),
        ("queue-size", "1000001", "a number of requests from 0 to 1000000"),
        ("queue-timeout-secs", "0", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("no-worker-wait-secs", "-1", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("client-header-timeout-secs", "0", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("client-idle-timeout-secs", "0", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("drain-settle-secs", "x", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("drain-timeout-secs", "-1", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("end-with-stdin", "no", "true or false"),
        ("retry-max-retries", "0", "a number from 1 to 100000"),
        ("disable-retries", "no", "true or false"),
        ("retry-initial-backoff-ms", "0", "a whole number of milliseconds from 1 to 3600000 (an hour)"),
        ("retry-max-backoff-ms", "1.5", "a whole number of milliseconds from 1 to 3600000 (an hour)"),
        ("retry-backoff-multiplier", "0.5", "a finite factor of at least 1"),
        ("retry-jitter-factor", "2", "a share from 0 to 1"),
        ("response-header-timeout-secs", "-1", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("stream-idle-timeout-secs", "x", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("request-timeout-secs", "NaN", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("client-body-timeout-secs", "inf", "a number of seconds from 0 (off) to 31536000 (a year)"),
        ("cb-failure-threshold", "0", "a number from 1 to 100000"),
        ("cb-success-threshold", "100001", "a number from 1 to 100000"),
        ("cb-timeout-duration-secs", "0", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("cb-window-duration-secs", "-1", "a number of seconds from 0.001 to 31536000 (a year)"),
        ("disable-circuit-breaker", "2", "true or false"),
        ("trust-forwarded", "yes", "true or false"),
        ("intra-node-data-parallel-size", "0", "auto, or a number of ranks from 1 to 1024"),
        ("prefill-data-parallel-size", "1025", "auto, or a number of ranks from 1 to 1024"),
        ("decode-data-parallel-size", "all", "auto, or a number of ranks from 1 to 1024"),
        ("dp-group-weight", "-1", "a weight from 0 to 100"),
        ("honor-client-dp-rank", "1", "true or false"),
        ("trust-client-internals", "TRUE", "true or false"),
        ("worker-cache-tokens", "-1", "a number of tokens from 0 to 18446744073709551615"),
        ("expose-routing-headers", "on", "true or false"),
        ("log-level", "loud", "error, warn, info, debug or trace"),
        ("log-format", "xml", "text or json"),
        ("access-log", "xml", "none, json or text"),
        ("access-log-file", "logs/", "a file name, or - for stdout"),
        ("decision-log-buffer-size", "0", "a number of bytes; at least 1"),
    ];
    for (flag, bad, allowed) in cases {
        assert_eq!(refused(&format!("--{flag}={bad}")), format!("--{flag}: {bad} is not {allowed}"));
    }
    let secrets = ["api-key", "admin-api-key"];
    for flag in secrets {
        assert_eq!(
            refused(&format!("--{flag}=")),
            format!("--{flag}: it is empty; at least one character is needed")
        );
    }
    let files = ["worker-ca-file", "decision-log"];
    for flag in files {
        assert_eq!(refused(&format!("--{flag}=")), format!("--{flag}: \"\" is not the name of a file"));
    }
    assert!(refused("--worker-ca-file=/none.pem").starts_with("--worker-ca-file: /none.pem: "));
    let command = <Flags as Args>::augment_args(clap::Command::new("x"));
    assert_eq!(
        command.get_arguments().count(),
        cases.len() + secrets.len() + files.len(),
        "a flag has no case"
    );
}

#[test]
fn workers_have_roles_only_if_pairs_are_wanted() {
    let pairs = "--vllm-pd-disaggregation --prefill http://p:1 8998 --prefill http://q:1 none --decode http://d:1 --decode http://e:1";
    let roles = served(pairs).roles.unwrap().workers;
    let text: Vec<String> = roles.iter().map(|(url, role)| format!("{url} {role:?}")).collect();
    assert_eq!(
        text,
        [
            "http://p:1 Prefill { bootstrap_port: Some(8998) }",
            "http://q:1 Prefill { bootstrap_port: None }",
            "http://d:1 Decode",
            "http://e:1 Decode"
        ]
    );
    let ranks = |more: &str| {
        let settings = served(&format!("{pairs} --intra-node-data-parallel-size 2 {more}"));
        [settings.prefill_ranks, settings.ranks]
    };
    let given = |ranks| RankCount::Given(Ranks::first(ranks).unwrap());
    assert_eq!(ranks(""), [given(2), given(2)]);
    assert_eq!(ranks("--prefill-data-parallel-size 4"), [given(4), given(2)]);
    assert_eq!(ranks("--decode-data-parallel-size auto"), [given(2), RankCount::Asked]);
    for (arguments, message) in [
        ("--prefill http://p:1", "--prefill: needs --vllm-pd-disaggregation"),
        ("--prefill-data-parallel-size 2", "--prefill-data-parallel-size: needs --vllm-pd-disaggregation"),
        ("--decode http://p:1", "--decode: needs --vllm-pd-disaggregation"),
        (
            "--pd-disaggregation --decode http://p:1",
            "--vllm-pd-disaggregation: needs at least one --prefill and one --decode, or --vllm-discovery-address, and no --worker-urls",
        ),
        (
            "--pd-disaggregation --prefill http://p:1 x --decode http://d:1",
            "--prefill: x is not a port number from 1 to 65535, or none",
        ),
        (
            "--pd-disaggregation --prefill http://p:1 --decode http://p:1/",
            "--decode: http://p:1 is given twice; each worker is given once, in one role",
        ),
    ] {
        assert_eq!(refused(arguments), message, "{arguments}");
    }
}

#[test]
fn workers_that_announce_themselves_need_no_list_and_those_of_nccl_have_none() {
    let nccl = "--pd-disaggregation --kv-connector nccl --vllm-discovery-address 0.0.0.0:30001";
    let settings = served(&format!("{nccl} --pd-concurrent-legs --discovery-allow 10.0.0.0/8,::1"));
    let roles = settings.roles.unwrap();
    let announced = roles.announced.unwrap();
    assert_eq!((roles.workers.len(), announced.listen.port, announced.allow.len()), (0, 30001, 2));
    assert!(settings.router.pairs.unwrap().concurrent_legs);
    let usual = served("--pd-disaggregation --vllm-discovery-address [::]:1 --prefill http://p:1");
    assert_eq!(usual.roles.unwrap().announced.unwrap().allow, Range::usual());
    for (arguments, message) in [
        ("--vllm-discovery-address 0.0.0.0:1", "--vllm-discovery-address: needs --vllm-pd-disaggregation"),
        (
            "--pd-disaggregation --kv-connector nccl --prefill http://p:1 --decode http://d:1",
            "--prefill: with --kv-connector nccl workers announce themselves; take it out",
        ),
        (
            &format!("{nccl} --pd-threshold-tokens 512"),
            "--pd-threshold-tokens: it must be 0 with --kv-connector nccl, whose decode workers cannot prefill",
        ),
        (
            "--pd-disaggregation --prefill http://p:1 --decode http://d:1 --pd-concurrent-legs",
            "--pd-concurrent-legs: is for --kv-connector nccl; the legs of others go as they must",
        ),
        (
            "--pd-disaggregation --kv-connector nccl",
            "--vllm-pd-disaggregation: needs at least one --prefill and one --decode, or --vllm-discovery-address, and no --worker-urls",
        ),
    ] {
        assert_eq!(refused(arguments), message, "{arguments}");
    }
}

#[test]
fn lmcache_hands_over_to_urls_not_to_ranks() {
    for size in ["--intra-node-data-parallel-size auto", "--decode-data-parallel-size 2"] {
        assert_eq!(
            refused(&format!("--pd-disaggregation --kv-connector lmcache {size}")),
            "--kv-connector: lmcache is for workers of one data-parallel rank: blocks are handed to a URL"
        );
    }
}

#[test]
fn lmcache_is_told_where_decode_workers_take_in_blocks_and_nobody_else_is() {
    const ONE: &str =
        r#"{"http://d:1":{"receiver_host":"h","receiver_init_port":[1,2],"receiver_alloc_port":[3,4]}}"#;
    let pairs = "--pd-disaggregation --prefill http://p:1 --decode http://d:1";
    let lmcache = format!("{pairs} --kv-connector lmcache --lmcache-proxy-address 0.0.0.0:7500");
    let legacy = "--decoder-host h --decoder-init-port 1,2 --decoder-alloc-port 3,4";
    let by_registry = served(&format!("{lmcache} --lmcache-ready-timeout-secs 3 --decoder-registry {ONE}"));
    let by_parts = served(&format!("{lmcache} {legacy}"));
    let [registry, parts] = [&by_registry, &by_parts].map(|settings| settings.router.pairs.clone().unwrap());
    assert_eq!((registry.receivers.len(), &registry.receivers), (1, &parts.receivers));
    assert_eq!(registry.ready_timeout.as_secs(), 3);
    assert_eq!(by_registry.roles.unwrap().readiness.unwrap().listen.port, 7500);
    let two = format!("{lmcache} --decode http://d:2");
    for (arguments, message) in [
        (
            format!("{pairs} --kv-connector lmcache {legacy}"),
            "--kv-connector: lmcache needs --lmcache-proxy-address",
        ),
        (
            lmcache.clone(),
            "--kv-connector: lmcache needs --decoder-registry, or --decoder-host, --decoder-init-port and --decoder-alloc-port",
        ),
        (
            format!("{lmcache} --decoder-registry {ONE} --decoder-host h"),
            "--kv-connector: lmcache needs --decoder-registry, or --decoder-host, --decoder-init-port and --decoder-alloc-port",
        ),
        (format!("{two} --decoder-registry {ONE}"), "--decoder-registry: --decode http://d:2 is not in it"),
        (
            format!("{two} {legacy}"),
            "--decoder-host: is for one --decode, of which there are 2: --decoder-registry",
        ),
        (
            format!("{lmcache} --decoder-host h --decoder-init-port 1,2 --decoder-alloc-port 3"),
            "--decoder-host: each rank needs one init port and one alloc port from 1 to 65535, for at most 64 ranks",
        ),
        (
            format!("{lmcache} --decoder-host h --decoder-init-port 0 --decoder-alloc-port 3"),
            "--decoder-init-port: 0 is not a port number from 1 to 65535",
        ),
        (
            format!("{lmcache} --decoder-registry {{}}"),
            "--decoder-registry: --decode http://d:1 is not in it",
        ),
        (format!("{pairs} {legacy}"), "--decoder-host: is for --kv-connector lmcache"),
        (
            format!("{pairs} --lmcache-ready-timeout-secs 3"),
            "--lmcache-ready-timeout-secs: is for --kv-connector lmcache",
        ),
    ] {
        assert_eq!(refused(&arguments), message, "{arguments}");
    }
}

#[test]
fn what_clap_says_is_one_line_that_names_the_flag() {
    for (arguments, message) in [
        ("--port", "--port: no value is given; one is needed"),
        ("--prot 1", "--prot: there is no such flag; did you mean --port?"),
        ("--port 1 --port 2", "--port: it is given twice; once is allowed"),
        ("--admin-port 1 --prometheus-port 2", "--admin-port: it is given twice; once is allowed"),
        ("foo", "foo: there is no such command; serve, check, demo, sim and replay are allowed"),
        (
            "serve foo",
            "foo: a flag was expected here, or the command serve, check, demo, sim or replay first",
        ),
        ("--port 1 serve", "serve: a command stands before all flags"),
        (
            "--trust-forwarded maybe",
            "maybe: a value of --trust-forwarded stands after a =, and a command before all flags",
        ),
        ("sim --config x", "--config: there is no such flag"),
    ] {
        assert_eq!(refused(arguments), message, "{arguments}");
    }
}

#[test]
fn serve_may_be_left_out() {
    for prefix in ["", "serve "] {
        let settings =
            served(&format!("{prefix}--worker-urls http://a:1 http://b:1 --port 1 --worker-urls http://c:1"));
        assert_eq!(settings.worker_urls.len(), 3);
        assert_eq!(settings.listen.port, 1);
    }
    assert!(served("--worker-urls").worker_urls.is_empty());
}

#[test]
fn a_boolean_flag_alone_is_true_and_takes_a_value_after_an_equals_sign() {
    assert!(served("--trust-forwarded --port 1").router.trust_forwarded);
    assert!(served("--trust-forwarded=true").router.trust_forwarded);
    assert!(!served("--forward-unknown=false").router.forward_unknown);
    assert!(served("--forward-unknown").router.forward_unknown);
}

#[test]
fn the_spellings_of_vllm_router_are_understood() {
    let settings = served("--prometheus-host 127.0.0.2 --prometheus-port 5 --log-level warning");
    assert_eq!(settings.admin.addr().to_string(), "127.0.0.2:5");
    assert_eq!(settings.log.level, crate::settings::LogLevel::Warn);
    assert_eq!(served("--log-level critical").log.level, crate::settings::LogLevel::Error);
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let settings = served(&format!("--config {} --port 7 --worker-urls http://flag:1", valid("full")));
    assert_eq!(settings.listen.port, 7);
    assert_eq!(settings.worker_urls[0].as_str(), "http://flag:1");
    assert_eq!(settings.worker_urls.len(), 1);
    assert_eq!(settings.admin.port, 29001);
    assert_eq!(settings.health, forebay_workers::HealthSettings::default());
}

#[test]
fn secrets_come_from_the_flag_else_the_file_else_the_environment() {
    let environment = |variable| Some(OsString::from(format!("env-{variable}")));
    let keys = |arguments: &str| match with_environment(arguments, environment) {
        Ok(Command::Serve(settings)) => {
            let shown = |key: Option<forebay_router::Secret>| key.unwrap().expose().to_owned();
            (shown(settings.router.api_key), shown(settings.router.admin_api_key))
        }
        _ => panic!("{arguments}"),
    };
    let file = format!("--config {}", valid("secrets"));
    assert_eq!(keys(""), ("env-FOREBAY_API_KEY".to_owned(), "env-FOREBAY_ADMIN_API_KEY".to_owned()));
    assert_eq!(keys(&file), ("file-key".to_owned(), "file-admin".to_owned()));
    assert_eq!(keys(&format!("{file} --admin-api-key flag")), ("file-key".to_owned(), "flag".to_owned()));
}

#[test]
fn an_empty_secret_in_the_environment_is_refused_by_its_variable() {
    let empty = |variable| (variable == "FOREBAY_ADMIN_API_KEY").then(OsString::new);
    let error = with_environment("", empty).err().unwrap();
    assert_eq!(error.to_string(), "FOREBAY_ADMIN_API_KEY: it is empty; at least one character is needed");
    assert_eq!(error.reason(), "flag_invalid");
}

#[test]
fn help_and_version_are_printed_not_refused() {
    for arguments in ["--help", "serve --help", "demo -h", "sim --help", "--version"] {
        assert!(matches!(run(arguments), Ok(Command::Print(_))), "{arguments}");
    }
    let Ok(Command::Print(help)) = run("--help") else { panic!("no help") };
    for heading in ["Listener:", "Workers:", "Policy:", "Health:", "Security:", "Logging:", "Exit codes:"] {
        assert!(help.contains(heading), "{heading}");
    }
}

#[test]
fn a_demo_has_its_own_workers() {
    assert!(
        refused("demo --worker-urls http://a:1").starts_with("--worker-urls: a demo brings its own workers")
    );
    assert_eq!(refused("demo --workers 0"), "--workers: 0 is not a number of workers from 1 to 64");
    let Ok(Command::Demo(demo)) = run("demo --workers 2 --port 0 --policy random") else { panic!("no demo") };
    assert_eq!((demo.workers, demo.settings.listen.port), (2, 0));
    assert_eq!(demo.settings.policy.kind, forebay_policy::PolicyKind::Random);
}
