//! The series of each worker, read from its own counters when somebody scrapes: they cost nothing in between, and
//! they are gone when the worker is.

use std::sync::Arc;

use forebay_policy::{PolicyKind, Reason};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::audit::Auditor;
use crate::breaker::BreakerState;
use crate::registry::Reader;
use crate::world::{Pool, World};

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

impl Collector for FleetCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The families are known only when there are workers, and the registry checks nothing but these.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let world = self.reader.world();
        let violations = vec![(vec![("counter", "in_flight")], self.auditor.violations() as f64)];
        let mut families = vec![
            gauge("forebay_epoch", "Number of the current trial.", vec![(vec![], world.epoch() as f64)]),
            counter(
                "forebay_policy_invariant_violations_total",
                "Times a counter was found that cannot be: in flight other than started less ended.",
                violations,
            ),
        ];
        families.extend(worker_families(&world));
        families.extend(tree_family(&world));
        families
    }
}

fn worker_families(world: &World) -> Vec<MetricFamily> {
    let policy = world.all().policy().name();
    let (mut in_flight, mut eligible, mut decisions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut breakers, mut transitions) = (Vec::new(), Vec::new());
    for worker in world.workers() {
        let labels: Labels<'_> = vec![("worker", worker.name())];
        in_flight.push((labels.clone(), f64::from(worker.in_flight())));
        eligible.push((labels.clone(), f64::from(u8::from(worker.eligible()))));
        breakers.push((labels.clone(), f64::from(worker.breaker_state() as u8)));
        for to in BreakerState::ALL {
            let mut labels = labels.clone();
            labels.push(("to", to.as_str()));
            transitions.push((labels, worker.breaker_transitions(to) as f64));
        }
        for reason in Reason::ALL {
            let count = worker.decisions(reason);
            if count > 0 {
                let mut labels = labels.clone();
                labels.extend([("policy", policy), ("reason", reason.as_str())]);
                decisions.push((labels, count as f64));
            }
        }
    }
    vec![
        gauge("forebay_in_flight", "Legs in flight on the worker.", in_flight),
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

fn tree_family(world: &World) -> Option<MetricFamily> {
    let keeps_tree = world.all().policy().kind() == PolicyKind::CacheAware;
    keeps_tree.then(|| {
        let size = |pool: &Arc<Pool>| pool.policy().resident_bytes() as f64;
        let sizes = world.pools().map(|pool| (vec![("model", &**pool.model())], size(pool))).collect();
        gauge("forebay_tree_bytes", "Resident bytes of the model's prefix tree.", sizes)
    })
}

fn gauge(name: &str, help: &str, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    family(name, help, MetricType::GAUGE, values)
}

fn counter(name: &str, help: &str, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    family(name, help, MetricType::COUNTER, values)
}

fn family(name: &str, help: &str, kind: MetricType, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    let metrics = values.into_iter().map(|(labels, value)| {
        let mut pairs: Vec<LabelPair> = labels.into_iter().map(pair).collect();
        pairs.sort_by(|a, b| a.name().cmp(b.name()));
        let mut metric = Metric::from_label(pairs);
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
    let mut family = MetricFamily::default();
    family.set_metric(metrics.collect());
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family
}

fn pair((name, value): (&'static str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
