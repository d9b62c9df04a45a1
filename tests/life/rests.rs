//! Workers that sleep or are paused: their health page says that they are well, and yet they take no requests.

use std::time::Duration;

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, FaultRule, Scope, When, WorkerOptions};
use forebay_tests::{Client, Site, request, run, site, until};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

/// How to make a worker rest, how to end that, and what the router calls it meanwhile.
const RESTS: [(&str, &str, &str); 2] =
    [("/sleep?level=1", "/wake_up", "asleep"), ("/pause?mode=abort", "/resume", "paused")];

async fn health(site: &Site, worker: usize) -> String {
    let list = site.admin().await.get("/workers").await.json();
    list["workers"][worker]["health"].as_str().expect("a word").to_owned()
}

#[test]
fn an_order_to_rest_that_passes_through_takes_effect_at_once_and_so_does_its_end() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for (rest, wake, word) in RESTS {
            let target = site.workers[0].url();
            let one = [("x-forebay-worker", target.as_str())];
            assert_eq!(client.ask("POST", rest, &one, b"").await.status(), 200);
            assert_eq!(health(&site, 0).await, word);
            assert_eq!(site.choices(4, |_| WHOLE.to_owned()).await, ["w1"; 4], "{rest}");
            assert_eq!(client.ask("POST", wake, &one, b"").await.status(), 200);
            assert_eq!(health(&site, 0).await, "healthy");
            let mut chosen = site.choices(2, |_| WHOLE.to_owned()).await;
            chosen.sort();
            assert_eq!(chosen, ["w0", "w1"], "{wake}");
        }
    });
}

#[test]
fn a_worker_that_was_made_to_rest_by_somebody_else_leaves_and_returns_with_the_next_probe() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut operator = Client::connect(&site.workers[0].url()).await;
        for (rest, wake, word) in RESTS {
            assert_eq!(operator.post(rest, "").await.status(), 200);
            site.wait_eligible(0, false).await;
            assert_eq!(health(&site, 0).await, word);
            assert_eq!(operator.get("/health").await.status(), 200, "it says that it is well");
            assert_eq!(operator.post(wake, "").await.status(), 200);
            site.wait_eligible(0, true).await;
        }
    });
}

#[test]
fn a_worker_that_wakes_up_in_parts_is_back_when_it_says_so() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        assert_eq!(client.post("/sleep", "").await.status(), 200);
        let asked = site.workers[0].requests_to("/is_sleeping").len();
        assert_eq!(client.post("/wake_up?tags=weights", "").await.status(), 200);
        site.workers[0].wait_requests_to("/is_sleeping", asked + 1).await;
        assert_eq!(health(&site, 0).await, "asleep");
        assert_eq!(client.post("/wake_up?tags=kv_cache", "").await.status(), 200);
        for worker in 0..2 {
            site.wait_eligible(worker, true).await;
        }
    });
}

#[test]
fn a_worker_that_does_not_tell_is_asked_seldom_and_never_left_out() {
    run(async {
        let options = WorkerOptions { dev_mode: false, ..WorkerOptions::recording().named("w0") };
        let site = Site::start_with(vec![site::worker(options)], PolicyKind::RoundRobin, |_| ()).await;
        site.workers[0].wait_requests_to("/health", 3).await;
        assert_eq!(site.workers[0].requests_to("/is_sleeping").len(), 1);
        assert_eq!(site.workers[0].requests_to("/is_paused").len(), 1);
        // Somebody answers in its place that it sleeps now, which it never says itself.
        let fault = Fault::Status(200, "{}".to_owned());
        let scope = Scope::Path("/sleep".to_owned());
        site.workers[0].add_fault(FaultRule { fault, when: When::Always, scope });
        assert_eq!(site.client().await.post("/sleep", "").await.status(), 200);
        site.wait_eligible(0, true).await;
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
    });
}

#[test]
fn when_all_are_paused_requests_go_to_them_all_the_same_and_wait_there() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut operator = site.client().await;
        assert_eq!(operator.post("/pause?mode=keep", "").await.status(), 200);
        let ready = operator.get("/readiness").await;
        assert_eq!((ready.status(), &ready.json()["status"]), (200, &"ready".into()), "requests pass");
        assert_eq!(
            (&ready.json()["healthy_workers"], &ready.json()["paused_workers"]),
            (&0.into(), &2.into())
        );
        assert!(ready.json()["reason"].as_str().unwrap().contains("paused"));
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        until("a worker keeps it", || site.workers.iter().any(|w| w.stats().open_inference == 1)).await;
        assert_eq!(operator.post("/resume", "").await.status(), 200);
        assert_eq!(client.answer().await.unwrap().status(), 200);
        site.quiet().await;
    });
}

#[test]
fn when_all_sleep_the_client_is_told_or_waits_for_the_first_to_wake() {
    run(async {
        let patient = |settings: &mut forebay::settings::Settings| {
            settings.router.admission.no_worker_wait = Some(Duration::from_secs(60));
        };
        for waits in [false, true] {
            let change = |settings: &mut _| {
                if waits {
                    patient(settings);
                }
            };
            let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, change).await;
            let mut operator = site.client().await;
            assert_eq!(operator.post("/sleep", "").await.status(), 200);
            let ready = operator.get("/readiness").await;
            assert_eq!(
                (ready.status(), &ready.json()["reason"]),
                (503, &"every healthy worker sleeps".into())
            );
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
            if waits {
                assert_eq!(operator.post("/wake_up", "").await.status(), 200);
                assert_eq!(client.answer().await.unwrap().status(), 200);
            } else {
                let machine = &client.answer().await.unwrap().json()["forebay"];
                assert_eq!(
                    (&machine["failure"], &machine["unhealthy"]),
                    (&"router_pool_exhausted".into(), &1.into())
                );
            }
            site.quiet().await;
        }
    });
}
