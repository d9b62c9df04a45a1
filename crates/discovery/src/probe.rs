//! The task that keeps asking one worker whether it is well and what it serves.

use std::sync::Arc;
use std::time::Duration;

use forebay_workers::{Blocker, Host, Models, Ranks, Reader, Rest, Role, WorkerUrl, Writer};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::asking::{Asker, Resting};
use crate::settings::{ProbeSettings, RankCount};

/// Between two probes as long as no worker is well: the first one is to be found at once, and a refused connection
/// costs next to nothing.
const NOBODY_READY: Duration = Duration::from_millis(10);

/// Reasons why a worker is not ready that are logged.
const MOST_TOLD: usize = 8;

/// What a probe task knows of its worker.
#[derive(Default)]
struct Known {
    /// When it last said what it serves.
    described: Option<Instant>,
    /// Whether it answers when it is asked whether it sleeps, and whether it is stopped.
    tells_sleep: bool,
    tells_stop: bool,
    /// Why it is not well, as far as that was logged.
    told: Vec<String>,
}

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
    /// What it is for.
    pub role: Role,
    /// What was given.
    pub given: u32,
    /// What it has.
    pub found: u32,
}

impl Known {
    /// Logs what has changed with a probe: each reason why a worker is not ready is said once, not with each probe.
    fn tell(&mut self, host: &Host, (was_up, up): (bool, bool), ill: Option<String>) {
        let worker = host.url().as_str();
        let is_news = self.told.len() < MOST_TOLD && ill.as_ref().is_some_and(|ill| !self.told.contains(ill));
        match (was_up, up, &ill) {
            (false, true, _) => info!(worker, "worker is ready"),
            (true, false, error) => warn!(worker, error, "worker left rotation: health probes fail"),
            (false, false, Some(error)) if is_news => warn!(worker, error, "worker is not ready"),
            _ => debug!(worker, error = ill, up, "probed"),
        }
        if up {
            self.told.clear();
        } else {
            self.told.extend(ill.filter(|_| is_news));
        }
    }
}

impl Probe {
    /// Asks until stopped.
    pub async fn run(self, host: Arc<Host>) {
        let timeout = self.settings.health.timeout;
        let asker = Asker::new(self.settings.dialer.clone(), timeout, self.settings.api_key.as_deref());
        let mut known = Known::default();
        while !host.blocked_by(Blocker::Removed) {
            let started = Instant::now();
            let probe = async {
                self.round(&asker, &host, &mut known).await;
                self.wait(&asker, &host, &mut known, started + self.pause(&host)).await;
            };
            tokio::select! {
                () = probe => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Waits for the next probe, and reads the models whenever that is due before it.
    async fn wait(&self, asker: &Asker, host: &Arc<Host>, known: &mut Known, next: Instant) {
        loop {
            let described = known.described.filter(|_| host.is_well());
            let due = described.and_then(|at| at.checked_add(self.settings.model_refresh));
            let due = due.filter(|due| *due < next);
            tokio::select! {
                () = host.look_asked() => return,
                () = tokio::time::sleep_until(due.unwrap_or(next)) => {}
            }
            if due.is_none() {
                return;
            }
            self.describe(asker, host).await;
            known.described = Some(Instant::now());
        }
    }

    /// One probe, and a read of the models when it is due. The models come first: a worker that just came up
    /// must not be chosen before it is known what it serves, and whether it takes requests at all: one that rests
    /// calls itself healthy.
    async fn round(&self, asker: &Asker, host: &Arc<Host>, known: &mut Known) {
        let was_up = host.is_well();
        let due = known.described.is_none_or(|at| at.elapsed() >= self.settings.model_refresh);
        let asks_all = due || !was_up;
        let asked = host.news();
        let (health, ..) = tokio::join!(
            asker.is_well(host.url(), &self.settings.health.endpoint),
            self.ask_rest(asker, host, (Rest::Asleep, asks_all, asked), &mut known.tells_sleep),
            self.ask_rest(asker, host, (Rest::Stopped, asks_all, asked), &mut known.tells_stop),
        );
        let Some(health) = health else {
            return warn!(worker = host.url().as_str(), "cannot probe: this process is out of resources");
        };
        let good = health.is_ok();
        if good && self.settings.ranks_of(host.role()) != RankCount::default() {
            self.count_ranks(asker, host, known.described.is_none()).await;
        }
        if good && (asks_all || host.take_models_stale()) {
            self.describe(asker, host).await;
            known.described = Some(Instant::now());
        }
        if good && host.is_suspected_since(asked) {
            // It was well when it was asked, and has refused a connection since: it is asked again, at once. Nobody else
            // asks for that who found it suspected already.
            host.look_now();
            return;
        }
        let up = self.writer.probed(host, good);
        known.tell(host, (was_up, up), health.err());
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
        let given = self.settings.ranks_of(host.role()).given();
        if is_first && let Some(given) = given.map(Ranks::count) {
            let misfit = Misfit { url: host.url().clone(), role: host.role(), given, found };
            self.misfit.send_if_modified(|first| first.is_none() && first.replace(misfit).is_none());
        }
        self.writer.ranks(host, Some(ranks).filter(|_| found > 1));
        info!(worker = host.url().as_str(), known, found, "number of data-parallel ranks learnt");
    }

    /// Asks whether it rests: each time if it is one that tells, else when all is asked. One that does not tell is taken
    /// to be awake, lest nobody ever finds out that it is.
    async fn ask_rest(
        &self,
        asker: &Asker,
        host: &Arc<Host>,
        (rest, asks_all, asked): (Rest, bool, u64),
        tells: &mut bool,
    ) {
        if !*tells && !asks_all && !host.blocked_by(rest.into()) {
            return;
        }
        let told = asker.rests(host.url(), rest).await;
        let rests = match told {
            Resting::NoAnswer => return,
            Resting::Says(rests) => rests,
            Resting::Nothing => false,
        };
        *tells = told != Resting::Nothing;
        if self.writer.heard_of_rest(host, rest, rests, asked) {
            info!(worker = host.url().as_str(), ?rest, rests, "worker rests or takes requests again");
        }
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
        // What did not come is no news.
        let version = version.unwrap_or_else(|| (*host.version()).clone());
        self.writer.learnt(host, models, version);
    }

    /// Until the next probe. Spread by a tenth either way, so that probes of many workers do not march in step.
    fn pause(&self, host: &Host) -> Duration {
        let mut every = self.settings.health.interval;
        if host.never_well() {
            every = every.min(self.settings.startup_interval);
        }
        if self.reader.world().workers().iter().all(|worker| !worker.is_well()) {
            return every.min(NOBODY_READY);
        }
        let tenths = host.number().wrapping_mul(7) % 21;
        every.mul_f64(0.9 + f64::from(tenths) / 100.0)
    }
}
