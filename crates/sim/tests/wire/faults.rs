//! Each fault does to the bytes what its name says.

use std::time::Duration;

use forebay_sim::{Fault, FaultRule, Scope, When, Worker, WorkerOptions};
use serde_json::json;

use crate::client::{Client, End, post, within};

const WHOLE: &str = r#"{"prompt":"p","max_tokens":4}"#;
const STREAM: &str = r#"{"prompt":"p","max_tokens":4,"stream":true}"#;

/// A worker whose next prompt meets the fault, and a client that sent one.
async fn sent(fault: Fault, body: &str) -> (Worker, Client) {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    worker.fail_next(1, fault);
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", body, "").as_bytes()).await;
    (worker, client)
}

/// All bytes of an answer under a fault, as text, and how the connection ended.
async fn seen(fault: Fault, body: &str) -> (String, End) {
    let (worker, mut client) = sent(fault, body).await;
    let (bytes, end) = client.rest().await;
    within(worker.wait_until(|stats| stats.open_requests == 0 && stats.aborted == 0)).await;
    (String::from_utf8_lossy(&bytes).into_owned(), end)
}

#[tokio::test]
async fn faults_before_the_answer() {
    assert_eq!(seen(Fault::CloseBeforeHead, WHOLE).await, (String::new(), End::Closed));
    assert_eq!(seen(Fault::Reset, WHOLE).await, (String::new(), End::Reset));
    let (text, end) = seen(Fault::CloseMidHead, WHOLE).await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && !text.contains("\r\n\r\n"));
    assert_eq!(end, End::Closed);
    let (text, _) = seen(Fault::Garbage, WHOLE).await;
    assert!(!text.contains("HTTP/1"));
    let (worker, mut client) = sent(Fault::CloseAfterRequestBytes(5), WHOLE).await;
    assert!(client.rest().await.0.is_empty());
    assert_eq!(within(worker.wait_until(|stats| stats.open_requests == 0)).await.cut, 1);
}

#[tokio::test]
async fn faults_within_a_stream() {
    let records = |text: &str| text.matches("data: ").count();
    for (fault, end) in [(Fault::CloseMidStream(2), End::Closed), (Fault::ResetMidStream(2), End::Reset)] {
        let (text, seen_end) = seen(fault, STREAM).await;
        assert_eq!(seen_end, end);
        // A reset may overtake bytes that were not read yet.
        assert!(records(&text) == 2 || end == End::Reset, "{text}");
        assert!(!text.ends_with("0\r\n\r\n"));
    }
    let (text, _) = seen(Fault::CloseMidRecord(1), STREAM).await;
    assert_eq!(text.matches("\n\n").count(), 1, "{text}");
    assert_eq!(records(&text), 2, "the second is not whole");
    let (text, _) = seen(Fault::CloseAfterDone, STREAM).await;
    assert!(text.ends_with("data: [DONE]\n\n\r\n"));
    let (text, _) = seen(Fault::ChunkedGarbage(1), STREAM).await;
    assert!(text.ends_with("zz\r\nthis is no chunk\r\n"));
    let (text, _) = seen(Fault::CloseMidStream(1), WHOLE).await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let promised: usize =
        head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    assert_eq!(body.len(), promised / 2, "half of a whole answer");
}

#[tokio::test]
async fn silences_last_until_the_client_leaves() {
    for (fault, expected) in [(Fault::HeadThenSilence, "\r\n\r\n"), (Fault::StallMidStream(1), "\n\n\r\n")] {
        let (worker, mut client) = sent(fault, STREAM).await;
        while !client.at_least(1).await.ends_with(expected) {
            tokio::task::yield_now().await;
            let have = client.at_least(1).await.len();
            client.at_least(have + 1).await;
        }
        assert_eq!(worker.stats().open_inference, 1);
        drop(client);
        within(worker.wait_until(|stats| stats.aborted == 1)).await;
    }
}

#[tokio::test]
async fn lengths_that_lie() {
    for body in [WHOLE, STREAM] {
        let declared = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
            (length.parse::<usize>().unwrap(), body.len())
        };
        let (length, sent_bytes) = declared(&seen(Fault::LengthTooLong(7), body).await.0);
        assert_eq!(length, sent_bytes + 7);
        let (_worker, mut client) = sent(Fault::LengthTooShort(7), body).await;
        client.answer().await;
        assert_eq!(client.at_least(7).await.len(), 7, "left over on a connection that stays open");
    }
}

#[tokio::test]
async fn answers_that_end_the_connection() {
    let (_worker, mut client) = sent(Fault::CloseAfterAnswer, WHOLE).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, None), "it promised to stay");
    assert_eq!(client.rest().await, (Vec::new(), End::Closed));
    let (_worker, mut client) = sent(Fault::ConnectionClose, WHOLE).await;
    assert_eq!(client.answer().await.header("connection"), Some("close"));
    assert_eq!(client.rest().await, (Vec::new(), End::Closed));
}

#[tokio::test]
async fn an_early_answer_does_not_wait_for_the_body() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    worker.fail_next(1, Fault::EarlyAnswer(413));
    let mut client = Client::connect(&worker).await;
    client.send(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1000000\r\n\r\nabc").await;
    assert_eq!(client.answer().await.status, 413);
    assert_eq!(client.rest().await, (Vec::new(), End::Closed));
}

#[tokio::test]
async fn odd_but_correct_answers() {
    let (_worker, mut client) = sent(Fault::Interim(103), WHOLE).await;
    assert_eq!(client.head().await, "HTTP/1.1 103 Early Hints\r\n");
    assert_eq!(client.answer().await.status, 200);
    let (_worker, mut client) = sent(Fault::ByteByByte(Duration::ZERO), STREAM).await;
    let answer = client.answer().await;
    assert_eq!(answer.chunks.len(), 5);
    let (_worker, mut client) = sent(Fault::HugeHead(100_000), WHOLE).await;
    assert_eq!(client.answer().await.header("x-sim-huge").unwrap().len(), 100_000);
}

#[tokio::test]
async fn an_error_within_a_stream_is_a_record_before_done() {
    let (worker, mut client) = sent(Fault::ErrorInStream(2), STREAM).await;
    let answer = client.answer().await;
    let data = answer.data();
    assert_eq!((answer.status, data.len()), (200, 4));
    assert_eq!(
        data[2],
        json!({"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}})
    );
    assert_eq!(data[3], "[DONE]");
    worker.fail_next(1, Fault::ErrorInStream(2));
    assert_eq!(client.post("/v1/completions", WHOLE, "").await.status, 500);
    assert_eq!(client.post("/v1/completions", WHOLE, "").await.status, 200, "the connection lives on");
}

#[tokio::test]
async fn refusals_have_the_shapes_of_the_real_ones() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let mut client = Client::connect(&worker).await;
    for (fault, status, kind) in [
        (Fault::QueueOverflow, 503, "Service Unavailable"),
        (Fault::Paused, 503, "ServiceUnavailableError"),
        (Fault::TooManyRequests, 429, "RateLimitError"),
        (Fault::InternalError, 500, "InternalServerError"),
        (Fault::Status(418, String::new()), 418, "I'm a Teapot"),
    ] {
        worker.fail_next(1, fault.clone());
        let answer = client.post("/v1/completions", STREAM, "").await;
        assert_eq!(
            (answer.status, answer.json()["error"]["type"].as_str()),
            (status, Some(kind)),
            "{fault:?}"
        );
    }
    worker.fail_next(1, Fault::Scaling);
    assert!(client.post("/v1/completions", STREAM, "").await.json()["error"].is_string());
    worker.fail_next(1, Fault::Status(500, r#"{"own":1}"#.to_owned()));
    assert_eq!(client.post("/v1/completions", STREAM, "").await.json(), json!({"own": 1}));
    worker.fail_next(1, Fault::EngineDead);
    assert_eq!(client.post("/v1/completions", STREAM, "").await.status, 500);
    assert_eq!(client.call("GET", "/health").await.status, 503);
}

#[tokio::test]
async fn faults_can_be_asked_for_by_header_and_set_for_a_path() {
    for options in [WorkerOptions::recording(), WorkerOptions::instant(2)] {
        let worker = Worker::start(options).unwrap();
        let mut client = Client::connect(&worker).await;
        let asked = client.post("/v1/completions", STREAM, "x-sim-fault: status=429\r\n").await;
        assert_eq!(asked.status, 429);
        let scope = Scope::Path("/health".to_owned());
        worker.add_fault(FaultRule { fault: Fault::Scaling, when: When::Always, scope });
        assert_eq!(client.call("GET", "/health").await.status, 503);
        assert_eq!(client.post("/v1/completions", STREAM, "").await.status, 200);
        worker.clear_faults();
        assert_eq!(client.call("GET", "/health").await.status, 200);
        worker.fail_always(Fault::InternalError);
        assert_eq!(client.post("/v1/completions", STREAM, "").await.status, 500);
        assert_eq!(client.post("/v1/completions", STREAM, "").await.status, 500);
    }
}

#[tokio::test]
async fn bytes_that_are_no_http_are_refused() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let mut client = Client::connect(&worker).await;
    client.send(b"\x16\x03\x01\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (400, "Invalid HTTP request received."));
}
