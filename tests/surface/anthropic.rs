//! `/v1/messages` as Claude clients send it.

use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::site::by;
use forebay_tests::{Site, run};

const PATH: &str = "/v1/messages?beta=true";
const BODY: &str = r#"{"model":"tiny","max_tokens":4,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"}],"metadata":{"user_id":"u"}}"#;

#[test]
fn headers_query_and_both_ways_of_authentication_pass() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let sent = [
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "prompt-caching-2024-07-31,output-128k-2025-02-19"),
            ("anthropic-dangerous-direct-browser-access", "true"),
            ("x-stainless-lang", "python"),
            ("x-api-key", "sk-ant"),
            ("authorization", "Bearer sk-other"),
        ];
        let mut client = site.client().await;
        for path in [PATH, "/v1/messages/count_tokens?beta=true"] {
            let answer = client.ask("POST", path, &sent, BODY.as_bytes()).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            let recorded = site.workers[0].requests_to(path.split('?').next().unwrap()).pop().unwrap();
            assert_eq!((recorded.target.as_str(), recorded.text().as_str()), (path, BODY));
            for (name, value) in sent {
                assert_eq!(recorded.header(name), Some(value), "{name}");
            }
        }
    });
}

#[test]
fn errors_have_anthropics_shape_whoever_makes_them() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let unknown = BODY.replace("tiny", "none");
        for (body, status, kind) in
            [(unknown.as_str(), 404, "not_found_error"), ("[1]", 400, "invalid_request_error")]
        {
            let answer = client.post(PATH, body).await;
            let json = answer.json();
            assert_eq!((answer.status(), json["type"].as_str()), (status, Some("error")));
            assert_eq!(json["error"]["type"], kind, "{json}");
        }
        // A worker's own error is not touched.
        let theirs = r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#;
        site.workers[0].fail_next(1, Fault::Status(418, theirs.to_owned()));
        assert_eq!(client.post(PATH, BODY).await.text(), theirs);
    });
}

#[test]
fn a_stream_ends_with_its_own_events_even_if_it_breaks() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let streamed = BODY.replace(r#""max_tokens":4"#, r#""max_tokens":4,"stream":true"#);
        let text = client.post(PATH, &streamed).await.text();
        assert!(text.starts_with("event: message_start\ndata: ") && !text.contains("[DONE]"), "{text}");
        assert!(text.contains("event: message_stop\ndata: "), "{text}");
        site.workers[0].fail_next(1, Fault::CloseMidStream(3));
        let text = client.post(PATH, &streamed).await.text();
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(
            last.starts_with("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""),
            "{last}"
        );
    });
}

#[test]
fn an_invocation_goes_where_the_same_prompt_went_by_its_own_path() {
    run(async {
        let site = Site::start(4, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        for (path, member) in
            [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
        {
            for round in 0..4 {
                let text = format!("{round} {member} ").repeat(400);
                let value = match member {
                    "messages" => format!(r#"[{{"role":"user","content":"{text}"}}]"#),
                    _ => format!(r#""{text}""#),
                };
                let body = format!(r#"{{"{member}":{value},"max_tokens":1}}"#);
                let first = by(&client.post(path, &body).await);
                assert_eq!(by(&client.post("/invocations", &body).await), first, "{path}");
            }
        }
    });
}
