//! P2P NCCL: workers that announce themselves, and legs whose request id names both.

use std::time::Duration;

use forebay_pd::Connector;
use forebay_sim::{Fault, Stage, expected_text};
use forebay_tests::announcing::{Announced, Beats};
use forebay_tests::run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::setting::{ONE_EACH, Setting, Shape, completion, kv_port, text};

const TWO_EACH: Shape = Shape { prefills: 2, decodes: 2, connector: Connector::Nccl };

/// The ids that a worker was sent.
fn ids(worker: &forebay_sim::Worker) -> Vec<String> {
    let legs = worker.requests_to("/v1/completions");
    legs.iter().map(|leg| leg.header("x-request-id").unwrap().to_owned()).collect()
}

#[test]
fn both_legs_name_both_workers_and_each_attempt_has_an_id_of_its_own() {
    run(async {
        let setting = TWO_EACH.start().await;
        let mut client = setting.site.client().await;
        for i in 0..2 {
            setting.prefill(i).fail_next(1, Fault::Status(503, "{}".to_owned()));
        }
        let mut answers = 0;
        for i in 0..12 {
            let body = completion(&format!("p{i}"), 3, i % 2 == 0);
            let headers = [("x-request-id", "mine")];
            let answer = client.ask("POST", "/v1/completions", &headers, body.as_bytes()).await;
            assert_eq!(answer.header("x-request-id"), "mine");
            if answer.status() == 200 {
                answers += 1;
                assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
            }
        }
        // The first request met both that were busy.
        assert_eq!(answers, 11);
        let prefills: Vec<String> = (0..2).flat_map(|i| ids(setting.prefill(i))).collect();
        let decodes: Vec<Vec<String>> = (0..2).map(|i| ids(setting.decode(i))).collect();
        assert_eq!((prefills.len(), decodes.concat().len()), (13, 11));
        let distinct: std::collections::HashSet<_> = prefills.iter().collect();
        assert_eq!(distinct.len(), 13, "an id was used twice");
        for (i, id) in decodes.iter().enumerate().flat_map(|(i, ids)| ids.iter().map(move |id| (i, id))) {
            assert!(prefills.contains(id));
            let end = format!("___decode_addr_127.0.0.1:{}_", kv_port(2 + i));
            let begins = (0..2).map(|p| format!("___prefill_addr_127.0.0.1:{}{end}", kv_port(p)));
            let unique = begins.filter_map(|begin| id.strip_prefix(&begin).map(str::len)).collect::<Vec<_>>();
            assert_eq!(unique, [32], "{id}");
        }
        setting.site.quiet().await;
        setting.no_violation();
    });
}

#[test]
fn the_decode_leg_waits_for_the_prefill_leg_unless_both_are_to_go_at_once() {
    run(async {
        for at_once in [false, true] {
            let change = |settings: &mut forebay::settings::Settings| {
                settings.router.pairs.as_mut().unwrap().concurrent_legs = at_once;
            };
            let setting = ONE_EACH.by(Connector::Nccl).start_with(|_| (), change).await;
            let gate = setting.prefill(0).hold(Stage::BeforeHead);
            let mut client = setting.site.client().await;
            let body = completion("a prompt", 3, true);
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
            gate.wait_held(1).await;
            if at_once {
                // It may have answered by now: the client gets that when the other leg is over too.
                let came = |stats: &forebay_sim::Stats| stats.open_inference + stats.served_inference;
                setting.decode(0).wait_until(|stats| came(stats) == 1).await;
            } else {
                assert_eq!(ids(setting.decode(0)), [""; 0]);
            }
            gate.release();
            let answer = client.answer().await.unwrap();
            assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
            assert_eq!(ids(setting.decode(0)), ids(setting.prefill(0)));
            setting.site.quiet().await;
            setting.no_violation();
        }
    });
}

#[test]
fn no_decode_worker_gets_what_nobody_has_prefilled() {
    run(async {
        let setting = ONE_EACH.by(Connector::Nccl).start().await;
        let mut client = setting.site.client().await;
        let several = r#"{"model":"tiny","prompt":"x","max_tokens":2,"n":2}"#;
        let answer = client.post("/v1/completions", several).await;
        assert_eq!((answer.status(), &*answer.header("x-forebay-failure")), (400, "router_unpairable"));
        assert_eq!(answer.json()["forebay"]["reason"], "choices");
        for fault in [Fault::Status(503, "{}".to_owned()), Fault::Status(500, "{}".to_owned())] {
            setting.prefill(0).fail_next(1, fault);
            let answer = client.post("/v1/completions", completion("x", 2, false)).await;
            assert!(answer.status() >= 500, "{}", answer.text());
        }
        setting.prefill(0).set_health(500);
        setting.site.wait_eligible(0, false).await;
        let answer = client.post("/v1/completions", completion("x", 2, false)).await;
        assert_eq!((answer.status(), &*answer.header("x-forebay-failure")), (503, "router_pool_exhausted"));
        assert_eq!(ids(setting.decode(0)), [""; 0]);
        setting.site.quiet().await;
        setting.no_violation();
    });
}

#[test]
fn what_is_no_pair_reaches_no_engine_whatever_way_it_takes() {
    run(async {
        let setting = ONE_EACH.by(Connector::Nccl).start().await;
        let mut client = setting.site.client().await;
        let stored = r#"{"model":"tiny","input":"x","max_output_tokens":2,"store":true}"#;
        let id = client.post("/v1/responses", stored).await.json()["id"].as_str().unwrap().to_owned();
        let next = format!(r#"{{"model":"tiny","input":"y","previous_response_id":"{id}"}}"#);
        let form =
            "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n";
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "k")];
        let json = [("content-type", "application/json")];
        let of_form = [("content-type", "multipart/form-data; boundary=b")];
        let embeds = r#"{"model":"tiny","prompt":"x","prompt_embeds":"AAAA","max_tokens":2}"#;
        let cases = [
            ("POST", "/v1/completions", &json[..], embeds, "prompt_embeds"),
            ("POST", "/v1/responses", &json, &*next, "previous_response"),
            ("POST", "/invocations", &json, r#"{"model":"tiny","prompt":"x"}"#, "route"),
            ("POST", "/generative_scoring", &json, r#"{"model":"tiny"}"#, "route"),
            ("POST", "/v1/embeddings", &json, r#"{"model":"tiny","input":"x"}"#, "route"),
            ("POST", "/v1/audio/transcriptions", &of_form, form, "route"),
            ("GET", "/v1/realtime", &upgrade, "", "route"),
        ];
        for (method, path, headers, body, why) in cases {
            let answer = client.ask(method, path, headers, body.as_bytes()).await;
            assert_eq!(
                (answer.status(), &*answer.header("x-forebay-failure")),
                (400, "router_unpairable"),
                "{path}"
            );
            assert_eq!(answer.json()["forebay"]["reason"], why, "{path}");
        }
        // Nothing is computed for these, so that there is nothing to hand over.
        let answer = client.post("/tokenize", r#"{"model":"tiny","prompt":"a b"}"#).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let count = r#"{"model":"tiny","messages":[{"role":"user","content":"a b"}]}"#;
        assert_eq!(client.post("/v1/messages/count_tokens", count).await.status(), 200);
        setting.site.quiet().await;
        setting.no_violation();
    });
}

#[test]
fn announced_workers_are_on_every_page() {
    run(async {
        let setting = TWO_EACH.start().await;
        let mut client = setting.site.client().await;
        assert_eq!(client.get("/readiness").await.status(), 200);
        assert_eq!(client.get("/v1/models").await.json()["data"][0]["id"], "tiny");
        let workers = client.get("/workers").await.json();
        let urls =
            workers["workers"].as_array().unwrap().iter().map(|worker| worker["url"].as_str().unwrap());
        assert!(urls.eq(setting.site.workers.iter().map(|worker| worker.url())), "{workers}");
    });
}

#[test]
fn it_is_ready_without_prefill_workers_only_where_decode_workers_answer_alone() {
    run(async {
        for connector in [Connector::Nccl, Connector::Nixl] {
            let quick = |settings: &mut forebay::settings::Settings| {
                settings.health.failure_threshold = 1;
                settings.health.interval = Duration::from_millis(100);
            };
            let setting = ONE_EACH.by(connector).start_with(|_| (), quick).await;
            let mut client = setting.site.client().await;
            assert_eq!(client.get("/readiness").await.status(), 200);
            setting.prefill(0).set_health(500);
            setting.site.wait_eligible(0, false).await;
            let ready = client.get("/readiness").await;
            let answer = client.post("/v1/completions", completion("x", 2, false)).await;
            let status = if connector.decodes_alone() { 200 } else { 503 };
            assert_eq!((ready.status(), answer.status()), (status, status), "{}", ready.text());
            if status == 503 {
                let why = "no prefill worker can be chosen: nobody would answer without";
                assert_eq!(ready.json()["reason"], why);
            }
        }
    });
}

async fn announcements(setting: &Setting, result: &str) -> u64 {
    let label = format!("result=\"{result}\"");
    setting.site.metric("forebay_discovery_announcements_total", &[&label]).await
}

/// Sends this and waits until it has been looked at, or the other side has closed.
async fn send(setting: &Setting, bytes: &[u8]) {
    let mut stream = TcpStream::connect(setting.site.app.announce_address().unwrap()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    // A reset says as much.
    let _closed = stream.read_to_end(&mut rest).await;
}

#[test]
fn bad_announcements_are_counted_and_harm_nobody() {
    run(async {
        let setting = ONE_EACH.by(Connector::Nccl).start().await;
        let said = Announced::of("P", "http://127.0.0.1:1", "127.0.0.1:1");
        let opening = said.opening();
        let garbage = [&opening[..], b"\x00\x04PING"].concat();
        let malformed: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            &garbage,
            &[&opening[..], b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"].concat(),
            &[&opening[..], b"\x01\x00\x00\x01x"].concat(),
        ];
        for (i, bytes) in malformed.iter().enumerate() {
            send(&setting, bytes).await;
            assert_eq!(announcements(&setting, "malformed").await, i as u64 + 1);
        }
        let outside = Announced::of("D", "http://8.8.8.8:80", "127.0.0.1:1");
        send(&setting, &[outside.opening(), outside.message()].concat()).await;
        assert_eq!(announcements(&setting, "refused").await, 1);
        let elsewhere = Announced::of("D", "http://127.0.0.1:1", &format!("127.0.0.1:{}", kv_port(1)));
        send(&setting, &[elsewhere.opening(), elsewhere.message()].concat()).await;
        assert_eq!(announcements(&setting, "address_taken").await, 1);
        assert_eq!(setting.site.app.reader().world().hosts().len(), 2);
        let other = Announced::of("D", &setting.prefill(0).url(), "127.0.0.1:1");
        send(&setting, &[opening, b"\x00\x01\xc1".to_vec(), other.message()].concat()).await;
        assert_eq!(announcements(&setting, "malformed").await, 5);
        // The last one was well, and is another process at the same place; its old word counts again when it comes.
        let address = setting.site.app.announce_address().unwrap();
        let again = Announced::of("P", &setting.prefill(0).url(), &format!("127.0.0.1:{}", kv_port(0)));
        let _beats = Beats::begin(address, again).await;
        let role = |i: usize| move |world: &forebay_workers::World| world.hosts()[i].role().answers();
        setting.site.app.reader().wait_for(|world| !role(0)(world)).await;
        setting.site.wait_eligible(0, true).await;
        let mut client = setting.site.client().await;
        assert_eq!(client.post("/v1/completions", completion("x", 2, false)).await.status(), 200);
        setting.no_violation();
    });
}
