//! Workers, the application in front of them, and what can be asked of both.

use std::sync::Arc;
use std::time::Duration;

use forebay::App;
use forebay::settings::{Listen, Settings};
use forebay_policy::PolicyKind;
use forebay_sim::{Worker, WorkerOptions};
use forebay_workers::World;

use crate::client::{Answer, Client};
use crate::until;

/// The application in front of its workers.
pub struct Site {
    /// In the order in which the application was given them; named `w0`, `w1`, ….
    pub workers: Vec<Worker>,
    /// The application.
    pub app: App,
}

/// Settings for tests: free ports, one data thread (so that one client's connections to workers are reused), quick probes.
pub fn settings(policy: PolicyKind, urls: &[String]) -> Settings {
    let mut settings = Settings {
        listen: Listen { port: 0, ..Settings::default().listen },
        admin: Listen { port: 0, ..Settings::default().admin },
        threads: 1,
        worker_urls: urls.iter().map(|url| url.parse().expect("a worker URL")).collect(),
        ..Settings::default()
    };
    settings.policy.kind = policy;
    settings.health.interval = Duration::from_secs(1);
    settings.health.success_threshold = 1;
    settings
}

/// Recording workers named `w0`, `w1`, ….
pub fn workers(count: usize) -> Vec<Worker> {
    (0..count).map(|i| worker(WorkerOptions::recording().named(format!("w{i}")))).collect()
}

/// One worker.
pub fn worker(options: WorkerOptions) -> Worker {
    Worker::start(options).expect("a worker")
}

/// Starts the application and waits until it has found out about every worker.
pub async fn start(settings: &Settings) -> App {
    let app = App::start(settings).expect("the application");
    let count = settings.worker_count();
    app.reader()
        .wait_for(|world| {
            world.hosts().len() == count && world.workers().iter().all(|worker| worker.eligible())
        })
        .await;
    app
}

impl Site {
    /// `count` recording workers behind the application with this policy.
    pub async fn start(count: usize, policy: PolicyKind) -> Self {
        Self::start_with(workers(count), policy, |_| ()).await
    }

    /// The application in front of these workers, with further settings.
    pub async fn start_with(
        workers: Vec<Worker>,
        policy: PolicyKind,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let urls: Vec<String> = workers.iter().map(|worker| worker.url()).collect();
        let mut settings = settings(policy, &urls);
        change(&mut settings);
        Self { app: start(&settings).await, workers }
    }

    /// A connection of a client.
    pub async fn client(&self) -> Client {
        Client::connect(&self.app.url()).await
    }

    /// A connection to the admin listener.
    pub async fn admin(&self) -> Client {
        Client::connect(&self.app.admin_url()).await
    }

    /// The load that the router sees on a worker, all its ranks together.
    pub fn in_flight(&self, worker: usize) -> u64 {
        let behind = self.app.reader().world().hosts()[worker].workers();
        behind.iter().map(|worker| u64::from(worker.in_flight())).sum()
    }

    /// The current trial.
    pub fn epoch(&self) -> u64 {
        self.app.reader().world().epoch()
    }

    /// Waits until each load is what the worker itself counts, prompts only.
    pub async fn loads_agree(&self) {
        let agree = || {
            let mut workers = self.workers.iter().enumerate();
            workers.all(|(i, worker)| self.in_flight(i) == worker.stats().open_inference)
        };
        until("each load is what the worker counts", agree).await;
    }

    /// Waits until nothing is under way on either side.
    pub async fn quiet(&self) {
        for worker in &self.workers {
            worker.wait_until(|stats| stats.open_inference == 0).await;
        }
        until("no load", || (0..self.workers.len()).all(|i| self.in_flight(i) == 0)).await;
    }

    /// All metrics as they are scraped.
    pub async fn metrics(&self) -> String {
        self.admin().await.get("/metrics").await.text()
    }

    /// Sum over the series of a family whose labels contain all of `labels` (`name="value"`).
    pub async fn metric(&self, family: &str, labels: &[&str]) -> u64 {
        sum(&self.metrics().await, family, labels)
    }

    /// Waits until a worker is (or is no more) in rotation.
    pub async fn wait_eligible(&self, worker: usize, eligible: bool) {
        self.app.reader().wait_for(|world| world.hosts()[worker].workers()[0].eligible() == eligible).await;
    }

    /// Waits until requests for this model may go to the worker, or may no more. What the worker is known to serve is not
    /// asked: that is learnt a moment before requests go by it.
    pub async fn wait_serves(&self, worker: usize, model: &str, serves: bool) {
        let goes_there = |world: &World| {
            let host = &world.hosts()[worker];
            let mut pools =
                world.pools().chain(world.prefill_pools()).filter(|pool| &**pool.model() == model);
            pools.any(|pool| pool.workers().any(|worker| Arc::ptr_eq(worker.host(), host)))
        };
        self.app.reader().wait_for(|world| goes_there(world) == serves).await;
    }

    /// The names of the workers that answer `count` equal requests of one client.
    pub async fn choices(&self, count: usize, body: impl Fn(usize) -> String) -> Vec<String> {
        let mut client = self.client().await;
        let mut chosen = Vec::new();
        for i in 0..count {
            chosen.push(by(&client.post("/v1/completions", body(i)).await));
        }
        chosen
    }
}

/// The worker that gave an answer.
pub fn by(answer: &Answer) -> String {
    answer.header("x-sim-worker")
}

/// Sum over the series of a family whose labels contain all of `labels`, in scraped text.
pub fn sum(metrics: &str, family: &str, labels: &[&str]) -> u64 {
    let of_family = |line: &&str| {
        line.strip_prefix(family).is_some_and(|rest| rest.starts_with([' ', '{']))
            && labels.iter().all(|label| line.contains(label))
    };
    let value =
        |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).expect("a number");
    metrics.lines().filter(of_family).map(|line| value(line) as u64).sum()
}
