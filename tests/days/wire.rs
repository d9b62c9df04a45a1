//! A worker that speaks no HTTP, or wrong HTTP.

use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Client, request, run, site, until};

use crate::day::{Day, STREAM, WHOLE, ends, listed, outcomes, row, saw};

async fn one(case: &'static str, fault: Fault, body: &str, outcome: &str, wanted: &str) {
    let day = Day::of_one(case, |_| ()).await;
    day.site.workers[0].fail_next(1, fault);
    let seen = day.ask(body).await;
    assert_eq!(seen, wanted, "{case}");
    let day = day.ends(&format!("1 {outcome}"), &seen).await;
    assert_eq!(day.ask(WHOLE).await, "200 whole", "{case}: the next request");
}

#[test]
fn what_is_no_answer() {
    run(async {
        let invalid = ("invalid_response", "502 worker_invalid_response");
        one("garbage instead of HTTP", Fault::Garbage, WHOLE, invalid.0, invalid.1).await;
        one("a header of 100 MB", Fault::HugeHead(100 << 20), WHOLE, invalid.0, invalid.1).await;
    });
}

#[test]
fn a_message_that_is_not_as_it_says() {
    run(async {
        let broken = "reset_mid_stream";
        one("content-length too long", Fault::LengthTooLong(10), WHOLE, broken, "200 cut").await;
        // What is wrong comes in one piece with the head, so that it can be told in place of it.
        let (fault, invalid) = (Fault::ChunkedGarbage(2), "invalid_response");
        one("no chunk among chunks", fault, STREAM, invalid, "502 worker_invalid_response").await;

        let day = Day::of_one("content-length too short", |_| ()).await;
        day.site.workers[0].fail_next(1, Fault::LengthTooShort(10));
        assert_eq!(day.ask(WHOLE).await, "200 whole");
        assert_eq!(day.ask(WHOLE).await, "200 whole", "what was too much is nobody's answer");
        day.ends("2 completed", "200 with what was declared; the rest is nobody's").await;
    });
}

/// One request to a scripted worker.
async fn scripted(case: &str, wire: &str, then: Then, wanted: (&str, &str)) {
    let worker = Scripted::start(wire, then).await;
    let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
    let seen = saw(&mut Client::connect(&app.url()).await, STREAM).await;
    assert_eq!(seen, wanted.1, "{case}");
    ends(&app, case, wanted.0, &seen).await;
}

/// A chunk of a chunked body.
fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

#[test]
fn a_record_that_is_too_long_to_be_held_back_passes_raw() {
    run(async {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let whole = "data: {\"text\":\"a\"}\n\n";
        let part = |size: usize| format!("data: {{\"text\":\"{}", "b".repeat(size));
        for (case, size, raw) in [
            ("killed inside a record of 60 KiB, which is held back", 60 * 1024, false),
            ("killed inside a record of 70 KiB, which passes as it comes", 70 * 1024, true),
        ] {
            let pieces = [head.to_owned(), chunk(whole), chunk(&part(size))].concat();
            let worker = Scripted::start(pieces, Then::Close).await;
            let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
            let mut client = Client::connect(&app.url()).await;
            client.send(&request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
            client.head().await.unwrap();
            let (mut body, mut is_whole) = (Vec::new(), true);
            loop {
                match client.chunk().await {
                    Ok(Some(chunk)) => body.extend(chunk),
                    Ok(None) => break,
                    Err(_) => {
                        is_whole = false;
                        break;
                    }
                }
            }
            let text = String::from_utf8(body).unwrap();
            let told = text.strip_prefix(whole).expect("the record before it");
            let saw = if raw {
                assert!(told == part(size), "every byte of it, and nothing more: {} bytes", told.len());
                "200 1 records, what there was of the next, then cut"
            } else {
                assert!(told.contains(r#""failure":"worker_died_mid_stream""#), "{told:.100}");
                "200 1 records, then worker_died_mid_stream"
            };
            assert_eq!(is_whole, !raw, "only a stream that could be told why ends as if it were whole");
            ends(&app, case, "1 reset_mid_stream", saw).await;
        }
        // If nothing breaks nobody notices.
        let long = format!("{}\"}}\n\n", part(200 * 1024));
        let done = "data: [DONE]\n\n";
        let pieces =
            [head.to_owned(), chunk(whole), chunk(&long), chunk(done), "0\r\n\r\n".to_owned()].concat();
        let worker = Scripted::start(pieces, Then::Keep).await;
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
        let answer = Client::connect(&app.url()).await.post("/v1/completions", STREAM).await;
        assert!(answer.text() == [whole, &long, done].concat(), "byte for byte");
        ends(&app, "a record of 200 KiB in a stream that ends well", "1 completed", "200 byte for byte")
            .await;
    });
}

#[test]
fn half_of_a_connection_is_closed() {
    run(async {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let record = "14\r\ndata: {\"text\":\"a\"}\n\n\r\n";
        let told = ("1 reset_mid_stream", "200 1 records, then worker_died_mid_stream");
        scripted("half-close inside a stream", &format!("{head}{record}"), Then::HalfClose, told).await;
        let died = ("1 reset_before_headers", "502 worker_died_before_headers");
        scripted("half-close instead of an answer", "", Then::HalfClose, died).await;
    });
}

#[test]
fn a_kept_connection_is_closed_exactly_when_it_is_reused() {
    run(async {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let worker = Scripted::start(answer, Then::CloseWhenReused).await;
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
        let mut client = Client::connect(&app.url()).await;
        for _ in 0..6 {
            assert_eq!(saw(&mut client, WHOLE).await, "200 whole");
        }
        until("no load is left", || app.reader().world().workers()[0].in_flight() == 0).await;
        let metrics = Client::connect(&app.admin_url()).await.get("/metrics").await.text();
        assert_eq!(site::sum(&metrics, "forebay_resends_total", &[]), 5);
        assert_eq!(site::sum(&metrics, "forebay_retries_total", &[]), 0);
        let counted = listed(&outcomes(&metrics));
        assert_eq!(counted, "6 completed");
        row(
            "kept connection closed exactly when reused",
            &counted,
            "200 whole, 5 of them sent twice",
            "router 0",
        );
    });
}
