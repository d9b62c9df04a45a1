//! Workers with roles that come and go at run time.

use std::time::Duration;

use forebay::admin::MetricsPrefix;
use forebay_pd::Connector;
use forebay_sim::PairRole;
use forebay_tests::{run, site};
use serde_json::json;

use crate::setting::{ONE_EACH, Shape, completion};

#[test]
fn a_worker_that_comes_takes_its_part_of_pairs_and_one_that_goes_leaves_them_to_others() {
    run(async {
        let mut setting = ONE_EACH.start().await;
        let second = site::worker(ONE_EACH.options(PairRole::Prefill, &setting.exchange));
        let url = second.url();
        setting.site.workers.push(second);
        let site = &setting.site;
        let mut admin = site.admin().await;
        for role in ["regular", "decode"] {
            let body = json!({"url": url, "role": role, "bootstrap_port": 8998}).to_string();
            assert_eq!(admin.post("/workers", body).await.status(), 400, "{role}");
        }
        let added = admin.post("/workers", json!({"url": url, "role": "prefill"}).to_string()).await;
        assert_eq!((added.status(), &added.json()["role"]), (201, &"prefill".into()));
        let clash = admin.post("/workers", json!({"url": url, "role": "decode"}).to_string()).await;
        assert_eq!(clash.status(), 409, "it has a role already");
        site.app.reader().wait_for(|world| world.hosts()[2].workers()[0].eligible()).await;
        assert_eq!(admin.ask("DELETE", "/workers/0", &[], b"").await.status(), 200);
        let mut client = site.client().await;
        let answer = client.post("/v1/completions", completion("a prompt", 3, false)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let prefills = |i: usize| site.workers[i].requests_to("/v1/completions").len();
        assert_eq!((prefills(0), prefills(2)), (0, 1));
        assert_eq!(setting.pairs("handed_over").await, 1);
        setting.no_violation();
    });
}

#[test]
fn a_worker_that_would_be_in_no_pair_is_refused_with_the_reason() {
    run(async {
        let refused = async |connector: Connector, role: &str| {
            let setting = ONE_EACH.by(connector).start().await;
            let body = json!({"url": "http://127.0.0.1:9", "role": role}).to_string();
            let answer = setting.site.admin().await.post("/workers", body).await;
            (answer.status(), answer.text())
        };
        let (status, problem) = refused(Connector::Lmcache, "decode").await;
        assert_eq!(status, 400, "{problem}");
        assert!(problem.contains("http://127.0.0.1:9 is not in --decoder-registry"), "{problem}");
        assert_eq!(refused(Connector::Lmcache, "prefill").await.0, 201);
        for role in ["prefill", "decode"] {
            let (status, problem) = refused(Connector::Nccl, role).await;
            assert_eq!(status, 400, "{problem}");
            assert!(problem.contains("announce themselves at --vllm-discovery-address"), "{problem}");
        }
    });
}

#[test]
fn a_leg_whose_worker_has_another_model_is_asked_for_elsewhere_and_the_worker_is_read_anew() {
    run(async {
        for gone in [0, 2] {
            let two_each = Shape { prefills: 2, decodes: 2, ..ONE_EACH };
            let setting = two_each
                .start_with(|_| (), |settings| settings.model_refresh = Duration::from_secs(3600))
                .await;
            let site = &setting.site;
            site.workers[gone].swap("other");
            let mut client = site.client().await;
            let mut asked = 0;
            while site.workers[gone].requests_to("/v1/completions").is_empty() {
                asked += 1;
                assert!(asked < 20, "it is chosen some time");
                let answer = client.post("/v1/completions", completion("a prompt", 3, false)).await;
                assert_eq!(answer.status(), 200, "{}", answer.text());
            }
            site.wait_serves(gone, "other", true).await;
            for _ in 0..4 {
                assert_eq!(client.post("/v1/completions", completion("b", 3, false)).await.status(), 200);
            }
            assert_eq!(site.workers[gone].requests_to("/v1/completions").len(), 1);
            assert_eq!(setting.pairs("handed_over").await, asked + 4);
            site.quiet().await;
        }
    });
}

#[test]
fn dashboards_that_were_made_for_vllm_router_find_the_legs_by_worker() {
    run(async {
        let prefix = MetricsPrefix::VllmRouter;
        let setting = ONE_EACH.start_with(|_| (), |settings| settings.metrics_prefix = prefix).await;
        let mut client = setting.site.client().await;
        assert_eq!(client.post("/v1/completions", completion("a", 3, false)).await.status(), 200);
        for (leg, worker) in [("prefill", 0), ("decode", 1)] {
            let family = format!("vllm_router_pd_{leg}_requests_total");
            let of_worker = format!(r#"worker="{}""#, setting.site.workers[worker].url());
            assert_eq!(setting.site.metric(&family, &[]).await, 1, "{leg}");
            assert_eq!(setting.site.metric(&family, &[&of_worker]).await, 1, "{leg}");
        }
    });
}

#[test]
fn prefill_workers_alone_are_not_ready() {
    run(async {
        let setting = ONE_EACH.start_with(|_| (), |settings| settings.health.failure_threshold = 1).await;
        let mut client = setting.site.client().await;
        assert_eq!(client.get("/readiness").await.status(), 200);
        setting.decode(0).set_health(500);
        setting.site.wait_eligible(1, false).await;
        let page = client.get("/readiness").await;
        let told = page.json();
        assert_eq!((page.status(), &told["status"]), (503, &"not_ready".into()), "{told}");
        assert_eq!(told["reason"], "no decode worker can be chosen: nobody would answer");
        assert_eq!((&told["healthy_workers"], &told["total_workers"]), (&1.into(), &2.into()));
        let answer = client.post("/v1/completions", completion("a prompt", 3, false)).await;
        assert_eq!(answer.header("x-forebay-failure"), "router_pool_exhausted");
    });
}
