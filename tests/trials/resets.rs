//! What a reset may be told, and what it puts back.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Stage};
use forebay_tests::{Site, run, site};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":4}"#;

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut admin = site.admin().await;
        for (body, word) in [
            (r#"{"only":[]}"#, "names nothing"),
            (r#"{"only":["trees"]}"#, "trees"),
            (r#"{"only":"policies"}"#, "sequence"),
            (r#"{"seed":1,"only":["breakers"]}"#, "seed"),
            (r#"{"trial":""}"#, "trial"),
            (r#"{"trial":"a\nb"}"#, "trial"),
            (r#"{"wait_idle_secs":-1}"#, "wait_idle_secs"),
            (r#"{"wait_idle_secs":1e9}"#, "wait_idle_secs"),
            (r#"{"require_idle":1}"#, "bool"),
            (r#"{"trail":"x"}"#, "trail"),
        ] {
            let answer = admin.post("/admin/reset", body).await;
            assert_eq!(answer.status(), 400, "{body}");
            assert!(answer.text().contains(word), "{body}: {}", answer.text());
        }
        let long = format!(r#"{{"trial":"{}"}}"#, "x".repeat(129));
        assert_eq!(admin.post("/admin/reset", long).await.status(), 400);
        assert_eq!(admin.post("/admin/reset/trees", "").await.status(), 404);
        assert_eq!(admin.post("/admin/reset/counters", r#"{"only":["breakers"]}"#).await.status(), 400);
        assert_eq!(admin.post("/admin/reset/counters", r#"{"seed":1}"#).await.status(), 400);
        assert_eq!(site.epoch(), 1);
    });
}

#[test]
fn any_content_type_will_do() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut admin = site.admin().await;
        for (i, kind) in
            ["text/plain", "application/x-www-form-urlencoded", "nonsense"].into_iter().enumerate()
        {
            let body = r#" {"trial":"t"} "#;
            let bytes = format!(
                "POST /admin/reset HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            admin.send(bytes.as_bytes()).await;
            let answer = admin.answer().await.unwrap();
            assert_eq!((answer.status(), answer.json()["epoch"].as_u64()), (200, Some(2 + i as u64)));
        }
    });
}

#[test]
fn counters_alone_leave_the_cursor_where_it_is_and_policies_alone_leave_breakers_open() {
    run(async {
        let site = Site::start_with(site::workers(3), PolicyKind::RoundRobin, |settings| {
            settings.breaker.failure_threshold = 1;
        })
        .await;
        let mut admin = site.admin().await;
        let one = async || site.choices(1, |_| WHOLE.to_owned()).await.remove(0);
        assert_eq!(one().await, "w0");
        assert_eq!(admin.post("/admin/reset/counters", "").await.status(), 200);
        assert_eq!(one().await, "w1", "the rotation goes on");
        assert_eq!(admin.post("/admin/reset/policies", "").await.status(), 200);
        assert_eq!(one().await, "w0", "it begins anew");
        site.workers[1].fail_next(1, Fault::Status(502, "{}".to_owned()));
        assert_eq!(one().await, "w2", "w1 failed");
        let state = async || admin_state(&site).await;
        assert_eq!(state().await, ["closed", "open", "closed"]);
        for path in ["/admin/reset/counters", "/admin/reset/policies"] {
            admin.post(path, "").await;
            assert_eq!(state().await, ["closed", "open", "closed"], "{path}");
        }
        let answer = admin.post("/admin/reset/breakers", r#"{"trial":"b"}"#).await.json();
        assert_eq!(
            (state().await, &answer["trial"]),
            (vec!["closed"; 3].into_iter().map(str::to_owned).collect(), &"b".into())
        );
        assert_eq!(site.metric("forebay_reset_total", &[]).await, 5);
    });
}

async fn admin_state(site: &Site) -> Vec<String> {
    let list = site.admin().await.get("/workers").await.json();
    let workers = list["workers"].as_array().unwrap();
    workers.iter().map(|worker| worker["breaker"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn breakers_opened_in_one_trial_are_closed_in_the_next_and_late_failures_of_old_requests_open_none() {
    run(async {
        let site = Site::start_with(site::workers(2), PolicyKind::RoundRobin, |settings| {
            settings.breaker.failure_threshold = 3;
        })
        .await;
        // Old requests that are held at their workers, and fail only later.
        let stream = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;
        let gates: Vec<_> = site.workers.iter().map(|worker| worker.hold(Stage::AfterChunks(2))).collect();
        let mut late = Vec::new();
        for _ in 0..20 {
            let mut client = site.client().await;
            let fault = [("x-sim-fault", "close-mid-stream=4")];
            client.send(&forebay_tests::request("POST", "/v1/completions", &fault, stream.as_bytes())).await;
            client.head().await.unwrap();
            late.push(client);
        }
        for worker in &site.workers {
            worker.fail_next(5, Fault::CloseBeforeHead);
        }
        for _ in 0..10 {
            let mut client = site.client().await;
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
            let _failed = client.answer().await;
        }
        assert_eq!(admin_state(&site).await, ["open", "open"]);
        for worker in &site.workers {
            worker.clear_faults();
        }
        let answer = site.admin().await.post("/admin/reset", "").await.json();
        let previous = &answer["previous"];
        assert!(previous["breaker_transitions"]["open"].as_u64() >= Some(2), "{previous}");
        assert!(
            previous["reasons"].as_array().unwrap().iter().any(|reason| reason["code"] == "breaker_opened")
        );
        assert_eq!(admin_state(&site).await, ["closed", "closed"]);
        drop(gates);
        for mut client in late {
            let mut text = Vec::new();
            while let Ok(Some(chunk)) = client.chunk().await {
                text.extend(chunk);
            }
            assert!(String::from_utf8_lossy(&text).contains("worker_died_mid_stream"), "it fails now");
        }
        site.quiet().await;
        assert_eq!(admin_state(&site).await, ["closed", "closed"]);
        let now = site.admin().await.get("/admin/trial").await.json();
        assert_eq!(now["breaker_transitions"]["open"], 0, "{now}");
        let old = site.admin().await.get("/admin/trials/1").await.json();
        assert_eq!((&old["final"], &old["requests"]["under_way"]), (&true.into(), &0.into()));
        assert_eq!(old["requests"]["ended"], 30, "{}", old["requests"]);
    });
}

/// Each round is a race between a data thread and whoever asks.
#[test]
fn a_client_that_has_its_answer_finds_it_counted_and_nothing_under_way() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let (mut client, mut admin) = (site.client().await, site.admin().await);
        for round in 1..=200 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
            let metrics = admin.get("/metrics").await.text();
            assert_eq!(
                site::sum(&metrics, "forebay_requests_total", &[r#"route="/v1/completions""#]),
                2 * round - 1
            );
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
            let done = admin.post("/admin/reset", r#"{"require_idle":true}"#).await;
            assert_eq!(done.status(), 200, "{}", done.text());
            let previous = done.json()["previous"].take();
            assert_eq!((&previous["final"], &previous["requests"]["ended"]), (&true.into(), &2.into()));
        }
    });
}
