//! A case for forebay and a peer in turns, so that a machine that gets slower does so for both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_sim::{Worker, WorkerOptions};

use crate::answer::Answer;
use crate::case::Shape;
use crate::client::Plan;
use crate::failure::Failure;
use crate::router::{Launch, Places, Router, Running};
use crate::sample::{self, Sample};

/// Simulated workers behind a router.
const WORKERS: usize = 4;

/// Cores of the router that is measured. Everything else is kept off them.
pub(crate) const ROUTER_CORE: &str = "1";

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) pairs: usize,
    /// Of one run.
    pub(crate) length: Duration,
}

/// What the pairs of a case and a peer gave, in the order in which they were taken.
pub(crate) struct Compared {
    pub(crate) peer: Router,
    pub(crate) direct: Vec<Sample>,
    pub(crate) forebay: Vec<Sample>,
    pub(crate) peers: Vec<Sample>,
    /// Resident memory before the first run: forebay's, the peer's.
    pub(crate) fresh: [u64; 2],
    /// The peer changes the answers, so they were compared with its own first one.
    pub(crate) altered: bool,
}

/// Workers, and requests for them.
pub(crate) struct Site {
    pub(crate) workers: Vec<Worker>,
    pub(crate) requests: Arc<Vec<Vec<u8>>>,
}

impl Site {
    /// Starts the workers on the current runtime.
    pub(crate) fn start(options: &WorkerOptions, requests: Vec<Vec<u8>>) -> Result<Self, Failure> {
        let worker = |number| Worker::start(options.clone().named(format!("w{number}")));
        let workers =
            (0..WORKERS).map(worker).collect::<Result<_, _>>().map_err(Failure::at("simulated workers"))?;
        Ok(Self { workers, requests: Arc::new(requests) })
    }

    pub(crate) fn launch<'a>(&self, places: &'a Places, threads: usize, cores: &'a str) -> Launch<'a> {
        let workers = self.workers.iter().map(|worker| worker.addr()).collect();
        Launch { places, workers, prefillers: None, policy: "cache_aware", threads, cores }
    }

    pub(crate) fn plan(&self, target: SocketAddr, clients: usize) -> Plan {
        let requests = Arc::clone(&self.requests);
        Plan { target, requests, clients, expected: None, rate: None, cancel: false }
    }
}

/// A target, and what its answers have to be.
struct Side {
    plan: Plan,
    running: Option<Running>,
    fresh: u64,
}

/// Measures forebay and the peer in turns.
pub(crate) async fn compare(
    shape: &Shape,
    peer: Router,
    places: &Places,
    effort: Effort,
) -> Result<Compared, Failure> {
    let site = Site::start(&shape.worker(), shape.requests())?;
    let mut direct = Side { plan: site.plan(site.workers[0].addr(), shape.clients), running: None, fresh: 0 };
    let expected = sample::calibrate(&direct.plan, shape).await?;
    direct.plan.expected = Some(expected);
    let forebay = side(Router::Forebay, &site, places, shape, expected).await?;
    let other = side(peer, &site, places, shape, expected).await?;
    let mut compared = Compared {
        peer,
        direct: Vec::new(),
        forebay: Vec::new(),
        peers: Vec::new(),
        fresh: [forebay.fresh, other.fresh],
        altered: other.plan.expected != Some(expected),
    };
    for _ in 0..effort.pairs {
        compared.direct.push(direct.take(shape, effort.length / 2).await);
        compared.forebay.push(forebay.take(shape, effort.length).await);
        compared.peers.push(other.take(shape, effort.length).await);
    }
    Ok(compared)
}

/// Starts a router. Forebay and the plain proxies must not change a byte; others may, as long as they always do.
async fn side(
    router: Router,
    site: &Site,
    places: &Places,
    shape: &Shape,
    expected: Answer,
) -> Result<Side, Failure> {
    let launch = site.launch(places, 1, ROUTER_CORE);
    let running = router.start(&launch, &site.requests[0]).await?;
    let mut plan = site.plan(running.addr, shape.clients);
    plan.expected = Some(match router {
        Router::Forebay | Router::Haproxy | Router::Nginx => expected,
        Router::Vllm | Router::Smg | Router::Sglang => sample::calibrate(&plan, shape).await?,
    });
    let fresh = running.process.resident();
    Ok(Side { plan, running: Some(running), fresh })
}

impl Side {
    async fn take(&self, shape: &Shape, length: Duration) -> Sample {
        let process = self.running.as_ref().map(|running| &running.process);
        sample::take(&self.plan, shape, length, process).await
    }
}

impl Compared {
    /// Forebay's CPU per request over the peer's, pair by pair, sorted; an error if one of the runs had errors.
    pub(crate) fn ratios(&self) -> Result<Vec<f64>, String> {
        for (name, samples) in [("forebay", &self.forebay), (self.peer.name(), &self.peers)] {
            let errors: u64 = samples.iter().map(|sample| sample.errors).sum();
            let complaint = samples.iter().find_map(|sample| sample.complaint.clone()).unwrap_or_default();
            if errors > 0 {
                return Err(format!("{name}: {errors} errors, first: {complaint}"));
            }
            if samples.iter().any(|sample| sample.cpu.is_zero()) {
                return Err(format!("{name}: no request in a run"));
            }
        }
        let pairs = self.forebay.iter().zip(&self.peers);
        let mut ratios: Vec<_> =
            pairs.map(|(forebay, peer)| forebay.cpu.as_secs_f64() / peer.cpu.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        Ok(ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(micros: u64, errors: u64) -> Sample {
        Sample { cpu: Duration::from_micros(micros), errors, ..Sample::default() }
    }

    fn compared(forebay: Vec<Sample>, peers: Vec<Sample>) -> Compared {
        let peer = Router::Haproxy;
        Compared { peer, direct: Vec::new(), forebay, peers, fresh: [0, 0], altered: false }
    }

    #[test]
    fn ratios_are_taken_within_a_pair() {
        let compared = compared(vec![sample(20, 0), sample(30, 0)], vec![sample(10, 0), sample(30, 0)]);
        assert_eq!(compared.ratios().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn a_run_with_errors_gives_no_ratio() {
        assert!(compared(vec![sample(20, 1)], vec![sample(10, 0)]).ratios().is_err());
        assert!(compared(vec![sample(20, 0)], vec![sample(10, 1)]).ratios().is_err());
        assert!(compared(vec![sample(20, 0)], vec![sample(0, 0)]).ratios().is_err());
    }
}
