//! `forebay demo`: simulated workers in this process with forebay in front of them, and what to try on it.

use std::net::{Ipv4Addr, TcpListener};

use crate::app::App;
use crate::flags::Flags;
use crate::given::{Given, Rejected};
use crate::rules::WORKERS;
use crate::run::{control_runtime, serve_on};
use crate::settings::Settings;
use crate::simulate::start_worker;
use crate::startup::StartupError;

/// The model that the simulated workers serve.
const MODEL: &str = "demo";

/// A demo to run.
pub struct Demo {
    /// Simulated workers, at least 1.
    pub workers: u16,
    /// Settings of forebay; the simulated workers' URLs are added to them.
    pub settings: Settings,
}

/// Reads the number of workers, and fits `flags` to a demo: ports that are taken by chance do not matter.
///
/// # Errors
/// The number cannot be used, or workers are named that a demo does not have.
pub fn adapt(workers: Option<&Given>, flags: &mut Flags) -> Result<u16, Rejected> {
    if let Some(url) = flags.worker_urls.as_ref().and_then(|urls| urls.first()) {
        return Err(url.reject("worker-urls", "a demo brings its own workers; none is allowed".to_owned()));
    }
    flags.port.get_or_insert_with(|| free_or_any(30000));
    flags.admin_port.get_or_insert_with(|| free_or_any(29000));
    WORKERS.read("workers", workers.cloned(), 4)
}

fn free_or_any(wanted: u16) -> Given {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).is_ok();
    Given::from_flag(if free { wanted.to_string() } else { "0".to_owned() })
}

impl Demo {
    /// Runs until a signal comes.
    ///
    /// # Errors
    /// It could not start.
    pub fn run(mut self) -> Result<(), StartupError> {
        let runtime = control_runtime()?;
        let workers = {
            let _inside = runtime.enter();
            (0..self.workers).map(|_| start_worker(0, MODEL)).collect::<Result<Vec<_>, _>>()?
        };
        for worker in &workers {
            let url = worker.url().parse().map_err(|error| StartupError::Internal(format!("{error}")))?;
            self.settings.worker_urls.push(url);
        }
        serve_on(&runtime, &self.settings, |app| eprint!("{}", invitation(app)))
    }
}

/// Three lines to paste into a shell. On stderr, because stdout is for programs.
fn invitation(app: &App) -> String {
    let (url, admin_url) = (app.url(), app.admin_url());
    let chat = |more| {
        format!(
            "curl -sN {url}/v1/chat/completions -H 'content-type: application/json' \
             -d '{{\"model\":\"{MODEL}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]{more}}}'"
        )
    };
    format!(
        "\nTry, in another terminal (Ctrl-C ends the demo):\n\n  {}\n  {}\n  curl -s {admin_url}/metrics\n\n",
        chat(""),
        chat(",\"stream\":true"),
    )
}
