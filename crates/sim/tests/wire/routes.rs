//! The shape of each route's whole answer.

use forebay_sim::{Lora, Mode, Worker, WorkerOptions, expected_text};
use serde_json::{Value, json};

use crate::client::Client;

async fn worker(options: WorkerOptions) -> (Worker, Client) {
    let worker = Worker::start(options).unwrap();
    let client = Client::connect(&worker).await;
    (worker, client)
}

/// The keys of an object in their order on the wire.
fn keys(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut depth = 0;
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}', '[', ']', '"']) {
        match rest.as_bytes()[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {
                let mut end = at + 1;
                while rest.as_bytes()[end] != b'"' {
                    end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
                }
                if depth == 1 && rest[end + 1..].starts_with(':') {
                    keys.push(rest[at + 1..end].to_owned());
                }
                rest = &rest[end + 1..];
                continue;
            }
        }
        rest = &rest[at + 1..];
    }
    keys
}

#[tokio::test]
async fn a_chat_completion_has_the_fields_of_the_real_one_in_their_order() {
    let (_worker, mut client) = worker(WorkerOptions::recording().named("w7")).await;
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"hi there"}],"max_tokens":8}"#;
    let answer = client.post("/v1/chat/completions", body, "x-request-id: my-id\r\n").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-sim-worker"), Some("w7"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let expected = "id object created model choices service_tier system_fingerprint usage prompt_logprobs \
                    prompt_token_ids prompt_text kv_transfer_params ec_transfer_params metrics";
    assert_eq!(keys(&answer.text()).join(" "), expected);
    let json = answer.json();
    assert_eq!(json["id"], "chatcmpl-my-id");
    assert_eq!(json["usage"]["completion_tokens"], 8);
    assert_eq!(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    assert_eq!(
        json["choices"][0]["message"]["content"],
        expected_text("/v1/chat/completions", body.as_bytes()).unwrap()
    );
}

#[tokio::test]
async fn completions_answer_each_prompt_and_choice_apart() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let body = r#"{"prompt":["one","two"],"n":2,"max_tokens":3}"#;
    let json = client.post("/v1/completions", body, "").await.json();
    let texts: Vec<_> =
        json["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 4);
    assert!((1..4).all(|other| texts[0] != texts[other]));
    assert_eq!(json["usage"]["completion_tokens"], 12);
    assert_eq!(json["choices"][3]["index"], 3);
    let alone = client.post("/v1/completions", r#"{"prompt":"one","max_tokens":3}"#, "").await.json();
    assert_eq!(alone["choices"][0]["text"], texts[0]);
    let ids = client.post("/v1/completions", r#"{"prompt":[1,2,3]}"#, "").await.json();
    assert_eq!(ids["usage"]["prompt_tokens"], 3);
    assert_eq!(ids["usage"]["completion_tokens"], 16, "the default");
}

#[tokio::test]
async fn the_other_generating_routes_answer_in_their_own_shape() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let responses = client
        .post("/v1/responses", r#"{"input":"hi there","max_output_tokens":4}"#, "x-request-id: x\r\n")
        .await;
    let json = responses.json();
    assert_eq!((&json["object"], &json["status"]), (&json!("response"), &json!("incomplete")));
    assert!(json["id"].as_str().unwrap().starts_with("resp_"), "the header is no id here");
    assert_eq!(json["usage"]["output_tokens"], 4);
    assert_eq!(json["output"][0]["content"][0]["type"], "output_text");
    assert!(keys(&responses.text()).contains(&"kv_transfer_params".to_owned()));

    let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":4}"#;
    let json = client.post("/v1/messages", body, "").await.json();
    assert_eq!((&json["type"], &json["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    assert_eq!(json["content"][0]["text"], expected_text("/v1/messages", body.as_bytes()).unwrap());
}

#[tokio::test]
async fn routes_for_token_ids_and_the_demo_route_answer_in_their_own_shape() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let body = r#"{"token_ids":[42,71,3969],"sampling_params":{"max_tokens":5}}"#;
    let json = client.post("/inference/v1/generate", body, "x-request-id: g\r\n").await.json();
    assert_eq!(json["request_id"], "generate-tokens-g");
    assert_eq!(json["choices"][0]["token_ids"].as_array().unwrap().len(), 5);
    assert_eq!(json["usage"]["prompt_tokens"], 3);

    let json =
        client.post("/v1/chat/completions/tokens", r#"{"token_ids":[1,2],"max_tokens":2}"#, "").await.json();
    assert_eq!(json["object"], "chat.completion");
    let json = client.post("/generate", r#"{"prompt":"p","max_tokens":2}"#, "").await.json();
    assert!(json["text"][0].as_str().unwrap().starts_with('p'));
}

#[tokio::test]
async fn pooling_routes_give_numbers_that_follow_from_the_text() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let json = client.post("/v1/embeddings", r#"{"input":["a","b","a"]}"#, "").await.json();
    let vector = |at: usize| json["data"][at]["embedding"].clone();
    assert_eq!(vector(0), vector(2));
    assert_ne!(vector(0), vector(1));
    let json = client.post("/v1/embeddings", r#"{"input":"a","encoding_format":"base64"}"#, "").await.json();
    assert_eq!(json["data"][0]["embedding"].as_str().unwrap().len(), 44);
    for path in ["/pooling", "/classify"] {
        let json = client.post(path, r#"{"input":"a"}"#, "").await.json();
        assert_eq!(json["data"].as_array().unwrap().len(), 1, "{path}");
    }
    for path in ["/score", "/v1/score"] {
        let json = client.post(path, r#"{"queries":"q","documents":["a","b"]}"#, "").await.json();
        assert_eq!(json["data"][1]["object"], "score", "{path}");
    }
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let json = client.post(path, r#"{"query":"q","documents":["a","b","c"],"top_n":2}"#, "").await.json();
        let results = json["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "{path}");
        assert!(results[0]["relevance_score"].as_f64() >= results[1]["relevance_score"].as_f64());
    }
}

#[tokio::test]
async fn text_goes_to_ids_and_back() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let json = client.post("/tokenize", r#"{"prompt":"Hello, wörld!"}"#, "").await.json();
    assert_eq!(json["count"], 4);
    let body = json!({"tokens": json["tokens"]}).to_string();
    assert_eq!(client.post("/detokenize", &body, "").await.json()["prompt"], "Hello, wörld!");
    let chat = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}"#;
    assert_eq!(client.post("/v1/messages/count_tokens", chat, "").await.json()["input_tokens"], 2);
    for path in ["/v1/chat/completions/render", "/v1/messages/render"] {
        let json = client.post(path, chat, "").await.json();
        assert_eq!(json["token_ids"].as_array().unwrap().len(), 2, "{path}");
        assert_eq!(json["sampling_params"]["max_tokens"], 4);
    }
    let json = client.post("/v1/completions/render", r#"{"prompt":"Hello"}"#, "").await.json();
    assert_eq!(json[0]["token_ids"].as_array().unwrap().len(), 2);
    let json = client.post("/v1/responses/render", r#"{"input":"Hello"}"#, "").await.json();
    assert_eq!(json["token_ids"].as_array().unwrap().len(), 2, "text and a line end");
}

#[tokio::test]
async fn what_a_worker_tells_about_itself() {
    let lora = Lora { name: "ada".to_owned(), path: "/l/ada".to_owned() };
    let (worker, mut client) =
        worker(WorkerOptions { loras: vec![lora], ..WorkerOptions::recording() }).await;
    for path in ["/health", "/ping"] {
        let answer = client.call("GET", path).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
    }
    assert_eq!(client.call("GET", "/version").await.json(), json!({"version": "0.33.0"}));
    assert_eq!(client.call("GET", "/load").await.json(), json!({"server_load": 0}));
    assert_eq!(client.call("GET", "/kv_event_sources").await.json(), json!({}));
    let models = client.call("GET", "/v1/models").await.json();
    let fields =
        |at: usize| ["id", "root", "parent", "max_model_len"].map(|field| models["data"][at][field].clone());
    assert_eq!(fields(0), [json!("tiny"), json!("models/tiny-llama"), Value::Null, json!(8192)]);
    assert_eq!(fields(1), [json!("ada"), json!("/l/ada"), json!("tiny"), Value::Null]);
    worker.set_health(503);
    assert_eq!(client.call("GET", "/health").await.status, 503);
    assert_eq!(client.post("/v1/completions", r#"{"prompt":"p"}"#, "").await.status, 500);
}

fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(&format!("vllm:{name}{{"))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_prefix_cache_shows_in_usage_and_metrics_until_it_is_reset() {
    let (worker, mut client) = worker(WorkerOptions::recording()).await;
    let body = json!({"prompt": "x".repeat(400)}).to_string();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(&client.post("/v1/completions", &body, "").await.json()), 0);
    assert_eq!(cached(&client.post("/v1/completions", &body, "").await.json()), 96);
    let salted = json!({"prompt": "x".repeat(400), "cache_salt": "s"}).to_string();
    assert_eq!(cached(&client.post("/v1/completions", &salted, "").await.json()), 0);
    let metrics = client.call("GET", "/metrics").await.text();
    assert_eq!(metric(&metrics, "prefix_cache_queries_total"), 300.0);
    assert_eq!(metric(&metrics, "prefix_cache_hits_total"), 96.0);
    assert_eq!(metric(&metrics, "num_requests_running"), 0.0);
    assert!(metrics.contains(r#"block_size="16""#) && metrics.contains(r#"num_gpu_blocks="4096""#));
    assert_eq!(client.post("/reset_prefix_cache", "", "").await.json(), json!({"success": true}));
    assert_eq!(worker.cached_blocks(), 0);
    assert_eq!(cached(&client.post("/v1/completions", &body, "").await.json()), 0);
}

#[tokio::test]
async fn sleeping_and_paused_workers_refuse_prompts_with_503() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let prompt = r#"{"prompt":"p"}"#;
    for (off, on, asked) in
        [("/sleep?level=2", "/wake_up", "is_sleeping"), ("/pause?mode=abort", "/resume", "is_paused")]
    {
        assert_eq!(client.call("POST", off).await.status, 200);
        assert_eq!(client.call("GET", &format!("/{asked}")).await.json(), json!({asked: true}));
        let refused = client.post("/v1/completions", prompt, "").await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["type"]),
            (503, &json!("ServiceUnavailableError"))
        );
        assert_eq!(client.call("POST", on).await.status, 200);
        assert_eq!(client.call("GET", &format!("/{asked}")).await.json(), json!({asked: false}));
        assert_eq!(client.post("/v1/completions", prompt, "").await.status, 200);
    }
}

#[tokio::test]
async fn adapters_come_and_go() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let ask = r#"{"model":"ada","prompt":"p"}"#;
    assert_eq!(client.post("/v1/completions", ask, "").await.status, 404);
    let load = r#"{"lora_name":"ada","lora_path":"/l"}"#;
    assert_eq!(client.post("/v1/load_lora_adapter", load, "").await.status, 200);
    assert_eq!(client.post("/v1/load_lora_adapter", load, "").await.status, 400);
    assert_eq!(client.post("/v1/completions", ask, "").await.json()["model"], "ada");
    assert_eq!(client.post("/v1/unload_lora_adapter", r#"{"lora_name":"ada"}"#, "").await.status, 200);
    assert_eq!(client.post("/v1/completions", ask, "").await.status, 404);
}

#[tokio::test]
async fn stored_responses_are_found_by_their_id_and_only_here() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let made = client.post("/v1/responses", r#"{"input":"hi"}"#, "").await.json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert_eq!(client.call("GET", &path).await.json(), made);
    assert_eq!(client.call("POST", &format!("{path}/cancel")).await.status, 400);
    assert_eq!(client.call("DELETE", &path).await.json()["deleted"], true);
    assert_eq!(client.call("GET", &path).await.status, 404);
    let made = client.post("/v1/responses", r#"{"input":"hi","store":false}"#, "").await.json();
    assert_eq!(
        client.call("GET", &format!("/v1/responses/{}", made["id"].as_str().unwrap())).await.status,
        404
    );
}

#[tokio::test]
async fn worker_changing_routes_exist_only_in_development_mode() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let (_plain, mut without) = worker(WorkerOptions { dev_mode: false, ..WorkerOptions::recording() }).await;
    for path in [
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/collective_rpc",
        "/update_weights",
        "/abort_requests",
        "/reset_prefix_cache",
    ] {
        assert_eq!(client.post(path, "{}", "").await.status, 200, "{path}");
        assert_eq!(without.post(path, "{}", "").await.status, 404, "{path}");
    }
    for path in ["/start_profile", "/stop_profile"] {
        assert_eq!(without.post(path, "", "").await.status, 200, "{path}");
    }
    assert_eq!(client.post("/inference/v1/abort_requests", r#"{"request_ids":["x"]}"#, "").await.status, 200);
}

#[tokio::test]
async fn refusals_have_the_real_status_and_body() {
    let (_worker, mut client) =
        worker(WorkerOptions { mode: Mode::Engine, ..WorkerOptions::recording() }).await;
    let cases = [
        ("/v1/completions", r#"{"model":"nope","prompt":"p"}"#, 404, "NotFoundError", json!("model")),
        ("/v1/completions", r#"{"prompt":"p","max_tokens":-1}"#, 400, "BadRequestError", json!("max_tokens")),
        (
            "/v1/completions",
            r#"{"prompt":"p","max_tokens":9000}"#,
            400,
            "BadRequestError",
            json!("max_tokens"),
        ),
        (
            "/v1/completions",
            r#"{"prompt":"p","stream_options":{}}"#,
            400,
            "BadRequestError",
            json!("stream_options"),
        ),
        ("/v1/completions", r#"{"model":"tiny","prompt":"#, 400, "Bad Request", json!("body.25")),
        ("/v1/completions", r#"{"prompt":NaN}"#, 400, "Bad Request", json!("body.11")),
        ("/inference/v1/generate", r#"{"sampling_params":{}}"#, 400, "Bad Request", json!("body.token_ids")),
        ("/v1/chat/completions", "{}", 400, "Bad Request", json!("body.messages")),
    ];
    for (path, body, status, kind, param) in cases {
        let answer = client.post(path, body, "").await;
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["type"], &error["param"]),
            (status, &json!(kind), &param),
            "{body}"
        );
        assert_eq!(error["code"], status);
    }
    let answer = client.call("POST", "/v1/completions").await;
    assert_eq!(answer.status, 400, "no content type");
    let answer = client.post("/v1/completions", r#"{"prompt":"p"}"#, "x-data-parallel-rank: 3\r\n").await;
    assert_eq!(answer.json()["error"]["message"], "data_parallel_rank 3 is out of range [0, 1).");
}

#[tokio::test]
async fn unknown_paths_methods_and_keys_are_refused_as_the_framework_does() {
    let options =
        WorkerOptions { api_key: Some("k".to_owned()), scale_out: false, ..WorkerOptions::recording() };
    let (_worker, mut client) = worker(options).await;
    let answer = client.call("GET", "/nope").await;
    assert_eq!((answer.status, answer.json()), (404, json!({"detail": "Not Found"})));
    let answer = client.call("GET", "/tokenize").await;
    assert_eq!((answer.status, answer.json()), (405, json!({"detail": "Method Not Allowed"})));
    assert_eq!(answer.header("allow"), Some("POST"));
    let answer = client.post("/v1/completions", r#"{"prompt":"p"}"#, "").await;
    assert_eq!((answer.status, answer.json()), (401, json!({"error": "Unauthorized"})));
    let answer = client.post("/v1/completions", r#"{"prompt":"p"}"#, "Authorization: bearer k\r\n").await;
    assert_eq!(answer.status, 200);
    assert_eq!(client.post("/tokenize", r#"{"prompt":"p"}"#, "").await.status, 200, "not protected");
    let body = r#"{"token_ids":[1],"sampling_params":{}}"#;
    let answer = client.post("/inference/v1/generate", body, "Authorization: Bearer k\r\n").await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (403, &json!("PermissionDeniedError")));
}

#[tokio::test]
async fn requests_are_recorded_byte_for_byte() {
    let (worker, mut client) = worker(WorkerOptions::recording()).await;
    let head =
        "POST /v1/completions?a=b HTTP/1.1\r\nHoSt:  w \r\nX-Odd: \t1\r\nContent-Type: application/json\r\n";
    let body = "{\"prompt\" : 1.0e5, \"x\":NaN}";
    client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
    assert_eq!(client.answer().await.status, 200, "a recording worker is as lenient as Python");
    client.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{}\r\n", &body[..5]).as_bytes()).await;
    client.send(format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len() - 5, &body[5..]).as_bytes()).await;
    assert_eq!(client.answer().await.status, 200);
    let recorded = worker.wait_requests_to("/v1/completions", 2).await;
    assert_eq!(recorded[0].head, format!("{head}Content-Length: {}\r\n\r\n", body.len()));
    assert_eq!(recorded[0].target, "/v1/completions?a=b");
    assert_eq!(recorded[0].header("x-odd"), Some("1"));
    assert!(!recorded[0].chunked && recorded[1].chunked);
    assert!(
        recorded.iter().all(|request| request.body == body && request.complete && request.connection == 0)
    );
    assert_eq!((recorded[0].order, recorded[1].order), (0, 1));
    worker.record(false);
    client.call("GET", "/health").await;
    assert_eq!(worker.take_requests().len(), 2);
    assert!(worker.requests().is_empty());
}

#[tokio::test]
async fn load_is_reported_in_the_head_on_request() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let ask = r#"{"prompt":"p"}"#;
    let answer = client.post("/v1/completions", ask, "endpoint-load-metrics-format: TEXT\r\n").await;
    assert_eq!(
        answer.header("endpoint-load-metrics"),
        Some("TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0")
    );
    let answer = client.post("/v1/completions", ask, "").await;
    assert_eq!(answer.header("endpoint-load-metrics"), None);
}

#[tokio::test]
async fn pipelined_requests_and_expect_continue_are_served_in_order() {
    let (_worker, mut client) = worker(WorkerOptions::recording()).await;
    let two = ["one", "two"].map(|id| {
        crate::client::post("/v1/completions", r#"{"prompt":"p"}"#, &format!("x-request-id: {id}\r\n"))
    });
    client.send(two.concat().as_bytes()).await;
    assert_eq!(client.answer().await.json()["id"], "cmpl-one");
    assert_eq!(client.answer().await.json()["id"], "cmpl-two");
    let body = r#"{"prompt":"p"}"#;
    let whole = crate::client::post("/v1/completions", body, "expect: 100-continue\r\n");
    client.send(&whole.as_bytes()[..whole.len() - body.len()]).await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n");
    client.send(body.as_bytes()).await;
    assert_eq!(client.answer().await.status, 200);
}
