//! What a trial came to that requests named by a header, as a part of the report of the trial that they ran in.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_router::trial::{Figures, NamedView, WorkerFigures};
use serde::Serialize;

use super::doubt::Doubt;

/// The report of one of them. It never can be compared: others used the same router.
#[derive(Serialize)]
pub(super) struct NamedReport {
    trial: String,
    epoch: u64,
    began_unix: f64,
    comparable: bool,
    reasons: [Doubt; 1],
    workers: Vec<WorkerReport>,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct WorkerReport {
    worker: String,
    requests: u64,
    decisions: BTreeMap<&'static str, u64>,
}

impl NamedReport {
    pub(super) fn of(epoch: u64, named: &NamedView) -> Self {
        let detail = "trees, rotations and breakers are those of all requests".to_owned();
        let worker = |WorkerFigures { worker, requests, decisions }: &WorkerFigures| WorkerReport {
            worker: worker.clone(),
            requests: *requests,
            decisions: decisions.clone(),
        };
        Self {
            trial: named.name.as_ref().to_owned(),
            epoch,
            began_unix: unix(named.at),
            comparable: false,
            reasons: [Doubt { code: "shared_router", detail }],
            workers: named.figures.workers.iter().map(worker).collect(),
            figures: named.figures.clone(),
        }
    }
}

/// Seconds since 1970.
pub(super) fn unix(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0)
}
