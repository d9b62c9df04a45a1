//! `forebay sim`: simulated workers alone, on ports in a row.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use clap::Args;
use forebay_pd::Connector;
use forebay_sim::engine::EngineOptions;
use forebay_sim::{Exchange, Handing, PairOptions, PairRole, Worker, WorkerOptions};

use crate::events::Event;
use crate::given::{Given, Rejected};
use crate::rules::{CONNECTOR, PORT, PREFILLERS, SIMULATED_RANKS, WORKERS};
use crate::run::control_runtime;
use crate::signals::Signals;
use crate::startup::StartupError;

/// Time that a simulated prefill worker keeps blocks, as vLLM does.
const LEASE: Duration = Duration::from_secs(30);

/// Flags of the command.
#[derive(Args)]
pub struct SimFlags {
    /// TCP port of the first worker, on 127.0.0.1; the next ones count up; 0 takes free ones [default: 8000]
    #[arg(long, value_name = "PORT")]
    pub port: Option<Given>,
    /// Workers, from 1 to 64 [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<Given>,
    /// How many of them prefill; the others decode [default: 0, none has a role]
    #[arg(long, value_name = "N")]
    pub prefill_workers: Option<Given>,
    /// How those hand KV blocks over: nixl, nixl_push or bootstrap [default: nixl]
    #[arg(long, value_name = "NAME")]
    pub kv_connector: Option<Given>,
    /// Data-parallel ranks of each, with a prefix cache each, from 1 to 64 [default: 1]
    #[arg(long, value_name = "N")]
    pub data_parallel_size: Option<Given>,
    /// Name of the model that they serve
    #[arg(long, value_name = "NAME", default_value = "demo")]
    pub model: String,
    /// Take the end of standard input as a SIGTERM
    #[arg(long)]
    pub end_with_stdin: bool,
}

/// Simulated workers to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Simulation {
    /// Port of the first; 0 takes free ones.
    port: u16,
    workers: u16,
    prefillers: u16,
    connector: Connector,
    /// Of each worker.
    ranks: u32,
    model: String,
    end_with_stdin: bool,
}

impl Simulation {
    /// Reads the flags.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn new(flags: SimFlags) -> Result<Self, Rejected> {
        let SimFlags {
            port,
            workers,
            prefill_workers,
            kv_connector,
            data_parallel_size,
            model,
            end_with_stdin,
        } = flags;
        let first = PORT.read("port", port.clone(), 8000)?;
        let workers = WORKERS.read("workers", workers, 1)?;
        let prefillers = prefillers(prefill_workers, workers)?;
        let connector = CONNECTOR.read("kv-connector", kv_connector.clone(), Connector::default())?;
        let is_spoken_of = connector.names_workers() || connector.makes_first_token();
        if let Some(given) = kv_connector.filter(|_| is_spoken_of) {
            let problem =
                "simulated workers do not speak of themselves here; nixl, nixl_push or bootstrap is expected";
            return Err(given.reject("kv-connector", problem.to_owned()));
        }
        let ranks = SIMULATED_RANKS.read("data-parallel-size", data_parallel_size, 1)?;
        if let Some(port) = port.filter(|_| first.checked_add(workers - 1).is_none()) {
            let last = u16::MAX - (workers - 1);
            return Err(
                port.reject("port", format!("{port} is too high for {workers} workers; at most {last}"))
            );
        }
        Ok(Self { port: first, workers, prefillers, connector, ranks, model, end_with_stdin })
    }

    /// Runs them until a signal comes.
    ///
    /// # Errors
    /// A port cannot be had.
    pub fn run(self) -> Result<(), StartupError> {
        control_runtime()?.block_on(async {
            let signals = Signals::listen()?;
            let mut signals = if self.end_with_stdin { signals.and_end_of_stdin()? } else { signals };
            let exchange = Exchange::default();
            let workers = self.start(&exchange)?;
            for (nth, worker) in (0..).zip(&workers) {
                let role = (self.prefillers > 0).then_some(match nth < self.prefillers {
                    true => "prefill",
                    false => "decode",
                });
                let url = worker.url();
                Event::Listening { url: &url, admin_url: None, role, pid: std::process::id() }.announce();
            }
            signals.next().await;
            if self.prefillers > 0 {
                let violations = exchange.violations();
                Event::HandedOver { transfers: exchange.transfers(), violations: &violations }.announce();
            }
            Ok(())
        })
    }

    fn start(&self, exchange: &Exchange) -> Result<Vec<Worker>, StartupError> {
        let port = |nth| if self.port == 0 { 0 } else { self.port + nth };
        let parts = parts(self.workers, self.prefillers, self.connector, exchange);
        let start = |(nth, part)| start_worker(port(nth), &self.model, (self.ranks, part));
        (0..).zip(parts).map(start).collect()
    }
}

/// How many of so many workers prefill.
///
/// # Errors
/// It is no number, or leaves nobody to decode.
pub fn prefillers(given: Option<Given>, workers: u16) -> Result<u16, Rejected> {
    let Some(given) = given else { return Ok(0) };
    let count = PREFILLERS.of("prefill-workers", &given)?;
    if count >= workers {
        let problem = format!("{count} leaves none of {workers} workers to decode; raise --workers");
        return Err(given.reject("prefill-workers", problem));
    }
    Ok(count)
}

/// What each of so many workers does of pairs: the first ones prefill. Nothing if none does.
pub fn parts(
    workers: u16,
    prefillers: u16,
    connector: Connector,
    exchange: &Exchange,
) -> impl Iterator<Item = Option<PairOptions>> + use<> {
    let handing = Handing::from_name(connector.as_str()).filter(|_| prefillers > 0);
    let exchange = exchange.clone();
    (0..workers).map(move |nth| {
        let role = if nth < prefillers { PairRole::Prefill } else { PairRole::Decode };
        Some(PairOptions { role, handing: handing?, lease: LEASE, exchange: exchange.clone() })
    })
}

/// Starts a worker with the timing of an engine for each of its ranks on `port` of 127.0.0.1, within a tokio runtime. `pair`
/// is its part in prefill/decode pairs.
///
/// # Errors
/// The port cannot be had.
pub fn start_worker(
    port: u16,
    model: &str,
    (ranks, pair): (u32, Option<PairOptions>),
) -> Result<Worker, StartupError> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => StartupError::PortInUse { flag: "--port", addr },
        _ => StartupError::Internal(format!("cannot start a simulated worker on {addr}: {error}")),
    };
    // A simulated worker shares its port with whoever wants to, so it would not notice another one.
    TcpListener::bind(addr).map_err(failed)?;
    let engine = WorkerOptions::engine(EngineOptions::default());
    let options = WorkerOptions { port, model: model.to_owned(), pair, ..engine };
    Worker::start(options.with_ranks(ranks)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(port: &str, workers: &str) -> SimFlags {
        let given = |text: &str| Some(text.parse().unwrap());
        SimFlags {
            port: given(port),
            workers: given(workers),
            prefill_workers: None,
            kv_connector: None,
            data_parallel_size: None,
            model: "m".to_owned(),
            end_with_stdin: false,
        }
    }

    #[test]
    fn somebody_has_to_decode() {
        let of = |count: &str| {
            Simulation::new(SimFlags { prefill_workers: Some(count.parse().unwrap()), ..flags("0", "4") })
        };
        assert_eq!(of("3").unwrap().prefillers, 3);
        for bad in ["4", "-1", "x"] {
            assert_eq!(of(bad).unwrap_err().key, "prefill-workers", "{bad}");
        }
        let exchange = Exchange::default();
        let roles = |prefillers| {
            parts(3, prefillers, Connector::NixlPush, &exchange)
                .map(|part| part.map(|part| part.role))
                .collect()
        };
        let with: Vec<_> = roles(1);
        assert_eq!(with, [Some(PairRole::Prefill), Some(PairRole::Decode), Some(PairRole::Decode)]);
        let without: Vec<_> = roles(0);
        assert_eq!(without, [None; 3]);
    }

    #[test]
    fn ranks_are_as_many_as_are_asked_for() {
        let ranks = |text: &str| {
            let data_parallel_size = Some(text.parse().unwrap());
            Simulation::new(SimFlags { data_parallel_size, ..flags("0", "1") }).map(|sim| sim.ranks)
        };
        assert_eq!(ranks("8").unwrap(), 8);
        for bad in ["0", "65", "auto"] {
            assert_eq!(ranks(bad).unwrap_err().key, "data-parallel-size", "{bad}");
        }
    }

    #[test]
    fn ports_in_a_row_must_exist() {
        assert!(Simulation::new(flags("65535", "1")).is_ok());
        let error = Simulation::new(flags("65535", "2")).unwrap_err();
        assert_eq!((error.key, &*error.problem), ("port", "65535 is too high for 2 workers; at most 65534"));
        assert!(Simulation::new(flags("0", "64")).is_ok());
    }

    #[test]
    fn no_workers_are_not_a_simulation() {
        for bad in ["0", "65", "x"] {
            assert_eq!(Simulation::new(flags("0", bad)).unwrap_err().key, "workers", "{bad}");
        }
    }
}
