//! A simulated prefill or decode worker as a process of its own, which can be killed. What it hands over is entered in the
//! ledger of the process that started it. A share of its requests meets a fault.

#![expect(clippy::expect_used, reason = "this program is part of tests, and a panic is a report of it")]

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use forebay_sim::{
    Exchange, Fault, FaultRule, Handing, PairOptions, PairRole, Scope, Speech, When, Worker, WorkerOptions,
};
use forebay_tests::announcing::{Announced, Beats};
use tokio::io::AsyncReadExt as _;

/// Which worker.
#[derive(Parser)]
struct Arguments {
    /// Where it listens; 0 takes a free port.
    #[arg(long)]
    port: u16,
    /// It prefills; without, it decodes.
    #[arg(long)]
    prefill: bool,
    /// As forebay names it.
    #[arg(long)]
    connector: String,
    /// Where the ledger is.
    #[arg(long)]
    exchange: SocketAddr,
    /// Where others are told that they reach it, if it announces itself.
    #[arg(long, default_value_t = 0)]
    kv_port: u16,
    /// Where it does.
    #[arg(long)]
    announce: Option<SocketAddr>,
    /// What the draws of faults start from.
    #[arg(long)]
    seed: u64,
}

/// Some of what ranks say is lost, and some is said twice.
const SPEECH: Speech = Speech { delay: Duration::from_millis(1), lost_each: 101, repeated_each: 3 };

/// Shares of all requests that meet a fault.
const FAULTS: [(Fault, f64); 9] = [
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

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Arguments { port, prefill, connector, exchange, kv_port, announce, seed } = Arguments::parse();
    let handing = match &*connector {
        "nccl" => Handing::Named { port: kv_port },
        "lmcache" => Handing::Disagg { port: kv_port, speech: SPEECH },
        name => Handing::from_name(name).expect("a connector"),
    };
    let pair = PairOptions {
        role: if prefill { PairRole::Prefill } else { PairRole::Decode },
        handing,
        lease: Duration::from_secs(30),
        exchange: Exchange::connect(exchange).expect("the ledger"),
    };
    let worker =
        Worker::start(WorkerOptions { port, record: 0, pair: Some(pair), ..WorkerOptions::recording() });
    let worker = worker.expect("a worker");
    for (number, (fault, probability)) in FAULTS.into_iter().enumerate() {
        let when = When::Share { probability, seed: seed * 100 + number as u64 };
        worker.add_fault(FaultRule { fault, when, scope: Scope::Inference });
    }
    let _beats = match announce {
        Some(address) => {
            let kind = if prefill { "P" } else { "D" };
            let said = Announced::of(kind, &worker.url(), &format!("127.0.0.1:{kv_port}"));
            Some(Beats::begin(address, said).await)
        }
        None => None,
    };
    println!(r#"{{"event":"listening","url":"{}"}}"#, worker.url());
    // Until whoever started it is gone.
    let mut nothing = [0];
    while tokio::io::stdin().read(&mut nothing).await.is_ok_and(|length| length > 0) {}
}
