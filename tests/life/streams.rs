//! Streams that break: the client has whole records only, and the last one tells.

use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::{Site, run};
use serde_json::Value;

/// The data of each record; every one is whole.
fn records(text: &str) -> Vec<Value> {
    let body = text.strip_suffix("\n\n").expect("the last record is whole");
    body.split("\n\n")
        .map(|record| {
            let data = record.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
            serde_json::from_str(data).unwrap_or(Value::Null)
        })
        .collect()
}

#[test]
fn the_last_record_is_in_the_dialect_of_the_route() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for (path, body, event) in [
            ("/v1/completions", r#"{"prompt":"a","max_tokens":9,"stream":true}"#, None),
            (
                "/v1/messages",
                r#"{"max_tokens":9,"stream":true,"messages":[{"role":"user","content":"a"}]}"#,
                Some("event: error\n"),
            ),
            ("/v1/responses", r#"{"input":"a","stream":true}"#, Some("event: response.failed\n")),
        ] {
            for fault in [Fault::CloseMidStream(2), Fault::CloseMidRecord(2), Fault::ResetMidStream(2)] {
                site.workers[0].fail_next(1, fault.clone());
                let answer = site.client().await.post(path, body).await;
                let text = answer.text();
                let records = records(&text);
                assert_eq!((answer.status(), records.len()), (200, 3), "{path} {fault:?}: {text}");
                assert_eq!(records[2]["forebay"]["failure"], "worker_died_mid_stream", "{path} {fault:?}");
                assert!(event.is_none_or(|event| text.contains(event)), "{text}");
                assert!(!text.contains("[DONE]"));
                if path == "/v1/responses" {
                    let (before, last) = (&records[1], &records[2]);
                    assert_eq!(last["response"]["id"], records[0]["response"]["id"], "{text}");
                    let next = before["sequence_number"].as_u64().map(|number| number + 1);
                    assert_eq!(
                        (last["sequence_number"].as_u64(), &last["response"]["status"]),
                        (next, &"failed".into())
                    );
                }
                site.quiet().await;
            }
        }
        assert_eq!(site.metric("forebay_requests_total", &["outcome=\"reset_mid_stream\""]).await, 9);
    });
}

#[test]
fn an_error_that_the_worker_tells_is_no_success_and_no_failure_of_the_worker() {
    run(async {
        let change = |settings: &mut forebay::settings::Settings| settings.breaker.failure_threshold = 1;
        let workers = forebay_tests::site::workers(1);
        let site = Site::start_with(workers, PolicyKind::RoundRobin, change).await;
        site.workers[0].fail_next(1, Fault::ErrorInStream(2));
        let body = r#"{"prompt":"a","max_tokens":9,"stream":true}"#;
        let answer = site.client().await.post("/v1/completions", body).await;
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "it passes as it is");
        site.quiet().await;
        assert_eq!(site.metric("forebay_requests_total", &["outcome=\"error_in_stream\""]).await, 1);
        assert_eq!(site.metric("forebay_breaker_state", &[]).await, 0);
    });
}
