//! Series under vllm-router's names, with its types and labels, for dashboards that were made for it: sums of forebay's own
//! series, made when somebody scrapes. Only names whose meaning is the same are here.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_policy::Reason;
use forebay_workers::collector::metric_family;
use forebay_workers::{Reader, Worker, World};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Which names series have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MetricsPrefix {
    /// Forebay's own.
    #[default]
    Forebay,
    /// Forebay's own, and those of vllm-router beside them.
    VllmRouter,
}

/// Routes whose answers vllm-router counts as generated.
const GENERATED: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/inference/v1/generate"];

/// Routes of embeddings.
const EMBEDDED: [&str; 2] = ["/v1/embeddings", "/embeddings"];

/// Forebay's own count of choices.
const CHOICES: &str = "forebay_policy_decisions_total";

/// Labels of a series, in the order of their names.
type Labels = Vec<(&'static str, String)>;

/// Choices by reason.
pub(super) type Choices = [u64; Reason::ALL.len()];

/// What workers that are gone had counted: series over all workers, which must not go down when one of them goes.
#[derive(Default)]
pub struct Departed(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Those who were there when somebody looked last.
    workers: Vec<Arc<Worker>>,
    gone: Choices,
}

impl Departed {
    /// Choices of all workers, those included that have gone since somebody looked first.
    pub(super) fn all_choices(&self, fleet: &Reader) -> Choices {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that nobody who is gone comes back.
        let world = fleet.world();
        let here: HashSet<_> = world.carriers().map(Arc::as_ptr).collect();
        let before = std::mem::replace(&mut known.workers, world.carriers().cloned().collect());
        before.iter().filter(|worker| !here.contains(&Arc::as_ptr(worker))).for_each(|worker| {
            add_choices(&mut known.gone, worker);
        });
        let mut sums = known.gone;
        known.workers.iter().for_each(|worker| add_choices(&mut sums, worker));
        sums
    }
}

fn add_choices(sums: &mut Choices, worker: &Worker) {
    for (sum, reason) in sums.iter_mut().zip(Reason::ALL) {
        *sum += worker.decisions(reason);
    }
}

/// The families under the old names.
pub(super) fn of(families: &[MetricFamily], world: &World, all: &Choices) -> Vec<MetricFamily> {
    let own = Own(families);
    let mut old = requests(&own);
    old.extend(choices(&own, all));
    old.extend(legs(&own, world));
    old.extend(workers(world));
    old.retain(|family| !family.get_metric().is_empty());
    old
}

/// Forebay's own families.
struct Own<'a>(&'a [MetricFamily]);

fn label<'m>(metric: &'m Metric, name: &str) -> &'m str {
    let found = metric.get_label().iter().find(|label| label.name() == name);
    found.map(LabelPair::value).unwrap_or_default()
}

impl Own<'_> {
    fn metrics(&self, family: &str) -> &[Metric] {
        let found = self.0.iter().find(|known| known.name() == family);
        found.map(MetricFamily::get_metric).unwrap_or_default()
    }

    /// Sums of counters by the labels that `by` gives; `None` leaves a series out.
    fn sums(&self, family: &str, by: impl Fn(&Metric) -> Option<Labels>) -> BTreeMap<Labels, f64> {
        let mut sums = BTreeMap::new();
        for metric in self.metrics(family) {
            if let Some(labels) = by(metric) {
                *sums.entry(labels).or_insert(0.0) += metric.get_counter().get_value();
            }
        }
        sums
    }

    /// Sums of histograms in the same way.
    fn spreads(&self, family: &str, by: impl Fn(&Metric) -> Option<Labels>) -> BTreeMap<Labels, Histogram> {
        let mut sums: BTreeMap<Labels, Histogram> = BTreeMap::new();
        for metric in self.metrics(family) {
            let Some(labels) = by(metric) else { continue };
            let more = metric.get_histogram();
            match sums.get_mut(&labels) {
                Some(sum) => add(sum, more),
                None => {
                    sums.insert(labels, more.clone());
                }
            }
        }
        sums
    }
}

/// Both have the same buckets.
fn add(sum: &mut Histogram, more: &Histogram) {
    let buckets = sum.get_bucket().iter().zip(more.get_bucket());
    let buckets = buckets.map(|(one, other)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(one.upper_bound());
        bucket.set_cumulative_count(one.cumulative_count() + other.cumulative_count());
        bucket
    });
    let buckets = buckets.collect();
    sum.set_bucket(buckets);
    sum.set_sample_count(sum.get_sample_count() + more.get_sample_count());
    sum.set_sample_sum(sum.get_sample_sum() + more.get_sample_sum());
}

fn requests(own: &Own<'_>) -> Vec<MetricFamily> {
    const COUNT: &str = "forebay_requests_total";
    const TIME: &str = "forebay_request_duration_seconds";
    let route = |metric: &Metric| ("route", label(metric, "route").to_owned());
    let is_good = |metric: &Metric| label(metric, "outcome") == "completed";
    let is_bad = |metric: &Metric| !matches!(label(metric, "outcome"), "completed" | "own");
    let error = |metric: &Metric| ("error_type", label(metric, "outcome").to_owned());
    let is_of = |routes: &[&str], metric: &Metric| routes.contains(&label(metric, "route"));
    vec![
        counter(
            "vllm_router_requests_total",
            "Requests that were answered with success, by route.",
            own.sums(COUNT, |metric| is_good(metric).then(|| vec![route(metric)])),
        ),
        counter(
            "vllm_router_request_errors_total",
            "Requests that ended in any other way, by route and how they ended.",
            own.sums(COUNT, |metric| is_bad(metric).then(|| vec![error(metric), route(metric)])),
        ),
        spread(
            "vllm_router_request_duration_seconds",
            "From a request's head to the end of its answer, by route.",
            own.spreads(TIME, |metric| Some(vec![route(metric)])),
        ),
        spread(
            "vllm_router_generate_duration_seconds",
            "The same for all routes that generate.",
            own.spreads(TIME, |metric| is_of(&GENERATED, metric).then(Vec::new)),
        ),
        counter(
            "vllm_router_embeddings_total",
            "Requests for embeddings that were answered with success.",
            own.sums(COUNT, |metric| (is_of(&EMBEDDED, metric) && is_good(metric)).then(Vec::new)),
        ),
        counter(
            "vllm_router_embeddings_errors_total",
            "Requests for embeddings that ended in any other way.",
            own.sums(COUNT, |metric| {
                (is_of(&EMBEDDED, metric) && is_bad(metric)).then(|| vec![error(metric)])
            }),
        ),
        spread(
            "vllm_router_embeddings_duration_seconds",
            "From the head of a request for embeddings to the end of its answer.",
            own.spreads(TIME, |metric| is_of(&EMBEDDED, metric).then(Vec::new)),
        ),
    ]
}

fn choices(own: &Own<'_>, all: &Choices) -> Vec<MetricFamily> {
    let worker = |metric: &Metric| ("worker", label(metric, "worker").to_owned());
    let policy = |metric: &Metric| ("policy", label(metric, "policy").to_owned());
    let because = |reason: Reason| {
        let count = all[reason as usize];
        (count > 0).then_some((Labels::new(), count as f64)).into_iter().collect()
    };
    vec![
        counter(
            "vllm_router_processed_requests_total",
            "Times that the worker was chosen.",
            own.sums(CHOICES, |metric| Some(vec![worker(metric)])),
        ),
        counter(
            "vllm_router_policy_decisions_total",
            "Times that the policy chose the worker.",
            own.sums(CHOICES, |metric| Some(vec![policy(metric), worker(metric)])),
        ),
        counter(
            "vllm_router_cache_hits_total",
            "Choices of a worker that is thought to hold enough of the prompt.",
            because(Reason::PrefixHit),
        ),
        counter(
            "vllm_router_cache_misses_total",
            "Choices where no worker is thought to hold enough of the prompt.",
            because(Reason::MissLeastCost),
        ),
        counter(
            "vllm_router_load_balancing_events_total",
            "Choices of another worker because those that hold the prompt are too busy.",
            because(Reason::SpillLoad),
        ),
    ]
}

/// Choices of workers that have a role.
fn legs(own: &Own<'_>, world: &World) -> Vec<MetricFamily> {
    let chosen = |role: &'static str| {
        let workers = world.workers().iter().filter(|worker| worker.host().role().as_str() == role);
        let names: HashSet<&str> = workers.map(|worker| worker.name()).collect();
        own.sums(CHOICES, move |metric| {
            let worker = label(metric, "worker");
            names.contains(worker).then(|| vec![("worker", worker.to_owned())])
        })
    };
    vec![
        counter(
            "vllm_router_pd_prefill_requests_total",
            "Times that the prefill worker was chosen.",
            chosen("prefill"),
        ),
        counter(
            "vllm_router_pd_decode_requests_total",
            "Times that the decode worker was chosen.",
            chosen("decode"),
        ),
    ]
}

fn workers(world: &World) -> Vec<MetricFamily> {
    // As there, each rank is a worker.
    let each = |value: &dyn Fn(&Worker) -> f64| -> BTreeMap<Labels, f64> {
        let workers = world.workers().iter();
        workers.map(|worker| (vec![("worker", worker.name().to_owned())], value(worker))).collect()
    };
    let loads = each(&|worker| f64::from(worker.in_flight()));
    let well = each(&|worker| f64::from(u8::from(worker.is_well())));
    let states = each(&|worker| f64::from(worker.breaker_state() as u8));
    let alone = |value: Option<f64>| value.map(|value| (Labels::new(), value)).into_iter().collect();
    let (least, most) = (loads.values().copied().reduce(f64::min), loads.values().copied().reduce(f64::max));
    let count = world.workers().len() as f64;
    vec![
        gauge("vllm_router_active_workers", "Workers on the list.", alone(Some(count))),
        gauge("vllm_router_worker_health", "1 if probes say that the worker is well.", well),
        gauge("vllm_router_worker_load", "Legs in flight on the worker.", loads.clone()),
        gauge("vllm_router_running_requests", "Legs in flight on the worker.", loads),
        gauge("vllm_router_max_load", "The most legs in flight on one worker.", alone(most)),
        gauge("vllm_router_min_load", "The fewest.", alone(least)),
        gauge(
            "vllm_router_cb_state",
            "Circuit breaker of the worker: 0 closed, 1 open, 2 half-open.",
            states,
        ),
    ]
}

fn counter(name: &str, help: &str, values: BTreeMap<Labels, f64>) -> MetricFamily {
    family(name, help, MetricType::COUNTER, values, |metric, value| {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    })
}

fn gauge(name: &str, help: &str, values: BTreeMap<Labels, f64>) -> MetricFamily {
    family(name, help, MetricType::GAUGE, values, |metric, value| {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    })
}

fn spread(name: &str, help: &str, values: BTreeMap<Labels, Histogram>) -> MetricFamily {
    family(name, help, MetricType::HISTOGRAM, values, Metric::set_histogram)
}

fn family<T>(
    name: &str,
    help: &str,
    kind: MetricType,
    values: BTreeMap<Labels, T>,
    set: impl Fn(&mut Metric, T),
) -> MetricFamily {
    let metrics = values.into_iter().map(|(labels, value)| {
        let pairs = labels.into_iter().map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value);
            pair
        });
        let mut metric = Metric::from_label(pairs.collect());
        set(&mut metric, value);
        metric
    });
    metric_family(name, help, kind, metrics.collect())
}
