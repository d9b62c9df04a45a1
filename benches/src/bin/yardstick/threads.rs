//! One runtime thread against two, at the same offered load: what the second one costs.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::case::Case;
use crate::client::Plan;
use crate::failure::Failure;
use crate::pairs::{Effort, Site};
use crate::process::Process;
use crate::router::{Places, Router, Running};
use crate::sample::{self, Sample};

/// The router may use both, so that the second thread has somewhere to run.
const CORES: &str = "0,1";

/// Share of the peak that is offered.
const SHARE: f64 = 0.4;

/// How long system calls are counted. Tracing makes them slow, so that nothing else is measured meanwhile.
const TRACED: &str = "3";

pub(crate) struct Threads {
    /// Requests per second that were offered.
    pub(crate) offered: f64,
    /// With one thread, with two.
    pub(crate) samples: [Vec<Sample>; 2],
    /// Futex calls per request; `None` if they cannot be traced here.
    pub(crate) futexes: [Option<f64>; 2],
}

pub(crate) async fn measure(places: &Places, effort: Effort) -> Result<Threads, Failure> {
    let shape = Case::Prompt2KiB.shape().ok_or_else(|| Failure::Refused("no shape".to_owned()))?;
    let site = Site::start(&shape.worker(), shape.requests())?;
    let mut sides = Vec::new();
    for threads in [1, 2] {
        let launch = site.launch(places, threads, CORES);
        let running = Router::Forebay.start(&launch, &site.requests[0]).await?;
        sides.push((site.plan(running.addr, shape.clients), running));
    }
    let peak = sample::take(&sides[0].0, &shape, effort.length, None).await;
    let offered = peak.rate * SHARE;
    let mut result = Threads { offered, samples: [Vec::new(), Vec::new()], futexes: [None, None] };
    for (plan, _) in &mut sides {
        plan.rate = Some(offered);
    }
    for _ in 0..effort.pairs {
        for ((plan, running), samples) in sides.iter().zip(&mut result.samples) {
            samples.push(sample::take(plan, &shape, effort.length, Some(&running.process)).await);
        }
    }
    for ((plan, running), futexes) in sides.iter().zip(&mut result.futexes) {
        *futexes = count_futexes(plan, running, places).await;
    }
    Ok(result)
}

async fn count_futexes(plan: &Plan, running: &Running, places: &Places) -> Option<f64> {
    let crowd = crate::client::Crowd::start(plan, Duration::ZERO);
    let before = crowd.tally.counts().served;
    let calls = traced(&running.process, places).await;
    let served = crowd.tally.counts().served - before;
    crowd.finish().await;
    Some(calls? as f64 / served.max(1) as f64)
}

async fn traced(process: &Process, places: &Places) -> Option<u64> {
    let file = places.scratch.join(format!("futex-{}", process.pid));
    let mut strace = Command::new("timeout")
        .args(["-s", "INT", TRACED, "strace", "-f", "-c", "-e", "trace=futex", "-o"])
        .arg(&file)
        .args(["-p", &process.pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    while strace.try_wait().ok()?.is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let table = fs::read_to_string(file).ok()?;
    // % time, seconds, usecs/call, calls, [errors,] syscall. An empty table means that there was no call.
    let line = table.lines().find(|line| line.ends_with("futex"));
    line.map_or(Some(0), |line| line.split_ascii_whitespace().nth(3)?.parse().ok())
}
