//! Whole fleets: all down, all busy, one that flaps, and a request that no worker survives.

use std::sync::Arc;

use forebay_sim::Fault;
use forebay_tests::{Client, request, run};
use tokio::task::JoinSet;

use crate::day::{Day, WHOLE, saw, saw_of};

#[test]
fn every_worker_is_down_and_comes_up_again() {
    run(async {
        let day = Day::of("every worker down", 3, |_| ()).await;
        for worker in &day.site.workers {
            worker.refuse_connections().await;
        }
        let mut client = day.site.client().await;
        for _ in 0..4 {
            assert_eq!(saw(&mut client, WHOLE).await, "503 router_pool_exhausted");
        }
        let answer = client.post("/v1/completions", WHOLE).await.json();
        assert_eq!(
            (&answer["forebay"]["pool_size"], &answer["forebay"]["unhealthy"]),
            (&3.into(), &3.into())
        );
        let mut day =
            day.ends("5 pool_exhausted", "503 router_pool_exhausted, pool_size 3, unhealthy 3").await;
        day.case = "… then up again";
        for (i, worker) in day.site.workers.iter().enumerate() {
            worker.accept().await;
            day.site.wait_eligible(i, true).await;
        }
        for _ in 0..6 {
            assert_eq!(day.ask(WHOLE).await, "200 whole");
        }
        day.ends("6 completed", "200 whole").await;
    });
}

#[test]
fn one_of_four_flaps() {
    run(async {
        let day = Day::of("one of four flaps", 4, |_| ()).await;
        let mut asked = 0;
        for _ in 0..6 {
            day.site.workers[2].refuse_connections().await;
            for _ in 0..12 {
                assert_eq!(day.ask(WHOLE).await, "200 whole");
            }
            day.site.wait_eligible(2, false).await;
            day.site.workers[2].accept().await;
            day.site.wait_eligible(2, true).await;
            for _ in 0..12 {
                assert_eq!(day.ask(WHOLE).await, "200 whole");
            }
            asked += 24;
        }
        day.ends(&format!("{asked} completed"), "200 whole, each of them").await;
    });
}

/// Every worker says so, and the client is told as they say it; no breaker opens.
async fn all_say(case: &'static str, fault: Fault, wanted: &str) {
    let day = Day::of(case, 3, |settings| {
        settings.router.retry.initial_backoff = std::time::Duration::from_millis(1);
    })
    .await;
    for worker in &day.site.workers {
        worker.fail_always(fault.clone());
    }
    for _ in 0..20 {
        assert_eq!(day.ask(WHOLE).await, wanted, "{case}");
    }
    assert_eq!(day.site.metric("forebay_breaker_transitions_total", &["to=\"open\""]).await, 0, "{case}");
    day.site.workers.iter().for_each(|worker| worker.clear_faults());
    assert_eq!(day.ask(WHOLE).await, "200 whole", "{case}");
    day.ends("1 completed, 20 worker_overloaded", &format!("{wanted}; no breaker opens")).await;
}

#[test]
fn all_are_busy() {
    run(async {
        all_say("all 503: queue full", Fault::QueueOverflow, "503 of the worker").await;
        all_say("all 503: paused", Fault::Paused, "503 of the worker").await;
        all_say("all 503: scaling", Fault::Scaling, "503 of the worker").await;
        all_say("all 429", Fault::TooManyRequests, "429 of the worker").await;
    });
}

/// Good requests, and among each eleven of them one that every worker answers with 500.
const ASKED: usize = 11_000;
const CLIENTS: usize = 20;

#[test]
fn a_request_that_each_worker_answers_500_harms_nobody_else() {
    run(async {
        let day =
            Arc::new(Day::of("1,000 requests that get a 500 everywhere, among 10,000 good", 2, |_| ()).await);
        let mut tasks = JoinSet::new();
        for number in 0..CLIENTS {
            let url = day.site.app.url();
            tasks.spawn(async move {
                let mut client = Client::connect(&url).await;
                for i in (number..ASKED).step_by(CLIENTS) {
                    let bad = i % 11 == 0;
                    let fault = [("x-sim-fault", "internal-error")];
                    let body = format!(r#"{{"prompt":"number {i}","max_tokens":2}}"#);
                    let headers = if bad { &fault[..] } else { &[] };
                    let bytes = request("POST", "/v1/completions", headers, body.as_bytes());
                    let wanted = if bad { "500 of the worker" } else { "200 whole" };
                    assert_eq!(saw_of(&mut client, &bytes).await, wanted, "request {i}");
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(day.site.metric("forebay_breaker_transitions_total", &[]).await, 0, "a breaker opened");
        for worker in &day.site.workers {
            assert_eq!(day.site.metric("forebay_breaker_state", &[&worker.url()]).await, 0);
        }
        let day = Arc::into_inner(day).unwrap();
        day.ends(
            "10000 completed, 1000 worker_error",
            "each good one 200, each bad one 500; no breaker opened",
        )
        .await;
    });
}
