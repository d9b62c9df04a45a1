//! What the request path counts. Handles are found once for each route and model, and then only added to.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use forebay_workers::Pool;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use crate::admission::Permit;
use crate::outcome::Outcome;
use crate::route::Route;

/// Seconds. From an instant worker to a prompt that waits for minutes.
const LATENCY: [f64; 18] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0,
    600.0,
];

/// Seconds between two chunks of one stream.
const GAP: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0];

const CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// All series of the request path.
pub struct RouterMetrics {
    requests: IntCounterVec,
    first_byte: HistogramVec,
    gap: HistogramVec,
    duration: HistogramVec,
    retries: IntCounterVec,
    /// Requests that wait to be admitted.
    pub(crate) queued: IntGauge,
    /// Resends on the same worker because a reused connection had died.
    pub(crate) resends: IntCounter,
    stripped: IntCounterVec,
    series: ArcSwap<HashMap<(u16, u32), Arc<Series>>>,
}

/// The series of one route and model, each made when it is first needed.
struct Series {
    model: Arc<str>,
    route: &'static str,
    requests: [[OnceLock<IntCounter>; Outcome::ALL.len()]; CLASSES.len()],
    first_byte: OnceLock<Histogram>,
    gap: OnceLock<Histogram>,
    duration: OnceLock<Histogram>,
}

impl RouterMetrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let families = Families(registry);
        let resends = families.counter(
            "forebay_resends_total",
            "Requests sent again to the same worker because a reused connection had died before any answer.",
            &[],
        )?;
        let queued = IntGauge::new("forebay_requests_queued", "Requests that wait to be admitted.")?;
        registry.register(Box::new(queued.clone()))?;
        Ok(Self {
            requests: families.counter(
                "forebay_requests_total",
                "Requests by route, model, class of the status sent to the client, and outcome.",
                &["route", "model", "class", "outcome"],
            )?,
            first_byte: families.histogram(
                "forebay_time_to_first_byte_seconds",
                "From the request's head to the first byte of the response's body.",
                &LATENCY,
            )?,
            gap: families.histogram(
                "forebay_time_between_chunks_seconds",
                "Between two reads of one event stream.",
                &GAP,
            )?,
            duration: families.histogram(
                "forebay_request_duration_seconds",
                "From the request's head to the end of the response.",
                &LATENCY,
            )?,
            retries: families.counter(
                "forebay_retries_total",
                "Attempts after the first, by why the one before failed.",
                &["reason"],
            )?,
            queued,
            resends: resends.with_label_values::<&str>(&[]),
            stripped: families.counter(
                "forebay_stripped_total",
                "Internal fields taken out of requests.",
                &["field"],
            )?,
            series: ArcSwap::default(),
        })
    }

    pub(crate) fn note_stripped(&self, field: &'static str) {
        let counter = self.stripped.with_label_values(&[field]);
        if counter.get() == 0 {
            tracing::warn!(
                field,
                "a client sent what only the router may send; it is taken out (logged once)"
            );
        }
        counter.inc();
    }

    pub(crate) fn note_retry(&self, reason: &'static str) {
        self.retries.with_label_values(&[reason]).inc();
    }

    /// The series of a route and the model of a pool; of no model if there is no pool.
    fn series(&self, route: &Route, pool: Option<&Pool>) -> Arc<Series> {
        let key = (route.id, pool.map_or(u32::MAX, Pool::label));
        if let Some(series) = self.series.load().get(&key) {
            return Arc::clone(series);
        }
        let series = Arc::new(Series {
            model: pool.map_or_else(|| "".into(), |pool| Arc::clone(pool.model())),
            route: route.template,
            requests: Default::default(),
            first_byte: OnceLock::new(),
            gap: OnceLock::new(),
            duration: OnceLock::new(),
        });
        self.series.rcu(|known| {
            let mut known = HashMap::clone(known);
            known.insert(key, Arc::clone(&series));
            known
        });
        series
    }
}

/// Makes families and registers them.
struct Families<'a>(&'a Registry);

impl Families<'_> {
    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        let family = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let family = HistogramVec::new(options, &["route", "model"])?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }
}

impl Series {
    fn observe(&self, cell: &OnceLock<Histogram>, family: &HistogramVec, took: Duration) {
        cell.get_or_init(|| family.with_label_values(&[self.route, &self.model])).observe(took.as_secs_f64());
    }
}

/// One request, from its head to its end, which is counted when this is dropped: exactly once, whatever happens.
pub(crate) struct Record {
    metrics: Arc<RouterMetrics>,
    route: Route,
    /// Of the request's pool, once that is known.
    series: Option<Arc<Series>>,
    pub(crate) started: Instant,
    /// When the last chunk of the body came.
    last_chunk: Option<Instant>,
    streamed: bool,
    status: u16,
    /// Its place among the requests under way.
    pub(crate) permit: Option<Permit>,
    /// How it ends if nothing more happens.
    pub(crate) outcome: Outcome,
}

impl Record {
    /// Begins with the request's head.
    pub(crate) fn begin(metrics: &Arc<RouterMetrics>, route: Route) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            route,
            series: None,
            started: Instant::now(),
            last_chunk: None,
            streamed: false,
            status: 0,
            permit: None,
            outcome: Outcome::ClientGoneBeforeHeaders,
        }
    }

    /// The request's pool is known.
    pub(crate) fn pool(&mut self, pool: &Pool) {
        self.series = Some(self.metrics.series(&self.route, Some(pool)));
    }

    /// The response begins.
    pub(crate) fn status(&mut self, status: http::StatusCode, streamed: bool) {
        self.status = status.as_u16();
        self.streamed = streamed;
    }

    /// Bytes of the body came. Only the first ones of a body that is no stream of events are of interest: for them it
    /// gives how long they took.
    pub(crate) fn chunk(&mut self) -> Option<Duration> {
        let series = self.series.as_ref()?;
        match self.last_chunk {
            None => {
                let now = Instant::now();
                series.observe(&series.first_byte, &self.metrics.first_byte, now - self.started);
                self.last_chunk = Some(now);
                return Some(now - self.started);
            }
            Some(last) if self.streamed => {
                let now = Instant::now();
                series.observe(&series.gap, &self.metrics.gap, now - last);
                self.last_chunk = Some(now);
            }
            Some(_) => {}
        }
        None
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.permit = None;
        if std::thread::panicking() {
            self.outcome = Outcome::Panicked;
        }
        let series = self.series.take().unwrap_or_else(|| self.metrics.series(&self.route, None));
        let class = match self.status {
            100..=599 => usize::from(self.status / 100),
            _ => 0,
        };
        series.requests[class][self.outcome as usize]
            .get_or_init(|| {
                let labels = [series.route, &series.model, CLASSES[class], self.outcome.as_str()];
                self.metrics.requests.with_label_values(&labels)
            })
            .inc();
        series.observe(&series.duration, &self.metrics.duration, self.started.elapsed());
    }
}
