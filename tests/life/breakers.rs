//! Circuit breakers: which answers open them, and how a fleet comes back.

use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::{Site, run, site};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":4}"#;
const STREAM: &str = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;

/// Breakers that open after three failures and stay open for as long as the test runs.
fn quick(settings: &mut Settings) {
    settings.breaker.failure_threshold = 3;
    settings.breaker.success_threshold = 1;
}

/// A client of its own for each request: some answers end their connection.
async fn ask(site: &Site, body: &str, count: usize) {
    for _ in 0..count {
        let mut client = site.client().await;
        client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
        let _broken = client.answer().await;
    }
    site.quiet().await;
}

#[test]
fn streams_that_break_open_the_breaker_and_a_reset_closes_it() {
    run(async {
        let site = Site::start_with(site::workers(2), PolicyKind::RoundRobin, quick).await;
        let name = site.workers[0].url();
        site.workers[0].fail_next(3, Fault::CloseMidStream(2));
        ask(&site, STREAM, 6).await;
        assert_eq!(site.metric("forebay_breaker_state", &[&name]).await, 1);
        assert_eq!(site.metric("forebay_breaker_transitions_total", &[&name, "to=\"open\""]).await, 1);
        assert_eq!(site.metric("forebay_breaker_state", &[&site.workers[1].url()]).await, 0);
        let mut admin = site.admin().await;
        assert_eq!(admin.get("/workers").await.json()["workers"][0]["breaker"], "open");
        assert!(site.choices(4, |_| WHOLE.to_owned()).await.iter().all(|chosen| chosen == "w1"));
        admin.post("/admin/reset", "").await;
        let mut chosen = site.choices(2, |_| WHOLE.to_owned()).await;
        chosen.sort();
        assert_eq!(chosen, ["w0", "w1"]);
    });
}

#[test]
fn what_is_no_failure_of_the_worker_opens_nothing() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, quick).await;
        let faults = [
            Fault::Status(400, "{}".to_owned()),
            Fault::Status(404, "{}".to_owned()),
            Fault::TooManyRequests,
            Fault::QueueOverflow,
            Fault::Paused,
            Fault::Scaling,
        ];
        for fault in faults {
            site.workers[0].fail_next(10, fault.clone());
            ask(&site, WHOLE, 10).await;
            site.workers[0].clear_faults();
            let opened = site.metric("forebay_breaker_transitions_total", &["to=\"open\""]).await;
            assert_eq!(opened, 0, "{fault:?}");
        }
    });
}

#[test]
fn clients_that_leave_open_nothing() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, quick).await;
        let gate = site.workers[0].hold(forebay_sim::Stage::AfterChunks(1));
        for _ in 0..8 {
            let mut client = site.client().await;
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
            client.head().await.unwrap();
        }
        site.quiet().await;
        drop(gate);
        assert_eq!(site.metric("forebay_breaker_transitions_total", &["to=\"open\""]).await, 0);
    });
}

#[test]
fn a_fleet_whose_breakers_are_all_open_serves_again_when_the_cause_is_gone() {
    run(async {
        let site = Site::start_with(site::workers(2), PolicyKind::PowerOfTwo, quick).await;
        for worker in &site.workers {
            worker.fail_next(1000, Fault::CloseMidStream(1));
        }
        for _ in 0..40 {
            ask(&site, STREAM, 1).await;
        }
        assert_eq!(site.metric("forebay_breaker_state", &[]).await, 2, "both are open");
        let mut client = site.client().await;
        client.send(&forebay_tests::request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        // One may be tried by now, and breaks off.
        if let Ok(answer) = client.answer().await
            && answer.status() == 503
        {
            assert_eq!(answer.json()["forebay"]["open_circuits"], 2);
        }
        for worker in &site.workers {
            worker.clear_faults();
        }
        // The breakers' own time is a minute, and so is the limit of this test.
        let mut client = site.client().await;
        while client.post("/v1/completions", WHOLE).await.status() != 200 {}
        for _ in 0..10 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        assert_eq!(site.metric("forebay_breaker_state", &[]).await, 1, "the other one has to wait");
        site.quiet().await;
    });
}
