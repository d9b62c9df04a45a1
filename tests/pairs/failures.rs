//! What becomes of a pair when a leg fails, step by step.

use std::time::Duration;

use forebay_pd::Connector;
use forebay_sim::{Fault, FaultRule, Scope, Stage, When, expected_text};
use forebay_tests::{run, until};

use crate::setting::{ONE_EACH, Setting, Shape, completion, text};

const TWO_EACH: Shape = Shape { prefills: 2, decodes: 2, connector: Connector::Nixl };

fn next(fault: Fault) -> FaultRule {
    FaultRule { fault, when: When::Next(1), scope: Scope::Inference }
}

/// A completion that has to be answered as if nothing had been.
async fn answered(setting: &Setting, stream: bool) {
    let body = completion("a prompt", 4, stream);
    let answer = setting.site.client().await.post("/v1/completions", &body).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
    setting.site.quiet().await;
    setting.no_violation();
}

#[test]
fn a_prefill_worker_that_fails_is_followed_by_another_one() {
    run(async {
        let faults = [
            Fault::Status(502, String::new()),
            Fault::Status(503, String::new()),
            Fault::Status(504, String::new()),
            Fault::Reset,
            Fault::CloseMidHead,
            Fault::InternalError,
        ];
        for fault in faults {
            let setting = TWO_EACH.start().await;
            setting.prefill(0).fail_next(1, fault.clone());
            for _ in 0..4 {
                answered(&setting, false).await;
            }
            assert_eq!(setting.recomputes("prefill_failed").await, 0, "{fault:?}");
            assert_eq!(setting.site.metric("forebay_pd_retries_total", &["prefill"]).await, 1, "{fault:?}");
        }
    });
}

#[test]
fn a_worker_that_asks_for_patience_gets_it_in_both_roles() {
    run(async {
        let setting = TWO_EACH.start().await;
        for place in [0, 2] {
            setting.site.workers[place].fail_next(1, Fault::TryLater(60));
        }
        for _ in 0..8 {
            answered(&setting, true).await;
        }
        let asked: Vec<usize> =
            setting.site.workers.iter().map(|worker| worker.requests_to("/v1/completions").len()).collect();
        // The first pair went to the busy ones first; they are left alone from then on.
        assert_eq!((asked[0], asked[2]), (1, 1), "{asked:?}");
        assert_eq!(asked[1] + asked[0], 8 + 2, "{asked:?}");
    });
}

#[test]
fn without_prefill_workers_the_decode_worker_computes_the_prompt() {
    run(async {
        for stream in [false, true] {
            let setting = TWO_EACH.start().await;
            for i in 0..2 {
                setting.prefill(i).fail_always(Fault::Status(503, String::new()));
            }
            answered(&setting, stream).await;
            assert_eq!(setting.recomputes("no_prefill").await, 1);
            let refused = ONE_EACH.start().await;
            refused.prefill(0).refuse_connections().await;
            answered(&refused, stream).await;
            assert_eq!(refused.pairs("recomputed").await, 1);
        }
    });
}

#[test]
fn a_prefill_worker_that_hands_nothing_usable_over_costs_a_recompute_and_harms_nobody() {
    run(async {
        for fault in [Fault::NoHandOver, Fault::IncompleteHandOver] {
            let setting = ONE_EACH.start().await;
            setting.prefill(0).fail_next(1, fault);
            answered(&setting, true).await;
            assert_eq!(setting.recomputes("no_hand_over").await, 1);
            let leg = setting.decode(0).requests_to("/v1/completions").pop().unwrap();
            assert!(!leg.text().contains("kv_transfer_params"), "{}", leg.text());
        }
    });
}

#[test]
fn a_decode_worker_does_not_wait_for_a_prefill_worker_that_is_gone() {
    run(async {
        for connector in [Connector::NixlPush, Connector::Bootstrap] {
            for prefills in [1, 2] {
                let shape = Shape { prefills, decodes: 1, connector };
                let setting = shape.start_with(|_| (), |s| s.health.failure_threshold = 1).await;
                for _ in 0..4 {
                    // So that all know each other.
                    answered(&setting, false).await;
                }
                let before: Vec<_> =
                    (0..prefills).map(|i| setting.prefill(i).requests_to("/v1/completions").len()).collect();
                let gate = setting.decode(0).hold(Stage::BeforeHead);
                let body = completion("a prompt", 4, true);
                let mut client = setting.site.client().await;
                client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
                gate.wait_held(1).await;
                let asked = |i: &usize| setting.prefill(*i).requests_to("/v1/completions").len() > before[*i];
                until("it was prefilled", || (0..prefills).any(|i| asked(&i))).await;
                let prefiller = (0..prefills).find(asked).unwrap();
                setting.prefill(prefiller).wait_until(|stats| stats.open_inference == 0).await;
                setting.prefill(prefiller).set_health(500);
                setting.site.wait_eligible(prefiller, false).await;
                // The first leg is given up, and there is another one.
                setting.decode(0).wait_until(|stats| stats.aborted > 0).await;
                gate.release();
                let answer = client.answer().await.unwrap();
                assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
                setting.site.quiet().await;
                setting.no_violation();
                assert_eq!(setting.recomputes("no_prefill").await, u64::from(prefills == 1), "{connector:?}");
            }
        }
    });
}

#[test]
fn what_the_decode_worker_says_of_the_request_is_the_answer_and_counts_as_no_hand_over() {
    run(async {
        for connector in Connector::ALL {
            let setting = TWO_EACH.by(connector).start().await;
            let mut client = setting.site.client().await;
            let body = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;
            for i in 0..2 {
                setting.decode(i).fail_always(Fault::Status(400, body.to_owned()));
            }
            let answer = client.post("/v1/completions", completion("x", 3, true)).await;
            assert_eq!((answer.status(), answer.text().as_str()), (400, body), "{connector:?}");
            let counts = [setting.pairs("rejected").await, setting.pairs("handed_over").await];
            assert_eq!(counts, [1, 0], "{connector:?}");
            assert_eq!(setting.site.metric("forebay_pd_hand_over_seconds_count", &[]).await, 0);
        }
    });
}

#[test]
fn what_the_prefill_worker_says_of_the_request_is_the_answer() {
    run(async {
        let setting = TWO_EACH.start().await;
        let mut client = setting.site.client().await;
        let body = r#"{"error":{"message":"The prompt is too long","type":"BadRequestError","param":null,"code":400}}"#;
        for i in 0..2 {
            setting.prefill(i).fail_always(Fault::Status(400, body.to_owned()));
        }
        let answer = client.post("/v1/completions", completion("x", 3, true)).await;
        assert_eq!((answer.status(), answer.text().as_str()), (400, body));
        assert_eq!(setting.pairs("rejected").await, 1);
        for i in 0..2 {
            setting.prefill(i).clear_faults();
            setting.prefill(i).fail_always(Fault::InternalError);
        }
        let answer = client.post("/v1/completions", completion("x", 3, true)).await;
        assert_eq!(answer.status(), 500, "two say the same");
        assert!(setting.decode(0).requests_to("/v1/completions").is_empty());
        setting.site.quiet().await;
        setting.no_violation();
    });
}

#[test]
fn a_decode_worker_that_cannot_be_reached_leaves_the_hand_over_to_another() {
    run(async {
        let setting = TWO_EACH.start().await;
        setting.decode(0).refuse_connections().await;
        for _ in 0..4 {
            answered(&setting, true).await;
        }
        let prefilled: usize = (0..2).map(|i| setting.prefill(i).requests_to("/v1/completions").len()).sum();
        assert_eq!(prefilled, 4, "no prompt is prefilled twice");
    });
}

#[test]
fn a_decode_worker_that_may_have_read_it_means_both_legs_again() {
    run(async {
        let faults = [
            (Fault::Status(503, String::new()), false),
            (Fault::Reset, false),
            (Fault::CloseBeforeHead, true),
            (Fault::ErrorInStream(0), true),
            (Fault::ErrorInStream(0), false),
            (Fault::CloseMidHead, true),
        ];
        for (fault, stream) in faults {
            let setting = TWO_EACH.start().await;
            setting.decode(0).add_fault(next(fault.clone()));
            for _ in 0..4 {
                answered(&setting, stream).await;
            }
            let prefilled: usize =
                (0..2).map(|i| setting.prefill(i).requests_to("/v1/completions").len()).sum();
            let decoded: usize = (0..2).map(|i| setting.decode(i).requests_to("/v1/completions").len()).sum();
            let retried = setting.site.metric("forebay_pd_retries_total", &["decode"]).await;
            assert_eq!((prefilled, decoded, retried), (5, 5, 1), "{fault:?}");
        }
    });
}

/// What engines send before they know whether they get the blocks must not keep a pair from being done again.
#[test]
fn an_error_behind_the_opening_of_a_stream_means_both_legs_again() {
    run(async {
        let says = r#""messages":[{"role":"user","content":"x"}],"max_tokens":3"#;
        let cases = [
            ("/v1/chat/completions", says, Fault::ErrorInStream(1)),
            ("/v1/messages", says, Fault::ErrorInStream(1)),
            ("/v1/responses", r#""input":"x","max_output_tokens":3"#, Fault::CloseMidStream(2)),
        ];
        for (path, body, fault) in cases {
            for shape in [TWO_EACH, ONE_EACH] {
                let setting = shape.start().await;
                setting.decode(0).add_fault(next(fault.clone()));
                let body = format!(r#"{{"model":"tiny","stream":true,{body}}}"#);
                let wanted = expected_text(path, body.as_bytes()).unwrap();
                // Until the first decode worker was chosen, too.
                for _ in 0..4 {
                    let answer = setting.site.client().await.post(path, &body).await;
                    assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
                    assert!(!answer.text().contains("\"error\""), "{path}: {}", answer.text());
                    assert!(
                        answer.text().contains(wanted.split(' ').next().unwrap()),
                        "{path}: {}",
                        answer.text()
                    );
                    setting.site.quiet().await;
                }
                assert_eq!(setting.site.metric("forebay_pd_retries_total", &["decode"]).await, 1, "{path}");
                setting.no_violation();
            }
        }
    });
}

#[test]
fn a_prefill_worker_that_dies_between_the_legs_is_replaced_or_done_without() {
    run(async {
        for prefills in [1, 2] {
            for stream in [false, true] {
                let setting = Shape { prefills, decodes: 1, connector: Connector::Nixl }.start().await;
                let gate = setting.decode(0).hold(Stage::BeforeBody);
                let body = completion("a prompt", 4, stream);
                let mut client = setting.site.client().await;
                client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
                gate.wait_held(1).await;
                // Its blocks are gone although it still answers: as after a restart.
                setting.exchange.forget_all();
                gate.release();
                let answer = client.answer().await.unwrap();
                assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
                setting.no_violation();
                let done_without =
                    setting.recomputes("no_prefill").await + setting.recomputes("decode_failed").await;
                assert_eq!(done_without, u64::from(prefills == 1), "{prefills} {stream}");
            }
        }
    });
}

#[test]
fn a_leg_that_takes_too_long_has_a_name() {
    run(async {
        let quick = |settings: &mut forebay::settings::Settings| {
            let pairs = settings.router.pairs.as_mut().unwrap();
            pairs.prefill_timeout = Some(Duration::from_secs(1));
            pairs.first_byte_timeout = Some(Duration::from_secs(1));
        };
        for connector in Connector::ALL {
            let setting = ONE_EACH.by(connector).start_with(|_| (), quick).await;
            let mut client = setting.site.client().await;
            // So that a pushing worker is known.
            client.post("/v1/completions", completion("first", 1, false)).await;
            for (leg, stream) in [("prefill", false), ("decode", true), ("decode", false)] {
                let worker = if leg == "prefill" { setting.prefill(0) } else { setting.decode(0) };
                worker.fail_next(1, Fault::NeverAnswer);
                let answer = client.post("/v1/completions", completion("x", 3, stream)).await;
                assert_eq!(
                    (answer.status(), answer.header("x-forebay-failure").as_str()),
                    (504, "pd_connector_timeout")
                );
                let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                assert_eq!(
                    (&body["forebay"]["leg"], &body["forebay"]["timeout_secs"]),
                    (&leg.into(), &1.into())
                );
                assert!(
                    body["forebay"]["bootstrap_room"].as_u64().is_some_and(|room| room <= i64::MAX as u64),
                    "{body}"
                );
                assert!(!answer.text().contains("http"), "{}", answer.text());
                setting.site.quiet().await;
            }
            assert_eq!(setting.pairs("timed_out").await, 3);
            setting.no_violation();
        }
    });
}

#[test]
fn a_client_that_leaves_takes_both_legs_with_it() {
    run(async {
        for connector in Connector::ALL {
            let setting = ONE_EACH.by(connector).start().await;
            setting.site.client().await.post("/v1/completions", completion("first", 1, false)).await;
            for worker in [setting.prefill(0), setting.decode(0)] {
                let gate = worker.hold(Stage::BeforeHead);
                let mut client = setting.site.client().await;
                let body = completion("held", 3, true);
                client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
                gate.wait_held(1).await;
                drop(client);
                setting.site.quiet().await;
                assert!(worker.aborted() > 0);
            }
            until("both are counted", || setting.exchange.violations().is_empty()).await;
            assert_eq!(setting.pairs("abandoned").await, 2);
        }
    });
}

#[test]
fn one_legs_failure_ends_the_other() {
    run(async {
        for connector in [Connector::NixlPush, Connector::Bootstrap] {
            let setting = ONE_EACH.by(connector).start().await;
            let mut client = setting.site.client().await;
            client.post("/v1/completions", completion("first", 1, false)).await;
            let gate = setting.decode(0).hold(Stage::BeforeHead);
            let aborted = setting.decode(0).aborted();
            setting.prefill(0).fail_next(1, Fault::Status(400, "{}".to_owned()));
            let answer = client.post("/v1/completions", completion("x", 3, true)).await;
            assert_eq!(answer.status(), 400);
            drop(gate);
            setting.site.quiet().await;
            assert!(setting.decode(0).aborted() >= aborted);
            setting.no_violation();
        }
    });
}
