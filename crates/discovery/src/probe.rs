//! The task that keeps asking one worker whether it is well and what it serves.

use std::sync::Arc;
use std::time::Duration;

use forebay_workers::{Blocker, Host, Models, Ranks, Reader, WorkerUrl, Writer};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::asking::Asker;
use crate::settings::{ProbeSettings, RankCount};

/// Between two probes as long as no worker is ready: the first one is to be found at once, and a refused connection
/// costs next to nothing.
const NOBODY_READY: Duration = Duration::from_millis(10);

/// What a probe task works with.
#[derive(Clone)]
pub struct Probe {
    /// Tells whether any worker is ready yet.
    pub reader: Reader,
    /// Takes what is found out.
    pub writer: Writer,
    /// Hears of the first worker that has other ranks than were given.
    pub misfit: watch::Sender<Option<Misfit>>,
    /// Knobs.
    pub settings: Arc<ProbeSettings>,
    /// Ends the task.
    pub stop: CancellationToken,
}

/// A worker that has another number of data-parallel ranks than was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The worker.
    pub url: WorkerUrl,
    /// What was given.
    pub given: u32,
    /// What it has.
    pub found: u32,
}

impl Probe {
    /// Asks until stopped.
    pub async fn run(self, host: Arc<Host>) {
        let timeout = Duration::from_secs(self.settings.health.timeout_secs);
        let asker = Asker::new(timeout, self.settings.api_key.as_deref());
        let mut described: Option<Instant> = None;
        loop {
            let started = Instant::now();
            let round = self.round(&asker, &host, &mut described);
            let stopped = tokio::select! {
                () = round => false,
                () = self.stop.cancelled() => true,
            };
            if stopped || host.blocked_by(Blocker::Removed) {
                return;
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = host.look_asked() => {}
                () = tokio::time::sleep_until(started + self.pause(&host)) => {}
            }
        }
    }

    /// One probe, and a read of the models when it is due. The models come first: a worker that just came up
    /// must not be chosen before it is known what it serves.
    async fn round(&self, asker: &Asker, host: &Arc<Host>, described: &mut Option<Instant>) {
        let Some(good) = asker.is_well(host.url(), &self.settings.health.endpoint).await else {
            return warn!(worker = host.url().as_str(), "cannot probe: this process is out of resources");
        };
        let was_up = host.is_well();
        let due = described.is_none_or(|at| at.elapsed() >= self.settings.model_refresh);
        if good && self.settings.ranks != RankCount::default() {
            self.count_ranks(asker, host, described.is_none()).await;
        }
        if good && (due || !was_up || host.take_models_stale()) {
            self.describe(asker, host).await;
            *described = Some(Instant::now());
        }
        let up = self.writer.probed(host, good);
        match (was_up, up) {
            (false, true) => info!(worker = host.url().as_str(), "worker is ready"),
            (true, false) => warn!(worker = host.url().as_str(), "worker left rotation: health probes fail"),
            _ => debug!(worker = host.url().as_str(), good, up, "probed"),
        }
    }

    /// Which ranks are there. Asked with each probe, since an elastic worker changes them while it serves.
    async fn count_ranks(&self, asker: &Asker, host: &Arc<Host>, is_first: bool) {
        let found = match asker.event_sources(host.url()).await {
            Some(found) => Some(found),
            None => asker.metrics(host.url()).await.and_then(|told| told.engines),
        };
        let known = host.ranks().map_or(1, Ranks::count);
        let Some(ranks) = found.filter(|&found| found != known).and_then(Ranks::first) else {
            return;
        };
        let found = ranks.count();
        if is_first && let Some(given) = self.settings.ranks.given().map(Ranks::count) {
            let misfit = Misfit { url: host.url().clone(), given, found };
            self.misfit.send_if_modified(|first| first.is_none() && first.replace(misfit).is_none());
        }
        self.writer.ranks(host, Some(ranks).filter(|_| found > 1));
        info!(worker = host.url().as_str(), known, found, "number of data-parallel ranks learnt");
    }

    async fn describe(&self, asker: &Asker, host: &Arc<Host>) {
        let url = host.url();
        let (models, version, metrics) =
            tokio::join!(asker.models(url), asker.version(url), asker.metrics(url));
        let cache = metrics.and_then(|told| told.cache_tokens);
        self.writer.cache_holds(host, cache.unwrap_or(self.settings.cache_tokens));
        let known = host.models();
        let models = match (models, &*known) {
            (Some(models), _) => models,
            // It is well but would not say: better any name than none.
            (None, Models::Unread) => Models::Any,
            (None, known) => known.clone(),
        };
        if models == Models::Any && *known != Models::Any {
            warn!(
                worker = host.url().as_str(),
                "cannot read /v1/models: the worker is taken to serve any name"
            );
        }
        self.writer.learnt(host, models, version);
    }

    /// Until the next probe. Spread by a tenth either way, so that probes of many workers do not march in step.
    fn pause(&self, host: &Host) -> Duration {
        let mut every = Duration::from_secs(self.settings.health.interval_secs);
        if host.never_well() {
            every = every.min(self.settings.startup_interval);
        }
        if !self.reader.world().ready() {
            return every.min(NOBODY_READY);
        }
        let tenths = host.number().wrapping_mul(7) % 21;
        every.mul_f64(0.9 + f64::from(tenths) / 100.0)
    }
}
