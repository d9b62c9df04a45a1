//! Requests held at a stage.

use forebay_sim::{Stage, Worker, WorkerOptions};

use crate::client::{Client, post, within};

const STREAM: &str = r#"{"prompt":"p","max_tokens":3,"stream":true}"#;

#[tokio::test]
async fn a_gate_before_the_head_holds_prompts_and_lets_probes_pass() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let gate = worker.hold(Stage::BeforeHead);
    let (mut first, mut second) = (Client::connect(&worker).await, Client::connect(&worker).await);
    first.send(post("/v1/completions", STREAM, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    second.send(post("/v1/completions", STREAM, "").as_bytes()).await;
    within(gate.wait_held(2)).await;
    assert_eq!(Client::connect(&worker).await.call("GET", "/health").await.status, 200);
    gate.release_one();
    assert_eq!(first.answer().await.status, 200);
    assert!(second.is_silent());
    gate.release();
    assert_eq!(second.answer().await.status, 200);
    within(worker.wait_until(|stats| stats.served_inference == 2)).await;
}

#[tokio::test]
async fn a_gate_within_a_stream_holds_what_follows() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let gate = worker.hold(Stage::AfterChunks(2));
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", STREAM, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    client.head().await;
    client.chunk().await;
    client.chunk().await;
    assert!(client.is_silent());
    gate.release();
    client.chunk().await;
    assert_eq!(client.chunk().await, b"data: [DONE]\n\n");
    assert!(client.chunk().await.is_empty());
}

#[tokio::test]
async fn a_gate_before_the_body_holds_a_request_that_is_not_recorded_yet() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let gate = worker.hold(Stage::BeforeBody);
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", STREAM, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    assert!(worker.requests().is_empty());
    drop(gate);
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(worker.requests().len(), 1);
}

#[tokio::test]
async fn pausing_in_mode_keep_queues_prompts_until_resumed() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let (mut client, mut operator) = (Client::connect(&worker).await, Client::connect(&worker).await);
    assert_eq!(operator.call("POST", "/pause?mode=keep").await.status, 200);
    client.send(post("/v1/completions", STREAM, "").as_bytes()).await;
    within(worker.wait_requests_to("/v1/completions", 1)).await;
    assert!(client.is_silent());
    assert_eq!(operator.call("POST", "/resume").await.status, 200);
    assert_eq!(client.answer().await.status, 200);
}
