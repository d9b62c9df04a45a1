//! A fleet that announces itself, grows from nobody to eight and shrinks to two, under traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_pd::Connector;
use forebay_policy::PolicyKind;
use forebay_sim::{Exchange, Handing, PairRole, Worker, expected_text};
use forebay_tests::announcing::{Announced, Beats};
use forebay_tests::{Site, run_for, site};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::setting::{Shape, completion, kv_port, text};

const CLIENTS: usize = 6;

/// Nobody is given: all announce themselves.
const NOBODY: Shape = Shape { prefills: 0, decodes: 0, connector: Connector::Nccl };

/// Requests, of which none may fail.
#[derive(Default)]
struct Traffic {
    answered: AtomicU64,
    one_more: Notify,
    is_over: AtomicBool,
}

impl Traffic {
    /// Waits until so many more have been answered, which began after this or were under way.
    async fn more(&self, count: u64) {
        let wanted = self.answered.load(Ordering::SeqCst) + count;
        while self.answered.load(Ordering::SeqCst) < wanted {
            self.one_more.notified().await;
        }
    }

    async fn of_client(&self, site: &Site, number: usize) {
        let mut client = site.client().await;
        for i in 0.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            // Few, so that what workers have room for is not what matters.
            let body = completion(&format!("client {number} prompt {}", i % 4), 3, i % 2 == 0);
            let answer = client.post("/v1/completions", &body).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert_eq!(text(&answer.body), expected_text("/v1/completions", body.as_bytes()).unwrap());
            self.answered.fetch_add(1, Ordering::SeqCst);
            self.one_more.notify_one();
        }
    }
}

/// The application, which lets requests wait for a worker.
async fn in_front_of_nobody() -> Site {
    let mut settings = NOBODY.settings(std::iter::empty());
    settings.policy.kind = PolicyKind::CacheAware;
    settings.router.expose_routing_headers = true;
    settings.router.admission.no_worker_wait = Some(Duration::from_secs(30));
    Site { app: site::start(&settings).await, workers: Vec::new() }
}

fn worker(i: usize, exchange: &Exchange) -> (Worker, &'static str) {
    let (role, kind) = if i.is_multiple_of(2) { (PairRole::Prefill, "P") } else { (PairRole::Decode, "D") };
    let mut options = NOBODY.options(role, exchange);
    if let Some(pair) = &mut options.pair {
        pair.handing = Handing::Named { port: kv_port(i) };
    }
    options.record = 0;
    (site::worker(options), kind)
}

/// Who answers a prompt, why, and how much of it that worker was thought to hold.
struct Held {
    worker: String,
    reason: String,
    matched: u64,
}

impl Held {
    /// It went there for that reason, and nearly all of it was known to be there.
    #[track_caller]
    fn is_of(&self, worker: &str, reason: &str) {
        assert_eq!((&*self.worker, &*self.reason), (worker, reason));
        assert!(self.matched > 300, "{}", self.matched);
    }
}

async fn holder(site: &Site, prompt: &str) -> Held {
    let answer = site.client().await.post("/v1/completions", completion(prompt, 2, false)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let decision = answer.header("x-forebay-decision");
    let matched = decision.split("matched=").nth(1).and_then(|rest| rest.split('/').next());
    Held {
        worker: answer.header("x-forebay-worker"),
        matched: matched.and_then(|count| count.parse().ok()).unwrap_or_default(),
        reason: decision.split(';').next().unwrap_or_default().to_owned(),
    }
}

#[test]
fn nobody_fails_and_policies_keep_what_they_know() {
    run_for(Duration::from_secs(120), async {
        let site = Arc::new(in_front_of_nobody().await);
        let (exchange, traffic) = (Exchange::default(), Arc::new(Traffic::default()));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (site, traffic) = (Arc::clone(&site), Arc::clone(&traffic));
            clients.spawn(async move { traffic.of_client(&site, number).await });
        }
        let (reader, address) = (site.app.reader(), site.app.announce_address().unwrap());
        let prompt = "a prompt that is long enough to be worth remembering ".repeat(8);
        let (mut fleet, mut first) = (Vec::new(), None);
        for i in 0..8 {
            let (worker, kind) = worker(i, &exchange);
            let said = Announced::of(kind, &worker.url(), &format!("127.0.0.1:{}", kv_port(i)));
            fleet.push((worker, Beats::begin(address, said).await));
            reader
                .wait_for(|world| world.workers().iter().filter(|worker| worker.eligible()).count() > i)
                .await;
            if i > 0 {
                traffic.more(50).await;
            }
            if i == 1 {
                first = Some(holder(&site, &prompt).await);
            }
        }
        let (first, grown) = (first.unwrap(), holder(&site, &prompt).await);
        // The first two stay. The others fall silent, and end what they have.
        let (leaving, silent): (Vec<Worker>, Vec<Beats>) = fleet.drain(2..).unzip();
        drop(silent);
        for worker in leaving {
            let url = worker.url();
            reader.wait_for(|world| world.hosts().iter().all(|host| host.url().as_str() != url)).await;
            worker.wait_until(|stats| stats.open_inference == 0).await;
        }
        assert_eq!(reader.world().hosts().len(), 2);
        traffic.more(50).await;
        let shrunk = holder(&site, &prompt).await;
        assert_eq!(first.matched, 0, "nobody could know it");
        // One in eight goes to a worker that has just joined, if it is known that somebody else holds it.
        if grown.reason != "spill_load" {
            grown.is_of(&first.worker, "prefix_hit");
        }
        shrunk.is_of(&first.worker, "only_candidate");
        traffic.is_over.store(true, Ordering::SeqCst);
        clients.join_all().await;
        assert_eq!(exchange.violations(), std::collections::BTreeMap::new());
        let answered = traffic.answered.load(Ordering::SeqCst);
        println!(
            "0 -> 8 -> 2 workers: {answered} requests answered rightly, none failed; who holds a prompt is remembered"
        );
    });
}
