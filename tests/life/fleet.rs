//! Workers that come and go: refused connections, failing probes, readiness.

use forebay_policy::PolicyKind;
use forebay_tests::{Site, request, run, site};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

#[test]
fn a_worker_that_refuses_is_left_for_another_and_comes_back() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        site.workers[0].refuse_connections().await;
        let mut client = site.client().await;
        for _ in 0..6 {
            let answer = client.post("/v1/completions", WHOLE).await;
            assert_eq!((answer.status(), site::by(&answer).as_str()), (200, "w1"), "no client notices");
        }
        site.wait_eligible(0, false).await;
        // The first request met it, and none after that until a probe has looked.
        assert_eq!(site.metric("forebay_retries_total", &["unreachable"]).await, 1);
        assert_eq!(site.metric("forebay_worker_eligible", &[&site.workers[0].url()]).await, 0);
        site.workers[0].accept().await;
        site.wait_eligible(0, true).await;
        let mut chosen = vec![
            site::by(&client.post("/v1/completions", WHOLE).await),
            site::by(&client.post("/v1/completions", WHOLE).await),
        ];
        chosen.sort();
        assert_eq!(chosen, ["w0", "w1"]);
        site.quiet().await;
    });
}

#[test]
fn when_all_refuse_the_client_is_told_with_numbers() {
    run(async {
        let site = Site::start(2, PolicyKind::CacheAware).await;
        for worker in &site.workers {
            worker.refuse_connections().await;
        }
        let mut client = site.client().await;
        for _ in 0..3 {
            let answer = client.post("/v1/completions", WHOLE).await;
            let machine = &answer.json()["forebay"];
            assert_eq!((answer.status(), &machine["failure"]), (503, &"router_pool_exhausted".into()));
            assert_eq!((&machine["pool_size"], &machine["unhealthy"]), (&2.into(), &2.into()));
        }
        assert_eq!(site.metric("forebay_requests_total", &["pool_exhausted"]).await, 3);
        for (i, worker) in site.workers.iter().enumerate() {
            worker.accept().await;
            site.wait_eligible(i, true).await;
        }
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        site.quiet().await;
    });
}

#[test]
fn a_worker_whose_probes_fail_leaves_after_the_threshold_and_returns() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let probes = site.workers[0].requests_to("/health").len();
        site.workers[0].set_health(503);
        site.wait_eligible(0, false).await;
        let failed = site.workers[0].requests_to("/health").len() - probes;
        assert!((3..=4).contains(&failed), "three in a row, and one that may have been under way: {failed}");
        let mut client = site.client().await;
        for _ in 0..4 {
            assert_eq!(site::by(&client.post("/v1/completions", WHOLE).await), "w1");
        }
        site.workers[0].set_health(200);
        site.wait_eligible(0, true).await;
        let mut chosen = site.choices(2, |_| WHOLE.to_owned()).await;
        chosen.sort();
        assert_eq!(chosen, ["w0", "w1"]);
    });
}

#[test]
fn readiness_follows_the_workers_and_health_does_not() {
    run(async {
        let workers = site::workers(1);
        let change = |settings: &mut forebay::settings::Settings| settings.health.failure_threshold = 1;
        let site = Site::start_with(workers, PolicyKind::CacheAware, change).await;
        let mut client = site.client().await;
        let ready = client.get("/readiness").await;
        assert_eq!((ready.status(), &ready.json()["healthy_workers"]), (200, &1.into()));
        site.workers[0].set_health(503);
        site.wait_eligible(0, false).await;
        let answer = client.get("/readiness").await;
        assert_eq!((answer.status(), &answer.json()["healthy_workers"]), (503, &0.into()));
        assert_eq!(answer.json()["reason"], "no worker is healthy");
        assert_eq!(client.get("/health").await.status(), 200);
        client.send(&request("HEAD", "/readiness", &[], b"")).await;
        assert_eq!(client.answer_to("HEAD").await.unwrap().status(), 503);
        site.workers[0].set_health(200);
        site.wait_eligible(0, true).await;
        assert_eq!(client.get("/readiness").await.status(), 200);
    });
}

#[test]
fn without_workers_it_runs_and_says_so() {
    run(async {
        let site = Site::start(0, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        assert_eq!(client.get("/health").await.status(), 200);
        assert_eq!(client.get("/readiness").await.json()["reason"], "there are no workers");
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 503);
    });
}

#[test]
fn a_drained_worker_gets_no_more_requests_ends_those_it_has_and_leaves() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(forebay_sim::Stage::BeforeHead);
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], br#"{"prompt":"a","max_tokens":1}"#)).await;
        gate.wait_held(1).await;
        let mut admin = site.admin().await;
        assert_eq!(admin.post("/workers/7/drain", "").await.status(), 404);
        let answer = admin.post("/workers/0/drain", "").await;
        assert_eq!((answer.status(), &answer.json()["in_flight"]), (200, &1.into()));
        assert_eq!(admin.get("/workers").await.json()["workers"][0]["health"], "draining");
        let answer = admin.post("/workers/0/undrain", "").await;
        assert_eq!((answer.status(), &answer.json()["draining"]), (200, &false.into()));
        assert_eq!(admin.get("/workers").await.json()["workers"][0]["health"], "healthy");
        assert_eq!(admin.post("/workers/0/drain", "").await.status(), 200);
        let chosen = site.choices(4, |_| r#"{"prompt":"a","max_tokens":1}"#.to_owned()).await;
        assert!(chosen.iter().all(|name| name == "w1"), "{chosen:?}");
        assert_eq!(site.app.reader().world().workers().len(), 2, "it has a request still");
        drop(gate);
        assert_eq!(client.answer().await.unwrap().status(), 200);
        let world = site.app.reader().wait_for(|world| world.workers().len() == 1).await;
        assert_eq!(world.workers()[0].name(), site.workers[1].url());
        assert_eq!(admin.post("/workers/0/undrain", "").await.status(), 404, "it has left");
    });
}
