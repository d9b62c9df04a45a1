//! The machine: file descriptors that run out, a clock that jumps.

use std::path::Path;

use forebay_sim::{Worker, WorkerOptions};
use forebay_tests::{Client, run, site};

use crate::day::{WHOLE, listed, outcomes, row, saw};
use crate::processes::Router;

/// Descriptors that the router may have. Some forty clients are enough to use them up.
const DESCRIPTORS: usize = 64;

#[test]
fn descriptors_run_out() {
    run(async {
        let workers: Vec<_> = (0..2).map(|_| Worker::start(WorkerOptions::recording()).unwrap()).collect();
        let urls: Vec<_> = workers.iter().map(Worker::url).collect();
        let flags =
            "--health-check-interval-secs 1 --health-failure-threshold 1 --threads 1 --policy round_robin";
        let router = Router::start_limited(Some(DESCRIPTORS), flags, &urls).await;
        router.ready(2).await;
        let mut early = Client::connect(&router.url).await;
        assert_eq!(early.get("/health").await.status(), 200);
        let mut admin = Client::connect(&router.admin_url).await;
        assert_eq!(admin.get("/workers").await.json()["total"], 2);
        let crowd = crowd(&router, &mut admin).await;
        let seen = saw(&mut early, WHOLE).await;
        assert_eq!(seen, "503 router_out_of_resources");
        // Longer than it takes a failed probe to eject a worker.
        let began = tokio::time::Instant::now();
        while began.elapsed().as_millis() < 2500 {
            let list = admin.get("/workers").await.json();
            for worker in list["workers"].as_array().unwrap() {
                assert_eq!((&worker["health"], &worker["breaker"]), (&"healthy".into(), &"closed".into()));
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        drop(crowd);
        for _ in 0..10 {
            let mut late = Client::connect(&router.url).await;
            assert_eq!(saw(&mut late, WHOLE).await, "200 whole", "it accepts again");
        }
        let metrics = router.metrics().await;
        let counted = listed(&outcomes(&metrics));
        assert_eq!(counted, "10 completed, 1 out_of_resources");
        assert_eq!(site::sum(&metrics, "forebay_in_flight", &[]), 0);
        row(
            "file descriptors exhausted",
            &counted,
            "503 router_out_of_resources, then 200; no worker left",
            "router 0",
        );
    });
}

/// Clients that keep connections, until the router has no descriptor left.
async fn crowd(router: &Router, admin: &mut Client) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..DESCRIPTORS {
        clients.push(Client::connect(&router.url).await);
    }
    while router.process.descriptors() < DESCRIPTORS {
        admin.get("/workers").await;
    }
    clients
}

/// What decides anything reads a clock that only goes forward. (The wall clock is written into log lines, and by the server into
/// reports and the header `date`.)
#[test]
fn the_clock_jumps() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut readers = Vec::new();
    for name in ["openai", "policy", "pd", "workers", "router", "discovery"] {
        let mut dirs = vec![crates.join(name).join("src")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if std::fs::read_to_string(&path).unwrap().contains("SystemTime::now") {
                    readers.push(path.file_name().unwrap().to_string_lossy().into_owned());
                }
            }
        }
    }
    readers.sort();
    assert_eq!(
        readers,
        ["access_log.rs", "named.rs", "trials.rs"],
        "these read the wall clock, and not for a report alone"
    );
    row("clock jumps", "none", "nothing: whatever decides reads no wall clock", "");
}
