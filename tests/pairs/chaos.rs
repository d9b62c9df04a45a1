//! Thousands of pairs with kills, stalls, refusals and clients that leave, on both roles: no engine is harmed, no load is left,
//! every request ends once.

use std::sync::Arc;
use std::time::Duration;

use forebay_pd::Connector;
use forebay_sim::{Fault, FaultRule, Scope, When, expected_text};
use forebay_tests::{request, run_for};
use tokio::task::JoinSet;

use crate::setting::{Setting, Shape, completion, text};

/// Requests, unless `PAIR_REQUESTS` says otherwise.
const REQUESTS: usize = 1_000;
const CLIENTS: usize = 16;

const FLEET: Shape = Shape { prefills: 2, decodes: 6, connector: Connector::Nixl };

#[test]
fn on_nixl() {
    survives(Connector::Nixl);
}

#[test]
fn on_nixl_push() {
    survives(Connector::NixlPush);
}

#[test]
fn on_bootstrap() {
    survives(Connector::Bootstrap);
}

fn survives(connector: Connector) {
    let asked = std::env::var("PAIR_REQUESTS").ok().and_then(|count| count.parse().ok());
    let count: usize = asked.unwrap_or(REQUESTS);
    run_for(Duration::from_secs(120 + count as u64 / 20), async {
        let quick = |settings: &mut forebay::settings::Settings| {
            settings.breaker.enabled = false;
            settings.health.interval_secs = 1;
            // Of prompts that a decode worker computes by itself.
            settings.router.times.stream_idle = Some(Duration::from_secs(2));
            settings.router.times.response_header = Some(Duration::from_secs(2));
            let pairs = settings.router.pairs.as_mut().unwrap();
            pairs.prefill_timeout = Some(Duration::from_secs(2));
            pairs.first_byte_timeout = Some(Duration::from_secs(2));
        };
        let setting = Arc::new(FLEET.by(connector).start_with(|options| options.record = 0, quick).await);
        misbehave(&setting);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let setting = Arc::clone(&setting);
            clients.spawn(async move {
                let mut answered = 0;
                for i in (client..count).step_by(CLIENTS) {
                    answered += u64::from(one(&setting, i).await);
                }
                answered
            });
        }
        let mut refusing = 0;
        let mut answered = 0;
        while !clients.is_empty() {
            tokio::select! {
                Some(ended) = clients.join_next() => answered += ended.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(300)) => {
                    // One worker after the other goes away for a while.
                    setting.site.workers[refusing].accept().await;
                    refusing = (refusing + 3) % setting.site.workers.len();
                    setting.site.workers[refusing].refuse_connections().await;
                }
            }
        }
        setting.site.workers[refusing].accept().await;
        finished(&setting, count, answered).await;
    });
}

/// Shares of all requests meet a fault, drawn from seeds.
fn misbehave(setting: &Setting) {
    let faults = [
        (Fault::Status(503, String::new()), 0.02),
        (Fault::InternalError, 0.01),
        (Fault::Reset, 0.02),
        (Fault::CloseBeforeHead, 0.01),
        (Fault::CloseMidStream(1), 0.02),
        (Fault::ErrorInStream(0), 0.01),
        (Fault::HeadThenSilence, 0.002),
        (Fault::NoHandOver, 0.01),
        (Fault::IncompleteHandOver, 0.01),
    ];
    for (place, worker) in setting.site.workers.iter().enumerate() {
        for (number, (fault, probability)) in faults.iter().enumerate() {
            let seed = (place * 100 + number + 1) as u64;
            let when = When::Share { probability: *probability, seed };
            worker.add_fault(FaultRule { fault: fault.clone(), when, scope: Scope::Inference });
        }
    }
}

/// One request; true if its client got a right answer.
async fn one(setting: &Setting, i: usize) -> bool {
    let stream = i.is_multiple_of(2);
    let body = completion(&format!("prompt {i} {}", "word ".repeat(i % 50)), 4, stream);
    let mut client = setting.site.client().await;
    client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
    if i.is_multiple_of(11) {
        tokio::time::sleep(Duration::from_millis((i % 7) as u64)).await;
        return false;
    }
    let Ok(answer) = client.answer().await else { return false };
    let is_whole = answer.status() == 200 && (!stream || answer.text().contains("[DONE]"));
    if !is_whole || answer.text().contains("\"error\"") {
        return false;
    }
    assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap(), "{i}");
    true
}

async fn finished(setting: &Setting, count: usize, answered: u64) {
    for worker in &setting.site.workers {
        worker.clear_faults();
    }
    setting.site.quiet().await;
    setting.no_violation();
    let metrics = setting.site.metrics().await;
    let sum = |family: &str, labels: &[&str]| forebay_tests::site::sum(&metrics, family, labels);
    assert_eq!(sum("forebay_requests_total", &["/v1/completions"]), count as u64);
    assert_eq!(sum("forebay_requests_total", &["panicked"]), 0);
    assert_eq!(sum("forebay_in_flight", &[]), 0);
    assert_eq!(sum("forebay_policy_invariant_violations_total", &[]), 0);
    let pairs = sum("forebay_pd_pairs_total", &[]);
    let [handed_over, retries] =
        [sum("forebay_pd_pairs_total", &["handed_over"]), sum("forebay_pd_retries_total", &[])];
    println!(
        "{count} requests, {pairs} pairs, {handed_over} handed over, {answered} right answers, {retries} retries"
    );
    assert!(pairs <= count as u64 && handed_over > pairs / 2 && retries > 0);
    assert!(answered > count as u64 * 7 / 10, "{answered} of {count}");
}
