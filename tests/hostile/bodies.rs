//! Bodies that are broken, odd, deep or too large.

use forebay_policy::PolicyKind;
use forebay_sim::WorkerOptions;
use forebay_tests::client::{chunked, request};
use forebay_tests::{Client, Site, run, site};

use crate::still_serves;

#[test]
fn what_cannot_be_understood_is_refused_and_reaches_no_worker() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let wide: Vec<u8> = r#"{"prompt":"x","kv_transfer_params":1}"#.bytes().flat_map(|b| [b, 0]).collect();
        let bodies: [&[u8]; 12] = [
            b"",
            b"{",
            b"{\"prompt\":",
            b"{\"prompt\" \"x\"}",
            b"{\"prompt\":\"x\"",
            b"{\"prompt\":\"x\"}}",
            b"{\"prompt\":\"x\"} {}",
            b"[{\"prompt\":\"x\"}]",
            b"\"prompt\"",
            b"{\"prompt\":\"\xff\xfe\"}",
            b"{\"prompt\":\"x\",\"\xc3\":1}",
            &wide,
        ];
        for path in ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"] {
            for body in bodies {
                let answer = client.post(path, body).await;
                let text = String::from_utf8_lossy(body);
                assert_eq!(
                    (answer.status(), answer.header("x-forebay-failure").as_str()),
                    (400, "router_body_invalid"),
                    "{text}"
                );
                assert_eq!(answer.json()["error"]["type"], "BadRequestError");
            }
            assert!(site.workers[0].requests_to(path).is_empty());
        }
        // Where only an object could hold something internal, the worker is asked about the rest.
        let answer = client.post("/tokenize", b"{\"prompt\"").await;
        assert_eq!((answer.status(), site.workers[0].requests_to("/tokenize").len()), (400, 0));
        still_serves(&site).await;
    });
}

#[test]
fn members_of_the_wrong_type_are_the_workers_to_judge() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        for body in [
            r#"{"prompt":{},"model":[],"stream":"yes","n":"many","user":{},"max_tokens":-1e999}"#,
            r#"{"messages":"no list","tools":3,"session_params":[],"vllm_xargs":7,"sampling_params":"x"}"#,
            r#"{"prompt":[[[]],{},null,"x",1],"input":[null],"query":{}}"#,
            r#"{"model":7,"prompt":"x"}"#,
            r#"{"messages":[1,null,[],{"content":[7,{"type":"text"},{"text":{}}]}]}"#,
        ] {
            for path in
                ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/score"]
            {
                client.post(path, body).await;
                assert_eq!(site.workers[0].requests_to(path).pop().unwrap().text(), body, "{path}");
            }
        }
        still_serves(&site).await;
    });
}

#[test]
fn ten_thousand_levels_of_nesting_cost_no_stack() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        for (open, close) in [("[", "]"), (r#"{"content":"#, "}"), (r#"[{"text":"#, "}]")] {
            for member in
                ["deep", "prompt", "messages", "input", "vllm_xargs", "sampling_params", "session_params"]
            {
                let (open, close) = (open.repeat(10_000), close.repeat(10_000));
                for body in [format!(r#"{{"{member}":{open}1{close}}}"#), format!(r#"{{"{member}":{open}"#)] {
                    for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses"] {
                        let answer = client.post(path, &body).await;
                        assert!(
                            (200..500).contains(&answer.status()),
                            "{path} {member}: {}",
                            answer.status()
                        );
                    }
                }
            }
        }
        still_serves(&site).await;
    });
}

async fn with_limit(limit: usize) -> Site {
    let workers = vec![site::worker(WorkerOptions::recording())];
    Site::start_with(workers, PolicyKind::CacheAware, |s| s.router.max_payload_bytes = limit).await
}

fn of_length(length: usize) -> Vec<u8> {
    let frame = r#"{"prompt":""}"#.len();
    format!(r#"{{"prompt":"{}"}}"#, "x".repeat(length - frame)).into_bytes()
}

async fn refused(client: &mut Client) {
    let answer = client.answer().await.unwrap();
    assert_eq!(
        (answer.status(), answer.header("x-forebay-failure").as_str()),
        (413, "router_body_too_large")
    );
}

#[test]
fn a_body_over_the_limit_is_refused_by_its_length_before_it_comes() {
    run(async {
        let site = with_limit(1000).await;
        let mut client = site.client().await;
        for path in ["/v1/completions", "/tokenize", "/reset_mm_cache"] {
            let mut client = site.client().await;
            let bytes = request("POST", path, &[], &of_length(1001));
            let head = bytes.len() - 1001;
            client.send(&bytes[..head]).await;
            refused(&mut client).await;
        }
        assert_eq!(client.post("/v1/completions", of_length(1000)).await.status(), 200);
        let huge = "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 18446744073709551615\r\n\r\n";
        let mut client = site.client().await;
        client.send(huge.as_bytes()).await;
        assert!((400..500).contains(&client.answer().await.unwrap().status()));
        still_serves(&site).await;
    });
}

#[test]
fn a_chunked_body_is_refused_as_soon_as_it_is_over_the_limit() {
    run(async {
        let site = with_limit(1000).await;
        for size in [10, 400, 999] {
            let mut client = site.client().await;
            client.send(&chunked("/v1/completions", &[], &of_length(1001), size)).await;
            refused(&mut client).await;
            let mut client = site.client().await;
            client.send(&chunked("/v1/completions", &[], &of_length(1000), size)).await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 3);
        still_serves(&site).await;
    });
}

#[test]
fn a_chunked_body_that_comes_in_one_frame_is_measured_too() {
    run(async {
        let site = with_limit(1000).await;
        for length in [1001, 5000] {
            let mut client = site.client().await;
            client.send(&chunked("/v1/completions", &[], &of_length(length), length)).await;
            refused(&mut client).await;
        }
        assert!(site.workers[0].requests_to("/v1/completions").is_empty());
    });
}

#[test]
fn a_body_that_breaks_off_reaches_no_worker() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let whole = request("POST", "/v1/completions", &[], &of_length(100));
        let in_chunks = chunked("/v1/completions", &[], &of_length(100), 10);
        for bytes in [&whole[..whole.len() - 1], &in_chunks[..in_chunks.len() - 5]] {
            let mut client = site.client().await;
            client.send(bytes).await;
            client.reset();
        }
        still_serves(&site).await;
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 1);
    });
}
