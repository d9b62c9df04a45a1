//! What a prefill/decode pair costs next to a single request, and next to a pair of vllm-router, over the same workers.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_sim::{Exchange, Handing, PairOptions, PairRole, Worker, WorkerOptions};

use crate::case::{Prompt, Shape};
use crate::client::Plan;
use crate::failure::Failure;
use crate::pairs::{Effort, ROUTER_CORE};
use crate::report::{median, spread};
use crate::router::{Launch, Places, Router, Running};
use crate::sample::{self, Sample};

/// Workers of each role.
const EACH: usize = 2;

const PROMPT: usize = 2 << 10;

const CLIENTS: usize = 32;

/// Of both roles, and of single requests: what a choice costs is not what is compared here.
const POLICY: &str = "round_robin";

/// Prefill workers, then decode workers: ready-made answers, those of the former with something to hand over.
struct Fleet {
    workers: Vec<Worker>,
}

impl Fleet {
    fn start(shape: &Shape) -> Result<Self, Failure> {
        let exchange = Exchange::default();
        let worker = |nth| {
            let lease = Duration::from_secs(30);
            let part = PairOptions {
                role: PairRole::Prefill,
                handing: Handing::Pull,
                lease,
                exchange: exchange.clone(),
            };
            let pair = (nth < EACH).then_some(part);
            Worker::start(WorkerOptions { pair, ..shape.worker() }.named(format!("w{nth}")))
        };
        let workers = (0..2 * EACH).map(worker).collect::<Result<_, _>>();
        Ok(Self { workers: workers.map_err(Failure::at("simulated workers"))? })
    }

    /// Roles for all, or the decode workers alone without.
    fn launch<'a>(&self, places: &'a Places, paired: bool) -> Launch<'a> {
        let skipped = if paired { 0 } else { EACH };
        let workers = self.workers[skipped..].iter().map(|worker| worker.addr()).collect();
        let prefillers = paired.then_some(EACH);
        Launch { places, workers, prefillers, policy: POLICY, threads: 1, cores: ROUTER_CORE }
    }
}

/// A way that requests take, and what the runs over it gave.
struct Way {
    name: &'static str,
    plan: Plan,
    running: Option<Running>,
    samples: Vec<Sample>,
    /// With one client.
    alone: Vec<Sample>,
}

impl Way {
    async fn through(
        (name, router): (&'static str, Router),
        launch: &Launch<'_>,
        shape: &Shape,
        requests: &Arc<Vec<Vec<u8>>>,
    ) -> Result<Self, Failure> {
        let running = router.start(launch, &requests[0]).await?;
        let mut way = Self::to(name, running.addr, requests);
        // A pair's answer lacks the internal fields that a worker's has.
        way.plan.expected = Some(sample::calibrate(&way.plan, shape).await?);
        way.running = Some(running);
        Ok(way)
    }

    fn to(name: &'static str, target: std::net::SocketAddr, requests: &Arc<Vec<Vec<u8>>>) -> Self {
        let requests = Arc::clone(requests);
        let plan = Plan { target, requests, clients: CLIENTS, expected: None, rate: None, cancel: false };
        Self { name, plan, running: None, samples: Vec::new(), alone: Vec::new() }
    }

    async fn take(&mut self, shape: &Shape, length: Duration) {
        let process = self.running.as_ref().map(|running| &running.process);
        if process.is_some() {
            self.samples.push(sample::take(&self.plan, shape, length, process).await);
        }
        let alone = Plan { clients: 1, ..self.plan.clone() };
        self.alone.push(sample::take(&alone, shape, length, process).await);
    }

    fn p50_alone(&self) -> f64 {
        median(self.alone.iter().map(|sample| sample.p50.as_secs_f64() * 1e6))
    }
}

/// The tables of both loads.
pub(crate) async fn measure(places: &Places, effort: Effort) -> String {
    let mut text = String::new();
    let loads = [("completions, 16 tokens whole", None), ("completions, 16 tokens streamed", Some(16))];
    for (title, stream) in loads {
        let prompt = Prompt::Completion(PROMPT);
        let shape = Shape { title, prompt, clients: CLIENTS, stream, pace: None };
        eprintln!("pairs: {title}");
        let _ = match table(&shape, places, effort).await {
            Ok(table) => {
                write!(text, "## Pairs, {EACH}P{EACH}D: 2 KiB {title}, {CLIENTS} clients\n\n{table}\n")
            }
            Err(why) => write!(text, "## Pairs: {title}\n\nNot measured: {why}.\n\n"),
        };
    }
    text
}

async fn table(shape: &Shape, places: &Places, effort: Effort) -> Result<String, Failure> {
    let fleet = Fleet::start(shape)?;
    let requests = Arc::new(shape.requests());
    let (paired, single) = (fleet.launch(places, true), fleet.launch(places, false));
    let forebay = Router::Forebay;
    let mut ways = vec![
        Way::through(("forebay, single requests", forebay), &single, shape, &requests).await?,
        Way::through(("forebay, pairs", forebay), &paired, shape, &requests).await?,
        Way::to("direct: a prefill worker", fleet.workers[0].addr(), &requests),
        Way::to("direct: a decode worker", fleet.workers[EACH].addr(), &requests),
    ];
    let mut refused = String::new();
    if Router::Vllm.program(places).is_some() {
        match Way::through(("vllm-router, pairs", Router::Vllm), &paired, shape, &requests).await {
            Ok(way) => ways.push(way),
            Err(why) => refused = format!("\nvllm-router was not measured: {why}.\n"),
        }
    }
    for _ in 0..effort.pairs {
        for way in &mut ways {
            way.take(shape, effort.length).await;
        }
    }
    Ok(written(&ways) + &refused)
}

fn written(ways: &[Way]) -> String {
    let mut text = "| way | requests/s | CPU µs/request | p50 µs, one client | errors | forebay's pairs ÷ it (CPU, min–max) |\n|---|---|---|---|---|---|\n".to_owned();
    for way in ways {
        let errors: u64 = way.samples.iter().chain(&way.alone).map(|sample| sample.errors).sum();
        let mut ratios: Vec<f64> = ways[1]
            .samples
            .iter()
            .zip(&way.samples)
            .map(|(pair, other)| pair.cpu.as_secs_f64() / other.cpu.as_secs_f64())
            .collect();
        ratios.sort_by(f64::total_cmp);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.1} | {:.0} | {errors} | {} |",
            way.name,
            median(way.samples.iter().map(|sample| sample.rate)),
            median(way.samples.iter().map(|sample| sample.cpu.as_secs_f64() * 1e6)),
            way.p50_alone(),
            if ratios.is_empty() { String::new() } else { spread(&ratios) },
        );
    }
    let [single, pair, prefill, decode] = [0, 1, 2, 3].map(|nth| ways[nth].p50_alone());
    let _ = writeln!(
        text,
        "\nAdded with one client: {:.0} µs to a single request, {:.0} µs to both legs of a pair ({:.2} times as much).",
        single - decode,
        pair - prefill - decode,
        (pair - prefill - decode) / (single - decode),
    );
    text
}
