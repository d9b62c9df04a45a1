//! A hundred resets while clients send as fast as they can, with traffic held now and then: nothing is lost, every load is
//! what its worker counts, and every request counts in one trial.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::PolicyKind;
use forebay_sim::Stage;
use forebay_tests::{Site, run_for, until};
use tokio::task::JoinSet;

const CLIENTS: u64 = 16;
const RESETS: u64 = 100;
/// Resets from one time that traffic is held to the next.
const ROUND: u64 = 10;
/// How long a reset may take in the long run, 99 of 100, in ms.
const TOOK_MS: f64 = 50.0;

/// Least number of requests in each trial.
const REQUESTS: u64 = 20;
/// Names another one: a long run, which also judges how long resets took.
const REQUESTS_VARIABLE: &str = "TRIAL_REQUESTS";

/// Clients that send until they are told to stop.
struct Load {
    stop: AtomicBool,
    sent: AtomicU64,
}

impl Load {
    async fn client(self: Arc<Self>, site: Arc<Site>, number: u64) {
        let mut client = site.client().await;
        while !self.stop.load(Ordering::Relaxed) {
            let body = format!(r#"{{"prompt":"client {number}","max_tokens":1}}"#);
            self.sent.fetch_add(1, Ordering::Relaxed);
            assert_eq!(client.post("/v1/completions", body).await.status(), 200);
        }
    }
}

#[test]
fn no_request_is_lost_no_load_is_wrong_and_each_request_counts_in_one_trial() {
    let asked = std::env::var(REQUESTS_VARIABLE).ok().map(|text| text.parse::<u64>().unwrap());
    let per_trial = asked.unwrap_or(REQUESTS);
    run_for(Duration::from_secs(60 + RESETS * per_trial / 500), async {
        let site = Arc::new(Site::start(3, PolicyKind::CacheAware).await);
        let load = Arc::new(Load { stop: AtomicBool::new(false), sent: AtomicU64::new(0) });
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(Arc::clone(&load).client(Arc::clone(&site), number));
        }
        let mut admin = site.admin().await;
        let (mut took, mut first) = (Vec::new(), 0);
        for epoch in 2..=RESETS + 1 {
            let held = if epoch % ROUND == 0 { Some(Held::all(&site).await) } else { None };
            let answer = admin.post("/admin/reset", "").await.json();
            assert_eq!(answer["epoch"], epoch);
            took.push(answer["took_ms"].as_f64().unwrap());
            if let Some(held) = held {
                held.are_still_there(&site).await;
            }
            // Some traffic in each trial; and the first one, which will be forgotten, is read when it is over.
            until("requests in this trial", || view(&site, epoch).1 >= per_trial).await;
            if epoch == 2 {
                until("the first trial is over", || view(&site, 1).0).await;
                first = view(&site, 1).1;
            }
        }
        load.stop.store(true, Ordering::Relaxed);
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
        site.quiet().await;
        let sent = load.sent.load(Ordering::Relaxed);
        let rate = sent as f64 / began.elapsed().as_secs_f64();
        until("all are over", || (2..=RESETS).all(|epoch| view(&site, epoch).0)).await;
        let counted = || first + (2..=RESETS + 1).map(|epoch| view(&site, epoch).1).sum::<u64>();
        until("every request counts once", || counted() >= sent).await;
        assert_eq!(counted(), sent);
        let served: u64 = site.workers.iter().map(|worker| worker.stats().served_inference).sum();
        assert_eq!(served, sent, "each came to a worker, and to one alone");
        assert_eq!(site.metric("forebay_policy_invariant_violations_total", &[]).await, 0);
        took.sort_by(f64::total_cmp);
        let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
        println!(
            "{sent} requests, {rate:.0}/s, {RESETS} resets, loads right {} times: took_ms p50 {p50:.2} p99 {p99:.2}",
            RESETS / ROUND
        );
        assert!(asked.is_none() || p99 <= TOOK_MS, "took_ms p99 {p99}");
    });
}

/// All traffic held: each client has a request under way that its worker does not answer.
struct Held {
    gates: Vec<forebay_sim::HoldGate>,
    loads: Vec<u64>,
}

impl Held {
    /// Holds it, and compares each load with what the worker itself counts.
    async fn all(site: &Site) -> Self {
        let gates = site.workers.iter().map(|worker| worker.hold(Stage::BeforeHead)).collect();
        let held = || -> u64 { site.workers.iter().map(|worker| worker.stats().open_inference).sum() };
        until("every client has a request at a worker", || held() == CLIENTS).await;
        site.loads_agree().await;
        let loads = Self::loads(site).await;
        assert_eq!(loads.iter().sum::<u64>(), CLIENTS);
        Self { gates, loads }
    }

    /// A reset has left the loads alone. Lets traffic go on.
    async fn are_still_there(self, site: &Site) {
        site.loads_agree().await;
        assert_eq!(Self::loads(site).await, self.loads);
        drop(self.gates);
    }

    /// As the list of workers tells them.
    async fn loads(site: &Site) -> Vec<u64> {
        let list = site.admin().await.get("/workers").await.json();
        let workers = list["workers"].as_array().unwrap().iter();
        workers.map(|worker| worker["in_flight"].as_u64().unwrap()).collect()
    }
}

/// Whether a trial is over for good, and how many of its requests have ended.
fn view(site: &Site, epoch: u64) -> (bool, u64) {
    let view = site.app.router().trial(Some(epoch)).unwrap();
    (view.is_final, view.figures.requests.ended)
}
