//! The yardstick: what forebay costs, next to what others cost, on one machine and in turns.
//!
//! Reading order: `case` (what is asked), `client` and `answer` (who asks and checks), `router` and `config` (who is in
//! between), `process` (what that costs), `sample` (one run), `pairs` (runs in turns), `report` (tables).

mod answer;
mod case;
mod client;
mod config;
mod failure;
mod pairs;
mod process;
mod report;
mod router;
mod sample;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::case::{Case, Shape};
use crate::failure::Failure;
use crate::pairs::Effort;
use crate::router::{Places, Router};

/// Measures forebay against its peers on loopback: the router alone on core 1, clients and workers on core 0.
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
}

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
    stay_off_the_routers_core()?;
    let places = places(&cli)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::at("runtime"))?;
    let result = runtime.block_on(async {
        tokio::select! {
            // Leaving the block drops the routers, which ends them.
            ended = interrupted() => ended,
            done = measure(&cli, &places) => done,
        }
    });
    // Logs of routers are worth keeping only if something went wrong.
    if result.is_ok() {
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

/// Clients and workers share core 0 with the rest of the machine.
fn stay_off_the_routers_core() -> Result<(), Failure> {
    let pid = std::process::id().to_string();
    let output = Command::new("taskset").args(["-a", "-c", "-p", "0", &pid]).output();
    let output = output.map_err(Failure::at("taskset"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::Refused(format!("taskset: {}", String::from_utf8_lossy(&output.stderr))))
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
        let part = match case.shape() {
            Some(shape) => closed_loop(&shape, peers, places, effort).await,
            None => String::new(),
        };
        print!("{part}");
        text += &part;
    }
    let results = match &cli.results {
        None if cli.quick => return Ok(()),
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
    let versions: Vec<_> = Router::value_variants()
        .iter()
        .map(|router| format!("{} {}", router.name(), router.version(places)))
        .collect();
    format!(
        "# What forebay costs\n\n{}, 2 cores {}. {}.\nMedians of {} pairs of runs of {:.0} s; router on one core, clients and 4 instant workers on the other.\n\n",
        date.unwrap_or_default(),
        std::env::consts::ARCH.replace('_', "-"),
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
