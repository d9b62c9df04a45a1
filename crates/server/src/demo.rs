//! `forebay demo`: simulated workers in this process with forebay in front of them, and what to try on it.

use std::net::{Ipv4Addr, TcpListener};

use forebay_discovery::RankCount;
use forebay_sim::Exchange;

use crate::app::App;
use crate::flags::Flags;
use crate::given::{Given, Rejected};
use crate::rules::WORKERS;
use crate::run::{control_runtime, serve_on};
use crate::settings::Settings;
use crate::simulate::{parts, prefillers, start_worker};
use crate::startup::StartupError;

/// The model that the simulated workers serve.
const MODEL: &str = "demo";

/// A demo to run.
pub struct Demo {
    /// Simulated workers, at least 1.
    pub workers: u16,
    /// How many of them prefill. If there are any, the others decode.
    pub prefillers: u16,
    /// Settings of forebay; the simulated workers' URLs are put into them.
    pub settings: Settings,
}

/// Reads the number of workers and of those that prefill, and fits `flags` to a demo: ports that are taken by chance do not
/// matter.
///
/// # Errors
/// A number cannot be used, or workers are named that a demo does not have.
pub fn adapt([workers, prefill]: [Option<&Given>; 2], flags: &mut Flags) -> Result<(u16, u16), Rejected> {
    let named = [("worker-urls", &flags.worker_urls), ("prefill", &flags.prefill), ("decode", &flags.decode)];
    for (key, urls) in named {
        if let Some(url) = urls.as_ref().and_then(|urls| urls.first()) {
            return Err(url.reject(key, "a demo brings its own workers; none is allowed".to_owned()));
        }
    }
    flags.port.get_or_insert_with(|| free_or_any(30000));
    flags.admin_port.get_or_insert_with(|| free_or_any(29000));
    let workers = WORKERS.read("workers", workers.cloned(), 4)?;
    let prefillers = prefillers(prefill.cloned(), workers)?;
    if prefillers > 0 {
        let is_bootstrap = flags.kv_connector.as_ref().is_some_and(|name| name.text() == "bootstrap");
        // Stands for workers that are yet to be started.
        let nobody = |nth: u16| Given::from_flag(format!("http://127.0.0.1:{}", nth + 1));
        let port = is_bootstrap.then(|| Given::from_flag("8998".to_owned()));
        flags.vllm_pd_disaggregation = Some(Given::from_flag("true".to_owned()));
        flags.prefill =
            Some((0..prefillers).flat_map(|nth| [Some(nobody(nth)), port.clone()]).flatten().collect());
        flags.decode = Some((prefillers..workers).map(nobody).collect());
    }
    Ok((workers, prefillers))
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
            let connector = self.settings.router.pairs.as_ref().map(|pairs| pairs.connector);
            let connector = connector.unwrap_or_default();
            let parts = parts(self.workers, self.prefillers, connector, &Exchange::default());
            let settings = &self.settings;
            let ranks =
                |nth| match if nth < self.prefillers { settings.prefill_ranks } else { settings.ranks } {
                    RankCount::Given(ranks) => ranks.count(),
                    RankCount::Asked => 1,
                };
            let start = |(nth, part)| start_worker(0, MODEL, (ranks(nth), part));
            (0..).zip(parts).map(start).collect::<Result<Vec<_>, _>>()?
        };
        for (nth, worker) in workers.iter().enumerate() {
            let url = worker.url().parse().map_err(|error| StartupError::Internal(format!("{error}")))?;
            match &mut self.settings.roles {
                // Prefill workers come first here and there.
                Some(roles) => roles.workers[nth].0 = url,
                None => self.settings.worker_urls.push(url),
            }
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
