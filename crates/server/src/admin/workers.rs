//! The list of workers: who they are, how they are, what they are doing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use forebay_workers::{By, Models, Worker};
use serde::Serialize;

use super::Admin;

#[derive(Serialize)]
pub(super) struct WorkerList {
    epoch: u64,
    total: usize,
    workers: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_rank: Option<u32>,
    health: &'static str,
    breaker: &'static str,
    /// Absent if it would not say, so that it is taken to serve any name.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    in_flight: u32,
    /// Times it was chosen in this epoch.
    requests: u64,
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<WorkerList> {
    let world = admin.reader.world();
    let entry = |worker: &Arc<Worker>| Entry {
        url: worker.url().to_string(),
        dp_rank: worker.dp_rank(),
        health: worker.health_word(),
        breaker: worker.breaker_state().as_str(),
        models: match &*worker.models() {
            Models::Named(served) => Some(served.iter().map(|model| model.id.clone()).collect()),
            Models::Unread | Models::Any => None,
        },
        version: (*worker.version()).clone(),
        in_flight: worker.in_flight(),
        requests: world.all(By::Rank).served(worker.slot()),
    };
    let workers: Vec<_> = world.workers().iter().map(entry).collect();
    Json(WorkerList { epoch: world.epoch(), total: workers.len(), workers })
}
