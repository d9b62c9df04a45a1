//! What a reset waits for, whom it holds meanwhile, and when it refuses.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, FaultRule, Scope, Stage, When};
use forebay_tests::{Client, Site, request, run, site};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":4}"#;
const STREAM: &str = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;

/// A stream that the worker has begun and holds.
async fn held_stream(site: &Site, id: &str) -> Client {
    let mut client = site.client().await;
    client.send(&request("POST", "/v1/completions", &[("x-request-id", id)], STREAM.as_bytes())).await;
    client.head().await.unwrap();
    client
}

async fn to_its_end(mut client: Client) {
    while client.chunk().await.unwrap().is_some() {}
}

/// Waits until a reset waits: another one is refused for that, and no more for what is in flight.
async fn until_a_reset_waits(admin: &mut Client) {
    while admin.post("/admin/reset", r#"{"require_idle":true}"#).await.json()["in_flight"].is_array() {}
}

#[test]
fn a_reset_that_requires_idleness_names_who_is_under_way_and_changes_nothing() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let gates: Vec<_> = site.workers.iter().map(|worker| worker.hold(Stage::AfterChunks(2))).collect();
        let first = held_stream(&site, "one").await;
        let second = held_stream(&site, "two").await;
        let mut admin = site.admin().await;
        let refused = admin.post("/admin/reset", r#"{"require_idle":true}"#).await;
        let json = refused.json();
        assert_eq!((refused.status(), &json["error"]["code"]), (409, &409.into()), "{json}");
        let list = json["in_flight"].as_array().unwrap();
        let told: Vec<_> = list
            .iter()
            .map(|request| (request["id"].as_str().unwrap(), request["worker"].as_str().unwrap()))
            .collect();
        assert_eq!(told, [("one", &*site.workers[0].url()), ("two", &*site.workers[1].url())]);
        assert!(list.iter().all(|request| request["route"] == "/v1/completions" && request["epoch"] == 1));
        assert!(list[0]["age_ms"].as_f64() >= list[1]["age_ms"].as_f64());
        assert_eq!(site.epoch(), 1);
        // Nobody is held any more.
        drop(gates);
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
        to_its_end(first).await;
        to_its_end(second).await;
        site.quiet().await;
        assert_eq!(
            admin.post("/admin/reset", r#"{"require_idle":true,"wait_idle_secs":5}"#).await.status(),
            200
        );
        assert_eq!(site.epoch(), 2);
    });
}

#[test]
fn a_reset_that_waits_holds_new_requests_and_they_start_in_the_new_trial() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(2));
        let old = held_stream(&site, "old").await;
        let mut admin = site.admin().await;
        let wait = br#"{"wait_idle_secs":30,"require_idle":true,"trial":"second"}"#;
        admin.send(&request("POST", "/admin/reset", &[], wait)).await;
        // Held requests reach no worker, so that there is nothing to wait for but that a second reset is refused.
        let mut other = site.admin().await;
        until_a_reset_waits(&mut other).await;
        let refused = other.post("/admin/reset", "").await.json();
        assert_eq!(refused["error"]["message"], "another reset is under way");
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
            waiting.push(client);
        }
        let own = site.client().await.get("/health").await;
        assert_eq!((own.status(), site.epoch()), (200, 1), "the router's own pages are not held");
        assert!(waiting.iter_mut().all(|client| !client.has_more()));
        drop(gate);
        let answer = admin.answer().await.unwrap();
        let json = answer.json();
        assert_eq!(
            (answer.status(), &json["epoch"], &json["trial"]),
            (200, &2.into(), &"second".into()),
            "{json}"
        );
        assert_eq!(json["previous"]["final"], true, "{json}");
        assert_eq!(json["previous"]["requests"]["outcomes"]["completed"], 1);
        let mut chosen = Vec::new();
        for client in &mut waiting {
            chosen.push(site::by(&client.answer().await.unwrap()));
        }
        chosen.sort();
        assert_eq!(chosen, ["w0", "w0", "w1", "w1"], "a fresh rotation");
        to_its_end(old).await;
        let new = admin.get("/admin/trial").await.json();
        assert_eq!(new["requests"]["ended"], 4, "{new}");
    });
}

#[test]
fn a_wait_for_idleness_ends_and_held_requests_go_on_either_way() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(2));
        let old = held_stream(&site, "old").await;
        let mut admin = site.admin().await;
        let refused = admin.post("/admin/reset", r#"{"wait_idle_secs":0.05,"require_idle":true}"#).await;
        assert_eq!((refused.status(), site.epoch()), (409, 1));
        let done = admin.post("/admin/reset", r#"{"wait_idle_secs":0.05}"#).await;
        assert_eq!((done.status(), site.epoch()), (200, 2), "not required, it goes on without");
        assert_eq!(done.json()["previous"]["final"], false);
        assert_eq!(done.json()["previous"]["requests"]["under_way"], 1);
        drop(gate);
        to_its_end(old).await;
        site.quiet().await;
        let old = admin.get("/admin/trials/1").await.json();
        assert_eq!((&old["final"], &old["requests"]["ended"]), (&true.into(), &1.into()), "in its own trial");
        let now = admin.get("/admin/trial").await.json();
        assert_eq!(now["reasons"][0]["code"], "requests_from_before", "{now}");
        assert_eq!(now["requests"]["ended"], 0);
    });
}

#[test]
fn whoever_asked_for_a_reset_and_left_calls_it_off() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(2));
        let old = held_stream(&site, "old").await;
        let mut admin = site.admin().await;
        admin.send(&request("POST", "/admin/reset", &[], br#"{"wait_idle_secs":600}"#)).await;
        let mut other = site.admin().await;
        until_a_reset_waits(&mut other).await;
        admin.reset();
        // The next one is not refused for long.
        while other.post("/admin/reset", r#"{"require_idle":true}"#).await.json()["in_flight"].is_null() {}
        drop(gate);
        to_its_end(old).await;
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
        assert_eq!(site.epoch(), 1);
    });
}

#[test]
fn a_reset_that_a_client_asked_for_is_done_before_the_process_ends() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(Stage::AfterChunks(2));
        let old = held_stream(&site, "old").await;
        // By the listener of clients: nobody waits for its answer where resets run.
        let mut operator = site.client().await;
        operator.send(&request("POST", "/admin/reset", &[], br#"{"wait_idle_secs":600}"#)).await;
        let mut admin = site.admin().await;
        until_a_reset_waits(&mut admin).await;
        let Site { workers, app } = site;
        let mut shutdown = std::pin::pin!(app.shutdown());
        tokio::select! {
            biased;
            () = &mut shutdown => panic!("it did not wait for the stream"),
            rest = admin.rest() => assert!(rest.is_empty(), "the idle connection is closed"),
        }
        gate.release();
        let (reset, (), ()) = tokio::join!(operator.answer(), to_its_end(old), shutdown);
        assert_eq!(reset.unwrap().json()["epoch"], 2);
        drop(workers);
    });
}

#[test]
fn workers_empty_their_prefix_caches_before_the_trial_begins() {
    run(async {
        let site = Site::start(3, PolicyKind::RoundRobin).await;
        let held = Fault::Status(200, r#"{"success":false}"#.to_owned());
        let rule =
            |fault, when| FaultRule { fault, when, scope: Scope::Path("/reset_prefix_cache".to_owned()) };
        site.workers[0].add_fault(rule(held, When::Next(2)));
        site.workers[1].add_fault(rule(Fault::Status(404, "{}".to_owned()), When::Always));
        let mut admin = site.admin().await;
        let answer = admin.post("/admin/reset", r#"{"reset_workers_prefix_cache":true}"#).await;
        let json = answer.json();
        assert_eq!(answer.status(), 200, "{json}");
        let said: Vec<_> = json["workers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|worker| {
                let said = &worker["prefix_cache"];
                (said["outcome"].as_str().unwrap().to_owned(), said["attempts"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(
            said,
            [("emptied".to_owned(), 3), ("no_endpoint".to_owned(), 1), ("emptied".to_owned(), 1)]
        );
        let report = admin.get("/admin/trial").await.json();
        assert_eq!(report["comparable"], false);
        assert_eq!(report["reasons"][0]["code"], "prefix_cache_not_emptied", "{report}");
        assert_eq!(report["reasons"][0]["detail"], site.workers[1].url());
        let answer = admin.post("/admin/reset", "").await.json();
        assert!(answer["workers"][0].get("prefix_cache").is_none(), "it was not asked for: {answer}");
        assert_eq!(answer["previous"]["epoch"], 2);
    });
}

#[test]
fn a_worker_that_holds_blocks_for_too_long_or_is_away_is_told_of() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let held = Fault::Status(200, r#"{"success":false}"#.to_owned());
        let rule = FaultRule {
            fault: held,
            when: When::Always,
            scope: Scope::Path("/reset_prefix_cache".to_owned()),
        };
        site.workers[0].add_fault(rule);
        site.workers[1].refuse_connections().await;
        let body = r#"{"reset_workers_prefix_cache":true,"wait_idle_secs":0.2}"#;
        let json = site.admin().await.post("/admin/reset", body).await.json();
        assert_eq!(json["workers"][0]["prefix_cache"]["outcome"], "blocks_held", "{json}");
        assert!(json["workers"][0]["prefix_cache"]["attempts"].as_u64() > Some(1));
        assert_eq!(json["workers"][1]["prefix_cache"]["outcome"], "unreachable", "{json}");
        assert_eq!(json["epoch"], 2, "the reset is done all the same, and its report says what was not");
    });
}

#[test]
fn a_worker_that_stands_still_does_not_hold_requests_for_ever() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let scope = Scope::Path("/reset_prefix_cache".to_owned());
        site.workers[0].add_fault(FaultRule { fault: Fault::NeverAnswer, when: When::Always, scope });
        let json =
            site.admin().await.post("/admin/reset", r#"{"reset_workers_prefix_cache":true}"#).await.json();
        let said = |worker: usize| json["workers"][worker]["prefix_cache"]["outcome"].clone();
        assert_eq!((said(0), said(1)), ("unreachable".into(), "emptied".into()), "{json}");
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
    });
}
