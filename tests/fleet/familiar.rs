//! Scripts that were written for vllm-router change the list of workers as they did there.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, FaultRule, Scope, Stage, When, WorkerOptions};
use forebay_tests::{Site, request, run, site, until};
use serde_json::json;

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

async fn post(site: &Site, target: &str) -> (u16, String) {
    let answer = site.client().await.post(target, "").await;
    (answer.status(), answer.text())
}

#[test]
fn a_worker_is_added_when_it_is_well_and_removed_at_once() {
    run(async {
        let mut site = Site::start(1, PolicyKind::RoundRobin).await;
        site.workers.push(site::worker(WorkerOptions::recording().named("w1")));
        let url = site.workers[1].url();
        let added = post(&site, &format!("/add_worker?url={url}")).await;
        assert_eq!(added, (200, format!("Successfully added worker: {url}")));
        let mut chosen = site.choices(2, |_| WHOLE.to_owned()).await;
        chosen.sort();
        assert_eq!(chosen, ["w0", "w1"], "it is chosen as soon as that is said");
        assert_eq!(
            post(&site, &format!("/add_worker?url={url}")).await,
            (400, format!("Worker {url} already exists"))
        );
        let list = site.client().await.get("/list_workers").await.json();
        assert_eq!(list, json!({"urls": [site.workers[0].url(), url]}));
        for _ in 0..2 {
            let removed = post(&site, &format!("/remove_worker?url={url}")).await;
            assert_eq!(removed, (200, format!("Successfully removed worker: {url}")), "also if it is gone");
        }
        assert_eq!(site.choices(2, |_| WHOLE.to_owned()).await, ["w0"; 2]);
        for target in ["/add_worker", "/add_worker?url=nonsense", "/remove_worker?uri=http://h:1"] {
            assert_eq!(post(&site, target).await.0, 400, "{target}");
        }
        assert_eq!(site.client().await.get("/add_worker?url=http://h:1").await.status(), 405);
    });
}

#[test]
fn a_worker_that_is_not_well_in_time_is_not_added() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
            settings.startup_timeout = std::time::Duration::from_millis(200);
        })
        .await;
        let ill = site::worker(WorkerOptions::recording());
        ill.set_health(503);
        let (status, text) = post(&site, &format!("/add_worker?url={}", ill.url())).await;
        assert_eq!((status, text.contains("Timeout 0.2s")), (400, true), "{text}");
        assert_eq!(site.app.reader().world().hosts().len(), 1);
    });
}

#[test]
fn a_worker_that_is_yet_to_get_well_does_not_hold_up_the_end_of_the_process() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let ill = site::worker(WorkerOptions::recording());
        ill.set_health(503);
        let mut client = site.client().await;
        client.send(&request("POST", &format!("/add_worker?url={}", ill.url()), &[], b"")).await;
        until("it is on the list", || site.app.reader().world().hosts().len() == 2).await;
        let Site { app, workers } = site;
        let (answer, ()) = tokio::join!(client.answer(), app.shutdown());
        let answer = answer.unwrap();
        assert_eq!((answer.status(), answer.text().contains("The router ended")), (400, true));
        drop(workers);
    });
}

#[test]
fn loads_are_the_routers_own() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        until("it is with the first", || site.in_flight(0) == 1).await;
        let told = site.client().await.get("/get_loads").await.json();
        let of = |i: usize, load: u32| json!({"worker": site.workers[i].url(), "load": load});
        assert_eq!(told, json!({"workers": [of(0, 1), of(1, 0)]}));
        drop(gate);
        assert_eq!(client.answer().await.unwrap().status(), 200);
    });
}

#[test]
fn a_flush_empties_workers_and_the_routers_own_trees_and_begins_no_trial() {
    run(async {
        let site = Site::start(2, PolicyKind::CacheAware).await;
        let long = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(2000));
        let reasons = async || {
            let report = site.admin().await.get("/admin/trial").await.json();
            (report["decisions"]["prefix_hit"].as_u64().unwrap_or(0), report["epoch"].as_u64().unwrap())
        };
        site.choices(2, |_| long.clone()).await;
        assert_eq!(reasons().await, (1, 1), "the second was a hit");
        assert_eq!(post(&site, "/flush_cache").await, (200, "Cache flushed on all servers".to_owned()));
        assert!(site.workers.iter().all(|worker| worker.cached_blocks() == 0));
        site.choices(1, |_| long.clone()).await;
        assert_eq!(reasons().await, (1, 1), "nobody is thought to hold it");
        // One that cannot is named, and nobody is believed to hold anything all the same.
        let scope = Scope::Path("/reset_prefix_cache".to_owned());
        let fault = Fault::Status(404, "{}".to_owned());
        site.workers.iter().for_each(|worker| {
            worker.add_fault(FaultRule { fault: fault.clone(), when: When::Always, scope: scope.clone() });
        });
        let (status, text) = post(&site, "/flush_cache").await;
        assert_eq!(status, 500);
        for worker in &site.workers {
            assert!(text.contains(&format!("{} no_endpoint", worker.url())), "{text}");
        }
        site.choices(1, |_| long.clone()).await;
        assert_eq!(reasons().await, (1, 1));
    });
}

#[test]
fn what_is_known_of_workers_and_models_is_told() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let info = client.get("/get_server_info").await.json();
        assert_eq!(info["servers"][1]["url"], site.workers[1].url());
        assert_eq!(info["servers"][1]["models"], json!(["tiny"]));
        assert_eq!(info["servers"][1]["version"], "0.33.0");
        let model = client.get("/get_model_info").await.json();
        assert_eq!(
            model,
            json!({"model_path": "models/tiny-llama", "served_model_name": "tiny", "max_model_len": 8192})
        );
    });
}
