//! What makes a trial unfit for comparison that began, or ended, outside of it.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Stage};
use forebay_tests::{Site, request, run, site, until};
use serde_json::Value;

const WHOLE: &str = r#"{"prompt":"a","max_tokens":1}"#;

async fn site_of_two() -> Site {
    Site::start_with(site::workers(2), PolicyKind::RoundRobin, |settings| {
        settings.breaker.failure_threshold = 1;
        settings.health.failure_threshold = 1;
    })
    .await
}

async fn ask(site: &Site) {
    site.choices(1, |_| WHOLE.to_owned()).await;
}

fn codes(report: &Value) -> Vec<&str> {
    assert_eq!(report["comparable"], report["reasons"].as_array().unwrap().is_empty());
    report["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

async fn reset(site: &Site, path: &str) -> Value {
    site.admin().await.post(path, "").await.json()["previous"].take()
}

#[test]
fn a_worker_that_was_down_when_the_trial_began_raises_a_doubt_whether_it_returns_or_not() {
    run(async {
        let site = site_of_two().await;
        site.workers[1].set_health(503);
        site.wait_eligible(1, false).await;
        reset(&site, "/admin/reset").await;
        ask(&site).await;
        let without = reset(&site, "/admin/reset").await;
        assert_eq!(codes(&without), ["worker_unhealthy"], "{without}");
        ask(&site).await;
        site.workers[1].set_health(200);
        site.wait_eligible(1, true).await;
        let half = reset(&site, "/admin/reset").await;
        assert_eq!(codes(&half), ["fleet_changed"], "it took part in the end only: {half}");
        ask(&site).await;
        let whole = reset(&site, "/admin/reset").await;
        assert!(codes(&whole).is_empty(), "{whole}");
        site.workers[1].set_health(503);
        site.wait_eligible(1, false).await;
        reset(&site, "/admin/reset").await;
        site.workers[1].set_health(200);
        site.wait_eligible(1, true).await;
        ask(&site).await;
        let whole = reset(&site, "/admin/reset").await;
        assert!(codes(&whole).is_empty(), "it returned before the first request: {whole}");
    });
}

#[test]
fn a_worker_that_drains_in_its_midst_raises_a_doubt_though_it_stays() {
    run(async {
        let site = site_of_two().await;
        let mut admin = site.admin().await;
        ask(&site).await;
        // A request that does not end keeps it on the list.
        let gate = site.workers[1].hold(Stage::BeforeHead);
        let mut held = site.client().await;
        held.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        until("it is with the other", || site.in_flight(1) == 1).await;
        for step in ["drain", "undrain"] {
            let answer = admin.post(&format!("/workers/1/{step}"), "").await;
            assert!((200..300).contains(&answer.status()), "{}", answer.text());
            let report = admin.get("/admin/trial").await.json();
            assert_eq!(codes(&report), ["fleet_changed"], "{step}: {report}");
        }
        drop(gate);
        assert_eq!(held.answer().await.unwrap().status(), 200);
    });
}

#[test]
fn a_worker_that_wakes_up_in_its_midst_raises_a_doubt() {
    run(async {
        let site = site_of_two().await;
        let mut client = site.client().await;
        let url = site.workers[1].url();
        let one = [("x-forebay-worker", url.as_str())];
        for (rest, wake) in [("/sleep?level=1", "/wake_up"), ("/pause?mode=abort", "/resume")] {
            assert_eq!(client.ask("POST", rest, &one, b"").await.status(), 200);
            reset(&site, "/admin/reset").await;
            ask(&site).await;
            assert_eq!(client.ask("POST", wake, &one, b"").await.status(), 200);
            let report = reset(&site, "/admin/reset").await;
            assert_eq!(codes(&report), ["prefix_cache_emptied"], "{wake}: {report}");
        }
    });
}

#[test]
fn a_breaker_that_was_open_when_the_trial_began_raises_a_doubt_and_one_that_a_reset_closes_none() {
    run(async {
        let site = site_of_two().await;
        site.workers[0].fail_next(1, Fault::Status(502, "{}".to_owned()));
        ask(&site).await;
        let first = reset(&site, "/admin/reset/counters").await;
        assert_eq!(
            (codes(&first), &first["breaker_transitions"]["open"]),
            (vec!["breaker_opened"], &1.into())
        );
        ask(&site).await;
        let carried = reset(&site, "/admin/reset").await;
        assert_eq!(codes(&carried), ["breaker_opened"], "one worker was never asked: {carried}");
        let none = serde_json::json!({"open": 0, "half_open": 0, "closed": 0});
        assert_eq!(carried["breaker_transitions"], none, "the reset closed it, not the trial");
        ask(&site).await;
        let fresh = reset(&site, "/admin/reset").await;
        assert!(codes(&fresh).is_empty(), "{fresh}");
        assert_eq!(fresh["breaker_transitions"], none);
    });
}
