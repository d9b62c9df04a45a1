//! The list of workers: who they are, how they are, what they are doing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forebay_workers::{Models, Worker, World};
use serde::Serialize;

use super::Admin;

#[derive(Serialize)]
struct WorkerList<'a> {
    epoch: u64,
    total: usize,
    workers: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    /// By what `/workers/{id}/drain` calls its URL: ranks of one URL have the same.
    id: u32,
    url: &'a str,
    /// Data-parallel rank behind the URL, if ranks are told apart.
    rank: Option<u32>,
    /// Which part of requests it takes: `regular`, `prefill` or `decode`.
    role: &'static str,
    health: &'static str,
    breaker: &'static str,
    /// The first of `models`.
    model: Option<String>,
    /// `null` if it would not say, so that it is taken to serve any name.
    models: Option<Vec<String>>,
    version: Option<String>,
    in_flight: u32,
    /// Prompt tokens that it was given and has not prefilled yet, as predicted.
    pending_prefill_tokens: u64,
    /// Times it was chosen since policies were last reset.
    requests: u64,
}

/// All of them, in order of registration.
pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let world = admin.reader.world();
    let workers: Vec<_> = world.workers().iter().map(|worker| entry(&admin, &world, worker)).collect();
    Json(WorkerList { epoch: world.epoch(), total: workers.len(), workers }).into_response()
}

fn entry<'a>(admin: &Admin, world: &World, worker: &'a Worker) -> Entry<'a> {
    let models = match &*worker.models() {
        Models::Named(served) => Some(served.iter().map(|model| model.id.clone()).collect::<Vec<_>>()),
        Models::Unread | Models::Any => None,
    };
    Entry {
        id: worker.host().number(),
        url: worker.url().as_str(),
        rank: worker.dp_rank(),
        role: worker.host().role().as_str(),
        health: worker.health_word(),
        breaker: worker.breaker_state().as_str(),
        model: models.as_ref().and_then(|models| models.first().cloned()),
        models,
        version: (*worker.version()).clone(),
        in_flight: worker.in_flight(),
        pending_prefill_tokens: admin.router.pending_prefill_tokens(worker),
        requests: world.served(worker.slot()),
    }
}
