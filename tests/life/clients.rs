//! Clients that leave, connections that die of age, and the end of the application.

use std::io::{Read, Write};

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Stage};
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Client, Site, request, run, site};

const STREAM: &str = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;
const WHOLE: &str = r#"{"prompt":"a","max_tokens":8}"#;

fn ask(body: &str) -> Vec<u8> {
    request("POST", "/v1/completions", &[], body.as_bytes())
}

async fn outcomes(site: &Site, outcome: &str) -> u64 {
    site.metric("forebay_requests_total", &[&format!("outcome=\"{outcome}\"")]).await
}

#[test]
fn a_client_that_leaves_before_the_answer_begins_takes_its_request_along() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        for (i, body) in [WHOLE, STREAM].into_iter().enumerate() {
            let mut client = site.client().await;
            client.send(&ask(body)).await;
            gate.wait_held(1).await;
            assert_eq!(site.in_flight(0), 1);
            drop(client);
            site.workers[0].wait_until(|stats| stats.aborted == i as u64 + 1).await;
            site.quiet().await;
            assert_eq!(outcomes(&site, "client_gone_before_headers").await, i as u64 + 1);
        }
        drop(gate);
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
    });
}

#[test]
fn a_client_that_leaves_inside_a_stream_takes_its_request_along() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(3));
        for by_reset in [false, true] {
            let mut client = site.client().await;
            client.send(&ask(STREAM)).await;
            gate.wait_held(1).await;
            client.head().await.unwrap();
            client.chunk().await.unwrap();
            if by_reset {
                client.reset();
            } else {
                drop(client);
            }
            site.workers[0].wait_until(|stats| stats.aborted == 1 + u64::from(by_reset)).await;
            site.quiet().await;
            assert_eq!(outcomes(&site, "client_gone_mid_stream").await, 1 + u64::from(by_reset));
        }
    });
}

/// Asks for a stream, and reads no further than its `[DONE]`.
async fn read_until_done(client: &mut Client) {
    client.send(&ask(STREAM)).await;
    client.head().await.unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"[DONE]\n\n") {
        got.extend(client.chunk().await.unwrap().unwrap());
    }
}

/// OpenAI's client closes its connection when it has read `[DONE]`, which may be before the last chunk has come.
#[test]
fn a_client_that_leaves_behind_done_has_got_everything() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                          e\r\ndata: {\"a\":1}\n\r\n1\r\n\n\r\ne\r\ndata: [DONE]\n\n\r\n";
    run(async {
        let worker = Scripted::start(ANSWER, Then::Keep).await;
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
        let site = Site { app, workers: Vec::new() };
        let mut client = site.client().await;
        read_until_done(&mut client).await;
        drop(client);
        site.quiet().await;
        assert_eq!(
            [outcomes(&site, "completed").await, outcomes(&site, "client_gone_mid_stream").await],
            [1, 0]
        );
    });
}

/// What the worker told has to be known before the client's next request, or the next choice depends on who is faster.
#[test]
fn what_a_stream_told_of_tokens_is_learnt_by_the_time_the_client_has_read_done() {
    run(async {
        let told = r#"data: {"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}"#;
        let records = format!("{told}\n\ndata: [DONE]\n\n");
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{records}\r\n",
            records.len()
        );
        let worker = Scripted::start(answer, Then::Keep).await;
        let app = site::start(&site::settings(PolicyKind::CacheAware, &[worker.url()])).await;
        let site = Site { app, workers: Vec::new() };
        let reported =
            async || site.metric("forebay_cache_check_tokens_total", &[r#"kind="reported""#]).await;
        let mut client = site.client().await;
        read_until_done(&mut client).await;
        assert_eq!(reported().await, 32);
        drop(client);
        site.quiet().await;
        assert_eq!((reported().await, outcomes(&site, "completed").await), (32, 1));
        let report = site.admin().await.get("/admin/trial").await.json();
        assert_eq!((&report["tokens"]["prompt"], &report["tokens"]["cached"]), (&40.into(), &32.into()));
    });
}

#[test]
fn a_client_that_leaves_while_its_body_comes_costs_no_worker_anything() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let bytes = ask(WHOLE);
        client.send(&bytes[..bytes.len() - 3]).await;
        drop(client);
        for _ in 0..500 {
            let gone = outcomes(&site, "client_gone_before_headers").await + outcomes(&site, "refused").await;
            if gone == 1 {
                break;
            }
        }
        let gone = outcomes(&site, "client_gone_before_headers").await + outcomes(&site, "refused").await;
        assert_eq!(gone, 1);
        assert!(site.workers[0].requests_to("/v1/completions").is_empty());
    });
}

#[test]
fn a_connection_that_closes_just_when_it_is_reused_is_tried_again_on_the_same_worker() {
    run(async {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let worker = Scripted::start(answer, Then::CloseWhenReused).await;
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
        let mut client = Client::connect(&app.url()).await;
        for _ in 0..6 {
            let answer = client.post("/v1/completions", WHOLE).await;
            assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"));
        }
        // The second, third, … request each met a connection that was closed on it.
        assert_eq!(worker.requests(), 11);
        let metrics = Client::connect(&app.admin_url()).await.get("/metrics").await.text();
        assert_eq!(site::sum(&metrics, "forebay_resends_total", &[]), 5);
        assert_eq!(site::sum(&metrics, "forebay_requests_total", &["outcome=\"completed\""]), 6);
        assert_eq!(site::sum(&metrics, "forebay_retries_total", &[]), 0);
    });
}

#[test]
fn a_fresh_connection_that_dies_is_left_for_another_worker() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        site.workers[0].fail_next(1, Fault::CloseBeforeHead);
        let mut client = site.client().await;
        assert_eq!(site::by(&client.post("/v1/completions", WHOLE).await), "w1");
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        for worker in &site.workers {
            worker.fail_next(1, Fault::CloseBeforeHead);
        }
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 502);
        let seen: usize = site.workers.iter().map(|worker| worker.requests_to("/v1/completions").len()).sum();
        assert_eq!(seen, 2, "each worker is asked once");
    });
}

#[test]
fn an_idle_connection_that_the_worker_closed_is_not_used() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for i in 0..4 {
            site.workers[0].fail_next(1, Fault::CloseAfterAnswer);
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
            site.workers[0].wait_until(|stats| stats.served_inference == i + 1).await;
        }
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 5);
    });
}

#[test]
fn who_has_connected_before_a_shutdown_is_answered() {
    run(async {
        let Site { workers, app } = Site::start(1, PolicyKind::RoundRobin).await;
        let addr = app.url().trim_start_matches("http://").to_owned();
        // More than are taken in while they come.
        let ask = |_| {
            let mut stream = std::net::TcpStream::connect(&addr).unwrap();
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
            stream
        };
        let clients: Vec<_> = (0..300).map(ask).collect();
        app.shutdown().await;
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
        }
        drop(workers);
    });
}

#[test]
fn a_shutdown_lets_streams_end_and_takes_nothing_new() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(2));
        let mut client = site.client().await;
        let mut idle = site.client().await;
        assert_eq!(idle.get("/health").await.status(), 200);
        client.send(&ask(STREAM)).await;
        gate.wait_held(1).await;
        let Site { workers, app } = site;
        let url = app.url();
        let mut shutdown = std::pin::pin!(app.shutdown());
        tokio::select! {
            biased;
            () = &mut shutdown => panic!("it did not wait for the stream"),
            rest = idle.rest() => assert!(rest.is_empty(), "the idle connection is closed"),
        }
        let addr = url.trim_start_matches("http://").to_owned();
        // The listener closes at about the same time as idle connections do.
        let mut refused = false;
        for _ in 0..20_000 {
            refused = tokio::net::TcpStream::connect(&addr).await.is_err();
            if refused {
                break;
            }
        }
        assert!(refused, "new connections are refused");
        gate.release();
        let (answer, ()) = tokio::join!(client.answer(), shutdown);
        let answer = answer.unwrap();
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
        assert_eq!(workers[0].stats().aborted, 0);
    });
}

#[test]
fn dropping_the_application_ends_streams_at_once() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(2));
        let mut client = site.client().await;
        client.send(&ask(STREAM)).await;
        gate.wait_held(1).await;
        let Site { workers, app } = site;
        drop(app);
        assert!(client.answer().await.is_err());
        workers[0].wait_until(|stats| stats.aborted == 1).await;
    });
}

/// Nobody can tell a client that only sends no more from one that has left, and what is computed for nobody costs a worker
/// dearly. vLLM's own server decides so, too.
#[test]
fn a_client_that_closes_its_side_while_a_worker_works_for_it_has_left() {
    run(async {
        for (body, stage) in [(WHOLE, Stage::BeforeHead), (STREAM, Stage::AfterChunks(1))] {
            let site = Site::start(1, PolicyKind::RoundRobin).await;
            let gate = site.workers[0].hold(stage);
            let mut client = site.client().await;
            client.send(&ask(body)).await;
            gate.wait_held(1).await;
            client.half_close().await;
            site.workers[0].wait_until(|stats| stats.aborted == 1).await;
            site.quiet().await;
            let text = String::from_utf8(client.rest().await).unwrap();
            assert!(!text.contains("[DONE]") && !text.ends_with("0\r\n\r\n"), "{text}");
        }
        // What needs no worker is answered all the same.
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        client.send(&request("GET", "/health", &[], b"")).await;
        client.half_close().await;
        assert_eq!(client.answer_to("GET").await.unwrap().status(), 200);
    });
}
