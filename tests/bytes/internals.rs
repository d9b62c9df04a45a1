//! What could steer an engine does not pass, in whatever place and spelling; the rest of the body is left alone.

use forebay_policy::PolicyKind;
use forebay_sim::WorkerOptions;
use forebay_tests::{Site, run, site};

/// What is sent, and what arrives of it.
const CASES: [(&str, &str); 17] = [
    (r#"{"kv_transfer_params":{"do_remote_prefill":true},"prompt":"x"}"#, r#"{"prompt":"x"}"#),
    (r#"{"prompt":"x","kv_transfer_params":null}"#, r#"{"prompt":"x"}"#),
    (r#"{"prompt":"x","ec_transfer_params":[1,{"a":"}"}],"n":1}"#, r#"{"prompt":"x","n":1}"#),
    (
        r#"{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":2,"disagg_spec":{},"prompt":"x"}"#,
        r#"{"prompt":"x"}"#,
    ),
    (
        r#"{"prompt":"x","routed_dp_rank":1,"disagg_prefill_dp_rank":2,"data_parallel_rank":3}"#,
        r#"{"prompt":"x"}"#,
    ),
    (r#"{"kv_transfer_params":1}"#, "{}"),
    (r#"{"\u006bv_transfer_params":1,"prompt":"x"}"#, r#"{"prompt":"x"}"#),
    (r#"{"kv\u005Ftransfer\u005fparams":1,"prompt":"x"}"#, r#"{"prompt":"x"}"#),
    (
        r#"{"kv_transfer_params":1,"prompt":"x","kv_transfer_params":2,"n":1,"kv_transfer_params":3}"#,
        r#"{"prompt":"x","n":1}"#,
    ),
    (
        r#"{"prompt":"x","vllm_xargs":{"kv_transfer_params":1,"mine":0.70000000000000001}}"#,
        r#"{"prompt":"x","vllm_xargs":{"mine":0.70000000000000001}}"#,
    ),
    (
        r#"{"vllm_xargs":{"kv_transfer_params":1},"prompt":"x","vllm_xargs":{"routed_dp_rank":1,"a":2}}"#,
        r#"{"vllm_xargs":{},"prompt":"x","vllm_xargs":{"a":2}}"#,
    ),
    (
        r#"{"sampling_params":{"n":1,"extra_args":{"a":1,"kv_transfer_params":{}}},"prompt":"x"}"#,
        r#"{"sampling_params":{"n":1,"extra_args":{"a":1}},"prompt":"x"}"#,
    ),
    (
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":1},"extra_args":{"bootstrap_room":1}},"prompt":"x"}"#,
        r#"{"sampling_params":{"extra_args":{},"extra_args":{}},"prompt":"x"}"#,
    ),
    (
        r#"{"vllm\u005fxargs":{"\u006bv_transfer_params":1},"\u0073ampling_params":{"extra\u005fargs":{"disagg_spec":1}},"prompt":"x"}"#,
        r#"{"vllm\u005fxargs":{},"\u0073ampling_params":{"extra\u005fargs":{}},"prompt":"x"}"#,
    ),
    (
        r#"{"prompt":"\"kv_transfer_params\":1","mine":{"kv_transfer_params":1},"routed_dp_rank":0}"#,
        r#"{"prompt":"\"kv_transfer_params\":1","mine":{"kv_transfer_params":1}}"#,
    ),
    ("\u{feff}{\"kv_transfer_params\":1,\"prompt\":NaN}", "\u{feff}{\"prompt\":NaN}"),
    (r#"{"n":1e400,"kv_transfer_params":"\"},{","z":"\ud800"}"#, r#"{"n":1e400,"z":"\ud800"}"#),
];

/// Routes that carry a prompt, and some that any worker takes.
const PATHS: [&str; 8] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/inference/v1/generate",
    "/v1/embeddings",
    "/tokenize",
    "/v1/completions/render",
    "/v1/new/thing",
];

const HEADERS: [(&str, &str); 7] = [
    ("X-Data-Parallel-Rank", "1"),
    ("x-data-parallel-rank", "2"),
    ("x-prefiller-host-port", "evil:1"),
    ("X-Prefiller-Anything", "1"),
    ("x-gateway-secret", "1"),
    ("x-encoder-url", "http://evil"),
    ("x-ordinary", "stays"),
];

#[test]
fn no_internal_field_arrives_and_the_rest_is_as_it_was() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        for path in PATHS {
            for (sent, arrives) in CASES {
                client.post(path, sent).await;
                let recorded = site.workers[0].requests_to(path).pop().unwrap();
                assert_eq!(recorded.text(), arrives, "{path}: {sent}");
                let length = recorded.header("content-length").unwrap().parse::<usize>();
                assert_eq!(length, Ok(arrives.len()));
            }
        }
        let stripped = site.metrics().await;
        let of =
            |field: &str| site::sum(&stripped, "forebay_stripped_total", &[&format!("field=\"{field}\"")]);
        let routes = PATHS.len() as u64;
        assert_eq!(of("kv_transfer_params"), 15 * routes);
        assert_eq!(of("routed_dp_rank"), 3 * routes);
        assert_eq!(of("disagg_spec"), 2 * routes);
        assert_eq!(of("ec_transfer_params"), routes);
    });
}

#[test]
fn what_does_not_say_that_it_is_json_is_looked_at_too() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let body = r#" {"kv_transfer_params":1,"prompt":"x"}"#;
        let head = format!("POST /v1/new HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n", body.len());
        for kind in ["", "content-type: text/plain\r\n", "content-type: Application/JSON; charset=utf-8\r\n"]
        {
            client.send(format!("{head}{kind}\r\n{body}").as_bytes()).await;
            client.answer().await.unwrap();
            let recorded = site.workers[0].requests_to("/v1/new").pop().unwrap();
            assert_eq!(recorded.text(), r#" {"prompt":"x"}"#, "{kind}");
        }
    });
}

#[test]
fn headers_that_steer_an_engine_do_not_arrive_and_are_counted() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for path in ["/v1/completions", "/tokenize", "/v1/new"] {
            client.ask("POST", path, &HEADERS, b"{}").await;
            let recorded = site.workers[0].requests_to(path).pop().unwrap();
            let head = String::from_utf8(recorded.head.to_vec()).unwrap().to_ascii_lowercase();
            for gone in ["data-parallel", "prefiller", "gateway", "encoder", "evil"] {
                assert!(!head.contains(gone), "{path}: {head}");
            }
            assert_eq!(recorded.header("x-ordinary"), Some("stays"));
        }
        assert_eq!(site.metric("forebay_stripped_total", &["x-data-parallel-rank"]).await, 6);
        assert_eq!(site.metric("forebay_stripped_total", &["x-prefiller-*"]).await, 6);
        assert_eq!(site.metric("forebay_stripped_total", &["x-gateway-*"]).await, 3);
        assert_eq!(site.metric("forebay_stripped_total", &["x-encoder-*"]).await, 3);
    });
}

#[test]
fn orders_to_workers_are_cleaned_of_headers_too() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        assert_eq!(client.ask("POST", "/reset_prefix_cache", &HEADERS, b"").await.status(), 200);
        let recorded = site.workers[0].requests_to("/reset_prefix_cache").pop().unwrap();
        assert_eq!(
            (recorded.header("x-data-parallel-rank"), recorded.header("x-ordinary")),
            (None, Some("stays"))
        );
    });
}

#[test]
fn clients_that_are_trusted_send_all_of_it() {
    run(async {
        let workers = vec![site::worker(WorkerOptions::recording())];
        let trust =
            |settings: &mut forebay::settings::Settings| settings.router.trust_client_internals = true;
        let site = Site::start_with(workers, PolicyKind::CacheAware, trust).await;
        let mut client = site.client().await;
        for path in PATHS {
            for (sent, _) in CASES {
                client.ask("POST", path, &HEADERS, sent.as_bytes()).await;
                let recorded = site.workers[0].requests_to(path).pop().unwrap();
                assert_eq!(recorded.text(), sent, "{path}");
                for (name, value) in &HEADERS[2..] {
                    assert_eq!(recorded.header(name), Some(*value));
                }
            }
        }
        assert_eq!(site.metric("forebay_stripped_total", &[]).await, 0);
    });
}
