//! Thousands of pairs over workers in processes of their own, with kills, stalls, refusals and clients that leave, on both
//! roles: no engine is harmed, nothing is read twice, no load is left, every request ends once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_pd::Connector;
use forebay_sim::{Exchange, PairRole, expected_text};
use forebay_tests::{Client, Process, Site, request, run_for, site};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::setting::{Shape, completion, kv_port, text};

/// Requests, unless `PAIR_REQUESTS` says otherwise.
const REQUESTS: usize = 1_000;
const CLIENTS: usize = 16;

/// A worker dies each so many requests, for so many requests; every third one only stops.
const KILL_EACH: usize = 125;
const GONE_FOR: usize = 40;
/// Requests behind a death that may be sent before the router has the worker back.
const AHEAD: usize = 2 * GONE_FOR;

const FLEET: Shape = Shape { prefills: 2, decodes: 6, connector: Connector::Nixl };

const WORKER: &str = env!("CARGO_BIN_EXE_pair-worker");

#[test]
fn on_nixl() {
    survives(Connector::Nixl, false);
}

#[test]
fn on_nixl_push() {
    survives(Connector::NixlPush, false);
}

#[test]
fn on_bootstrap() {
    survives(Connector::Bootstrap, false);
}

#[test]
fn on_lmcache() {
    survives(Connector::Lmcache, false);
}

#[test]
fn on_nccl() {
    survives(Connector::Nccl, false);
}

#[test]
fn on_nccl_with_concurrent_legs() {
    survives(Connector::Nccl, true);
}

/// A worker's process. It keeps its port for all its lives.
struct Remote {
    process: Process,
    url: String,
    arguments: String,
}

impl Remote {
    async fn start(port: &str, arguments: String) -> Self {
        let mut process = Process::start(WORKER, &format!("--port {port} {arguments}"));
        let url = process.event("listening").await["url"].as_str().unwrap().to_owned();
        Self { process, url, arguments }
    }

    async fn restart(&mut self) {
        *self = Self::start(self.url.rsplit(':').next().unwrap(), self.arguments.clone()).await;
    }
}

/// How far the clients are, and how far they may go.
struct Progress {
    ended: AtomicUsize,
    one_ended: Notify,
    /// Requests that may be sent; all, once it is closed.
    allowed: Semaphore,
}

impl Progress {
    fn new() -> Self {
        let (ended, one_ended) = (AtomicUsize::new(0), Notify::new());
        Self { ended, one_ended, allowed: Semaphore::new(KILL_EACH + AHEAD) }
    }

    async fn may_send(&self) {
        if let Ok(permit) = self.allowed.acquire().await {
            permit.forget();
        }
    }

    fn one_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.one_ended.notify_one();
    }

    async fn reaches(&self, count: usize) {
        while self.ended.load(Ordering::Relaxed) < count {
            self.one_ended.notified().await;
        }
    }
}

fn survives(connector: Connector, concurrent_legs: bool) {
    let asked = std::env::var("PAIR_REQUESTS").ok().and_then(|count| count.parse().ok());
    let count: usize = asked.unwrap_or(REQUESTS);
    run_for(Duration::from_secs(120 + count as u64 / 20), async {
        let exchange = Exchange::default();
        let ledger = exchange.serve().unwrap();
        let shape = match connector {
            // Nobody answers alone.
            Connector::Nccl => Shape { prefills: 4, decodes: 4, connector },
            _ => FLEET.by(connector),
        };
        // Workers that announce themselves have to know where.
        let early =
            if connector == Connector::Nccl { Some(front(shape, concurrent_legs, &[]).await) } else { None };
        let announce = early.as_ref().and_then(|site| site.app.announce_address());
        let announce = announce.map(|address| format!("--announce {address}")).unwrap_or_default();
        let mut fleet = workers(shape, &format!("--exchange {ledger} {announce}")).await;
        let site = Arc::new(match early {
            Some(site) => site,
            None => front(shape, concurrent_legs, &fleet).await,
        });
        if let Some(proxy) = site.app.readiness_address() {
            exchange.set_proxy(proxy);
        }
        all_are_well(&site, fleet.len()).await;
        let progress = Arc::new(Progress::new());
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (site, progress) = (Arc::clone(&site), Arc::clone(&progress));
            clients.spawn(async move {
                let mut answered = 0;
                for i in (client..count).step_by(CLIENTS) {
                    progress.may_send().await;
                    answered += u64::from(one(&site, i).await);
                    progress.one_ended();
                }
                answered
            });
        }
        let hurt = hurt(&site, &mut fleet, &progress, count).await;
        if connector == Connector::Nccl {
            falls_silent(&site, &mut fleet, &progress).await;
        }
        progress.allowed.close();
        let answered = clients.join_all().await.into_iter().sum();
        finished(&site, &fleet, &exchange, (count, answered, hurt)).await;
    });
}

/// The application, impatient, in front of them.
async fn front(shape: Shape, concurrent_legs: bool, fleet: &[Remote]) -> Site {
    let limit = Some(Duration::from_secs(2));
    let mut settings = shape.settings(fleet.iter().map(|worker| worker.url.clone()));
    settings.breaker.enabled = false;
    settings.health.interval = Duration::from_millis(100);
    // Of prompts that a decode worker computes by itself.
    (settings.router.times.stream_idle, settings.router.times.response_header) = (limit, limit);
    // Else requests that find no prefill worker fail as fast as they come, and that is most of them.
    let waits = shape.connector == Connector::Nccl;
    settings.router.admission.no_worker_wait = limit.filter(|_| waits);
    let pairs = settings.router.pairs.as_mut().unwrap();
    pairs.concurrent_legs = concurrent_legs;
    pairs.ready_timeout = Duration::from_millis(500);
    (pairs.prefill_timeout, pairs.first_byte_timeout) = (limit, limit);
    Site { app: site::start(&settings).await, workers: Vec::new() }
}

/// The workers, with these arguments beside their own.
async fn workers(shape: Shape, shared: &str) -> Vec<Remote> {
    let mut fleet = Vec::new();
    for (place, role) in shape.roles().enumerate() {
        let role = if role == PairRole::Prefill { "--prefill" } else { "" };
        let (connector, seed, kv_port) = (shape.connector.as_str(), place + 1, kv_port(place));
        let own = format!("{role} --connector {connector} --seed {seed} --kv-port {kv_port}");
        fleet.push(Remote::start("0", format!("{own} {shared}")).await);
    }
    fleet
}

/// All workers are on the list and may be chosen.
async fn all_are_well(site: &Site, count: usize) {
    let are_well = |world: &forebay_workers::World| {
        world.hosts().len() == count && world.workers().iter().all(|worker| worker.eligible())
    };
    site.app.reader().wait_for(are_well).await;
}

/// A decode worker misses so many beats that it is taken off the list while the last requests are sent, and comes back.
async fn falls_silent(site: &Site, fleet: &mut [Remote], progress: &Progress) {
    let (count, reader) = (fleet.len(), site.app.reader());
    fleet[count - 1].process.signal("-STOP").await;
    progress.allowed.close();
    reader.wait_for(|world| world.hosts().len() == count - 1).await;
    fleet[count - 1].process.signal("-CONT").await;
    all_are_well(site, count).await;
}

/// One worker after the other goes away for a while, on both roles. How often.
///
/// The next one goes only when the router has the last one back: with several gone there is soon no prefill worker left,
/// and what is tried then is not pairs.
async fn hurt(site: &Site, fleet: &mut [Remote], progress: &Progress, count: usize) -> usize {
    let mut hurt = 0;
    loop {
        let at = (hurt + 1) * KILL_EACH;
        if at + 2 * KILL_EACH > count {
            return hurt;
        }
        progress.reaches(at).await;
        let places = fleet.len();
        let victim = &mut fleet[hurt * 3 % places];
        match hurt % 3 {
            2 => victim.process.signal("-STOP").await,
            _ => victim.process.kill().await,
        }
        progress.reaches(at + GONE_FOR).await;
        match hurt % 3 {
            2 => victim.process.signal("-CONT").await,
            _ => victim.restart().await,
        }
        all_are_well(site, places).await;
        progress.allowed.add_permits(KILL_EACH);
        hurt += 1;
    }
}

/// One request; true if its client got a right answer.
async fn one(site: &Site, i: usize) -> bool {
    let stream = i.is_multiple_of(2);
    let body = completion(&format!("prompt {i} {}", "word ".repeat(i % 50)), 4, stream);
    let mut client = site.client().await;
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

/// Requests that workers and the router still have.
async fn load(site: &Site, fleet: &[Remote]) -> u64 {
    let mut load = site.metric("forebay_in_flight", &[]).await;
    for worker in fleet {
        let metrics = Client::connect(&worker.url).await.get("/metrics").await.text();
        load += site::sum(&metrics, "vllm:num_requests_running", &[]);
    }
    load
}

async fn finished(
    site: &Site,
    fleet: &[Remote],
    exchange: &Exchange,
    (count, answered, hurt): (usize, u64, usize),
) {
    while load(site, fleet).await > 0 {}
    assert_eq!(exchange.violations(), std::collections::BTreeMap::new());
    let metrics = site.metrics().await;
    let sum = |family: &str, labels: &[&str]| site::sum(&metrics, family, labels);
    assert_eq!(sum("forebay_requests_total", &["/v1/completions"]), count as u64);
    assert_eq!(sum("forebay_requests_total", &["panicked"]), 0);
    assert_eq!(sum("forebay_in_flight", &[]), 0);
    assert_eq!(sum("forebay_policy_invariant_violations_total", &[]), 0);
    let pairs = sum("forebay_pd_pairs_total", &[]);
    let [handed_over, retries] =
        [sum("forebay_pd_pairs_total", &["handed_over"]), sum("forebay_pd_retries_total", &[])];
    println!(
        "{count} requests = {} outcomes, {hurt} times a worker was killed or stopped, {pairs} pairs, {handed_over} handed \
         over ({} by the workers' count), {answered} right answers, {retries} retries, violations {:?}, load 0",
        sum("forebay_requests_total", &["/v1/completions"]),
        exchange.transfers(),
        exchange.violations(),
    );
    // A request that waits for a worker is counted for each pair that it begins.
    let may_wait = sum("forebay_pd_pairs_total", &["nccl"]) > 0;
    assert!(hurt >= 3 && (pairs <= count as u64 || may_wait) && handed_over * 3 > pairs * 2 && retries > 0);
    if sum("forebay_pd_pairs_total", &["lmcache"]) > 0 {
        for result in ["counted", "repeated", "unknown"] {
            assert!(sum("forebay_pd_readiness_total", &[result]) > 0, "{result}");
        }
    }
    assert!(answered > count as u64 * 7 / 10, "{answered} of {count}");
}
