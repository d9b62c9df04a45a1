//! The yardstick: what forebay costs, next to what others cost, on one machine and in turns.
//!
//! Reading order: `case` (what is asked), `client` and `answer` (who asks and checks), `router` and `config` (who is in
//! between), `process` (what that costs), `sample` (one run), `pairs` (runs in turns), `report` (tables). Apart from that
//! `silent`, `startup`, `threads`, `disaggregated` and `steady` measure one thing each.

mod answer;
mod case;
mod client;
mod config;
mod disaggregated;
mod failure;
mod pairs;
mod process;
mod report;
mod router;
mod sample;
mod silent;
mod startup;
mod steady;
mod threads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::case::{Case, Shape};
use crate::failure::Failure;
use crate::pairs::Effort;
use crate::router::{Places, Router};

/// Measures forebay against its peers on loopback: the router alone on core 1, clients and workers on core 0
#[derive(Parser)]
#[command(name = "yardstick")]
struct Cli {
    /// Short runs and few pairs, to see that everything works; RESULTS.md is left alone
    #[arg(long)]
    quick: bool,
    /// Cases to run [default: all]
    #[arg(long, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Peers to compare with [default: all that are installed]
    #[arg(long, value_delimiter = ',')]
    routers: Vec<Router>,
    /// Pairs of runs for each case and peer [default: 5; quick: 2]
    #[arg(long)]
    pairs: Option<usize>,
    /// Seconds of one run [default: 3; quick: 1]
    #[arg(long)]
    seconds: Option<f64>,
    /// The forebay binary [default: the one built next to this program]
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Where results go [default: RESULTS.md of this package; quick: nowhere]
    #[arg(long)]
    results: Option<PathBuf>,
    /// Instead of all that: so many requests at 60 % of the peak, with clients that leave
    #[arg(long, value_name = "REQUESTS")]
    steady: Option<u64>,
}

/// Pairs from which on a median is worth keeping.
const ENOUGH: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("yardstick: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let cli = Cli::parse();
    prepare_own_process()?;
    let places = places(&cli)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::at("runtime"))?;
    let result = runtime.block_on(async {
        let work = async {
            match cli.steady {
                Some(requests) => steady::run(requests, &places).await,
                None => measure(&cli, &places).await,
            }
        };
        tokio::select! {
            // Leaving the block drops the routers, which ends them.
            ended = interrupted() => ended,
            done = work => done,
        }
    });
    // Logs of routers are worth keeping only if something went wrong.
    if matches!(result, Ok(()) | Err(Failure::Interrupted)) {
        let _ = fs::remove_dir_all(&places.scratch);
    }
    result
}

async fn interrupted() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::at("signals"))?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    Err(Failure::Interrupted)
}

/// Clients and workers share core 0 with the rest of the machine, and have files enough for 1,000 streams.
fn prepare_own_process() -> Result<(), Failure> {
    let pid = std::process::id().to_string();
    let steps =
        [("taskset", ["-a", "-c", "-p", "0", &pid]), ("prlimit", ["--nofile=8192:", "", "", "-p", &pid])];
    for (program, arguments) in steps {
        let arguments = arguments.iter().filter(|argument| !argument.is_empty());
        let output = Command::new(program).args(arguments).output().map_err(Failure::at(program))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Refused(format!("{program}: {said}")));
        }
    }
    Ok(())
}

fn places(cli: &Cli) -> Result<Places, Failure> {
    let beside = std::env::current_exe().map_err(Failure::at("own path"))?.with_file_name("forebay");
    let forebay = cli.forebay.clone().unwrap_or(beside);
    if !forebay.exists() {
        let forebay = forebay.display();
        return Err(Failure::Refused(format!("{forebay} is not there; run `cargo build --release` first")));
    }
    let scratch = std::env::temp_dir().join(format!("yardstick-{}", std::process::id()));
    fs::create_dir_all(&scratch).map_err(Failure::at(scratch.display().to_string()))?;
    Ok(Places { forebay, peers: router::package().join("peers"), scratch })
}

async fn measure(cli: &Cli, places: &Places) -> Result<(), Failure> {
    let cases = if cli.cases.is_empty() { Case::value_variants() } else { &cli.cases };
    let peers = if cli.routers.is_empty() { &Router::value_variants()[1..] } else { &cli.routers };
    let effort = Effort {
        pairs: cli.pairs.unwrap_or(if cli.quick { 2 } else { 5 }),
        length: Duration::from_secs_f64(cli.seconds.unwrap_or(if cli.quick { 1.0 } else { 3.0 })),
    };
    let mut text = header(places, effort);
    print!("{text}");
    for case in cases {
        let part = match (case, case.shape()) {
            (Case::IdleStreams, _) => idle_streams(peers, places).await,
            (Case::Startup, _) => startups(places, effort).await,
            (Case::Threads, _) => report::threads(&threads::measure(places, effort).await),
            (Case::Disaggregated, _) => disaggregated::measure(places, effort).await,
            (_, Some(shape)) => closed_loop(&shape, peers, places, effort).await,
            (_, None) => String::new(),
        };
        print!("{part}");
        text += &part;
    }
    let results = match &cli.results {
        None if cli.quick => return Ok(()),
        None if effort.pairs < ENOUGH => {
            eprintln!("{} pairs are too few for RESULTS.md, which is left alone", effort.pairs);
            return Ok(());
        }
        None => &router::package().join("RESULTS.md"),
        Some(path) => path,
    };
    write(results, &text)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::at(path.display().to_string()))
}

fn header(places: &Places, effort: Effort) -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    // Says how much to trust the figures: it should be near 0.
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let versions: Vec<_> = Router::value_variants()
        .iter()
        .map(|router| format!("{} {}", router.name(), router.version(places)))
        .collect();
    format!(
        "# What forebay costs\n\n{}, 2 cores {}, load average before {}. {}.\nMedians of {} pairs of runs of {:.1} s; router on one core, clients and 4 instant workers on the other. Direct has no hop between cores, so added latency is to be read against that of the plain proxies.\n\n",
        date.unwrap_or_default(),
        std::env::consts::ARCH.replace('_', "-"),
        load.split(' ').next().unwrap_or_default(),
        versions.join(", "),
        effort.pairs,
        effort.length.as_secs_f64(),
    )
}

async fn closed_loop(shape: &Shape, peers: &[Router], places: &Places, effort: Effort) -> String {
    let (mut all, mut refused) = (Vec::new(), Vec::new());
    for &peer in peers {
        if peer.program(places).is_none() {
            continue;
        }
        eprintln!("{}: {}", shape.title, peer.name());
        match pairs::compare(shape, peer, places, effort).await {
            Ok(compared) => all.push(compared),
            Err(why) => refused.push(format!("{}: {why}", peer.name())),
        }
    }
    report::case(shape.title, &all, &refused)
}

async fn idle_streams(peers: &[Router], places: &Places) -> String {
    let mut all = Vec::new();
    for router in [Router::Forebay].iter().chain(peers).filter(|router| router.program(places).is_some()) {
        eprintln!("idle streams: {}", router.name());
        all.push((router.name(), silent::measure(*router, places).await));
    }
    report::idle_streams(&all)
}

async fn startups(places: &Places, effort: Effort) -> String {
    let mut starts = Vec::new();
    for _ in 0..effort.pairs.max(5) {
        match startup::measure(places).await {
            Ok(start) => starts.push(start),
            Err(why) => return format!("## Start\n\nNot measured: {why}.\n\n"),
        }
    }
    report::startup(&starts)
}
