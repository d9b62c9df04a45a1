//! Flags of prefill/decode pairs: which of them need each other, and which have no use.

use forebay_discovery::{Range, RankCount};
use forebay_workers::Ranks;

use super::*;

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
fn without_pairs_nothing_may_be_said_of_them() {
    let workers = ["prefill http://p:1", "decode http://d:1", "vllm-discovery-address 0.0.0.0:1"];
    let sizes = ["prefill-data-parallel-size 2", "decode-data-parallel-size 2"];
    let ways = [
        "prefill-policy random",
        "decode-policy random",
        "discovery-allow ::1",
        "kv-connector nixl",
        "pd-concurrent-legs=false",
        "decoder-registry {}",
        "decoder-host h",
        "decoder-init-port 1",
        "decoder-alloc-port 1",
        "lmcache-proxy-address 0.0.0.0:1",
        "lmcache-ready-timeout-secs 1",
        "pd-inject-bootstrap auto",
        "pd-allow-version-skew=false",
        "pd-threshold-tokens 0",
        "pd-uncached-threshold-tokens 0",
        "pd-kv-lease-secs 30",
        "pd-prefill-timeout-secs 1",
        "pd-decode-first-byte-timeout-secs 1",
    ];
    let needs = |flag: &str| {
        let key = flag.split([' ', '=']).next().unwrap();
        format!("--{key}: needs --vllm-pd-disaggregation")
    };
    for flag in workers.iter().chain(&sizes).chain(&ways) {
        assert_eq!(refused(&format!("--{flag}")), needs(flag));
    }
    for flag in ways {
        let settings = served(&format!("--vllm-pd-disaggregation=false --{flag}"));
        assert!(settings.roles.is_none() && settings.router.pairs.is_none(), "{flag}");
    }
    for flag in workers.iter().chain(&sizes) {
        let arguments = format!("--vllm-pd-disaggregation=false --decode-policy random --{flag}");
        assert_eq!(refused(&arguments), needs(flag));
    }
    // Each flag under this heading of the help is above.
    let flags = <Flags as Args>::augment_args(clap::Command::new("x"));
    let of_pairs = flags.get_arguments().filter(|flag| flag.get_help_heading() == Some("Prefill and decode"));
    assert_eq!(of_pairs.count(), workers.len() + sizes.len() + ways.len() + 1);
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
        (
            "--pd-disaggregation --kv-connector nccl --prefill http://p:1 --decode http://d:1",
            "--prefill: with --kv-connector nccl workers announce themselves; take it out",
        ),
        (
            &format!("{nccl} --pd-threshold-tokens 512"),
            "--pd-threshold-tokens: it must be 0 with --kv-connector nccl, whose decode workers cannot prefill",
        ),
        (
            "--pd-disaggregation --prefill http://p:1 --decode http://d:1 --discovery-allow ::1",
            "--discovery-allow: needs a socket that it is for: --vllm-discovery-address or --lmcache-proxy-address",
        ),
        (
            &format!("{nccl} --pd-inject-bootstrap always"),
            "--pd-inject-bootstrap: is for --kv-connector nixl; the legs of others go as they must",
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
fn lmcache_and_nccl_hand_over_to_urls_not_to_ranks() {
    for size in ["--intra-node-data-parallel-size auto", "--decode-data-parallel-size 2"] {
        assert_eq!(
            refused(&format!("--pd-disaggregation --kv-connector lmcache {size}")),
            "--kv-connector: lmcache is for workers of one data-parallel rank: blocks are handed to a URL"
        );
        assert_eq!(
            refused(&format!(
                "--pd-disaggregation --kv-connector nccl --vllm-discovery-address 127.0.0.1:0 {size}"
            )),
            "--kv-connector: nccl is for workers of one data-parallel rank: the request id names the first of a URL, and each \
             rank finds but its like"
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
