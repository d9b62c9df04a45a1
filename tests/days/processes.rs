//! The program as a process: signals, a kill, two thousand clients at once.

use forebay_sim::{Stage, Worker, WorkerOptions};
use forebay_tests::{Client, Process, request, run, site, until};
use tokio::task::JoinSet;

use crate::day::{STREAM, WHOLE, listed, outcomes, row, saw};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay-process");
const SOAK: &str = env!("CARGO_BIN_EXE_soak");

/// The program in front of workers.
pub(crate) struct Router {
    pub(crate) process: Process,
    pub(crate) url: String,
    pub(crate) admin_url: String,
}

impl Router {
    pub(crate) async fn start(flags: &str, workers: &[String]) -> Self {
        Self::start_limited(None, flags, workers).await
    }

    /// With so many descriptors, or as many as may be.
    pub(crate) async fn start_limited(descriptors: Option<usize>, flags: &str, workers: &[String]) -> Self {
        let limit = descriptors.map_or("$(ulimit -Hn)".to_owned(), |count| count.to_string());
        let ports = if flags.contains("--port") { "" } else { "--port 0" };
        let script = format!(
            "ulimit -n {limit}; exec {FOREBAY} {ports} --admin-port 0 --log-level error {flags} --worker-urls {}",
            workers.join(" ")
        );
        let mut process = Process::start_with("sh", "-c", |command| {
            command.arg(script);
        });
        let listening = process.event("listening").await;
        process.event("ready").await;
        let url = |name: &str| listening[name].as_str().unwrap().to_owned();
        Self { url: url("url"), admin_url: url("admin_url"), process }
    }

    /// Waits until so many workers are well.
    pub(crate) async fn ready(&self, workers: usize) {
        let mut admin = Client::connect(&self.admin_url).await;
        loop {
            let list = admin.get("/workers").await.json();
            let well = list["workers"].as_array().unwrap().iter().filter(|w| w["health"] == "healthy");
            if well.count() == workers {
                return;
            }
        }
    }

    pub(crate) async fn metrics(&self) -> String {
        Client::connect(&self.admin_url).await.get("/metrics").await.text()
    }
}

/// Streams that this process can hold at both ends.
fn streams() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let limit: usize = line.split_ascii_whitespace().next().unwrap().parse().unwrap_or(usize::MAX);
    (limit.saturating_sub(200) / 2).min(1000)
}

/// Streams under way, each held by the worker after its second record.
async fn under_way(router: &Router, worker: &Worker, count: usize) -> (forebay_sim::HoldGate, Vec<Client>) {
    let gate = worker.hold(Stage::AfterChunks(2));
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = Client::connect(&router.url).await;
        client.send(&request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
        clients.push(client);
    }
    gate.wait_held(count).await;
    (gate, clients)
}

#[test]
fn sigterm_during_a_thousand_streams_loses_none() {
    run(async {
        let worker = Worker::start(WorkerOptions::recording()).unwrap();
        let mut router = Router::start("--drain-timeout-secs 60", &[worker.url()]).await;
        let count = streams();
        let (gate, clients) = under_way(&router, &worker, count).await;
        router.process.signal("-TERM").await;
        let address = router.url.trim_start_matches("http://").to_owned();
        while tokio::net::TcpStream::connect(&address).await.is_ok() {}
        gate.release();
        let mut reading = JoinSet::new();
        for mut client in clients {
            reading.spawn(async move { client.answer().await.unwrap() });
        }
        for answer in reading.join_all().await {
            assert_eq!(answer.status(), 200);
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        }
        assert!(router.process.end().await.success());
        worker.wait_until(|stats| stats.open_inference == 0).await;
        let stats = worker.stats();
        assert_eq!((stats.aborted, stats.served_inference), (0, count as u64));
        let case = format!("SIGTERM during {count} streams");
        row(
            &case,
            &format!("{count} served, 0 aborted (the worker's count)"),
            "200 whole stream",
            "workers 0",
        );
    });
}

#[test]
fn at_the_end_of_its_patience_a_drain_cuts_what_is_left() {
    run(async {
        let worker = Worker::start(WorkerOptions::recording()).unwrap();
        let mut router = Router::start("--drain-timeout-secs 1", &[worker.url()]).await;
        let (gate, clients) = under_way(&router, &worker, 50).await;
        gate.release_one();
        router.process.signal("-TERM").await;
        let mut ends = std::collections::BTreeMap::<_, usize>::new();
        for mut client in clients {
            let head = client.head().await.unwrap();
            let mut text = Vec::new();
            let whole = loop {
                match client.chunk().await {
                    Ok(Some(chunk)) => text.extend(chunk),
                    ended => break ended.is_ok(),
                }
            };
            let text = String::from_utf8_lossy(&text).into_owned();
            assert_eq!(head.status, 200);
            let end = match text.split_once(r#""failure":""#) {
                Some((_, failure)) => failure.split('"').next().unwrap().to_owned(),
                None if text.ends_with("[DONE]\n\n") && whole => "whole".to_owned(),
                None => "cut".to_owned(),
            };
            *ends.entry(end).or_default() += 1;
        }
        assert!(router.process.end().await.success());
        worker.wait_until(|stats| stats.open_inference == 0).await;
        assert_eq!(ends.get("whole"), Some(&1), "{ends:?}");
        assert_eq!(worker.stats().aborted, 49);
        row(
            "drain timeout with 49 of 50 streams held",
            "49 aborted (the worker's count)",
            &format!("{ends:?}"),
            "workers 0",
        );
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    run(async {
        let worker = Worker::start(WorkerOptions::recording()).unwrap();
        let mut router = Router::start("", &[worker.url()]).await;
        let (gate, clients) = under_way(&router, &worker, 20).await;
        router.process.signal("-TERM").await;
        let address = router.url.trim_start_matches("http://").to_owned();
        while tokio::net::TcpStream::connect(&address).await.is_ok() {}
        assert_eq!(worker.stats().aborted, 0, "the first one waits for them, for ever");
        router.process.signal("-TERM").await;
        assert_eq!(router.process.end().await.code(), Some(128 + 15));
        worker.wait_until(|stats| stats.open_inference == 0).await;
        assert_eq!(worker.stats().aborted, 20);
        drop(gate);
        for mut client in clients {
            client.answer().await.unwrap_err();
        }
        row("SIGTERM twice, 20 streams held", "20 aborted (the worker's count)", "cut", "workers 0");
    });
}

#[test]
fn sigkill_and_a_restart_on_the_same_port() {
    run(async {
        let worker = Worker::start(WorkerOptions::recording()).unwrap();
        let mut router = Router::start("", &[worker.url()]).await;
        let (gate, mut clients) = under_way(&router, &worker, 20).await;
        for client in &mut clients {
            client.head().await.unwrap();
        }
        router.process.kill().await;
        for mut client in clients {
            while let Ok(Some(_)) = client.chunk().await {}
        }
        drop(gate);
        worker.wait_until(|stats| stats.open_inference == 0).await;
        assert_eq!(worker.stats().aborted, 20, "the worker is not left with requests of the dead");
        let port = router.url.rsplit(':').next().unwrap().to_owned();
        let again = Router::start(&format!("--port {port}"), &[worker.url()]).await;
        assert_eq!(again.url, router.url);
        assert_eq!(saw(&mut Client::connect(&again.url).await, STREAM).await, "200 whole stream");
        let metrics = again.metrics().await;
        assert_eq!(site::sum(&metrics, "forebay_in_flight", &[]), 0);
        let counted = listed(&outcomes(&metrics));
        row(
            "SIGKILL, restart on the same port",
            &counted,
            "cut; 200 of the next process",
            "router 0, workers 0",
        );
    });
}

#[test]
fn two_thousand_clients_connect_at_once() {
    run(async {
        let workers: Vec<_> = (0..2).map(|_| Worker::start(WorkerOptions::recording()).unwrap()).collect();
        let urls: Vec<_> = workers.iter().map(Worker::url).collect();
        // So that the simulated workers, which live in this process, need few descriptors.
        let flags = "--max-concurrent-requests 200 --queue-size 5000";
        let router = Router::start(flags, &urls).await;
        let script =
            format!("ulimit -n $(ulimit -Hn); exec {SOAK} crowd --url {} --count 2000 --seed 7", router.url);
        let mut crowd = Process::start_with("sh", "-c", |command| {
            command.arg(script);
        });
        let report = crowd.next().await.unwrap();
        assert!(crowd.end().await.success());
        assert_eq!(report["wrong"], serde_json::json!([]));
        assert_eq!(report["counts"], serde_json::json!({"stream right": 500, "whole right": 1500}));
        let open = || workers.iter().all(|worker| worker.stats().open_inference == 0);
        until("the workers are idle", open).await;
        let metrics = router.metrics().await;
        assert_eq!(site::sum(&metrics, "forebay_in_flight", &[]), 0);
        let counted = listed(&outcomes(&metrics));
        assert_eq!(counted, "2000 completed");
        row("2,000 clients connect at once", &counted, "the right text, each of them", "router 0, workers 0");
    });
}

#[test]
fn a_worker_process_is_killed_mid_stream() {
    run(async {
        let mut worker = Process::start(FOREBAY, "sim --port 0");
        let url = worker.event("listening").await["url"].as_str().unwrap().to_owned();
        let router = Router::start("", &[url]).await;
        let mut client = Client::connect(&router.url).await;
        let body = r#"{"prompt":"x","max_tokens":4000,"stream":true}"#;
        client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
        assert_eq!(client.head().await.unwrap().status, 200);
        client.chunk().await.unwrap().unwrap();
        worker.kill().await;
        let mut text = Vec::new();
        while let Some(chunk) = client.chunk().await.unwrap() {
            text.extend(chunk);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains(r#""failure":"worker_died_mid_stream""#) && !text.contains("[DONE]"), "{text}");
        assert_eq!(saw(&mut client, WHOLE).await, "503 router_pool_exhausted");
        let metrics = router.metrics().await;
        let counted = listed(&outcomes(&metrics));
        assert_eq!(counted, "1 pool_exhausted, 1 reset_mid_stream");
        assert_eq!(site::sum(&metrics, "forebay_in_flight", &[]), 0);
        row(
            "worker process killed inside a stream",
            &counted,
            "records, then worker_died_mid_stream",
            "router 0",
        );
    });
}
