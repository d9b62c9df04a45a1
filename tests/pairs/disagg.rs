//! LMCache: the prefill worker makes the first token, and the client notices nothing of it.

use std::time::Duration;

use forebay_pd::Connector;
use forebay_sim::{Fault, FaultRule, Handing, Scope, Speech, When, WorkerOptions, expected_text};
use forebay_tests::{Client, run, site};
use serde_json::Value;

use crate::setting::{ONE_EACH, Setting, Shape, completion, kv_port, text};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn shape() -> Shape {
    ONE_EACH.by(Connector::Lmcache)
}

/// With ranks that speak so.
async fn speaking(speech: Speech) -> Setting {
    let change = |options: &mut WorkerOptions| {
        if let Some(Handing::Disagg { speech: of, .. }) = options.pair.as_mut().map(|pair| &mut pair.handing)
        {
            *of = speech;
        }
    };
    let fast = |settings: &mut forebay::settings::Settings| {
        settings.router.pairs.as_mut().unwrap().ready_timeout = Duration::from_millis(300);
    };
    shape().start_with(change, fast).await
}

fn body(path: &str, prompt: &str, max_tokens: u32, end: &str) -> String {
    let prompt = match path {
        CHAT => format!(
            r#""messages":[{{"role":"system","content":"s"}},{{"role":"user","content":"{prompt}"}}]"#
        ),
        _ => format!(r#""prompt":"{prompt}""#),
    };
    format!(r#"{{"model":"tiny",{prompt},"max_tokens":{max_tokens},"temperature":0{end}}}"#)
}

const STREAMED: &str = r#","stream":true,"stream_options":{"include_usage":true}"#;

/// What a client makes of an answer: the text, why it ended, the counts; and of a stream, the roles and how many records
/// have text.
#[derive(Debug, PartialEq)]
struct Read {
    text: String,
    ends: Vec<String>,
    usage: Value,
    roles: usize,
    objects: Vec<String>,
    ids: usize,
}

fn read(answer: &str) -> Read {
    let records: Vec<Value> = match answer.starts_with('{') {
        true => vec![serde_json::from_str(answer).unwrap()],
        false => {
            assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
            let data = answer.lines().filter_map(|line| line.strip_prefix("data: "));
            data.filter(|json| *json != "[DONE]").map(|json| serde_json::from_str(json).unwrap()).collect()
        }
    };
    let choices = || records.iter().flat_map(|record| record["choices"].as_array().unwrap());
    let said = |choice: &Value| {
        let of = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        of.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
    };
    let distinct = |name: &str| {
        let all = records.iter().map(|record| record[name].as_str().unwrap().to_owned());
        all.collect::<std::collections::BTreeSet<_>>()
    };
    Read {
        text: choices().map(said).collect(),
        ends: choices().filter_map(|choice| choice["finish_reason"].as_str().map(str::to_owned)).collect(),
        usage: records
            .iter()
            .rev()
            .map(|record| record["usage"].clone())
            .find(|usage| !usage.is_null())
            .unwrap(),
        roles: choices().filter(|choice| choice["delta"]["role"] == "assistant").count(),
        objects: distinct("object").into_iter().collect(),
        ids: distinct("id").len(),
    }
}

#[test]
fn a_hundred_prompts_are_answered_as_by_a_single_worker_whole_and_streamed_on_both_apis() {
    run(async {
        let setting = shape().start().await;
        let alone = site::worker(WorkerOptions::recording());
        let (mut client, mut direct) = (setting.site.client().await, Client::connect(&alone.url()).await);
        let mut tokens = 0;
        for i in 0..100_u32 {
            for path in [COMPLETIONS, CHAT] {
                for end in ["", STREAMED] {
                    let prompt = format!("prompt {i} of {path}{} {}", end.len(), "words ".repeat(i as usize));
                    let body = body(path, &prompt, 1 + i % 7, end);
                    let [got, wanted] =
                        [client.post(path, &body).await.text(), direct.post(path, &body).await.text()]
                            .map(|answer| read(&answer));
                    assert_eq!(got, wanted, "{body}");
                    tokens += got.usage["completion_tokens"].as_u64().unwrap();
                }
            }
        }
        setting.site.quiet().await;
        setting.no_violation();
        let one_token = setting.site.metric("forebay_pd_bypasses_total", &["one_token"]).await;
        assert_eq!((setting.pairs("handed_over").await, one_token), (340, 60));
        let told = setting.site.admin().await.get("/admin/trial").await.json();
        assert_eq!(told["tokens"]["completion"], tokens, "{told}");
        println!(
            "400 answers with {tokens} tokens in all are those of a single worker, and so are the trial's counts"
        );
    });
}

#[test]
fn each_leg_is_a_completion_of_ids_and_the_prompt_is_tokenised_once() {
    run(async {
        let setting = shape().start().await;
        let mut client = setting.site.client().await;
        let body = body(CHAT, "a prompt", 5, r#","stream":true,"user":"u""#);
        client.ask("POST", CHAT, &[("authorization", "Bearer mine"), ("x-mine", "1")], body.as_bytes()).await;
        let asked = setting.prefill(0).requests_to("/tokenize");
        assert_eq!(asked.len(), 1);
        assert_eq!(
            asked[0].text(),
            r#"{"model":"tiny","messages":[{"role":"system","content":"s"},{"role":"user","content":"a prompt"}]}"#
        );
        let [prefill, decode] = [setting.prefill(0), setting.decode(0)].map(|worker| {
            assert_eq!(worker.requests_to(CHAT).len(), 0);
            worker.requests_to(COMPLETIONS).pop().unwrap()
        });
        for leg in [&prefill, &decode, &asked[0]] {
            assert_eq!((leg.header("authorization"), leg.header("x-mine")), (Some("Bearer mine"), Some("1")));
            assert_eq!(leg.header("content-length"), Some(&*leg.body.len().to_string()));
        }
        let [sent, after]: [Value; 2] =
            [&prefill, &decode].map(|leg| serde_json::from_str(&leg.text()).unwrap());
        let spec = &sent["kv_transfer_params"]["disagg_spec"];
        let id = spec["req_id"].as_str().unwrap();
        assert_eq!(id.len(), 32);
        let port = kv_port(1);
        let ids = sent["prompt"].to_string();
        assert_eq!(
            prefill.text(),
            format!(
                r#"{{"prompt":{ids},"kv_transfer_params":{{"ret_first_tok":true,"disagg_spec":{{"req_id":"{id}","receiver_host":"127.0.0.1","receiver_init_port":[{port},{}],"receiver_alloc_port":[{},{}]}}}},"model":"tiny","max_tokens":1,"temperature":0,"stream":false,"user":"u"}}"#,
                port + 1,
                port + 2,
                port + 3
            )
        );
        let (_, behind) = after["prompt"].as_array().unwrap().split_last().unwrap();
        assert_eq!(sent["prompt"].as_array().unwrap(), behind);
        let ids = after["prompt"].to_string();
        assert_eq!(
            decode.text(),
            format!(
                r#"{{"prompt":{ids},"model":"tiny","max_tokens":4,"temperature":0,"stream":true,"user":"u"}}"#
            )
        );
        // Ids are taken as they are.
        client.post(COMPLETIONS, r#"{"prompt":[1,2,3],"max_tokens":3}"#).await;
        assert_eq!(setting.prefill(0).requests_to("/tokenize").len(), 1);
        setting.no_violation();
    });
}

#[test]
fn a_worker_that_asks_for_patience_when_it_is_to_make_ids_gets_it() {
    run(async {
        let setting = Shape { prefills: 2, decodes: 1, connector: Connector::Lmcache }.start().await;
        let mut client = setting.site.client().await;
        setting.prefill(0).add_fault(FaultRule {
            fault: Fault::TryLater(60),
            when: When::Next(1),
            scope: Scope::Path("/tokenize".to_owned()),
        });
        for i in 0..8 {
            let answer = client.post(COMPLETIONS, completion(&format!("p{i}"), 4, false)).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
        let asked = [0, 1].map(|i| setting.prefill(i).requests_to("/tokenize").len());
        assert_eq!(asked, [1, 8], "it is left alone");
        setting.site.quiet().await;
        setting.no_violation();
    });
}

#[test]
fn requests_for_which_the_first_token_would_not_be_right_go_to_a_decode_worker() {
    run(async {
        let setting = shape().start().await;
        let mut client = setting.site.client().await;
        let cases = [
            (CHAT, r#","tools":[{"type":"function","function":{"name":"f"}}]"#, "tools"),
            (CHAT, r#","reasoning_effort":"low""#, "reasoning"),
            (COMPLETIONS, r#","logprobs":1"#, "options"),
            (CHAT, r#","n":2"#, "choices"),
        ];
        for (path, end, why) in cases {
            let answer = client.post(path, body(path, "x", 4, end)).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            let label = format!("reason=\"{why}\"");
            assert_eq!(setting.site.metric("forebay_pd_bypasses_total", &[&label]).await, 1);
        }
        let answer =
            client.post("/v1/messages", r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":4}"#);
        assert_eq!(answer.await.status(), 200);
        assert_eq!(setting.prefill(0).stats().served_inference, 0);
        assert_eq!(setting.decode(0).requests_to(CHAT).len(), 3);
        setting.no_violation();
    });
}

#[test]
fn one_token_is_a_prefill_workers_and_a_decode_workers_if_there_is_none() {
    run(async {
        let setting = shape().start().await;
        let mut client = setting.site.client().await;
        for served in [1, 2] {
            let body = completion(&format!("x{served}"), 1, served == 2);
            let answer = client.post(COMPLETIONS, &body).await;
            assert_eq!(text(&answer.body), expected_text(COMPLETIONS, body.as_bytes()).unwrap());
            assert_eq!(setting.decode(0).requests_to(COMPLETIONS).len(), 0);
        }
        setting.prefill(0).set_health(500);
        setting.site.wait_eligible(0, false).await;
        let body = completion("y", 1, false);
        let answer = client.post(COMPLETIONS, &body).await;
        assert_eq!(text(&answer.body), expected_text(COMPLETIONS, body.as_bytes()).unwrap());
        assert_eq!(setting.decode(0).requests_to(COMPLETIONS).len(), 1);
        setting.no_violation();
    });
}

#[test]
fn the_decode_leg_waits_for_all_ranks_and_the_prompt_is_computed_anew_if_one_is_not_heard() {
    run(async {
        // The workers complain if somebody does not wait.
        let slow =
            speaking(Speech { delay: Duration::from_millis(50), repeated_each: 2, ..Speech::default() })
                .await;
        let mut client = slow.site.client().await;
        for i in 0..6 {
            let body = completion(&format!("p{i}"), 4, i % 2 == 0);
            let answer = client.post(COMPLETIONS, &body).await;
            assert_eq!(text(&answer.body), expected_text(COMPLETIONS, body.as_bytes()).unwrap());
        }
        assert_eq!((slow.exchange.transfers(), slow.pairs("handed_over").await), (6, 6));
        slow.no_violation();
        let repeated = slow.site.metric("forebay_pd_readiness_total", &["repeated"]).await;
        let unknown = slow.site.metric("forebay_pd_readiness_total", &["unknown"]).await;
        assert!(repeated > 0 && unknown > 0, "{repeated} {unknown}");

        let lossy = speaking(Speech { lost_each: 2, ..Speech::default() }).await;
        let mut client = lossy.site.client().await;
        for i in 0..4 {
            let body = completion(&format!("p{i}"), 4, i % 2 == 0);
            let answer = client.post(COMPLETIONS, &body).await;
            assert_eq!(text(&answer.body), expected_text(COMPLETIONS, body.as_bytes()).unwrap());
        }
        assert_eq!((lossy.exchange.transfers(), lossy.recomputes("not_ready").await), (2, 2));
        lossy.site.quiet().await;
        lossy.no_violation();
    });
}

#[test]
fn a_leg_that_fails_is_tried_again_under_another_id_and_the_first_token_comes_once() {
    run(async {
        let shape = Shape { prefills: 2, decodes: 2, connector: Connector::Lmcache };
        for on_decode in [false, true] {
            for fault in [
                Fault::Status(503, "{}".to_owned()),
                Fault::Reset,
                Fault::CloseBeforeHead,
                Fault::InternalError,
                Fault::NoHandOver,
            ] {
                if on_decode && matches!(fault, Fault::NoHandOver) {
                    continue;
                }
                let setting = shape.start().await;
                let mut client = setting.site.client().await;
                // Two that say 500 would say it of the request.
                let worker = if on_decode { setting.decode(0) } else { setting.prefill(0) };
                worker.add_fault(FaultRule {
                    fault: fault.clone(),
                    when: When::Next(1),
                    scope: Scope::Path(COMPLETIONS.to_owned()),
                });
                for i in 0..4 {
                    for path in [CHAT, COMPLETIONS] {
                        let body = body(path, &format!("p{i}"), 5, STREAMED);
                        let answer = client.post(path, &body).await;
                        let got = read(&answer.text());
                        assert_eq!(got.text, expected_text(path, body.as_bytes()).unwrap(), "{fault:?}");
                        assert_eq!((got.usage["completion_tokens"].as_u64(), got.ids), (Some(5), 1));
                    }
                }
                setting.site.quiet().await;
                setting.no_violation();
            }
        }
    });
}
