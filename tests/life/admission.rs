//! How many at once, who waits, and what the others are told.

use std::time::Duration;

use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Stage};
use forebay_tests::{Client, Site, request, run, site};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

async fn limited(change: impl FnOnce(&mut Settings)) -> Site {
    Site::start_with(site::workers(1), PolicyKind::RoundRobin, change).await
}

async fn sent(site: &Site) -> Client {
    let mut client = site.client().await;
    client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
    client
}

async fn wait_queued(site: &Site, count: u64) {
    while site.metric("forebay_requests_queued", &[]).await != count {}
}

#[test]
fn beyond_the_cap_requests_wait_and_beyond_the_queue_they_are_refused() {
    run(async {
        let site = limited(|settings| {
            settings.router.admission.concurrent = Some(2);
            settings.router.admission.queue = 1;
        })
        .await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let (mut first, mut second) = (sent(&site).await, sent(&site).await);
        gate.wait_held(2).await;
        let mut third = sent(&site).await;
        wait_queued(&site, 1).await;
        let refused = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!((refused.status(), refused.header("retry-after").as_str()), (429, "1"));
        assert_eq!(refused.header("x-forebay-failure"), "router_overloaded");
        assert_eq!(site.client().await.get("/health").await.status(), 200, "own pages are not counted");
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 2);
        drop(gate);
        for client in [&mut first, &mut second, &mut third] {
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        site.quiet().await;
        assert_eq!(site.metric("forebay_requests_queued", &[]).await, 0);
        assert_eq!(site.metric("forebay_requests_total", &["outcome=\"admission_refused\""]).await, 1);
    });
}

#[test]
fn who_waits_too_long_is_told_and_who_leaves_gives_its_place_back() {
    run(async {
        let site = limited(|settings| {
            settings.router.admission.concurrent = Some(1);
            settings.router.admission.queue_timeout = Duration::from_millis(50);
        })
        .await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let first = sent(&site).await;
        gate.wait_held(1).await;
        let late = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!((late.status(), late.header("x-forebay-failure").as_str()), (408, "router_queue_timeout"));
        drop(first);
        site.quiet().await;
        drop(gate);
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
    });
}

#[test]
fn a_worker_gets_no_more_requests_at_a_time_than_it_may_and_the_others_wait_in_order() {
    run(async {
        let site = Site::start_with(site::workers(2), PolicyKind::CacheAware, |settings| {
            settings.max_inflight_per_worker = 2;
            settings.router.admission.queue = 3;
        })
        .await;
        let gates = [0, 1].map(|i| site.workers[i].hold(Stage::BeforeHead));
        let mut waiting = Vec::new();
        for i in 0..4 {
            waiting.push(sent(&site).await);
            while site.in_flight(0) + site.in_flight(1) != i + 1 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(
            (site.in_flight(0), site.in_flight(1)),
            (2, 2),
            "the cached prefix weighs less than the bound"
        );
        let mut queued = Vec::new();
        for i in 0..3 {
            let mut client = site.client().await;
            let id = format!("late-{i}");
            client
                .send(&request("POST", "/v1/completions", &[("x-request-id", &id)], WHOLE.as_bytes()))
                .await;
            queued.push(client);
            wait_queued(&site, i + 1).await;
        }
        let refused = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!(refused.header("x-forebay-failure"), "router_overloaded");
        for left in (0..3).rev() {
            gates[1].release_one();
            wait_queued(&site, left).await;
        }
        drop(gates);
        for client in waiting.iter_mut().chain(&mut queued) {
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        let requests = site.workers[1].requests_to("/v1/completions");
        let ids = requests.iter().filter_map(|request| request.header("x-request-id"));
        let late: Vec<_> = ids.filter(|id| id.starts_with("late-")).collect();
        assert_eq!(late, ["late-0", "late-1", "late-2"]);
        site.quiet().await;
        assert_eq!(site.metric("forebay_requests_queued", &[]).await, 0);
    });
}

#[test]
fn who_waits_for_a_place_at_a_worker_may_leave_or_be_told_that_it_took_too_long() {
    run(async {
        let site = limited(|settings| {
            settings.max_inflight_per_worker = 1;
            settings.router.admission.queue_timeout = Duration::from_millis(50);
        })
        .await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let mut first = sent(&site).await;
        gate.wait_held(1).await;
        let gone = sent(&site).await;
        wait_queued(&site, 1).await;
        drop(gone);
        let late = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!((late.status(), late.header("x-forebay-failure").as_str()), (408, "router_queue_timeout"));
        wait_queued(&site, 0).await;
        drop(gate);
        assert_eq!(first.answer().await.unwrap().status(), 200);
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
        site.quiet().await;
    });
}

#[test]
fn whoever_leaves_the_line_without_a_place_does_not_keep_it_from_those_behind() {
    run(async {
        let site = limited(|settings| {
            settings.max_inflight_per_worker = 1;
            settings.breaker.failure_threshold = 1;
            settings.router.retry.enabled = false;
        })
        .await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let mut first = sent(&site).await;
        gate.wait_held(1).await;
        let mut waiting = Vec::new();
        for i in 0..4 {
            waiting.push(sent(&site).await);
            wait_queued(&site, i + 1).await;
        }
        // The first failure opens the breaker, and one of those who wait is the last resort's: the others are told.
        site.workers[0].fail_always(Fault::Status(502, String::new()));
        drop(gate);
        first.answer().await.unwrap();
        for client in &mut waiting {
            let answer = client.answer().await.unwrap();
            assert!(matches!(answer.status(), 502 | 503), "{}", answer.status());
        }
        site.quiet().await;
    });
}

#[test]
fn a_request_may_wait_for_a_worker() {
    run(async {
        let wait = Some(Duration::from_secs(30));
        let site = limited(|settings| settings.router.admission.no_worker_wait = wait).await;
        site.workers[0].refuse_connections().await;
        let mut client = sent(&site).await;
        site.wait_eligible(0, false).await;
        site.workers[0].accept().await;
        assert_eq!(client.answer().await.unwrap().status(), 200);
        site.quiet().await;
    });
}

#[test]
fn a_router_that_is_about_to_end_says_so_and_serves_until_it_does() {
    run(async {
        let site = limited(|settings| settings.drain.settle = Some(Duration::from_millis(300))).await;
        let mut client = site.client().await;
        assert_eq!(client.get("/readiness").await.status(), 200);
        let Site { workers, app } = site;
        let asking = async {
            let answer = loop {
                let answer = client.get("/readiness").await;
                if answer.status() == 503 {
                    break answer;
                }
            };
            assert_eq!(answer.json()["reason"], "the router is about to end");
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        };
        tokio::join!(app.shutdown(), asking);
        drop(workers);
    });
}

#[test]
fn what_does_not_end_in_time_is_cut_and_told() {
    run(async {
        let site = limited(|settings| settings.drain.timeout = Some(Duration::from_millis(50))).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(1));
        let early = site.workers[0].hold(Stage::BeforeHead);
        let (mut client, mut whole) = (site.client().await, site.client().await);
        let body = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;
        client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
        early.wait_held(1).await;
        early.release_one();
        gate.wait_held(1).await;
        whole.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        early.wait_held(1).await;
        let Site { workers, app } = site;
        let reader = app.reader().clone();
        app.shutdown().await;
        let text = client.answer().await.unwrap().text();
        assert!(text.ends_with("\"forebay\":{\"failure\":\"router_drained\"}}\n\n"), "{text}");
        let answer = whole.answer().await.unwrap();
        assert_eq!((answer.status(), answer.header("x-forebay-failure").as_str()), (503, "router_drained"));
        workers[0].wait_until(|stats| stats.aborted == 2).await;
        assert_eq!(reader.world().workers()[0].in_flight(), 0);
    });
}
