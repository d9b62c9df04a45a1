//! The list of workers: each says who it is, how it is, and what it is doing.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Lora, Stage, WorkerOptions};
use forebay_tests::scripted::Then;
use forebay_tests::{Scripted, Site, request, run, site, until};
use forebay_workers::Ranks;
use serde_json::{Value, json};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":4}"#;

async fn list(site: &Site) -> Value {
    let answer = site.admin().await.get("/workers").await;
    assert_eq!(answer.status(), 200);
    answer.json()
}

/// Waits until this holds of the list.
async fn list_when(site: &Site, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..20_000 {
        let list = list(site).await;
        if wanted(&list) {
            return list;
        }
    }
    panic!("waited in vain: {what}");
}

#[test]
fn a_worker_that_is_well_and_idle_says_who_it_is() {
    run(async {
        let lora = Lora { name: "tiny-lora".to_owned(), path: "/loras/tiny".to_owned() };
        let options =
            WorkerOptions { loras: vec![lora], version: "0.33.1".to_owned(), ..WorkerOptions::recording() };
        let site = Site::start_with(vec![site::worker(options)], PolicyKind::RoundRobin, |_| ()).await;
        let expected = json!({
            "epoch": 1, "total": 1,
            "workers": [{
                "id": 0, "url": site.workers[0].url(), "rank": null, "role": "regular",
                "health": "healthy", "breaker": "closed",
                "model": "tiny", "models": ["tiny", "tiny-lora"], "version": "0.33.1",
                "in_flight": 0, "pending_prefill_tokens": 0, "requests": 0,
            }],
        });
        assert_eq!(list(&site).await, expected);
    });
}

#[test]
fn loads_and_prefills_are_those_of_the_moment_and_requests_those_of_the_trial() {
    run(async {
        let site = Site::start(2, PolicyKind::CacheAware).await;
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let other = site.workers[1].hold(Stage::BeforeHead);
        let prompt = "word ".repeat(800);
        let body = format!(r#"{{"prompt":"{prompt}","max_tokens":4,"stream":true}}"#);
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
        until("it is with a worker", || site.in_flight(0) + site.in_flight(1) == 1).await;
        let busy = list(&site).await;
        let at = usize::from(site.in_flight(1) == 1);
        let of = |list: &Value, name: &str| [0, 1].map(|i| list["workers"][i][name].as_u64().unwrap());
        assert_eq!(of(&busy, "in_flight")[at], 1, "{busy}");
        assert_eq!(of(&busy, "in_flight")[1 - at], 0, "{busy}");
        assert!(of(&busy, "pending_prefill_tokens")[at] > 500, "{busy}");
        assert_eq!(of(&busy, "pending_prefill_tokens")[1 - at], 0);
        assert_eq!(of(&busy, "requests")[at], 1);
        site.admin().await.post("/admin/reset", "").await;
        let next = list(&site).await;
        assert_eq!(next["epoch"], 2);
        assert_eq!(
            (of(&next, "in_flight"), of(&next, "requests")),
            (of(&busy, "in_flight"), [0, 0]),
            "{next}"
        );
        drop((gate, other));
        assert_eq!(client.answer().await.unwrap().status(), 200);
        site.quiet().await;
        let idle = list_when(&site, "nothing is under way", |list| of(list, "in_flight") == [0, 0]).await;
        assert_eq!((of(&idle, "pending_prefill_tokens"), of(&idle, "requests")), ([0, 0], [0, 0]), "{idle}");
    });
}

#[test]
fn who_fails_is_down_or_drains_is_told_so() {
    run(async {
        let site = Site::start_with(site::workers(3), PolicyKind::RoundRobin, |settings| {
            settings.breaker.failure_threshold = 1;
            settings.health.failure_threshold = 1;
        })
        .await;
        site.workers[0].fail_next(1, Fault::Status(502, "{}".to_owned()));
        site.choices(1, |_| WHOLE.to_owned()).await;
        site.workers[1].set_health(500);
        site.wait_eligible(1, false).await;
        let gate = site.workers[2].hold(Stage::BeforeHead);
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        until("it is with the last", || site.in_flight(2) == 1).await;
        site.admin().await.post("/workers/2/drain", "").await;
        let now = list(&site).await;
        let told = |name: &str| [0, 1, 2].map(|i| now["workers"][i][name].as_str().unwrap().to_owned());
        assert_eq!(told("health"), ["healthy", "unhealthy", "draining"], "{now}");
        assert_eq!(told("breaker"), ["open", "closed", "closed"]);
        drop(gate);
        assert_eq!(client.answer().await.unwrap().status(), 200);
    });
}

#[test]
fn ranks_are_workers_of_one_number_and_names_are_null_where_a_worker_will_not_say() {
    run(async {
        let options = WorkerOptions::recording().with_ranks(2);
        let site = Site::start_with(vec![site::worker(options)], PolicyKind::RoundRobin, |settings| {
            settings.ranks = forebay_discovery::RankCount::Given(Ranks::first(2).unwrap());
        })
        .await;
        let ranked = list(&site).await;
        assert_eq!(ranked["total"], 2);
        let who = |i: usize| (ranked["workers"][i]["id"].clone(), ranked["workers"][i]["rank"].clone());
        assert_eq!((who(0), who(1)), ((0.into(), 0.into()), (0.into(), 1.into())), "{ranked}");

        let mute = Scripted::start("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Then::Keep).await;
        let settings = site::settings(PolicyKind::RoundRobin, &[mute.url()]);
        let app = site::start(&settings).await;
        let site = Site { app, workers: Vec::new() };
        let worker = list(&site).await["workers"][0].take();
        assert_eq!(
            (&worker["model"], &worker["models"], &worker["version"]),
            (&Value::Null, &Value::Null, &Value::Null),
            "{worker}"
        );
    });
}
