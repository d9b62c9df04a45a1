//! Responses that one worker keeps are found, continued and deleted there, whichever worker that is.

use std::collections::BTreeSet;

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, FaultRule, Scope, When};
use forebay_tests::client::request;
use forebay_tests::raw::Raw;
use forebay_tests::site::{by, settings, start};
use forebay_tests::{Client, Site, run, until};

const PATH: &str = "/v1/responses";

/// A stored response: its id, and who has it.
async fn stored(client: &mut Client, more: &str) -> (String, String) {
    let answer =
        client.post(PATH, format!(r#"{{"input":"hi","store":true,"max_output_tokens":2{more}}}"#)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let text = answer.text();
    let id = text.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    (id.to_owned(), by(&answer))
}

/// Requests about responses that workers got.
fn asked(site: &Site) -> usize {
    let about = |requests: Vec<forebay_sim::Recorded>| {
        requests.iter().filter(|request| request.path().starts_with(PATH)).count()
    };
    site.workers.iter().map(|worker| about(worker.requests())).sum()
}

#[test]
fn a_response_is_asked_for_cancelled_and_deleted_where_it_is() {
    run(async {
        let site = Site::start(4, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let mut owners = BTreeSet::new();
        for _ in 0..8 {
            let (id, owner) = stored(&mut client, "").await;
            let got = client.get(&format!("{PATH}/{id}")).await;
            assert_eq!((got.status(), by(&got), got.json()["id"].as_str()), (200, owner.clone(), Some(&*id)));
            let cancelled = client.post(&format!("{PATH}/{id}/cancel"), "").await;
            assert_eq!((cancelled.status(), by(&cancelled)), (400, owner.clone()));
            let deleted = client.ask("DELETE", &format!("{PATH}/{id}"), &[], b"").await;
            assert_eq!((deleted.status(), by(&deleted)), (200, owner.clone()));
            let gone = client.get(&format!("{PATH}/{id}")).await;
            assert_eq!((gone.status(), gone.json()["error"]["type"].as_str()), (404, Some("NotFoundError")));
            owners.insert(owner);
        }
        assert_eq!(owners.len(), 4);
        site.quiet().await;
    });
}

#[test]
fn a_response_is_continued_where_it_is_even_if_nobody_remembers() {
    run(async {
        let site = Site::start(4, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for more in ["", r#","stream":true"#] {
            for round in 0..6 {
                let (id, owner) = stored(&mut client, more).await;
                // What was seen is forgotten by a reset, as all that policies know.
                if round % 2 == 1 {
                    assert_eq!(site.admin().await.post("/admin/reset", "").await.status(), 200);
                }
                let before = asked(&site);
                let next = format!(r#","previous_response_id":"{id}"{more}"#);
                assert_eq!(stored(&mut client, &next).await.1, owner);
                // Only who forgot asks around.
                assert_eq!(asked(&site) - before == 1, round % 2 == 0);
            }
        }
        // Nobody has it: any worker may say so.
        let body = r#"{"input":"hi","previous_response_id":"resp_none","max_output_tokens":1}"#;
        assert_eq!(client.post(PATH, body).await.status(), 200);
        site.quiet().await;
    });
}

#[test]
fn the_first_that_knows_it_answers_and_the_others_are_let_go() {
    run(async {
        let (mut one, mut two) = (Raw::start().await, Raw::start().await);
        let settings = settings(PolicyKind::RoundRobin, &[one.url(), two.url()]);
        let site = Site { app: start(&settings).await, workers: Vec::new() };
        let mut client = site.client().await;
        client.send(&request("GET", "/v1/responses/resp_1?stream=true", &[], b"")).await;
        // Both are asked before either answers.
        let (mut slow, mut quick) = tokio::join!(one.next(), two.next());
        assert!(slow.head.starts_with("GET /v1/responses/resp_1?stream=true HTTP/1.1\r\n"));
        quick.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine").await;
        assert_eq!(client.answer_to("GET").await.unwrap().text(), "mine");
        assert!(slow.rest().await.is_empty(), "its question was dropped");
        until("no load", || site.in_flight(0) + site.in_flight(1) == 0).await;
        // From now on it is known who has it.
        client.send(&request("GET", "/v1/responses/resp_1", &[], b"")).await;
        quick.came.clear();
        quick.read(1).await;
        quick.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine").await;
        assert_eq!(client.answer_to("GET").await.unwrap().text(), "mine");
        assert!(one.is_idle());
    });
}

#[test]
fn a_worker_that_is_busy_does_not_hide_the_one_that_has_it_and_one_that_dies_is_not_taken_for_a_no() {
    run(async {
        let (mut one, mut two) = (Raw::start().await, Raw::start().await);
        let settings = settings(PolicyKind::RoundRobin, &[one.url(), two.url()]);
        let site = Site { app: start(&settings).await, workers: Vec::new() };
        for (first, second, status) in [
            ("503 Busy", Some("200 OK"), 200),
            ("404 Not Found", Some("503 Busy"), 503),
            ("404 Not Found", None, 502),
        ] {
            let mut client = site.client().await;
            client.send(&request("DELETE", "/v1/responses/resp_1", &[], b"")).await;
            let (mut a, mut b) = tokio::join!(one.next(), two.next());
            a.send(format!("HTTP/1.1 {first}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")).await;
            match second {
                Some(second) => {
                    b.send(format!("HTTP/1.1 {second}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"))
                        .await;
                }
                None => drop(b),
            }
            assert_eq!(client.answer_to("DELETE").await.unwrap().status(), status);
        }
        until("no load", || site.in_flight(0) + site.in_flight(1) == 0).await;
    });
}

#[test]
fn a_response_whose_worker_is_away_is_not_told_to_be_unknown() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let (id, owner) = stored(&mut client, "").await;
        let path = format!("{PATH}/{id}");
        let keeper = usize::from(owner == "w1");
        let scope = Scope::Path(path.clone());
        site.workers[keeper].add_fault(FaultRule {
            fault: Fault::CloseBeforeHead,
            when: When::Always,
            scope,
        });
        assert_eq!(client.get(&path).await.header("x-forebay-failure"), "worker_died_before_headers");
        site.workers[keeper].clear_faults();
        site.workers[keeper].set_health(503);
        site.wait_eligible(keeper, false).await;
        let answer = client.get(&path).await;
        assert_eq!((answer.status(), &*answer.header("x-forebay-failure")), (503, "router_pool_exhausted"));
        site.workers[keeper].set_health(200);
        site.wait_eligible(keeper, true).await;
        assert_eq!(client.get(&path).await.status(), 200);
        // Nobody waits for a worker that is off the list.
        let gone = site.admin().await.ask("DELETE", &format!("/workers/{keeper}?force=true"), &[], b"").await;
        assert_eq!((gone.status(), client.get(&path).await.status()), (200, 404));
    });
}
