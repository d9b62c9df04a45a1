//! A simulated worker as a process of its own, which does on stdin what it is told, and the other end of it.

use std::time::Duration;

use forebay_sim::{FaultRule, Scope, Stats, When, Worker, WorkerOptions};
use forebay_tests::Process;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Time from one token to the next.
const PACE: Duration = Duration::from_millis(3);

/// Serves on `port` until stdin ends.
pub(crate) async fn serve(port: u16, name: String) {
    let options =
        WorkerOptions { port, record: 0, pace: Some(PACE), ..WorkerOptions::recording().named(name) };
    let worker = Worker::start(options).expect("a worker");
    println!("{}", json!({"event": "listening", "url": worker.url()}));
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        obey(&worker, &order).await;
        println!(
            "{}",
            json!({"event": "done", "open": worker.stats().open_inference, "stats": shown(worker.stats())})
        );
    }
}

fn shown(stats: Stats) -> String {
    format!("{stats:?}")
}

async fn obey(worker: &Worker, order: &str) {
    let mut words = order.split(' ');
    match (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next()) {
        ("share", share, Some(fault)) => worker.add_fault(FaultRule {
            fault: fault.parse().expect("a fault"),
            when: When::Share { probability: share.parse().expect("a share"), seed: 1 },
            scope: Scope::Inference,
        }),
        ("clear", ..) => {
            worker.clear_faults();
            worker.set_health(200);
        }
        ("refuse", ..) => worker.refuse_connections().await,
        ("pause", ..) => worker.pause_accept().await,
        ("accept", ..) => worker.accept().await,
        ("stats", ..) => {}
        _ => panic!("no such order: {order}"),
    }
}

/// The other end.
pub(crate) struct Remote {
    port: u16,
    name: String,
    process: Process,
}

impl Remote {
    /// Starts it on `port`; 0 takes a free one, which it keeps for all its lives.
    pub(crate) async fn start(port: u16, name: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Process::start(program, &format!("worker --port {port} --name {name}"));
        let url = process.event("listening").await["url"].as_str().expect("a URL").to_owned();
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        Self { port, name: name.to_owned(), process }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Gives an order, and waits until it is carried out.
    pub(crate) async fn order(&mut self, order: &str) -> Value {
        assert!(self.process.tell(order).await, "worker {} is gone", self.name);
        self.process.event("done").await
    }

    /// Requests with a prompt that it has now.
    pub(crate) async fn open(&mut self) -> u64 {
        self.order("stats").await["open"].as_u64().expect("a count")
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Another process on the same port.
    pub(crate) async fn restart(&mut self) {
        *self = Self::start(self.port, &self.name).await;
    }

    /// SIGSTOP, SIGCONT.
    pub(crate) async fn signal(&self, name: &str) {
        self.process.signal(name).await;
    }
}
