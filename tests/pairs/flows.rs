//! Pairs that go well: what each worker is sent, what the client gets.

use forebay_pd::Connector;
use forebay_sim::expected_text;
use forebay_tests::run;

use crate::setting::{ONE_EACH, Shape, alike, completion, text};

/// Path, body without its end, and whether the answer's text is where completions have it.
const BODIES: [(&str, &str); 5] = [
    ("/v1/completions", r#"{"model":"tiny","prompt":"a prompt of some length, say","max_tokens":5"#),
    (
        "/v1/chat/completions",
        r#"{"model":"tiny","messages":[{"role":"user","content":"a prompt"}],"max_completion_tokens":5"#,
    ),
    ("/v1/responses", r#"{"model":"tiny","input":"a prompt","max_output_tokens":5"#),
    ("/v1/messages", r#"{"model":"tiny","messages":[{"role":"user","content":"a prompt"}],"max_tokens":5"#),
    (
        "/inference/v1/generate",
        r#"{"model":"tiny","token_ids":[1,2,3,4,5],"sampling_params":{"max_tokens":5}"#,
    ),
];

#[test]
fn every_endpoint_is_prefilled_by_one_worker_and_answered_by_the_other_on_every_connector() {
    run(async {
        for connector in alike() {
            let setting = ONE_EACH.by(connector).start().await;
            let mut client = setting.site.client().await;
            let mut sent = 0;
            for (path, start) in BODIES {
                for stream in ["", r#","stream":false"#, r#","stream":true"#] {
                    let body = format!("{start}{stream}}}");
                    let headers =
                        [("authorization", "Bearer mine"), ("x-mine", "1"), ("x-request-id", "my-id")];
                    let answer = client.ask("POST", path, &headers, body.as_bytes()).await;
                    sent += 1;
                    assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
                    assert_eq!(answer.header("x-request-id"), "my-id");
                    assert!(!answer.text().contains("kv_transfer_params"), "{}", answer.text());
                    if path != "/inference/v1/generate" {
                        let wanted = expected_text(path, body.as_bytes()).unwrap();
                        let first = wanted.split(' ').next().unwrap();
                        assert!(answer.text().contains(first), "{path}: {}", answer.text());
                    }
                    let legs = [setting.prefill(0), setting.decode(0)]
                        .map(|worker| worker.requests_to(path).pop().unwrap());
                    let ids = legs.each_ref().map(|leg| leg.header("x-request-id").unwrap().to_owned());
                    assert_eq!(ids[0], ids[1]);
                    assert_eq!(ids[0] == "my-id", !connector.pairs_by_request_id());
                    for leg in &legs {
                        assert_eq!(
                            (leg.header("authorization"), leg.header("x-mine")),
                            (Some("Bearer mine"), Some("1"))
                        );
                        assert_eq!(leg.header("content-length"), Some(&*leg.body.len().to_string()));
                    }
                }
            }
            setting.site.quiet().await;
            setting.no_violation();
            assert_eq!((setting.exchange.transfers(), setting.exchange.pinned()), (sent, 0), "{connector:?}");
            assert_eq!(setting.pairs("handed_over").await, sent);
        }
    });
}

#[test]
fn the_hand_over_reaches_the_decode_worker_as_the_bytes_that_came() {
    run(async {
        let setting = ONE_EACH.start().await;
        let mut client = setting.site.client().await;
        let body = completion("a prompt", 4, false);
        let answer = client.post("/v1/completions", &body).await;
        let prefill = setting.prefill(0).requests_to("/v1/completions").pop().unwrap();
        let prefill = prefill.text();
        assert!(
            prefill.starts_with(r#"{"min_tokens":1,"kv_transfer_params":{"do_remote_decode":true"#),
            "{prefill}"
        );
        assert!(prefill.ends_with(r#""max_tokens":1,"stream":false}"#), "{prefill}");
        let decode = setting.decode(0).requests_to("/v1/completions").pop().unwrap();
        let decode = decode.text();
        let start = r#"{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[["#;
        assert!(decode.starts_with(start) && decode.ends_with(&body[1..]), "{decode}");
        assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
    });
}

#[test]
fn any_number_of_each_shares_the_work() {
    run(async {
        let shape = Shape { prefills: 2, decodes: 3, connector: Connector::Nixl };
        let setting = shape.start().await;
        let mut client = setting.site.client().await;
        for i in 0..60 {
            let body = completion(&format!("prompt {i}"), 2, i % 2 == 0);
            let answer = client.post("/v1/completions", &body).await;
            assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
        }
        let served: Vec<usize> =
            setting.site.workers.iter().map(|worker| worker.requests_to("/v1/completions").len()).collect();
        assert_eq!((served[..2].iter().sum::<usize>(), served[2..].iter().sum::<usize>()), (60, 60));
        assert!(served.iter().all(|count| *count >= 8), "{served:?}");
        setting.no_violation();
    });
}

#[test]
fn workers_of_different_versions_are_not_paired_unless_that_is_allowed() {
    run(async {
        for allowed in [false, true] {
            let setting = ONE_EACH
                .start_with(
                    |options| {
                        let is_prefill =
                            options.pair.as_ref().unwrap().role == forebay_sim::PairRole::Prefill;
                        options.version = if is_prefill { "0.32.0" } else { "0.33.0" }.to_owned();
                    },
                    |settings| settings.router.pairs.as_mut().unwrap().allow_version_skew = allowed,
                )
                .await;
            let mut client = setting.site.client().await;
            let body = completion("x", 2, false);
            let answer = client.post("/v1/completions", &body).await;
            assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
            assert_eq!(setting.recomputes("no_prefill").await, u64::from(!allowed));
            assert_eq!(setting.exchange.transfers(), u64::from(allowed));
        }
    });
}

#[test]
fn a_push_pair_goes_one_after_the_other_once_and_both_at_a_time_from_then_on() {
    run(async {
        let setting = ONE_EACH.by(Connector::NixlPush).start().await;
        let mut client = setting.site.client().await;
        for i in 0..3 {
            client.post("/v1/completions", completion(&format!("p{i}"), 2, false)).await;
            let leg = setting.decode(0).requests_to("/v1/completions").pop().unwrap().text().to_owned();
            assert_eq!(leg.contains("remote_block_ids"), i == 0, "{leg}");
            assert_eq!(leg.contains("xfer-"), i > 0, "{leg}");
        }
        setting.no_violation();
    });
}

#[test]
fn old_workers_counts_of_cached_tokens_are_put_right() {
    run(async {
        let setting = ONE_EACH.start_with(|options| options.version = "0.22.0".to_owned(), |_| ()).await;
        let mut client = setting.site.client().await;
        let prompt = "word ".repeat(100);
        for (round, cached) in [0_u64, 112].into_iter().enumerate() {
            for stream in [false, true] {
                // Each way has a prompt of its own, which comes twice.
                let body = format!(
                    r#"{{"prompt":"{stream} {prompt}","max_tokens":2,"stream":{stream}{}}}"#,
                    if stream { r#","stream_options":{"include_usage":true}"# } else { "" }
                );
                let answer = client.post("/v1/completions", &body).await.text();
                let wanted = format!(r#""cached_tokens":{cached}"#);
                assert!(answer.contains(&wanted), "round {round}, stream {stream}: {answer}");
            }
        }
        setting.no_violation();
    });
}

/// Each count of this name in an answer.
fn counts(answer: &str, name: &str) -> Vec<u64> {
    let name = format!("\"{name}\":");
    let digits = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    answer.match_indices(&name).map(|(at, _)| digits(&answer[at + name.len()..])).collect()
}

#[test]
fn the_messages_api_counts_cached_tokens_apart_and_has_them_put_right_too() {
    run(async {
        let setting = ONE_EACH.start_with(|options| options.version = "0.22.0".to_owned(), |_| ()).await;
        let mut client = setting.site.client().await;
        let prompt = "word ".repeat(100);
        for stream in [false, true] {
            let mut sums = Vec::new();
            for round in 0..2 {
                let body = format!(
                    r#"{{"messages":[{{"role":"user","content":"{stream} {prompt}"}}],"max_tokens":2,"stream":{stream}}}"#
                );
                let answer = client.post("/v1/messages", &body).await.text();
                let read = counts(&answer, "cache_read_input_tokens");
                let rest = counts(&answer, "input_tokens");
                // A stream tells at its start and at its end.
                assert_eq!((read.len(), rest.len()), if stream { (2, 2) } else { (1, 1) }, "{answer}");
                assert!(read.iter().all(|read| (*read > 0) == (round == 1)), "{answer}");
                sums.extend(read.iter().zip(rest).map(|(read, rest)| read + rest));
            }
            assert!(sums.iter().all(|sum| *sum == sums[0] && *sum > 100), "{sums:?}");
        }
        setting.no_violation();
    });
}

#[test]
fn a_batch_goes_through_rooms_and_elsewhere_to_a_decode_worker_alone() {
    run(async {
        for connector in [Connector::Bootstrap, Connector::Nixl] {
            let setting = ONE_EACH.by(connector).start().await;
            let mut client = setting.site.client().await;
            let answer = client.post("/v1/completions", r#"{"prompt":["a","b"],"max_tokens":2}"#).await;
            assert_eq!(answer.status(), 200);
            let prefilled = setting.prefill(0).requests_to("/v1/completions");
            assert_eq!(prefilled.len(), usize::from(connector == Connector::Bootstrap));
            let bypassed = setting.site.metric("forebay_pd_bypasses_total", &["reason=\"list\""]).await;
            assert_eq!(bypassed, u64::from(connector == Connector::Nixl));
            if let Some(leg) = prefilled.first() {
                assert!(
                    leg.text().starts_with(r#"{"bootstrap_host":["127.0.0.1","127.0.0.1"],"#),
                    "{}",
                    leg.text()
                );
            }
        }
    });
}
