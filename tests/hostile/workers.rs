//! Workers that break: the client is told what happened, and the load comes down.

use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Answer, Client, Site, run, site, until};

use crate::still_serves;

const WHOLE: &str = r#"{"prompt":"x","max_tokens":8}"#;
const STREAM: &str = r#"{"prompt":"x","max_tokens":8,"stream":true}"#;

/// One worker that is asked again and again, whatever it does.
async fn without_breakers() -> Site {
    let change = |settings: &mut forebay::settings::Settings| settings.breaker.enabled = false;
    Site::start_with(site::workers(1), PolicyKind::CacheAware, change).await
}

/// The last record of a stream says that the worker died, and every one before it is whole.
fn is_told_at_the_end(answer: &Answer) -> bool {
    let text = answer.text();
    let mut records: Vec<_> = text.split("\n\n").collect();
    let whole = records.pop() == Some("") && records.iter().all(|record| record.ends_with('}'));
    whole && records.last().is_some_and(|last| last.contains(r#""failure":"worker_died_mid_stream""#))
}

#[test]
fn before_its_answer_begins_a_broken_worker_is_a_bad_gateway() {
    run(async {
        let site = without_breakers().await;
        let mut client = site.client().await;
        for (fault, failure, outcome) in [
            (Fault::CloseBeforeHead, "worker_died_before_headers", "reset_before_headers"),
            (Fault::Reset, "worker_died_before_headers", "reset_before_headers"),
            (Fault::CloseMidHead, "worker_died_before_headers", "reset_before_headers"),
            (Fault::CloseAfterRequestBytes(3), "worker_died_before_headers", "reset_before_headers"),
            (Fault::Garbage, "worker_invalid_response", "invalid_response"),
            (Fault::HugeHead(1 << 20), "worker_invalid_response", "invalid_response"),
        ] {
            for body in [WHOLE, STREAM] {
                let label = format!("outcome=\"{outcome}\"");
                let before = site.metric("forebay_requests_total", &[&label]).await;
                // Twice, since a reused connection that dies without a word is tried once more.
                site.workers[0].fail_next(2, fault.clone());
                let answer = client.post("/v1/completions", body).await;
                site.workers[0].clear_faults();
                assert_eq!(
                    (answer.status(), answer.header("x-forebay-failure").as_str()),
                    (502, failure),
                    "{fault:?}"
                );
                assert_eq!(answer.json()["error"]["code"], 502);
                assert_eq!(site.metric("forebay_requests_total", &[&label]).await, before + 1, "{fault:?}");
                site.quiet().await;
            }
        }
        still_serves(&site).await;
    });
}

#[test]
fn inside_its_answer_a_broken_worker_breaks_the_clients_answer_too() {
    run(async {
        let site = without_breakers().await;
        let faults = [
            Fault::CloseMidStream(2),
            Fault::CloseMidRecord(2),
            Fault::ResetMidStream(2),
            Fault::ChunkedGarbage(2),
            Fault::LengthTooLong(10),
        ];
        for (i, fault) in faults.into_iter().enumerate() {
            for body in [WHOLE, STREAM] {
                site.workers[0].fail_next(1, fault.clone());
                let mut client = site.client().await;
                client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
                let ended = client.answer().await;
                let told =
                    ended.as_ref().is_ok_and(|answer| answer.status() == 502 || is_told_at_the_end(answer));
                assert!(
                    ended.is_err() || told,
                    "{fault:?}: an answer that is cut must not look whole: {ended:?}"
                );
                site.quiet().await;
            }
            let label = ["outcome=\"reset_mid_stream\""];
            assert!(site.metric("forebay_requests_total", &label).await > i as u64, "{fault:?}");
        }
        still_serves(&site).await;
    });
}

#[test]
fn an_end_mark_without_an_end_is_not_an_end() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        site.workers[0].fail_next(1, Fault::CloseAfterDone);
        let mut client = site.client().await;
        client.send(&forebay_tests::request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
        assert!(client.answer().await.is_err());
        still_serves(&site).await;
    });
}

#[test]
fn bytes_beyond_a_length_do_not_get_into_the_next_answer() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let whole = client.post("/v1/completions", WHOLE).await;
        for _ in 0..3 {
            site.workers[0].fail_next(1, Fault::LengthTooShort(10));
            let short = client.post("/v1/completions", WHOLE).await;
            assert_eq!(short.body.len() + 10, whole.body.len());
            assert_eq!(client.post("/v1/completions", WHOLE).await.body.len(), whole.body.len());
        }
        still_serves(&site).await;
    });
}

#[test]
fn an_answer_before_the_body_was_read_arrives() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let body = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(5_000_000));
        for _ in 0..3 {
            site.workers[0].fail_next(1, Fault::EarlyAnswer(413));
            let answer = client.post("/v1/completions", &body).await;
            assert_eq!((answer.status(), answer.header("x-sim-worker").as_str()), (413, "w0"));
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        still_serves(&site).await;
    });
}

async fn scripted(wire: Vec<u8>) -> std::io::Result<Answer> {
    let worker = Scripted::start(wire, Then::Close).await;
    let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
    let mut client = Client::connect(&app.url()).await;
    client.send(&forebay_tests::request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
    let answer = client.answer().await;
    let load = || app.reader().world().workers()[0].in_flight();
    until("no load is left", || load() == 0).await;
    assert_eq!(Client::connect(&app.url()).await.get("/health").await.status(), 200);
    answer
}

#[test]
fn what_is_no_answer_is_told_as_one_that_is_invalid() {
    let heads: [&str; 9] = [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ];
    for head in heads {
        let answer = run(scripted(head.into())).unwrap();
        assert_eq!(
            (answer.status(), answer.header("x-forebay-failure").as_str()),
            (502, "worker_invalid_response"),
            "{head}"
        );
    }
    let flood = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(5000));
    assert_eq!(run(scripted(flood.into_bytes())).unwrap().status(), 502);
}

#[test]
fn a_second_answer_behind_the_first_is_nobodys() {
    let wire =
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirstHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond";
    run(async {
        let worker = Scripted::start(wire, Then::Keep).await;
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
        let mut client = Client::connect(&app.url()).await;
        for _ in 0..5 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.text(), "first");
        }
    });
}

#[test]
fn of_an_answer_that_breaks_right_behind_its_head_the_head_arrives() {
    run(async {
        let site = without_breakers().await;
        for fault in [Fault::CloseMidStream(1), Fault::ResetMidStream(1), Fault::LengthTooLong(10)] {
            site.workers[0].fail_next(1, fault.clone());
            let mut client = site.client().await;
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
            let head = client.head().await.unwrap();
            assert_eq!(head.status, 200, "{fault:?}");
            assert!(client.body(&head, "POST").await.is_err(), "{fault:?}");
        }
        still_serves(&site).await;
    });
}
