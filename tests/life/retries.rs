//! Answers that are worth another worker, and those that are not.

use std::time::Instant;

use forebay::App;
use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_sim::{Fault, FaultRule, Scope, Stage, When};
use forebay_tests::scripted::Then;
use forebay_tests::{Client, Scripted, Site, request, run, site};

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

fn seen(site: &Site) -> Vec<usize> {
    site.workers.iter().map(|worker| worker.requests_to("/v1/completions").len()).collect()
}

/// Each failure of a worker opens its breaker.
fn strict(settings: &mut Settings) {
    settings.breaker.failure_threshold = 1;
}

#[test]
fn a_bad_answer_is_left_for_a_better_one() {
    run(async {
        let faults = [
            Fault::Status(502, String::new()),
            Fault::Status(504, String::new()),
            Fault::QueueOverflow,
            Fault::TooManyRequests,
            Fault::InternalError,
        ];
        for fault in faults {
            let site = Site::start(2, PolicyKind::RoundRobin).await;
            site.workers[0].fail_next(1, fault.clone());
            let answer = site.client().await.post("/v1/completions", WHOLE).await;
            assert_eq!((answer.status(), site::by(&answer).as_str()), (200, "w1"), "{fault:?}");
            assert_eq!(site.metric("forebay_retries_total", &[]).await, 1);
            site.quiet().await;
        }
    });
}

#[test]
fn a_worker_whose_bad_answer_has_come_has_nothing_under_way_while_another_one_is_asked() {
    run(async {
        for (fault, breaker) in
            [(Fault::Status(502, String::new()), 1), (Fault::QueueOverflow, 0), (Fault::InternalError, 0)]
        {
            let site = Site::start_with(site::workers(2), PolicyKind::RoundRobin, strict).await;
            site.workers[0].fail_next(1, fault.clone());
            let gate = site.workers[1].hold(Stage::BeforeHead);
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
            gate.wait_held(1).await;
            assert_eq!((site.in_flight(0), site.in_flight(1)), (0, 1), "{fault:?}");
            let name = site.workers[0].url();
            assert_eq!(site.metric("forebay_breaker_state", &[&name]).await, breaker, "{fault:?}");
            drop(gate);
            assert_eq!(client.answer().await.unwrap().status(), 200);
            site.quiet().await;
        }
    });
}

#[test]
fn a_refusal_that_breaks_off_is_none() {
    run(async {
        let broken = "HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\nnothing";
        let broken = Scripted::start(broken, Then::Close).await;
        let worker = site::worker(forebay_sim::WorkerOptions::recording().named("w0"));
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[broken.url(), worker.url()])).await;
        for _ in 0..4 {
            let answer = Client::connect(&app.url()).await.get("/v1/unknown").await;
            assert_ne!(answer.text(), "nothing");
        }
        assert!(broken.requests() > 0);
    });
}

#[test]
fn if_all_answers_are_bad_the_client_gets_the_last_one_as_it_was() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        site.workers[0].fail_next(1, Fault::Status(502, "first".to_owned()));
        site.workers[1].fail_next(1, Fault::Status(504, "second".to_owned()));
        let answer = site.client().await.post("/v1/completions", WHOLE).await;
        assert_eq!((answer.status(), answer.text().as_str()), (504, "second"));
        assert_eq!(answer.header("x-forebay-failure"), "");
        assert_eq!(seen(&site), [1, 1]);
        site.quiet().await;
    });
}

#[test]
fn a_busy_fleet_is_asked_again_after_a_wait_and_no_more_often_than_allowed() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        for worker in &site.workers {
            worker.fail_next(1, Fault::QueueOverflow);
        }
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
        let before: usize = seen(&site).iter().sum();
        assert_eq!(before, 3);
        for worker in &site.workers {
            worker.fail_next(100, Fault::QueueOverflow);
        }
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 503);
        assert_eq!(seen(&site).iter().sum::<usize>() - before, 5, "attempts in all");
        site.quiet().await;
    });
}

#[test]
fn a_request_that_every_worker_fails_is_charged_itself() {
    run(async {
        let site = Site::start_with(site::workers(3), PolicyKind::RoundRobin, strict).await;
        for worker in &site.workers {
            worker.fail_next(100, Fault::InternalError);
        }
        for _ in 0..5 {
            assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 500);
        }
        assert_eq!(seen(&site).iter().sum::<usize>(), 10, "one other worker is asked, to tell");
        assert_eq!(site.metric("forebay_breaker_transitions_total", &["to=\"open\""]).await, 0);
    });
}

#[test]
fn a_worker_is_charged_if_another_one_does_better_or_there_is_none() {
    run(async {
        let site = Site::start_with(site::workers(2), PolicyKind::RoundRobin, strict).await;
        site.workers[0].fail_next(1, Fault::InternalError);
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 200);
        site.quiet().await;
        let name = site.workers[0].url();
        assert_eq!(site.metric("forebay_breaker_state", &[&name]).await, 1);
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, strict).await;
        site.workers[0].fail_next(1, Fault::InternalError);
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 500);
        site.quiet().await;
        assert_eq!(site.metric("forebay_breaker_state", &[]).await, 1);
    });
}

#[test]
fn what_a_worker_would_keep_is_sent_once() {
    run(async {
        for (body, workers) in [
            (r#"{"input":"a","store":true}"#, 1),
            (r#"{"input":"a","background":true}"#, 1),
            (r#"{"input":"a","store":false}"#, 2),
        ] {
            let site = Site::start(2, PolicyKind::RoundRobin).await;
            for worker in &site.workers {
                worker.fail_next(10, Fault::CloseBeforeHead);
            }
            assert_eq!(site.client().await.post("/v1/responses", body).await.status(), 502);
            let seen = |worker: &forebay_sim::Worker| worker.requests_to("/v1/responses").len();
            assert_eq!(site.workers.iter().map(seen).sum::<usize>(), workers, "{body}");
        }
    });
}

#[test]
fn without_retries_one_worker_is_asked() {
    run(async {
        let change = |settings: &mut Settings| settings.router.retry.enabled = false;
        let site = Site::start_with(site::workers(2), PolicyKind::RoundRobin, change).await;
        for worker in &site.workers {
            worker.fail_next(10, Fault::QueueOverflow);
        }
        assert_eq!(site.client().await.post("/v1/completions", WHOLE).await.status(), 503);
        assert_eq!(seen(&site).iter().sum::<usize>(), 1);
    });
}

/// A worker that gives this answer is asked once in six requests; another one answers them all.
async fn left_alone(answer: impl Into<Vec<u8>>) -> (App, Scripted, Scripted) {
    let asking = Scripted::start(answer, Then::Keep).await;
    let other = Scripted::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Then::Keep).await;
    let app = site::start(&site::settings(PolicyKind::RoundRobin, &[asking.url(), other.url()])).await;
    let mut client = Client::connect(&app.url()).await;
    for _ in 0..6 {
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
    }
    assert_eq!((asking.requests(), other.requests()), (1, 6), "it is left alone after the first");
    (app, asking, other)
}

#[test]
fn a_worker_that_asks_to_be_left_alone_is_as_long_as_there_is_another() {
    run(async {
        let busy = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 20\r\ncontent-length: 0\r\n\r\n";
        let (app, asking, other) = left_alone(busy).await;
        assert_eq!(app.reader().world().workers()[0].health_word(), "paused");
        drop(other);
        let answer = Client::connect(&app.url()).await.post("/v1/completions", WHOLE).await;
        assert_eq!(
            (answer.status(), answer.header("retry-after").as_str()),
            (503, "20"),
            "nobody else is left"
        );
        assert_eq!(asking.requests(), 2);
    });
}

#[test]
fn a_date_until_which_a_worker_wants_to_be_left_alone_is_read_by_its_own_clock() {
    run(async {
        let date = "date: Wed, 21 Oct 2015 07:28:00 GMT\r\nretry-after: Wed, 21 Oct 2015 07:28:20 GMT";
        let busy = format!("HTTP/1.1 503 Service Unavailable\r\n{date}\r\ncontent-length: 0\r\n\r\n");
        left_alone(busy).await;
    });
}

/// Requests to a path by both workers.
fn requests_to(site: &Site, path: &str) -> usize {
    site.workers.iter().map(|worker| worker.requests_to(path).len()).sum()
}

#[test]
fn what_the_table_does_not_know_is_sent_once_if_it_may_change_something() {
    run(async {
        const PATH: &str = "/v1/not/known";
        for fault in [Fault::CloseBeforeHead, Fault::CloseMidHead, Fault::QueueOverflow, Fault::InternalError]
        {
            let site = Site::start(2, PolicyKind::RoundRobin).await;
            let fails = |count| FaultRule {
                fault: fault.clone(),
                when: When::Next(count),
                scope: Scope::Path(PATH.to_owned()),
            };
            let mut client = site.client().await;
            site.workers.iter().for_each(|worker| worker.add_fault(fails(1)));
            let status = client.post(PATH, r#"{"a":1}"#).await.status();
            assert!(status >= 500, "{fault:?}: {status}");
            assert_eq!(requests_to(&site, PATH), 1, "{fault:?}");
            // A kept connection might have died of age, which nobody could tell from a worker's death.
            assert_eq!(site.metric("forebay_resends_total", &[]).await, 0);
            site.workers.iter().for_each(|worker| worker.clear_faults());
            site.workers[0].add_fault(fails(1));
            for _ in 0..2 {
                assert_eq!(client.get(PATH).await.status(), 404, "{fault:?}: another one says so");
            }
            assert_eq!(requests_to(&site, PATH), 4, "{fault:?}: what only reads is sent again");
        }
    });
}

#[test]
fn retries_of_answers_have_a_budget_and_those_of_broken_connections_have_none() {
    run(async {
        let change = |settings: &mut Settings| settings.breaker.enabled = false;
        let site = Site::start_with(site::workers(2), PolicyKind::RoundRobin, change).await;
        site.workers[0].fail_always(Fault::QueueOverflow);
        let (mut client, began, mut told) = (site.client().await, Instant::now(), 0);
        for _ in 0..400 {
            told += u64::from(client.post("/v1/completions", WHOLE).await.status() == 503);
        }
        let spent = site.metric("forebay_retries_total", &["busy"]).await;
        // What is saved up at first, a tenth of the traffic, and what each second adds.
        let most = 10 + 400 / 10 + 10 * (began.elapsed().as_secs() + 1);
        assert!((45..=most).contains(&spent), "{spent} retries, at most {most}");
        assert_eq!(spent + told, seen(&site)[0] as u64, "of the others the client was told");
        site.workers[0].clear_faults();
        site.workers[0].fail_always(Fault::CloseBeforeHead);
        for _ in 0..200 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        let broken = site.metric("forebay_retries_total", &["reset"]).await;
        assert!(broken >= 99, "{broken}: all of them are followed by another attempt");
    });
}
