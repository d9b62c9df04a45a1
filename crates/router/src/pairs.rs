//! What the router keeps for prefill/decode pairs: the knobs, the rooms, where prefill workers are reached, the series.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_pd::lmcache::Receiver;
use forebay_pd::{Bootstrap, Bypass, Conditions, Connector, LegKind, Order, Peer, Recompute, Room, Rooms};
use forebay_policy::Slot;
use forebay_workers::{PairSignals, Worker};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use crate::classify::{Asked, PairAsk};
use crate::failure::Failure;

/// Knobs of pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairSettings {
    /// How blocks are handed over.
    pub connector: Connector,
    /// Whether both legs go at once where they need not follow each other.
    pub concurrent_legs: bool,
    /// Which requests are worth it.
    pub conditions: Conditions,
    /// Whether legs of pairs that could do without name the prefill worker's bootstrap server.
    pub bootstrap: Inject,
    /// Whether workers of different versions may be paired.
    pub allow_version_skew: bool,
    /// Time that a prefill worker keeps blocks for whoever fetches them.
    pub lease: Duration,
    /// Longest time of a prefill leg. `None` is no limit.
    pub prefill_timeout: Option<Duration>,
    /// Where decode workers take in blocks, by their URLs, where the legs have to say so.
    pub receivers: Arc<BTreeMap<String, Receiver>>,
    /// Longest wait for the ranks of a prefill worker to say that they have handed over.
    pub ready_timeout: Duration,
    /// Longest wait for the first record of a decode leg's answer, or for all of it if it is no stream. `None` is no
    /// limit.
    pub first_byte_timeout: Option<Duration>,
}

/// When legs name a bootstrap server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Inject {
    /// If the prefill worker was given with a port.
    #[default]
    Auto,
    /// Also without a port.
    Always,
    /// Only if the connector cannot do without.
    Never,
}

impl Default for PairSettings {
    fn default() -> Self {
        Self {
            connector: Connector::default(),
            concurrent_legs: false,
            conditions: Conditions::default(),
            bootstrap: Inject::default(),
            allow_version_skew: false,
            lease: Duration::from_secs(30),
            prefill_timeout: Some(Duration::from_secs(300)),
            receivers: Arc::default(),
            ready_timeout: Duration::from_secs(10),
            first_byte_timeout: Some(Duration::from_secs(120)),
        }
    }
}

impl PairSettings {
    /// The order of the legs.
    pub(crate) fn order(&self) -> Order {
        match self.concurrent_legs && self.connector.may_be_concurrent() {
            true => Order::Both,
            false => self.connector.order(true),
        }
    }

    /// Why a prompt of so many tokens goes to a decode worker alone, if it does and one can take it.
    pub(crate) fn by_length(&self, tokens: u64) -> Option<Bypass> {
        self.conditions.by_length(tokens).filter(|_| self.connector.decodes_alone())
    }

    /// The same of a prompt of which the decode worker lacks so many tokens.
    pub(crate) fn by_cache(&self, uncached_tokens: u64) -> Option<Bypass> {
        self.conditions.by_cache(uncached_tokens).filter(|_| self.connector.decodes_alone())
    }
}

/// How a pair ended, as far as it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairOutcome {
    /// The decode worker's answer began.
    HandedOver,
    /// A decode worker computed the prompt by itself.
    Recomputed,
    /// The client got a worker's complaint.
    Rejected,
    /// The first token was the last one too.
    PrefillOnly,
    /// A leg took too long.
    TimedOut,
    /// Nothing helped.
    Failed,
    /// A worker had other data-parallel ranks than were known: another pair was made.
    BegunAnew,
    /// The client left before.
    Abandoned,
}

impl PairOutcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::HandedOver,
        Self::Recomputed,
        Self::Rejected,
        Self::PrefillOnly,
        Self::TimedOut,
        Self::Failed,
        Self::BegunAnew,
        Self::Abandoned,
    ];

    /// Name in metrics, logs and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HandedOver => "handed_over",
            Self::Recomputed => "recomputed",
            Self::Rejected => "rejected",
            Self::PrefillOnly => "prefill_only",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::BegunAnew => "begun_anew",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The series of pairs.
pub(crate) struct PairMetrics {
    outcomes: [IntCounter; PairOutcome::ALL.len()],
    bypasses: [IntCounter; Bypass::ALL.len()],
    recomputes: [IntCounter; Recompute::ALL.len()],
    retries: [IntCounter; 2],
    pub(crate) prefill: Histogram,
    pub(crate) hand_over: Histogram,
}

/// One pair, counted when it is dropped.
pub(crate) struct PairCount<'a> {
    metrics: &'a PairMetrics,
    pub(crate) outcome: PairOutcome,
}

impl Drop for PairCount<'_> {
    fn drop(&mut self) {
        self.metrics.outcomes[self.outcome as usize].inc();
    }
}

/// Everything about pairs that outlives a request.
pub struct Pairs {
    pub(crate) settings: PairSettings,
    pub(crate) metrics: PairMetrics,
    /// Who waits for blocks.
    pub(crate) signals: PairSignals,
    rooms: Rooms,
    peers: Mutex<HashMap<Slot, Arc<Peer>>>,
}

impl Pairs {
    /// Draws where the rooms begin: never from a seed that a trial repeats.
    ///
    /// # Errors
    /// A family is registered already.
    pub fn new(settings: PairSettings, registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = PairMetrics::new(settings.connector, registry)?;
        let rooms = Rooms::new(RandomState::new().hash_one(0_u8));
        Ok(Self { settings, metrics, signals: PairSignals::default(), rooms, peers: Mutex::default() })
    }

    /// Where workers say that they have handed over.
    pub fn signals(&self) -> PairSignals {
        self.signals.clone()
    }

    /// What decides whether this request becomes a pair; `None` if any worker may have it alone. `computes` says whether an
    /// engine computes something for it: where decode workers cannot do that by themselves, it is a pair or nothing.
    pub(crate) fn ask_of<'r>(
        &self,
        asked: &'r Asked,
        computes: bool,
    ) -> Result<Option<&'r PairAsk>, Failure> {
        let ask = asked.pair.as_deref();
        match ask {
            _ if self.settings.connector.decodes_alone() => Ok(ask.filter(|_| asked.only.is_none())),
            _ if !computes => Ok(None),
            Some(ask) => Ok(Some(ask)),
            None => Err(Failure::Unpairable(Bypass::Route)),
        }
    }

    /// A room that no other pair has.
    pub(crate) fn room(&self) -> Room {
        self.rooms.next()
    }

    /// Where this prefill worker is reached by decode workers, if it was learnt.
    pub(crate) fn peer(&self, worker: &Worker) -> Option<Arc<Peer>> {
        self.peers().get(&worker.slot()).cloned()
    }

    /// It was learnt anew.
    pub(crate) fn learn_peer(&self, slot: Slot, peer: Peer) {
        let mut peers = self.peers();
        if peers.get(&slot).is_none_or(|known| **known != peer) {
            peers.insert(slot, Arc::new(peer));
        }
    }

    /// Something went wrong with it: it may have restarted and be reached elsewhere.
    pub(crate) fn forget_peer(&self, slot: Slot) {
        self.peers().remove(&slot);
    }

    /// The bootstrap server that legs have to name.
    pub(crate) fn bootstrap<'w>(&self, prefill: &'w Worker) -> Option<Bootstrap<'w>> {
        let port = prefill.bootstrap_port();
        let names = match (self.settings.connector, self.settings.bootstrap) {
            (Connector::Bootstrap, _) => true,
            (Connector::NixlPush | Connector::Nccl | Connector::Lmcache, _)
            | (Connector::Nixl, Inject::Never) => false,
            (Connector::Nixl, Inject::Auto) => port.is_some(),
            (Connector::Nixl, Inject::Always) => true,
        };
        names.then(|| Bootstrap { host: prefill.url().host(), port })
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Slot, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PairMetrics {
    fn new(connector: Connector, registry: &Registry) -> Result<Self, prometheus::Error> {
        let family = |name: &str, help: &str, labels: &[&str]| {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        let histogram = |name: &str, help: &str| {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let outcomes = family(
            "forebay_pd_pairs_total",
            "Prefill/decode pairs by connector and how they ended.",
            &["connector", "outcome"],
        )?;
        let bypasses = family(
            "forebay_pd_bypasses_total",
            "Requests that went to one worker alone, a prefill worker if they are for one token, by why they were no pairs.",
            &["reason"],
        )?;
        let recomputes = family(
            "forebay_pd_recomputes_total",
            "Pairs whose prompt a decode worker computed by itself, by why.",
            &["reason"],
        )?;
        let retries = family(
            "forebay_pd_retries_total",
            "Legs of pairs that failed and were followed by another attempt.",
            &["leg"],
        )?;
        Ok(Self {
            outcomes: PairOutcome::ALL
                .map(|outcome| outcomes.with_label_values(&[connector.as_str(), outcome.as_str()])),
            bypasses: Bypass::ALL.map(|why| bypasses.with_label_values(&[why.as_str()])),
            recomputes: Recompute::ALL.map(|why| recomputes.with_label_values(&[why.as_str()])),
            retries: [LegKind::Prefill, LegKind::Decode]
                .map(|leg| retries.with_label_values(&[leg.as_str()])),
            prefill: histogram(
                "forebay_pd_prefill_seconds",
                "From a prefill leg's start to its answer's end.",
            )?,
            hand_over: histogram(
                "forebay_pd_hand_over_seconds",
                "From the end of the prefill leg to the first record of the decode worker's answer, or all of it.",
            )?,
        })
    }

    /// Begins to count a pair.
    pub(crate) fn count(&self) -> PairCount<'_> {
        PairCount { metrics: self, outcome: PairOutcome::Abandoned }
    }

    pub(crate) fn bypassed(&self, why: Bypass) {
        self.bypasses[why as usize].inc();
    }

    pub(crate) fn recomputed(&self, why: Recompute) {
        self.recomputes[why as usize].inc();
    }

    pub(crate) fn retried(&self, leg: LegKind) {
        self.retries[leg as usize].inc();
    }
}

const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_lists() {
        assert!(PairOutcome::ALL.iter().enumerate().all(|(place, outcome)| *outcome as usize == place));
        assert!(Bypass::ALL.iter().enumerate().all(|(place, why)| *why as usize == place));
        assert!(Recompute::ALL.iter().enumerate().all(|(place, why)| *why as usize == place));
        assert_eq!((LegKind::Prefill as usize, LegKind::Decode as usize), (0, 1));
    }
}
