//! The series of each worker, read from its own counters when somebody scrapes: they cost nothing in between, and
//! they are gone when the worker is.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_policy::{PolicyKind, Reason};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use crate::audit::{Auditor, Invariant};
use crate::breaker::BreakerState;
use crate::by::By;
use crate::pools::Pools;
use crate::prediction::SHARES;
use crate::registry::Reader;
use crate::worker::Worker;
use crate::world::World;

/// Renders what is known of the fleet as metric families.
pub struct FleetCollector {
    reader: Reader,
    auditor: Arc<Auditor>,
}

impl FleetCollector {
    /// Reads from these on each scrape.
    pub fn new(reader: Reader, auditor: Arc<Auditor>) -> Self {
        Self { reader, auditor }
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// The labels of a worker's series: its name, and its rank if ranks are told apart.
fn labels_of(worker: &Worker) -> Labels<'_> {
    let mut labels = vec![("worker", worker.name())];
    if let (Some(_), Some((_, rank))) = (worker.dp_rank(), worker.name().rsplit_once('@')) {
        labels.push(("dp_rank", rank));
    }
    labels
}

fn with<'a>(mut labels: Labels<'a>, name: &'static str, value: &'a str) -> Labels<'a> {
    labels.push((name, value));
    labels
}

impl Collector for FleetCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The families are known only when there are workers, and the registry checks nothing but these.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let world = self.reader.world();
        let violations = Invariant::ALL.into_iter().map(|invariant| {
            (vec![("counter", invariant.as_str())], self.auditor.violations_of(invariant) as f64)
        });
        let mut families = vec![
            gauge("forebay_epoch", "Number of the current trial.", vec![(vec![], world.epoch() as f64)]),
            counter(
                "forebay_policy_invariant_violations_total",
                "What was found that cannot be: loads other than legs started less ended, choices of no candidate.",
                violations.collect(),
            ),
        ];
        families.extend(worker_families(&world));
        families.extend(tree_families(&world));
        families
    }
}

fn worker_families(world: &World) -> Vec<MetricFamily> {
    let [answering, prefilling] = world.policies(By::Rank).map(PolicyKind::as_str);
    let (mut in_flight, mut eligible, mut decisions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut breakers, mut transitions) = (Vec::new(), Vec::new());
    for worker in world.carriers() {
        let labels: Labels<'_> = labels_of(worker);
        let role = worker.host().role().as_str();
        let policy = if worker.host().role().answers() { answering } else { prefilling };
        in_flight.push((with(labels.clone(), "role", role), f64::from(worker.in_flight())));
        eligible.push((labels.clone(), f64::from(u8::from(worker.eligible()))));
        breakers.push((labels.clone(), f64::from(worker.breaker_state() as u8)));
        for to in BreakerState::ALL {
            transitions
                .push((with(labels.clone(), "to", to.as_str()), worker.breaker_transitions(to) as f64));
        }
        for reason in Reason::ALL {
            let count = worker.decisions(reason);
            if count > 0 {
                let labels = with(with(labels.clone(), "policy", policy), "reason", reason.as_str());
                decisions.push((labels, count as f64));
            }
        }
    }
    vec![
        gauge("forebay_in_flight", "Legs in flight on the worker, which has this role.", in_flight),
        gauge("forebay_worker_eligible", "1 if the worker may be chosen now.", eligible),
        gauge(
            "forebay_breaker_state",
            "Circuit breaker of the worker: 0 closed, 1 open, 2 half-open.",
            breakers,
        ),
        counter(
            "forebay_breaker_transitions_total",
            "Changes of the worker's circuit breaker, by the state it changed to.",
            transitions,
        ),
        counter("forebay_policy_decisions_total", "Choices of the worker, by policy and reason.", decisions),
    ]
}

/// What only a policy that knows prefixes has.
fn tree_families(world: &World) -> Vec<MetricFamily> {
    if !world.policies(By::Rank).contains(&PolicyKind::CacheAware) {
        return Vec::new();
    }
    // Prefill workers have trees of their own, and so have requests that no rank can be told.
    let mut sizes = BTreeMap::<&str, f64>::new();
    for pool in world.pools().chain(world.prefill.iter().flat_map(Pools::named)) {
        *sizes.entry(&**pool.model()).or_default() += pool.policy().resident_bytes() as f64;
    }
    let sizes = sizes.into_iter().map(|(model, size)| (vec![("model", model)], size)).collect();
    let of = |value: &dyn Fn(&Worker) -> Option<f64>| {
        let workers = world.workers().iter();
        workers.filter_map(|worker| Some((labels_of(worker), value(worker)?))).collect()
    };
    let checked = world.workers().iter().flat_map(|worker| {
        let sums = worker.predictions().checks();
        [("prompt", sums.prompt), ("predicted", sums.predicted), ("reported", sums.reported)]
            .map(|(kind, tokens)| (with(labels_of(worker), "kind", kind), tokens as f64))
    });
    vec![
        gauge("forebay_tree_bytes", "Resident bytes of the model's prefix trees.", sizes),
        gauge(
            "forebay_worker_cache_tokens",
            "Tokens that the worker's prefix cache holds at most; 0 if not known.",
            of(&|worker| Some(worker.cache_tokens() as f64)),
        ),
        gauge(
            "forebay_worker_prefill_tokens_per_second",
            "Prompt tokens that the worker prefills in a second, as learnt from first tokens.",
            of(&Worker::prefill_rate),
        ),
        counter(
            "forebay_prompt_tokens_total",
            "Prompt tokens of the requests that chose the worker, counted or estimated.",
            of(&|worker| Some(worker.predictions().tokens().0 as f64)),
        ),
        counter(
            "forebay_predicted_uncached_tokens_total",
            "Those of them that the worker was predicted to have to compute.",
            of(&|worker| Some(worker.predictions().tokens().1 as f64)),
        ),
        counter(
            "forebay_cache_check_tokens_total",
            "Of answers that report cached tokens: prompt tokens, and those predicted and reported as cached.",
            checked.collect(),
        ),
        matched_shares(world),
    ]
}

fn matched_shares(world: &World) -> MetricFamily {
    let metrics = world.workers().iter().map(|worker| {
        let mut histogram = Histogram::default();
        let (mut count, mut sum) = (0, 0.0);
        let mut buckets = Vec::with_capacity(SHARES.len());
        for (bound, choices) in SHARES.into_iter().zip(worker.predictions().shares()) {
            (count, sum) = (count + choices, sum + bound * choices as f64);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
        histogram.set_bucket(buckets);
        histogram.set_sample_count(count);
        // An upper bound: each share counts as the end of its bucket.
        histogram.set_sample_sum(sum);
        let mut metric = Metric::from_label(pairs(labels_of(worker)));
        metric.set_histogram(histogram);
        metric
    });
    let metrics: Vec<_> = metrics.collect();
    let mut family = family(
        "forebay_matched_share",
        "Share of the prompt that the chosen worker was thought to hold.",
        MetricType::HISTOGRAM,
        Vec::new(),
    );
    family.set_metric(metrics);
    family
}

fn gauge(name: &str, help: &str, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    family(name, help, MetricType::GAUGE, values)
}

fn counter(name: &str, help: &str, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    family(name, help, MetricType::COUNTER, values)
}

fn family(name: &str, help: &str, kind: MetricType, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    let metrics = values.into_iter().map(|(labels, value)| {
        let mut metric = Metric::from_label(pairs(labels));
        if kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    });
    metric_family(name, help, kind, metrics.collect())
}

/// Series under one name.
pub fn metric_family(name: &str, help: &str, kind: MetricType, series: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_metric(series);
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family
}

fn pairs(labels: Labels<'_>) -> Vec<LabelPair> {
    let mut pairs: Vec<LabelPair> = labels.into_iter().map(pair).collect();
    pairs.sort_by(|a, b| a.name().cmp(b.name()));
    pairs
}

fn pair((name, value): (&'static str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
