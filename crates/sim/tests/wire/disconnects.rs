//! What a worker makes of clients that leave, and of its own end.

use std::time::Duration;

use forebay_sim::engine::{EngineLoad, EngineOptions};
use forebay_sim::{Fault, Listening, Stage, Worker, WorkerOptions};
use tokio::net::TcpStream;

use crate::client::{Client, End, post, within};

const PROMPT: &str = r#"{"prompt":"p","max_tokens":4}"#;
const STREAM: &str = r#"{"prompt":"p","max_tokens":4,"stream":true}"#;

#[tokio::test]
async fn a_client_that_leaves_before_the_head_is_noticed_at_once() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let gate = worker.hold(Stage::BeforeHead);
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", PROMPT, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    assert_eq!(worker.stats().open_inference, 1);
    drop(client);
    let stats = within(worker.wait_until(|stats| stats.open_requests == 0)).await;
    assert_eq!((stats.aborted, stats.served, stats.open_inference), (1, 0, 0));
    assert_eq!(gate.held(), 0);
    within(worker.wait_until(|stats| stats.open_connections == 0)).await;
}

#[tokio::test]
async fn a_client_that_leaves_within_a_stream_is_noticed_at_once() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let gate = worker.hold(Stage::AfterChunks(2));
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", STREAM, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    client.head().await;
    assert!(client.chunk().await.starts_with(b"data: "));
    assert_eq!(worker.open_requests(), 1);
    drop(client);
    within(worker.wait_until(|stats| stats.aborted == 1 && stats.open_requests == 0)).await;
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_is_recorded_with_what_came() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let mut client = Client::connect(&worker).await;
    let whole = post("/v1/completions", PROMPT, "");
    client.send(&whole.as_bytes()[..whole.len() - 3]).await;
    within(worker.wait_until(|stats| stats.open_requests == 1)).await;
    drop(client);
    within(worker.wait_until(|stats| stats.aborted == 1)).await;
    let recorded = worker.requests();
    assert!(!recorded[0].complete);
    assert_eq!(recorded[0].body, PROMPT[..PROMPT.len() - 3]);
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place_in_the_engine() {
    let slow = EngineOptions {
        prefill_per_token: Duration::from_secs(60),
        max_concurrent: 1,
        ..EngineOptions::default()
    };
    let worker = Worker::start(WorkerOptions::engine(slow)).unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&worker).await;
        client.send(post("/v1/completions", PROMPT, "").as_bytes()).await;
        clients.push(client);
        let sent = clients.len() as u64;
        within(worker.wait_until(|stats| stats.arrived == sent)).await;
    }
    while worker.engine_load() != (EngineLoad { running: 1, waiting: 1 }) {
        tokio::task::yield_now().await;
    }
    clients.pop();
    within(worker.wait_until(|stats| stats.aborted == 1)).await;
    assert_eq!(worker.engine_load(), EngineLoad { running: 1, waiting: 0 });
    clients.pop();
    within(worker.wait_until(|stats| stats.aborted == 2)).await;
    assert_eq!(worker.engine_load(), EngineLoad::default());
}

#[tokio::test]
async fn a_stalled_request_stays_open_until_its_client_leaves() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    worker.fail_next(1, Fault::NeverAnswer);
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", PROMPT, "").as_bytes()).await;
    within(worker.wait_requests_to("/v1/completions", 1)).await;
    assert!(client.is_silent());
    assert_eq!(worker.open_requests(), 1);
    drop(client);
    within(worker.wait_until(|stats| stats.aborted == 1 && stats.open_requests == 0)).await;
}

#[tokio::test]
async fn stopping_resets_connections_cuts_requests_and_frees_the_port() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let gate = worker.hold(Stage::BeforeHead);
    let mut client = Client::connect(&worker).await;
    client.send(post("/v1/completions", PROMPT, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    let (control, addr) = (worker.control(), worker.addr());
    within(worker.stop()).await;
    assert_eq!(client.rest().await, (Vec::new(), End::Reset));
    let stats = control.stats();
    assert_eq!((stats.open_requests, stats.open_connections, stats.cut), (0, 0, 1));
    assert!(TcpStream::connect(addr).await.is_err());
    within(control.listen(Listening::Accepting)).await;
    let again = Worker::start(WorkerOptions { port: addr.port(), ..WorkerOptions::recording() }).unwrap();
    assert_eq!(Client::connect(&again).await.call("GET", "/health").await.status, 200);
}

#[tokio::test]
async fn connections_can_be_refused_and_paused_and_taken_up_again() {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let mut before = Client::connect(&worker).await;
    assert_eq!(before.call("GET", "/health").await.status, 200);
    within(worker.refuse_connections()).await;
    let refused = TcpStream::connect(worker.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(before.call("GET", "/health").await.status, 200, "connections taken up before live on");
    within(worker.accept()).await;
    assert_eq!(Client::connect(&worker).await.call("GET", "/health").await.status, 200);
    within(worker.pause_accept()).await;
    let accepted = worker.stats().connections;
    let mut queued = Client::connect(&worker).await;
    queued.send(b"GET /health HTTP/1.1\r\n\r\n").await;
    assert_eq!(worker.stats().connections, accepted);
    within(worker.accept()).await;
    assert_eq!(queued.answer().await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not() {
    let options = WorkerOptions { keep_alive: Some(Duration::from_millis(30)), ..WorkerOptions::recording() };
    let worker = Worker::start(options).unwrap();
    let gate = worker.hold(Stage::BeforeHead);
    let (mut idle, mut busy) = (Client::connect(&worker).await, Client::connect(&worker).await);
    busy.send(post("/v1/completions", PROMPT, "").as_bytes()).await;
    within(gate.wait_held(1)).await;
    assert_eq!(idle.rest().await, (Vec::new(), End::Closed));
    gate.release();
    assert_eq!(busy.answer().await.status, 200);
    assert_eq!(busy.rest().await, (Vec::new(), End::Closed));
}
