//! The soak: the real program between simulated workers in other processes, mixed requests, random faults each second,
//! crowds of clients; every answer is judged, and at quiet points every count. See `tests/soak.sh`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "this program is a check, and a panic is a report of it"
)]

mod answers;
mod asks;
mod chance;
mod chaos;
mod clients;
mod crowd;
mod quiet;
mod router;
mod tally;
mod verdict;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::sync::{Mutex, RwLock};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use asks::Ask;
use chance::Chance;
use chaos::Fleet;
use clients::Asker;
use quiet::Quiet;
use router::Router;
use tally::Tally;
use worker::Remote;

/// The soak, or one of its processes.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// The soak itself.
    Run(Plan),
    /// A worker that does on stdin what it is told.
    Worker {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        name: String,
    },
    /// Many clients at once.
    Crowd {
        #[arg(long)]
        url: String,
        #[arg(long)]
        count: usize,
        #[arg(long)]
        seed: u64,
    },
}

/// What is to be done.
#[derive(clap::Args, Clone)]
struct Plan {
    /// The program under test.
    #[arg(long)]
    forebay: PathBuf,
    /// How long, in seconds.
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
    /// What all draws start from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated workers.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Clients that ask one request after the other.
    #[arg(long, default_value_t = 48)]
    clients: u64,
    /// Requests in a second, of all clients together.
    #[arg(long, default_value_t = 120)]
    rate: u64,
    /// Clients that connect at once, now and then.
    #[arg(long, default_value_t = 10_000)]
    crowd: usize,
    /// Seconds between two crowds; the first one comes after a tenth of the time at the latest.
    #[arg(long, default_value_t = 300)]
    crowd_every: u64,
    /// Seconds between two quiet points.
    #[arg(long, default_value_t = 20)]
    quiet_every: u64,
    /// Further flags of the program under test.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    flags: String,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match Arguments::parse().role {
            Role::Run(plan) => return run(&plan).await,
            Role::Worker { port, name } => worker::serve(port, name).await,
            Role::Crowd { url, count, seed } => crowd::come(&url, count, seed).await,
        }
        ExitCode::SUCCESS
    })
}

async fn run(plan: &Plan) -> ExitCode {
    let mut fleet = Fleet::new();
    let mut urls = Vec::new();
    for number in 0..plan.workers {
        let worker = Remote::start(0, &format!("w{number}")).await;
        urls.push(worker.url());
        fleet.push(Arc::new(Mutex::new(worker)));
    }
    let router = Router::start(&plan.forebay, &urls, &plan.flags).await;
    let (tally, may_ask) = (Arc::new(Tally::default()), Arc::new(RwLock::new(())));
    let mut tasks = JoinSet::new();
    for number in 0..plan.clients {
        let (url, tally, may_ask) = (router.url.clone(), Arc::clone(&tally), Arc::clone(&may_ask));
        tasks.spawn(keep_asking(plan.clone(), number, url, tally, may_ask));
    }
    tasks.spawn(crowds(plan.clone(), router.url.clone(), Arc::clone(&tally), Arc::clone(&may_ask)));
    tasks.spawn(chaos::inject(fleet.clone(), plan.seed));

    let started = Instant::now();
    let chance = Chance::new(plan.seed, 1 << 41);
    let mut quiet = Quiet { router: &router, fleet: &fleet, tally: &tally, chance, started };
    let mut samples = Vec::new();
    while started.elapsed() < Duration::from_secs(plan.seconds) {
        let end = async { while tasks.join_next().await.is_none() {} };
        tokio::select! {
            () = sleep(Duration::from_secs(plan.quiet_every)) => {}
            () = end => {
                tally.wrong("a task of the soak has ended");
                break;
            }
        }
        let silence = may_ask.write().await;
        let sample = quiet.check().await;
        drop(silence);
        verdict::progress(&sample, &tally);
        samples.push(sample);
        if tally.wrongs() > 100 {
            break;
        }
    }
    tasks.shutdown().await;
    verdict::give(plan.seed, router, &samples, &tally).await
}

/// One client, for ever. It holds `may_ask` while a request is under way.
async fn keep_asking(plan: Plan, number: u64, url: String, tally: Arc<Tally>, may_ask: Arc<RwLock<()>>) {
    let mut chance = Chance::new(plan.seed, number);
    let mut asker = Asker { url: &url, tally: &tally, kept: None };
    let mean = 1_000_000 * plan.clients / plan.rate.max(1);
    let mut next = Instant::now() + Duration::from_micros(chance.below(mean));
    loop {
        tokio::time::sleep_until(next).await;
        // What was missed while all had to be quiet is not made up for.
        next = (next + Duration::from_micros(chance.below(2 * mean))).max(Instant::now());
        let _asking = may_ask.read().await;
        asker.ask(&Ask::draw(&mut chance)).await;
    }
}

async fn crowds(plan: Plan, url: String, tally: Arc<Tally>, may_ask: Arc<RwLock<()>>) {
    sleep(Duration::from_secs((plan.seconds / 10).min(15))).await;
    let mut every = interval(Duration::from_secs(plan.crowd_every.max(1)));
    for number in 0.. {
        every.tick().await;
        let _asking = may_ask.read().await;
        if plan.crowd > 0 {
            crowd::send_for(&url, plan.crowd, plan.seed + number, &tally).await;
        }
    }
}
