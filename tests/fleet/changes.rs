//! Workers come and go at run time.

use std::sync::Arc;
use std::time::Duration;

use forebay_policy::PolicyKind;
use forebay_router::Secret;
use forebay_sim::{Fault, FaultRule, Scope, Stage, When};
use forebay_tests::{Client, Site, request, run, site, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::oneshot::{self, Sender};
use tokio::task::JoinSet;

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

async fn add(site: &Site, body: &Value) -> (u16, Value) {
    let answer = site.admin().await.post("/workers", body.to_string()).await;
    (answer.status(), answer.json())
}

async fn remove(site: &Site, target: &str) -> (u16, Value) {
    let answer = site.admin().await.ask("DELETE", target, &[], b"").await;
    (answer.status(), answer.json())
}

/// URLs of the list.
fn urls(site: &Site) -> Vec<String> {
    site.app.reader().world().hosts().iter().map(|host| host.url().to_string()).collect()
}

#[test]
fn a_worker_that_is_added_is_probed_and_then_chosen_and_nobody_waits_for_it() {
    run(async {
        let mut site = Site::start(1, PolicyKind::RoundRobin).await;
        let silent = site::worker(forebay_sim::WorkerOptions::recording().named("silent"));
        silent.pause_accept().await;
        site.workers.push(site::worker(forebay_sim::WorkerOptions::recording().named("w1")));
        let (status, told) = add(&site, &json!({"url": silent.url()})).await;
        assert_eq!((status, told), (201, json!({"id": 1, "url": silent.url(), "role": "regular"})));
        let (status, told) = add(&site, &json!({"url": site.workers[1].url(), "role": "regular"})).await;
        assert_eq!((status, &told["id"]), (201, &2.into()));
        // The one before does not answer its probe, and is in nobody's way.
        site.app.reader().wait_for(|world| world.hosts()[2].workers()[0].eligible()).await;
        let chosen = site.choices(4, |_| WHOLE.to_owned()).await;
        assert_eq!(chosen.iter().filter(|name| *name == "w1").count(), 2, "{chosen:?}");
        assert!(!chosen.contains(&"silent".to_owned()), "{chosen:?}");
        let (status, again) = add(&site, &json!({"url": site.workers[1].url()})).await;
        assert_eq!((status, again), (200, told), "it is there already");
        assert_eq!(urls(&site).len(), 3);
        let report = site.admin().await.get("/admin/trial").await.json();
        assert_eq!(report["workers"].as_array().unwrap().len(), 3, "{report}");
    });
}

#[test]
fn a_worker_that_is_taken_off_ends_what_it_has_first_unless_it_is_forced() {
    run(async {
        let site = Site::start(3, PolicyKind::RoundRobin).await;
        let gates = [0, 1].map(|i| site.workers[i].hold(Stage::BeforeHead));
        let mut held = Vec::new();
        for i in [0, 1] {
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
            until("it is with its worker", || site.in_flight(i) == 1).await;
            held.push(client);
        }
        let (status, told) = remove(&site, "/workers/0").await;
        let first = site.workers[0].url();
        assert_eq!((status, told), (202, json!({"url": first, "removed": false, "in_flight": 1})));
        let encoded = site.workers[1].url().replace(':', "%3A").replace('/', "%2F");
        let (status, told) = remove(&site, &format!("/workers/{encoded}?force=true")).await;
        let second = site.workers[1].url();
        assert_eq!((status, told), (200, json!({"url": second, "removed": true, "in_flight": 1})));
        assert_eq!(urls(&site), [first.clone(), site.workers[2].url()], "the first still drains");
        let (status, _) = add(&site, &json!({"url": first})).await;
        assert_eq!(status, 409, "it is leaving");
        assert_eq!(site.choices(3, |_| WHOLE.to_owned()).await, ["w2"; 3]);
        drop(gates);
        for client in &mut held {
            assert_eq!(client.answer().await.unwrap().status(), 200, "both end what they have");
        }
        site.app.reader().wait_for(|world| world.hosts().len() == 1).await;
        let name = site.workers[2].url().replace("http://", "");
        let (status, told) = remove(&site, &format!("/workers/{name}")).await;
        assert_eq!((status, &told["removed"]), (200, &true.into()), "it had nothing to end");
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 503);
        // Nobody asks them any more; and who returns has its old number.
        let (status, told) = add(&site, &json!({"url": second})).await;
        assert_eq!((status, &told["id"]), (201, &1.into()));
        site.app.reader().wait_for(|world| world.ready()).await;
        assert_eq!(site.choices(1, |_| WHOLE.to_owned()).await, ["w1"]);
    });
}

#[test]
fn one_that_was_removed_is_not_probed_any_more() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let probes = || site.workers[0].requests_to("/health").len();
        remove(&site, "/workers/0?force=true").await;
        site.workers[0].wait_until(|stats| stats.open_connections == 0).await;
        let before = probes();
        // The other one is probed twice in the meantime, each second once.
        let others = site.workers[1].requests_to("/health").len();
        site.workers[1].wait_requests_to("/health", others + 2).await;
        assert!(probes() <= before + 1, "one may have been under way");
    });
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for (body, word) in [
            ("", "EOF"),
            ("[]", "url"),
            (r#"{"url":"gpu:1"}"#, "http://"),
            (r#"{"url":"http://h:1","role":"prefill"}"#, "--vllm-pd-disaggregation"),
            (r#"{"url":"http://h:1","role":"leader"}"#, "leader"),
            (r#"{"url":"http://h:1","bootstrap_port":1}"#, "bootstrap_port"),
            (r#"{"url":"http://h:1","priority":1}"#, "priority"),
        ] {
            let answer = site.admin().await.post("/workers", body).await;
            assert_eq!(answer.status(), 400, "{body}");
            assert!(answer.text().contains(word), "{body}: {}", answer.text());
        }
        assert_eq!(remove(&site, "/workers/7").await.0, 404);
        assert_eq!(remove(&site, "/workers/0?forced=true").await.0, 400);
        assert_eq!(remove(&site, "/workers/http%3A%2F%2Felsewhere%3A1").await.0, 404);
        assert_eq!(site.admin().await.ask("PUT", "/workers", &[], b"{}").await.status(), 405);
        assert_eq!(urls(&site).len(), 1);
    });
}

#[test]
fn whoever_has_no_right_changes_nothing() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
            settings.router.admin_api_key = Some(Secret::new("key".to_owned()));
        })
        .await;
        let url = site.workers[0].url();
        let orders = [
            ("POST", "/workers".to_owned()),
            ("DELETE", "/workers/0?force=true".to_owned()),
            ("DELETE", format!("/workers/{}?force=true", url.replace('/', "%2F"))),
            ("POST", "/add_worker?url=http://127.0.0.1:1".to_owned()),
            ("POST", format!("/remove_worker?url={url}")),
            ("POST", "/flush_cache".to_owned()),
            ("GET", "/list_workers".to_owned()),
            ("GET", "/get_loads".to_owned()),
            ("GET", "/get_server_info".to_owned()),
        ];
        for base in [site.app.url(), site.app.admin_url()] {
            for (method, target) in &orders {
                let body = br#"{"url":"http://127.0.0.1:1"}"#;
                let mut client = Client::connect(&base).await;
                let headers = [("authorization", "Bearer other"), ("origin", "http://evil.example")];
                let answer = client.ask(method, target, &headers, body).await;
                assert_eq!(answer.status(), 403, "{method} {target}");
            }
        }
        assert_eq!(urls(&site), [url]);
        assert!(site.workers[0].requests().iter().all(|request| request.method == "GET"));
    });
}

/// A worker whose health probes are answered, well, when whoever gets them from here says so.
async fn asked() -> (String, Receiver<Sender<()>>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (probes, asked) = mpsc::channel(64);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let probes = probes.clone();
            connections.spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await? > 0 {}
                let status = if head.starts_with(b"GET /health") {
                    let (answer, may_answer) = oneshot::channel();
                    let _over = probes.send(answer).await;
                    let _over = may_answer.await;
                    "200 OK"
                } else {
                    "404 Not Found"
                };
                let wire = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(wire.as_bytes()).await
            });
        }
    });
    (url, asked, serving)
}

#[test]
fn a_worker_that_is_suspected_while_it_is_asked_is_asked_again_at_once() {
    run(async {
        let (url, mut asked, _serving) = asked().await;
        let mut settings = site::settings(PolicyKind::RoundRobin, &[url]);
        settings.health.interval = Duration::from_secs(3600);
        // Another one is well: else nobody waits long between two probes.
        let other = site::worker(forebay_sim::WorkerOptions::recording().named("w1"));
        settings.worker_urls.push(other.url().parse().unwrap());
        let app = forebay::App::start(&settings).unwrap();
        let reader = app.reader().clone();
        let all_are_in = |world: &forebay_workers::World| {
            world.hosts().len() == 2 && world.workers().iter().all(|worker| worker.eligible())
        };
        while !all_are_in(&reader.world()) {
            if let Ok(answer) = asked.try_recv() {
                let _over = answer.send(());
            }
            tokio::task::yield_now().await;
        }
        let host = Arc::clone(&reader.world().hosts()[0]);
        host.suspect();
        let answer = asked.recv().await.unwrap();
        host.suspect();
        answer.send(()).unwrap();
        asked.recv().await.unwrap().send(()).unwrap();
        reader.wait_for(|world| world.hosts()[0].is_well()).await;
    });
}

#[test]
fn a_version_that_is_not_told_once_is_still_known() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let host = Arc::clone(&site.app.reader().world().hosts()[0]);
        let version = host.version();
        assert!(version.is_some());
        let scope = Scope::Path("/version".to_owned());
        site.workers[0].add_fault(FaultRule { fault: Fault::CloseBeforeHead, when: When::Always, scope });
        site.workers[0].swap("other");
        host.may_serve_others();
        site.wait_serves(0, "other", true).await;
        assert_eq!(host.version(), version);
    });
}
