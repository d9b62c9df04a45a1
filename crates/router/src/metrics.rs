//! What the request path counts. Handles are found once for each route and model, and then only added to.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use forebay_workers::Pool;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use crate::account::Account;
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
pub(crate) struct Series {
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
    pub(crate) fn series(&self, route: &Route, pool: Option<&Pool>) -> Arc<Series> {
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
    /// The name of the pool's model.
    pub(crate) fn model(&self) -> &Arc<str> {
        &self.model
    }

    /// The answer's first bytes came.
    pub(crate) fn first_byte(&self, metrics: &RouterMetrics, took: Duration) {
        self.observe(&self.first_byte, &metrics.first_byte, took);
    }

    /// The next bytes of a stream came.
    pub(crate) fn gap(&self, metrics: &RouterMetrics, took: Duration) {
        self.observe(&self.gap, &metrics.gap, took);
    }

    /// A request has ended.
    pub(crate) fn ended(&self, metrics: &RouterMetrics, account: &Account) {
        let class = match account.status {
            100..=599 => usize::from(account.status / 100),
            _ => 0,
        };
        self.requests[class][account.outcome as usize]
            .get_or_init(|| {
                let labels = [self.route, &self.model, CLASSES[class], account.outcome.as_str()];
                metrics.requests.with_label_values(&labels)
            })
            .inc();
        self.observe(&self.duration, &metrics.duration, account.took);
    }

    fn observe(&self, cell: &OnceLock<Histogram>, family: &HistogramVec, took: Duration) {
        cell.get_or_init(|| family.with_label_values(&[self.route, &self.model])).observe(took.as_secs_f64());
    }
}
