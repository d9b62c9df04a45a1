//! Orders to whole workers: all of them are told, one answer is made of theirs, and beliefs follow.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, FaultRule, Scope, When};
use forebay_tests::{Site, run, site};
use forebay_workers::By;

fn fails(path: &str, fault: Fault) -> FaultRule {
    FaultRule { fault, when: When::Always, scope: Scope::Path(path.to_owned()) }
}

#[test]
fn all_workers_are_told_and_their_answers_are_one() {
    run(async {
        let site = Site::start(3, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let answer = client.ask("POST", "/sleep?level=2", &[("x-note", "n")], b"").await;
        let json = answer.json();
        assert_eq!((answer.status(), &json["success"]), (200, &true.into()), "{json}");
        for (i, worker) in site.workers.iter().enumerate() {
            let part = &json["workers"][i];
            assert_eq!((&part["url"], &part["status"]), (&worker.url().into(), &200.into()));
            assert_eq!(part["body"]["level"], 2);
            let told = worker.requests_to("/sleep");
            assert_eq!(
                (told.len(), told[0].target.as_str(), told[0].header("x-note")),
                (1, "/sleep?level=2", Some("n"))
            );
        }
        site.quiet().await;
    });
}

#[test]
fn one_that_fails_makes_the_answer_a_failure_that_names_it() {
    run(async {
        let site = Site::start(3, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        for (fault, status) in [
            (Fault::Status(500, r#"{"detail":"no"}"#.to_owned()), 500),
            (Fault::CloseBeforeHead, 0),
            (Fault::Garbage, 0),
            (Fault::Status(404, "not json".to_owned()), 404),
            // As vLLM says of a prefix cache that it could not empty.
            (Fault::Status(200, r#"{"success":false}"#.to_owned()), 200),
        ] {
            site.workers[1].add_fault(fails("/reset_mm_cache", fault.clone()));
            let answer = client.post("/reset_mm_cache", "").await;
            let json = answer.json();
            assert_eq!((answer.status(), &json["success"]), (502, &false.into()), "{fault:?}");
            let statuses: Vec<_> = (0..3).map(|i| json["workers"][i]["status"].clone()).collect();
            assert_eq!(statuses, [200, status, 200], "{fault:?}");
            assert_eq!(json["workers"][1]["error"].is_string(), status == 0, "{json}");
            site.workers[1].clear_faults();
        }
        site.workers[1].refuse_connections().await;
        let mut fresh = site.client().await;
        let answer = fresh.post("/reset_encoder_cache", "").await;
        assert!(answer.status() == 502 || site.workers[1].requests_to("/reset_encoder_cache").len() == 1);
        site.quiet().await;
    });
}

#[test]
fn a_header_addresses_one_worker() {
    run(async {
        let site = Site::start(3, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let target = site.workers[1].url();
        let answer = client.ask("POST", "/reset_prefix_cache", &[("x-forebay-worker", &target)], b"").await;
        assert_eq!((answer.status(), answer.json()["workers"].as_array().unwrap().len()), (200, 1));
        let told: Vec<_> =
            site.workers.iter().map(|worker| worker.requests_to("/reset_prefix_cache").len()).collect();
        assert_eq!(told, [0, 1, 0]);
        let answer = client.ask("POST", "/sleep", &[("x-forebay-worker", "http://nobody:1")], b"").await;
        assert_eq!(
            (answer.status(), answer.header("x-forebay-failure").as_str()),
            (400, "router_target_needed")
        );
        let answer = client.post("/scale_elastic_ep", "{}").await;
        assert_eq!(
            (answer.status(), answer.header("x-forebay-failure").as_str()),
            (400, "router_target_needed")
        );
        assert!(site.workers.iter().all(|worker| worker.requests_to("/sleep").is_empty()));
    });
}

/// A long prompt that makes cache_aware stay where it was.
const PROMPT: &str = "the head of water is kept even at all times, whatever the river brings; ";

fn long(tail: &str) -> String {
    format!(r#"{{"prompt":"{}{tail}","max_tokens":1}}"#, PROMPT.repeat(20))
}

#[test]
fn a_prefix_cache_that_was_emptied_is_not_believed_in_any_more() {
    run(async {
        let site = Site::start(2, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let hits = async || site.metric("forebay_policy_decisions_total", &["prefix_hit"]).await;
        let home = site::by(&client.post("/v1/completions", long("1")).await);
        assert_eq!(site::by(&client.post("/v1/completions", long("2")).await), home);
        let before = hits().await;
        assert!(before >= 1, "{}", site.metrics().await);
        assert_eq!(client.post("/reset_prefix_cache", "").await.status(), 200);
        client.post("/v1/completions", long("3")).await;
        assert_eq!(hits().await, before, "nobody holds it now");
        client.post("/v1/completions", long("4")).await;
        assert_eq!(hits().await, before + 1, "it is learnt again");
    });
}

#[test]
fn a_prefix_cache_that_could_not_be_emptied_is_still_believed_in() {
    run(async {
        let site = Site::start(2, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        client.post("/v1/completions", long("1")).await;
        for refusal in
            [Fault::Status(500, "{}".to_owned()), Fault::Status(200, r#"{"success":false}"#.to_owned())]
        {
            for worker in &site.workers {
                worker.clear_faults();
                worker.add_fault(fails("/reset_prefix_cache", refusal.clone()));
            }
            client.post("/reset_prefix_cache", "").await;
            let before = site.metric("forebay_policy_decisions_total", &["prefix_hit"]).await;
            client.post("/v1/completions", long("2")).await;
            let after = site.metric("forebay_policy_decisions_total", &["prefix_hit"]).await;
            assert_eq!(after, before + 1, "{refusal:?}");
        }
    });
}

#[test]
fn an_adapter_that_was_loaded_is_served_at_once() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let ask = r#"{"model":"new","prompt":"x","max_tokens":1}"#;
        assert_eq!(client.post("/v1/completions", ask).await.status(), 404);
        let load = r#"{"lora_name":"new","lora_path":"/loras/new"}"#;
        assert_eq!(client.post("/v1/load_lora_adapter", load).await.status(), 200);
        // The model list is read again at once, not after the usual half minute.
        site.app.reader().wait_for(|world| world.pool(By::Rank, Some("new")).is_ok()).await;
        assert_eq!(client.post("/v1/completions", ask).await.status(), 200);
    });
}
