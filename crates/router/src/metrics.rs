//! What the request path counts. Handles are found once for each route and model, and then only added to.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use forebay_workers::Pool;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use crate::outcome::Outcome;
use crate::route::Route;

/// Seconds. From an instant worker to a prompt that waits for minutes.
const LATENCY: [f64; 18] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0,
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
    /// Resends on the same worker because a reused connection had died.
    pub(crate) resends: IntCounter,
    stripped: IntCounterVec,
    series: ArcSwap<HashMap<(u16, u32), Arc<Series>>>,
}

/// The series of one route and model.
pub struct Series {
    model: Arc<str>,
    route: &'static str,
    requests: [[OnceLock<IntCounter>; Outcome::ALL.len()]; CLASSES.len()],
    first_byte: Histogram,
    gap: Histogram,
    duration: Histogram,
}

impl RouterMetrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let by_route = ["route", "model"];
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| -> Result<HistogramVec, prometheus::Error> {
            let family = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), &by_route)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let resends = counter(
            "forebay_resends_total",
            "Requests sent again to the same worker because a reused connection had died before any answer.",
            &[],
        )?;
        Ok(Self {
            requests: counter(
                "forebay_requests_total",
                "Requests by route, model, class of the status sent to the client, and outcome.",
                &["route", "model", "class", "outcome"],
            )?,
            first_byte: histogram(
                "forebay_time_to_first_byte_seconds",
                "From the request's head to the first byte of the response's body.",
                &LATENCY,
            )?,
            gap: histogram("forebay_time_between_chunks_seconds", "Between two reads of one event stream.", &GAP)?,
            duration: histogram(
                "forebay_request_duration_seconds",
                "From the request's head to the end of the response.",
                &LATENCY,
            )?,
            retries: counter("forebay_retries_total", "Attempts after the first, by why the one before failed.", &["reason"])?,
            resends: resends.with_label_values::<&str>(&[]),
            stripped: counter("forebay_stripped_total", "Internal fields taken out of requests.", &["field"])?,
            series: ArcSwap::default(),
        })
    }

    pub(crate) fn note_stripped(&self, field: &'static str) {
        let counter = self.stripped.with_label_values(&[field]);
        if counter.get() == 0 {
            tracing::warn!(field, "a client sent what only the router may send; it is taken out (logged once)");
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
        let model: Arc<str> = pool.map_or_else(|| "".into(), |pool| Arc::clone(pool.model()));
        let labels = [route.template, &model];
        let series = Arc::new(Series {
            requests: Default::default(),
            first_byte: self.first_byte.with_label_values(&labels),
            gap: self.gap.with_label_values(&labels),
            duration: self.duration.with_label_values(&labels),
            route: route.template,
            model,
        });
        self.series.rcu(|known| {
            let mut known = HashMap::clone(known);
            known.insert(key, Arc::clone(&series));
            known
        });
        series
    }
}

/// One request, from its head to its end, which is counted when this is dropped: exactly once, whatever happens.
pub(crate) struct Record {
    metrics: Arc<RouterMetrics>,
    series: Arc<Series>,
    started: Instant,
    /// When the last chunk of the body came, if it is an event stream and one came.
    last_chunk: Option<Instant>,
    first_byte_seen: bool,
    streamed: bool,
    status: u16,
    /// How it ends if nothing more happens.
    pub(crate) outcome: Outcome,
}

impl Record {
    /// Begins with the request's head.
    pub(crate) fn begin(metrics: &Arc<RouterMetrics>, route: &Route) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            series: metrics.series(route, None),
            started: Instant::now(),
            last_chunk: None,
            first_byte_seen: false,
            streamed: false,
            status: 0,
            outcome: Outcome::ClientGoneBeforeHeaders,
        }
    }

    /// The request's pool is known.
    pub(crate) fn pool(&mut self, route: &Route, pool: &Pool) {
        self.series = self.metrics.series(route, Some(pool));
    }

    /// The response begins.
    pub(crate) fn status(&mut self, status: http::StatusCode, streamed: bool) {
        self.status = status.as_u16();
        self.streamed = streamed;
    }

    /// Bytes of the body came.
    pub(crate) fn chunk(&mut self) {
        if self.first_byte_seen && !self.streamed {
            return;
        }
        let now = Instant::now();
        if !self.first_byte_seen {
            self.first_byte_seen = true;
            self.series.first_byte.observe(seconds(now - self.started));
        } else if let Some(last) = self.last_chunk {
            self.series.gap.observe(seconds(now - last));
        }
        self.last_chunk = Some(now);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.outcome = Outcome::Panicked;
        }
        let class = match self.status {
            100..=599 => usize::from(self.status / 100),
            _ => 0,
        };
        let outcome = self.outcome as usize;
        let series = &self.series;
        series.requests[class][outcome]
            .get_or_init(|| {
                let labels = [series.route, &series.model, CLASSES[class], self.outcome.as_str()];
                self.metrics.requests.with_label_values(&labels)
            })
            .inc();
        series.duration.observe(seconds(self.started.elapsed()));
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
