//! One runtime thread against two, at the same offered load: what the second one costs. haproxy goes through the same, because
//! on a machine of two cores the second thread shares its core with the clients, whoever's thread it is.

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
    pub(crate) router: Router,
    /// Requests per second that were offered.
    pub(crate) offered: f64,
    /// With one thread, with two.
    pub(crate) samples: [Vec<Sample>; 2],
    /// Futex calls per request; `None` if they cannot be traced here.
    pub(crate) futexes: [Option<f64>; 2],
}

/// Routers that let one choose how many threads they have.
const THREADED: [Router; 2] = [Router::Forebay, Router::Haproxy];

/// All at the load that the first one is offered, pair by pair.
pub(crate) async fn measure(places: &Places, effort: Effort) -> Result<Vec<Threads>, Failure> {
    let shape = Case::Prompt2KiB.shape().ok_or_else(|| Failure::Refused("no shape".to_owned()))?;
    let site = Site::start(&shape.worker(), shape.requests())?;
    let routers = THREADED.into_iter().filter(|router| router.program(places).is_some());
    let mut sides = Vec::new();
    for router in routers.flat_map(|router| [(router, 1), (router, 2)]) {
        let launch = site.launch(places, router.1, CORES);
        let running = router.0.start(&launch, &site.requests[0]).await?;
        sides.push(Side {
            router: router.0,
            plan: site.plan(running.addr, shape.clients),
            running,
            samples: Vec::new(),
        });
    }
    let Some(first) = sides.first() else { return Ok(Vec::new()) };
    let offered = sample::take(&first.plan, &shape, effort.length, None).await.rate * SHARE;
    for side in &mut sides {
        side.plan.rate = Some(offered);
    }
    for _ in 0..effort.pairs {
        for side in &mut sides {
            side.samples
                .push(sample::take(&side.plan, &shape, effort.length, Some(&side.running.process)).await);
        }
    }
    let mut results = Vec::new();
    let mut sides = sides.into_iter();
    while let (Some(one), Some(two)) = (sides.next(), sides.next()) {
        let futexes = [one.futexes(places).await, two.futexes(places).await];
        results.push(Threads { router: one.router, offered, samples: [one.samples, two.samples], futexes });
    }
    Ok(results)
}

/// A router with a number of threads.
struct Side {
    router: Router,
    plan: Plan,
    running: Running,
    samples: Vec<Sample>,
}

impl Side {
    async fn futexes(&self, places: &Places) -> Option<f64> {
        count_futexes(&self.plan, &self.running, places).await
    }
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
