//! The router's process, and what can be asked of it.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_tests::{Client, Process, site};
use serde_json::Value;

/// Time limits that are short enough for stalls to be found out, and long enough for a busy machine.
const FLAGS: &str = "--port 0 --admin-port 0 --threads 2 --log-level error --health-check-interval-secs 1 \
    --response-header-timeout-secs 5 --stream-idle-timeout-secs 10 --no-worker-wait-secs 10 \
    --cb-timeout-duration-secs 3 --max-concurrent-requests 1000 --queue-size 20000 --queue-timeout-secs 60 \
    --max-tree-size 4194304 --client-idle-timeout-secs 300 --drain-timeout-secs 30";

/// It.
pub(crate) struct Router {
    pub(crate) process: Process,
    pub(crate) url: String,
    admin_url: String,
}

impl Router {
    /// Starts the program in front of these workers.
    pub(crate) async fn start(program: &Path, workers: &[String], more: &str) -> Self {
        let mut process =
            Process::start(program, &format!("{FLAGS} {more} --worker-urls {}", workers.join(" ")));
        let listening = process.event("listening").await;
        process.event("ready").await;
        let url = |name: &str| listening[name].as_str().expect("a URL").to_owned();
        Self { url: url("url"), admin_url: url("admin_url"), process }
    }

    /// All metrics.
    pub(crate) async fn metrics(&self) -> String {
        Client::connect(&self.admin_url).await.get("/metrics").await.text()
    }

    /// Whether all workers are well.
    pub(crate) async fn all_well(&self) -> bool {
        let list = Client::connect(&self.admin_url).await.get("/workers").await.json();
        let workers = list["workers"].as_array().cloned().unwrap_or_default();
        workers.iter().all(|worker: &Value| worker["health"] == "healthy")
    }
}

/// Requests by outcome, without those by which this is asked.
pub(crate) fn outcomes(metrics: &str) -> BTreeMap<String, u64> {
    let mut outcomes = BTreeMap::new();
    let ours = |line: &&str| !line.contains(r#"route="/metrics""#) && !line.contains(r#"route="/workers""#);
    for line in metrics.lines().filter(|line| line.starts_with("forebay_requests_total{")).filter(ours) {
        let outcome = line.split("outcome=\"").nth(1).and_then(|rest| rest.split('"').next());
        *outcomes.entry(outcome.unwrap_or_default().to_owned()).or_default() +=
            site::sum(line, "forebay_requests_total", &[]);
    }
    outcomes
}

/// The load that the router sees on a worker.
pub(crate) fn load(metrics: &str, worker: &str) -> u64 {
    site::sum(metrics, "forebay_in_flight", &[&format!("worker=\"{worker}\"")])
}
