//! How well each policy places prompts: hit rate, time to the first token, throughput and spread, in virtual time, and
//! with `--wire` over sockets against other routers.

mod chance;
mod connection;
mod contestant;
mod tally;
mod virtual_time;
mod wire;
mod workload;

use std::path::PathBuf;

use clap::Parser;
use forebay_policy::PolicyKind;

use contestant::Contestant;
use tally::Figures;
use virtual_time::{Mishap, Plan};
use wire::WirePlan;
use workload::{Shape, Workload};

/// Judges the policies by workloads.
#[derive(Parser)]
struct Arguments {
    /// Requests of each run.
    #[arg(long, default_value_t = 8000)]
    requests: usize,
    /// Closed-loop clients.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Workers.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// What workloads and policies draw from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave the policy to find out by itself how much a worker's cache holds: it takes it for unlimited.
    #[arg(long)]
    unknown_capacity: bool,
    /// Gate of cache_aware: share of the prompt that must be held.
    #[arg(long, default_value_t = 0.3)]
    cache_threshold: f64,
    /// Over sockets and in real time, on the first three workloads; other routers take part if they are installed.
    #[arg(long)]
    wire: bool,
    /// The program that `--wire` judges.
    #[arg(long, default_value = "target/release/forebay")]
    forebay: PathBuf,
    /// Only workloads whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

const WORKLOADS: [(&str, Shape, Mishap); 12] = [
    ("chat 128:8 (fits)", Shape::Chat { sessions: 128, systems: 8 }, Mishap::None),
    ("chat 512:32 (twice too big)", Shape::Chat { sessions: 512, systems: 32 }, Mishap::None),
    ("groups of 8", Shape::Groups { of: 8 }, Mishap::None),
    ("agents, one 16 KiB prefix", Shape::Agents { prefix: 16384 }, Mishap::None),
    ("agents, one 1 KiB prefix", Shape::Agents { prefix: 1024 }, Mishap::None),
    ("one hot session", Shape::Hot, Mishap::None),
    ("uniform random", Shape::Uniform, Mishap::None),
    ("one lost, one added", Shape::Chat { sessions: 128, systems: 8 }, Mishap::OneLostOneAdded),
    ("skewed chat 256:16", Shape::Skewed { sessions: 256, systems: 16 }, Mishap::None),
    ("skewed chat 1024:64", Shape::Skewed { sessions: 1024, systems: 64 }, Mishap::None),
    ("documents 24 x 32 KiB", Shape::Documents { count: 24, bytes: 32768 }, Mishap::None),
    ("documents 64 x 32 KiB", Shape::Documents { count: 64, bytes: 32768 }, Mishap::None),
];

fn main() {
    let arguments = Arguments::parse();
    let chosen = WORKLOADS.into_iter().filter(|(name, ..)| name.contains(&arguments.only));
    if arguments.wire {
        chosen.filter(|(.., mishap)| *mishap == Mishap::None).take(3).for_each(|(name, shape, _)| {
            title(name);
            over_sockets(&arguments, shape);
        });
        return;
    }
    for (name, shape, mishap) in chosen {
        title(name);
        let runs: Vec<_> = PolicyKind::ALL
            .into_iter()
            .map(|policy| {
                let plan = Plan {
                    policy,
                    workers: arguments.workers,
                    clients: arguments.clients,
                    requests: arguments.requests,
                    mishap,
                    tell_capacity: !arguments.unknown_capacity,
                    cache_threshold: arguments.cache_threshold,
                    seed: arguments.seed,
                };
                (policy, virtual_time::run(&plan, Workload::new(shape, arguments.seed)).figures())
            })
            .collect();
        for (policy, figures) in &runs {
            line(&policy.to_string(), figures);
        }
        println!("{}", verdict(&runs));
    }
}

fn over_sockets(arguments: &Arguments, shape: Shape) {
    for contestant in Contestant::all() {
        let Some(program) = contestant.program(&arguments.forebay) else {
            println!("{:16} is not installed", contestant.name());
            continue;
        };
        let plan = WirePlan {
            shape,
            workers: arguments.workers,
            clients: arguments.clients,
            requests: arguments.requests,
            seed: arguments.seed,
            program: &program,
        };
        match wire::run(contestant, &plan) {
            Ok((figures, failed)) => {
                line(&contestant.name(), &figures);
                if failed > 0 {
                    println!("{:16} {failed} requests failed", "");
                }
            }
            Err(error) => println!("{:16} {error}", contestant.name()),
        }
    }
}

fn title(name: &str) {
    println!(
        "\n{name}\n{:16} {:>6} {:>9} {:>9} {:>8} {:>7}",
        "", "hit", "p50 ms", "p99 ms", "req/s", "spread"
    );
}

fn line(name: &str, figures: &Figures) {
    let Figures { hit, p50, p99, rate, spread } = figures;
    println!("{name:16} {hit:6.3} {p50:9.1} {p99:9.1} {rate:8.1} {spread:7.2}");
}

/// Whether the cache aware policy keeps its promise against the others.
fn verdict(runs: &[(PolicyKind, Figures)]) -> String {
    let Some((_, own)) = runs.iter().find(|(policy, _)| *policy == PolicyKind::CacheAware) else {
        return String::new();
    };
    let hit = runs.iter().map(|(_, run)| run.hit).fold(0.0, f64::max);
    let p99 = runs.iter().map(|(_, run)| run.p99).fold(f64::MAX, f64::min);
    let beaten = runs.iter().any(|(_, run)| run.hit > own.hit && run.p99 < own.p99);
    let good = !beaten && own.hit >= hit - 0.02 && own.p99 <= p99 * 1.1;
    format!(
        "{}: hit {:+.1} points, p99 {:+.1} % against the best",
        if good { "kept" } else { "NOT KEPT" },
        (own.hit - hit) * 100.0,
        (own.p99 / p99 - 1.0) * 100.0
    )
}
