//! `forebay sim`: simulated workers alone, on ports in a row.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use clap::Args;
use forebay_sim::engine::EngineOptions;
use forebay_sim::{Worker, WorkerOptions};

use crate::events::Event;
use crate::given::{Given, Rejected};
use crate::rules::{PORT, WORKERS};
use crate::run::control_runtime;
use crate::signals::Signals;
use crate::startup::StartupError;

/// Flags of the command.
#[derive(Args)]
pub struct SimFlags {
    /// TCP port of the first worker, on 127.0.0.1; the next ones count up; 0 takes free ones [default: 8000]
    #[arg(long, value_name = "PORT")]
    pub port: Option<Given>,
    /// Workers, from 1 to 64 [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<Given>,
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
    model: String,
    end_with_stdin: bool,
}

impl Simulation {
    /// Reads the flags.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn new(SimFlags { port, workers, model, end_with_stdin }: SimFlags) -> Result<Self, Rejected> {
        let first = PORT.read("port", port.clone(), 8000)?;
        let workers = WORKERS.read("workers", workers, 1)?;
        if let Some(port) = port.filter(|_| first.checked_add(workers - 1).is_none()) {
            let last = u16::MAX - (workers - 1);
            return Err(
                port.reject("port", format!("{port} is too high for {workers} workers; at most {last}"))
            );
        }
        Ok(Self { port: first, workers, model, end_with_stdin })
    }

    /// Runs them until a signal comes.
    ///
    /// # Errors
    /// A port cannot be had.
    pub fn run(self) -> Result<(), StartupError> {
        control_runtime()?.block_on(async {
            let signals = Signals::listen()?;
            let mut signals = if self.end_with_stdin { signals.and_end_of_stdin()? } else { signals };
            let workers = self.start()?;
            for worker in &workers {
                let event = Event::Listening { url: &worker.url(), admin_url: None, pid: std::process::id() };
                event.announce();
            }
            signals.next().await;
            Ok(())
        })
    }

    fn start(&self) -> Result<Vec<Worker>, StartupError> {
        let port = |nth| if self.port == 0 { 0 } else { self.port + nth };
        (0..self.workers).map(|nth| start_worker(port(nth), &self.model)).collect()
    }
}

/// Starts a worker with the timing of an engine on `port` of 127.0.0.1, within a tokio runtime.
///
/// # Errors
/// The port cannot be had.
pub fn start_worker(port: u16, model: &str) -> Result<Worker, StartupError> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => StartupError::PortInUse { flag: "--port", addr },
        _ => StartupError::Internal(format!("cannot start a simulated worker on {addr}: {error}")),
    };
    // A simulated worker shares its port with whoever wants to, so it would not notice another one.
    TcpListener::bind(addr).map_err(failed)?;
    let options =
        WorkerOptions { port, model: model.to_owned(), ..WorkerOptions::engine(EngineOptions::default()) };
    Worker::start(options).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(port: &str, workers: &str) -> SimFlags {
        let given = |text: &str| Some(text.parse().unwrap());
        SimFlags { port: given(port), workers: given(workers), model: "m".to_owned(), end_with_stdin: false }
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
