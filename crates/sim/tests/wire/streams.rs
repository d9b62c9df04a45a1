//! The shape of streamed answers.

use forebay_sim::{Worker, WorkerOptions, expected_text};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

async fn streamed(path: &str, body: &str) -> Answer {
    let worker = Worker::start(WorkerOptions::recording()).unwrap();
    let mut client = Client::connect(&worker).await;
    let answer = client.post(path, body, "x-request-id: s\r\n").await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    answer
}

fn joined(records: &[Value], field: impl Fn(&Value) -> &Value) -> String {
    records.iter().filter_map(|record| field(record).as_str()).collect()
}

#[tokio::test]
async fn chat_streams_role_content_finish_usage_done() {
    let body = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}"#;
    let answer = streamed("/v1/chat/completions", body).await;
    assert_eq!(answer.chunks.len(), 6, "each record is a chunk of its own");
    assert!(answer.chunks.iter().all(|chunk| chunk.starts_with(b"data: ") && chunk.ends_with(b"\n\n")));
    let records = answer.data();
    assert_eq!(records[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(records[..5].iter().all(|record| record["id"] == "chatcmpl-s"));
    let text = joined(&records[1..4], |record| &record["choices"][0]["delta"]["content"]);
    assert_eq!(Some(text), expected_text("/v1/chat/completions", body.as_bytes()));
    assert_eq!(records[2]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(records[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(records[4]["choices"], json!([]));
    assert_eq!(records[4]["usage"]["completion_tokens"], 3);
    assert_eq!(records[4]["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(records[5], "[DONE]");
}

#[tokio::test]
async fn completions_stream_with_usage_on_every_record_if_asked() {
    let body = r#"{"prompt":"hi","max_tokens":2,"n":2,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    let records = streamed("/v1/completions", body).await.data();
    assert_eq!(records.len(), 6);
    let counts: Vec<_> =
        records[..5].iter().map(|record| record["usage"]["completion_tokens"].as_u64()).collect();
    assert_eq!(counts, [Some(1), Some(2), Some(3), Some(4), Some(4)]);
    let indices: Vec<_> = records[..4].iter().map(|record| record["choices"][0]["index"].as_u64()).collect();
    assert_eq!(indices, [Some(0), Some(1), Some(0), Some(1)]);
    let plain = streamed("/v1/completions", r#"{"prompt":"hi","max_tokens":2,"stream":true}"#).await.data();
    assert_eq!(plain.len(), 3);
    assert!(plain.iter().all(|record| record.get("usage").is_none()));
    assert!(plain[1]["system_fingerprint"].is_string());
}

#[tokio::test]
async fn responses_stream_numbered_events_up_to_completed() {
    let body = r#"{"input":"hi","max_output_tokens":2,"stream":true}"#;
    let answer = streamed("/v1/responses", body).await;
    let records = answer.data();
    let kinds: Vec<_> = records.iter().map(|record| record["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record["sequence_number"], number);
    }
    assert!(answer.text().starts_with("event: response.created\ndata: {"));
    assert!(!answer.text().contains("[DONE]"));
    assert_eq!(joined(&records, |record| &record["delta"]), records[6]["text"].as_str().unwrap());
    assert_eq!(records[9]["response"]["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn messages_stream_typed_events_without_done() {
    let body = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true}"#;
    let answer = streamed("/v1/messages", body).await;
    let records = answer.data();
    let kinds: Vec<_> = records.iter().map(|record| record["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let text = joined(&records, |record| &record["delta"]["text"]);
    assert_eq!(Some(text), expected_text("/v1/messages", body.as_bytes()));
    assert_eq!(records[5]["usage"]["output_tokens"], 2);
    assert!(!answer.text().contains("[DONE]"));
}

#[tokio::test]
async fn token_streams_carry_ids_and_no_hand_over_data() {
    let body = r#"{"token_ids":[1,2],"sampling_params":{"max_tokens":2},"stream":true,"stream_options":{"include_usage":true}}"#;
    let answer = streamed("/inference/v1/generate", body).await;
    let records = answer.data();
    assert_eq!(records.len(), 4);
    assert_eq!(records[1]["choices"][0]["finish_reason"], "length");
    assert_eq!(records[2]["usage"]["prompt_tokens"], 2);
    assert_eq!(records[3], "[DONE]");
    assert!(!answer.text().contains("kv_transfer_params"));
}

#[tokio::test]
async fn an_instant_worker_streams_its_ready_made_answer_on_every_route() {
    let worker = Worker::start(WorkerOptions::instant(4)).unwrap();
    let mut client = Client::connect(&worker).await;
    let whole = client.post("/v1/completions", r#"{"model":"any","prompt":"q"}"#, "").await.json();
    assert_eq!(whole["usage"]["completion_tokens"], 4);
    for (path, records) in [
        ("/v1/chat/completions", 6),
        ("/v1/completions", 5),
        ("/v1/responses", 12),
        ("/v1/messages", 9),
        ("/inference/v1/generate", 5),
    ] {
        let answer = client.post(path, r#"{"stream": true}"#, "").await;
        assert_eq!(answer.chunks.len(), records, "{path}");
    }
    for path in ["/v1/embeddings", "/pooling", "/classify", "/v1/score", "/v2/rerank"] {
        assert_eq!(client.post(path, "{}", "").await.status, 200, "{path}");
    }
    assert!(worker.requests().is_empty());
}

#[tokio::test]
async fn an_instant_stream_larger_than_the_socket_buffer_arrives_whole() {
    let worker = Worker::start(WorkerOptions::instant(20_000)).unwrap();
    let mut client = Client::connect(&worker).await;
    let answer = client.post("/v1/chat/completions", r#"{"stream":true}"#, "").await;
    assert_eq!(answer.chunks.len(), 20_002);
    assert_eq!(client.post("/v1/chat/completions", r#"{"stream":true}"#, "").await.body, answer.body);
}
