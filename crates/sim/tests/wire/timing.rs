//! Answers that take their time. Only lower bounds are checked: a busy machine may add to any of them.

use std::time::{Duration, Instant};

use forebay_sim::engine::EngineOptions;
use forebay_sim::{Worker, WorkerOptions};

use crate::client::{Client, post};

#[tokio::test]
async fn an_engine_worker_takes_prefill_and_decode_time_and_less_on_a_cache_hit() {
    let options = EngineOptions {
        prefill_per_token: Duration::from_millis(1),
        decode_per_token: Duration::from_millis(10),
        ..EngineOptions::default()
    };
    let worker = Worker::start(WorkerOptions::engine(options)).unwrap();
    let mut client = Client::connect(&worker).await;
    let body = format!(r#"{{"prompt":"{}","max_tokens":4,"stream":true}}"#, "x".repeat(400));
    let sent = Instant::now();
    client.send(post("/v1/completions", &body, "").as_bytes()).await;
    client.head().await;
    client.chunk().await;
    assert!(sent.elapsed() >= Duration::from_millis(100), "100 tokens of prefill");
    while !client.chunk().await.is_empty() {}
    let first = sent.elapsed();
    assert!(first >= Duration::from_millis(130), "and 3 more tokens");
    let sent = Instant::now();
    let whole = client.post("/v1/completions", &body.replace(r#","stream":true"#, ""), "").await;
    assert_eq!(whole.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 96);
    assert!(sent.elapsed() >= Duration::from_millis(34));
}

#[tokio::test]
async fn paced_streams_send_one_record_per_interval() {
    for options in [WorkerOptions::recording(), WorkerOptions::instant(4)] {
        let worker =
            Worker::start(WorkerOptions { pace: Some(Duration::from_millis(10)), ..options }).unwrap();
        let mut client = Client::connect(&worker).await;
        let sent = Instant::now();
        let body = r#"{"prompt":"p","max_tokens":4,"stream":true}"#;
        let answer = client.post("/v1/completions", body, "").await;
        assert!(sent.elapsed() >= Duration::from_millis(30));
        assert_eq!(answer.chunks.len(), 5);
    }
}
