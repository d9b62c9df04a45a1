//! Models come and go at run time, and requests for each go where it is served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_discovery::RankCount;
use forebay_policy::PolicyKind;
use forebay_sim::{Worker, WorkerOptions};
use forebay_tests::{Site, run, site, until};
use tokio::task::JoinSet;

fn serving(names: &[&str]) -> Vec<Worker> {
    let workers = names.iter().enumerate().map(|(i, model)| {
        let options = WorkerOptions::recording().named(format!("w{i}"));
        site::worker(WorkerOptions { model: (*model).to_owned(), root: format!("models/{model}"), ..options })
    });
    workers.collect()
}

fn body(model: &str) -> String {
    format!(r#"{{"model":"{model}","prompt":"a","max_tokens":2}}"#)
}

/// Models are read again so seldom that only what is learnt from requests counts.
async fn site_of(names: &[&str], refresh: Duration) -> Site {
    Site::start_with(serving(names), PolicyKind::RoundRobin, |settings| settings.model_refresh = refresh)
        .await
}

const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn workers_of_several_base_models_each_get_requests_for_their_own() {
    run(async {
        let site = site_of(&["small", "large", "large"], NEVER).await;
        assert_eq!(site.choices(2, |_| body("small")).await, ["w0", "w0"]);
        let mut chosen = site.choices(4, |_| body("large")).await;
        chosen.sort();
        assert_eq!(chosen, ["w1", "w1", "w2", "w2"]);
        let mut client = site.client().await;
        let unnamed = client.post("/v1/completions", r#"{"prompt":"a","max_tokens":2}"#).await;
        assert_eq!(unnamed.status(), 400, "nobody knows which is meant: {}", unnamed.text());
        assert_eq!(client.post("/v1/completions", body("medium")).await.status(), 404);
        let list = client.get("/v1/models").await.json();
        let names: Vec<_> =
            list["data"].as_array().unwrap().iter().map(|entry| entry["id"].clone()).collect();
        assert_eq!(names, ["small", "large"]);
    });
}

#[test]
fn adapters_that_are_loaded_through_the_router_are_known_at_once_and_gone_at_once() {
    run(async {
        let site = site_of(&["tiny", "tiny"], NEVER).await;
        let mut client = site.client().await;
        assert_eq!(client.post("/v1/completions", body("poet")).await.status(), 404);
        let load = r#"{"lora_name":"poet","lora_path":"/loras/poet"}"#;
        assert_eq!(client.post("/v1/load_lora_adapter", load).await.status(), 200);
        site.wait_serves(0, "poet", true).await;
        site.wait_serves(1, "poet", true).await;
        assert_eq!(site.choices(2, |_| body("poet")).await.len(), 2);
        assert_eq!(client.post("/v1/completions", body("poet")).await.status(), 200);
        assert_eq!(client.post("/v1/unload_lora_adapter", r#"{"lora_name":"poet"}"#).await.status(), 200);
        site.wait_serves(0, "poet", false).await;
        site.wait_serves(1, "poet", false).await;
        assert_eq!(client.post("/v1/completions", body("poet")).await.status(), 404);
    });
}

#[test]
fn adapters_that_are_loaded_elsewhere_are_known_from_the_next_refresh_on() {
    run(async {
        // Probes are so rare that they do not do it.
        let site = Site::start_with(serving(&["tiny"]), PolicyKind::RoundRobin, |settings| {
            settings.health.interval = Duration::from_secs(3600);
            settings.model_refresh = Duration::from_millis(100);
        })
        .await;
        let mut worker = forebay_tests::Client::connect(&site.workers[0].url()).await;
        let load = r#"{"lora_name":"poet","lora_path":"/loras/poet"}"#;
        assert_eq!(worker.post("/v1/load_lora_adapter", load).await.status(), 200);
        site.wait_serves(0, "poet", true).await;
        assert_eq!(site.choices(1, |_| body("poet")).await, ["w0"]);
    });
}

#[test]
fn a_name_that_a_worker_does_not_know_any_more_is_asked_for_elsewhere_once_and_the_worker_is_read_anew() {
    run(async {
        let site = site_of(&["tiny", "tiny", "tiny"], NEVER).await;
        site.workers[0].swap("other");
        let mut client = site.client().await;
        assert_eq!(site::by(&client.post("/v1/completions", body("tiny")).await), "w1", "asked there next");
        site.wait_serves(0, "other", true).await;
        assert_eq!(site.choices(1, |_| body("other")).await, ["w0"]);
        assert_eq!(site.metric("forebay_retries_total", &[r#"reason="unserved""#]).await, 1);
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 2);
        // Both others go at the same time: one more is asked, and its refusal is the answer.
        site.workers[1].swap("other");
        site.workers[2].swap("other");
        let refused = client.post("/v1/completions", body("tiny")).await;
        assert_eq!(refused.status(), 404, "{}", refused.text());
        assert!(refused.text().contains("The model `tiny` does not exist"));
        site.wait_serves(1, "other", true).await;
        site.wait_serves(2, "other", true).await;
        assert_eq!(client.post("/v1/completions", body("tiny")).await.status(), 404);
        let asked: usize = site.workers[1..].iter().map(|w| w.requests_to("/v1/completions").len()).sum();
        assert_eq!(asked, 3, "one answer, two refusals; the last request was the router's to refuse");
    });
}

#[test]
fn other_refusals_of_a_worker_are_the_answer() {
    run(async {
        let site = site_of(&["tiny", "tiny"], NEVER).await;
        for worker in &site.workers {
            worker.fail_next(1, forebay_sim::Fault::Status(404, r#"{"detail":"Not Found"}"#.to_owned()));
        }
        let mut client = site.client().await;
        assert_eq!(client.post("/v1/completions", body("tiny")).await.status(), 404);
        let asked: usize =
            site.workers.iter().map(|worker| worker.requests_to("/v1/completions").len()).sum();
        assert_eq!(asked, 1);
    });
}

/// Names that are asked for in the course of a swap.
const BOTH: [&str; 2] = ["stays", "goes"];

#[test]
fn a_worker_that_is_swapped_under_traffic_costs_no_client_an_answer_whose_model_still_has_a_worker() {
    run(async {
        // The last one turns from one model to the other and back, again and again.
        let site = Arc::new(site_of(&["stays", "goes", "goes"], NEVER).await);
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut clients = JoinSet::new();
        for number in 0..8 {
            let (site, stop, sent) = (Arc::clone(&site), Arc::clone(&stop), Arc::clone(&sent));
            clients.spawn(async move {
                let mut client = site.client().await;
                let name = BOTH[number % 2];
                let mut by = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.post("/v1/completions", body(name)).await;
                    assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
                    assert_eq!(answer.json()["model"], name);
                    by.insert(site::by(&answer));
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                (name, by)
            });
        }
        for round in 0..6 {
            let name = BOTH[round % 2];
            let before = sent.load(Ordering::Relaxed);
            site.workers[2].swap(name);
            site.wait_serves(2, name, true).await;
            until("some requests more", || sent.load(Ordering::Relaxed) > before + 200).await;
        }
        // From the refresh on nobody asks it for what it has no more.
        site.workers[2].swap("stays");
        site.wait_serves(2, "stays", true).await;
        site.wait_serves(2, "goes", false).await;
        let _older = site.workers[2].take_requests();
        let before = sent.load(Ordering::Relaxed);
        until("requests after the refresh", || sent.load(Ordering::Relaxed) > before + 200).await;
        stop.store(true, Ordering::Relaxed);
        let mut by = BTreeMap::<&str, BTreeSet<String>>::new();
        while let Some(ended) = clients.join_next().await {
            let (name, of_one) = ended.unwrap();
            by.entry(name).or_default().extend(of_one);
        }
        assert_eq!(Vec::from_iter(&by["stays"]), ["w0", "w2"]);
        assert_eq!(Vec::from_iter(&by["goes"]), ["w1", "w2"]);
        let late = site.workers[2].requests_to("/v1/completions");
        let wrong = late.iter().filter(|request| String::from_utf8_lossy(&request.body).contains("goes"));
        // What was chosen before the refresh may come after it: at most one of each client.
        assert!(wrong.count() <= 4, "after the refresh");
        site.quiet().await;
        assert_eq!(site.metric("forebay_policy_invariant_violations_total", &[]).await, 0);
    });
}

#[test]
fn all_ranks_of_a_worker_that_has_another_model_are_left_alone() {
    run(async {
        let options = WorkerOptions::recording().named("w0").with_ranks(4);
        let workers = vec![site::worker(options), site::worker(WorkerOptions::recording().named("w1"))];
        let site = Site::start_with(workers, PolicyKind::RoundRobin, |settings| {
            settings.model_refresh = NEVER;
            settings.ranks = RankCount::Asked;
        })
        .await;
        site.app.reader().wait_for(|world| world.workers().len() == 5).await;
        site.workers[0].swap("other");
        let mut client = site.client().await;
        while site.workers[0].requests_to("/v1/completions").is_empty() {
            let answer = client.post("/v1/completions", body("tiny")).await;
            assert_eq!((answer.status(), site::by(&answer).as_str()), (200, "w1"), "{}", answer.text());
        }
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 1);
    });
}

#[test]
fn a_worker_that_is_replaced_under_traffic_by_one_with_another_model_costs_no_client_an_answer() {
    run(async {
        let mut workers = serving(&["stays", "stays", "late"]);
        let newcomer = workers.remove(2);
        let site = Site::start_with(workers, PolicyKind::RoundRobin, |settings| {
            settings.model_refresh = NEVER;
        });
        let site = Arc::new(site.await);
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..8 {
            let (site, stop, sent) = (Arc::clone(&site), Arc::clone(&stop), Arc::clone(&sent));
            clients.spawn(async move {
                let mut client = site.client().await;
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.post("/v1/completions", body("stays")).await;
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = async || {
            let before = sent.load(Ordering::Relaxed);
            until("some requests more", || sent.load(Ordering::Relaxed) > before + 200).await;
        };
        more().await;
        let mut admin = site.admin().await;
        let added = admin.post("/workers", format!(r#"{{"url":"{}"}}"#, newcomer.url())).await;
        assert_eq!(added.status(), 201, "{}", added.text());
        site.wait_serves(2, "late", true).await;
        let removed = admin.ask("DELETE", "/workers/1", &[], b"").await.status();
        assert!(removed == 200 || removed == 202, "{removed}");
        site.app.reader().wait_for(|world| world.hosts().len() == 2).await;
        let _before = site.workers[1].take_requests();
        more().await;
        let late = site.client().await.post("/v1/completions", body("late")).await;
        assert_eq!((late.status(), site::by(&late).as_str()), (200, "w2"));
        stop.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        assert_eq!(site.workers[1].requests_to("/v1/completions").len(), 0, "it is off the list");
        assert_eq!(newcomer.requests_to("/v1/completions").len(), 1, "it is asked for its own model alone");
    });
}
