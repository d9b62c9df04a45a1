//! The metric families that are registered once, when the application starts. It counts nothing.

use std::sync::Arc;

use forebay_discovery::{AnnouncementMetrics, Readiness, ReadinessMetrics};
use forebay_router::{Pairs, RouterMetrics, TrialSeries, Trials};
use forebay_workers::{Auditor, FleetCollector, Reader};
use prometheus::{IntCounter, Registry};

use crate::settings::Settings;

/// The families that are registered once.
pub(crate) struct Metrics {
    pub registry: Registry,
    pub router: RouterMetrics,
    pub pairs: Option<Pairs>,
    pub resets: IntCounter,
    pub lines_dropped: IntCounter,
    pub announcements: Option<AnnouncementMetrics>,
    /// Wakes requests of [`Self::pairs`].
    pub readiness: Option<Readiness>,
}

impl Metrics {
    /// All but those of trials.
    pub(crate) fn register(
        settings: &Settings,
        reader: &Reader,
        auditor: &Arc<Auditor>,
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let router = RouterMetrics::new(&registry)?;
        let pairs = settings.router.pairs.clone().map(|pairs| Pairs::new(pairs, &registry)).transpose()?;
        let resets = IntCounter::new("forebay_reset_total", "Times a new trial was begun by a reset.")?;
        registry.register(Box::new(resets.clone()))?;
        let lines_dropped = IntCounter::new(
            "forebay_access_log_dropped_total",
            "Lines of the access log that were lost because its file was too slow or could not be written.",
        )?;
        registry.register(Box::new(lines_dropped.clone()))?;
        registry.register(Box::new(FleetCollector::new(reader.clone(), Arc::clone(auditor))))?;
        let announces = settings.roles.as_ref().is_some_and(|roles| roles.announced.is_some());
        let announcements = announces.then(|| AnnouncementMetrics::new(&registry)).transpose()?;
        let readiness = readiness(settings, pairs.as_ref(), &registry)?;
        Ok(Self { registry, router, pairs, resets, lines_dropped, announcements, readiness })
    }

    /// The trials, with their series.
    pub(crate) fn trials(
        &self,
        reader: &Reader,
        auditor: &Arc<Auditor>,
    ) -> Result<Arc<Trials>, prometheus::Error> {
        let trials = Arc::new(Trials::new(&reader.world(), Arc::clone(auditor)));
        self.registry.register(Box::new(TrialSeries::new(Arc::clone(&trials))?))?;
        Ok(trials)
    }
}

/// Who hears that prefill workers have handed over, if they say so.
fn readiness(
    settings: &Settings,
    pairs: Option<&Pairs>,
    registry: &Registry,
) -> Result<Option<Readiness>, prometheus::Error> {
    let socket = settings.roles.as_ref().and_then(|roles| roles.readiness.as_ref());
    let (Some(socket), Some(pairs)) = (socket, pairs) else { return Ok(None) };
    let metrics = ReadinessMetrics::new(registry)?;
    Ok(Some(Readiness::new(pairs.signals(), socket.allow.clone(), metrics)))
}
