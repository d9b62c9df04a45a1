//! Time limits: each has its own name, in the answer and in the count.

use std::time::Duration;

use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::raw::Raw;
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Client, Site, request, run, site};
use tokio::io::AsyncWriteExt;

const STREAM: &str = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;
const WHOLE: &str = r#"{"prompt":"a","max_tokens":8}"#;
const SHORT: Option<Duration> = Some(Duration::from_millis(50));

async fn limited(change: impl FnOnce(&mut Settings)) -> Site {
    Site::start_with(site::workers(1), PolicyKind::RoundRobin, change).await
}

async fn outcomes(site: &Site, outcome: &str) -> u64 {
    site.metric("forebay_requests_total", &[&format!("outcome=\"{outcome}\"")]).await
}

#[test]
fn a_worker_that_never_answers_is_given_up() {
    run(async {
        let site = limited(|settings| settings.router.times.response_header = SHORT).await;
        site.workers[0].fail_next(1, Fault::NeverAnswer);
        let answer = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!((answer.status(), answer.header("x-forebay-failure").as_str()), (504, "worker_timeout"));
        assert_eq!(answer.json()["forebay"]["stage"], "headers");
        site.quiet().await;
        assert_eq!(outcomes(&site, "headers_timeout").await, 1);
    });
}

#[test]
fn a_stream_that_stands_still_ends_with_a_record_that_says_so() {
    run(async {
        let site = limited(|settings| settings.router.times.stream_idle = SHORT).await;
        site.workers[0].fail_next(1, Fault::StallMidStream(3));
        let answer = site.client().await.post("/v1/completions", STREAM).await;
        let text = answer.text();
        assert_eq!(text.matches("data: ").count(), 4, "{text}");
        assert!(text.contains(r#""forebay":{"failure":"worker_timeout","stage":"stream"}"#), "{text}");
        assert!(!text.contains("[DONE]"));
        site.quiet().await;
        assert_eq!((outcomes(&site, "stalled").await, site.workers[0].stats().aborted), (1, 1));
    });
}

#[test]
fn a_whole_answer_that_stands_still_is_cut() {
    run(async {
        let site = limited(|settings| settings.router.times.stream_idle = SHORT).await;
        site.workers[0].fail_next(1, Fault::StallMidStream(3));
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        assert!(client.answer().await.is_err());
        site.quiet().await;
        assert_eq!(outcomes(&site, "stalled").await, 1);
    });
}

#[test]
fn a_refusal_that_stands_still_is_given_up() {
    run(async {
        let wire = "HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\nnothing";
        let worker = Scripted::start(wire, Then::Keep).await;
        let mut settings = site::settings(PolicyKind::RoundRobin, &[worker.url()]);
        settings.router.times.stream_idle = SHORT;
        let app = site::start(&settings).await;
        let named = r#"{"model":"any","prompt":"a"}"#;
        let answer = Client::connect(&app.url()).await.post("/v1/completions", named).await;
        assert_eq!((answer.status(), answer.header("x-forebay-failure").as_str()), (504, "worker_timeout"));
        assert_eq!(answer.json()["forebay"]["stage"], "stream");
    });
}

#[test]
fn a_request_may_take_so_long_in_all() {
    run(async {
        let site = limited(|settings| settings.router.times.request = SHORT).await;
        site.workers[0].fail_next(1, Fault::NeverAnswer);
        let answer = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!((answer.status(), &answer.json()["forebay"]["stage"]), (504, &"request".into()));
        site.workers[0].fail_next(1, Fault::StallMidStream(1));
        let answer = site.client().await.post("/v1/completions", STREAM).await;
        assert!(answer.text().contains(r#""stage":"request""#), "{}", answer.text());
        site.quiet().await;
        assert_eq!(outcomes(&site, "request_timeout").await, 2);
    });
}

/// The application in front of this worker; requests may take [`SHORT`] in all.
async fn in_a_hurry(raw: &Raw) -> Site {
    let mut settings = site::settings(PolicyKind::RoundRobin, &[raw.url()]);
    settings.router.times.request = SHORT;
    Site { app: site::start(&settings).await, workers: Vec::new() }
}

#[test]
fn a_client_that_does_not_read_gets_no_more_time_than_others() {
    run(async {
        let mut raw = Raw::start().await;
        let site = in_a_hurry(&raw).await;
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
        let mut taken = raw.next().await;
        taken.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await;
        let record = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(64 * 1024));
        // More than lies anywhere on the way: it goes on until the router lets go of it.
        while taken.stream.write_all(record.as_bytes()).await.is_ok() {}
        let _cut = client.rest().await;
        assert_eq!(outcomes(&site, "request_timeout").await, 1);
        assert_eq!(site.in_flight(0), 0);
    });
}

#[test]
fn an_order_to_all_workers_may_take_as_long() {
    run(async {
        let mut raw = Raw::start().await;
        let site = in_a_hurry(&raw).await;
        let answer = site.client().await.post("/reset_prefix_cache", "").await;
        assert_eq!((answer.status(), &answer.json()["forebay"]["stage"]), (504, &"request".into()));
        raw.next().await.rest().await;
        site.quiet().await;
        assert_eq!(outcomes(&site, "request_timeout").await, 1);
    });
}

#[test]
fn a_body_that_does_not_come_is_given_up() {
    run(async {
        let site = limited(|settings| settings.router.times.client_body = SHORT).await;
        let mut client = site.client().await;
        let bytes = request("POST", "/v1/completions", &[], WHOLE.as_bytes());
        client.send(&bytes[..bytes.len() - 3]).await;
        let answer = client.answer().await.unwrap();
        assert_eq!(
            (answer.status(), answer.header("x-forebay-failure").as_str()),
            (408, "router_body_timeout")
        );
        assert_eq!(outcomes(&site, "client_timeout").await, 1);
    });
}

#[test]
fn an_order_to_the_admin_api_that_does_not_come_is_given_up() {
    run(async {
        let site = limited(|settings| settings.router.times.client_body = SHORT).await;
        let mut admin = site.admin().await;
        let bytes = request("POST", "/admin/reset", &[], br#"{"seed":7}"#);
        admin.send(&bytes[..bytes.len() - 3]).await;
        let answer = admin.answer().await.unwrap();
        let problem = &answer.json()["error"]["message"];
        assert_eq!(answer.status(), 408, "{problem}");
        assert!(problem.as_str().unwrap().contains("--client-body-timeout-secs"), "{problem}");
        let mut admin = site.admin().await;
        let long = admin.post("/admin/reset", " ".repeat(3 << 20)).await;
        assert_eq!(long.status(), 413, "{}", long.text());
        assert_eq!(admin.get("/admin/trial").await.json()["epoch"], 1, "neither is an order");
    });
}

#[test]
fn a_connection_without_requests_is_closed_sooner_than_a_slow_head() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
            settings.client_idle = Duration::from_millis(20);
        })
        .await;
        let (mut slow, mut client) = (site.client().await, site.client().await);
        slow.send(b"GET /health HTTP/1.1\r\nhost: x\r\n").await;
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        assert_eq!(client.rest().await, b"", "closed without a word");
        slow.send(b"\r\n").await;
        assert_eq!(slow.answer().await.unwrap().status(), 200, "a head has its own limit");
    });
}
