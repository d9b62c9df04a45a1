//! The admin API: resets, the list of workers, metrics. Whoever gets in here has been let in already.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, http::Uri};
use forebay_workers::{By, Models, Reader, Worker, Writer};
use prometheus::{Registry, TextEncoder};
use serde::{Deserialize, Serialize};

use crate::fleet;

/// What the admin API works on.
pub struct Admin {
    /// Reads the fleet.
    pub reader: Reader,
    /// Changes it.
    pub writer: Writer,
    /// All series.
    pub registry: Registry,
    /// Counts resets.
    pub resets: prometheus::IntCounter,
}

/// The admin API as a service.
pub fn api(admin: Admin) -> Router {
    let fleet = fleet::routes(admin.reader.clone(), admin.writer.clone());
    Router::new()
        .route("/metrics", get(metrics))
        .route("/admin/reset", post(reset))
        .route("/workers", get(workers))
        .fallback(nothing)
        .with_state(Arc::new(admin))
        .merge(fleet)
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    match TextEncoder::new().encode_to_string(&admin.registry.gather()) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => {
            problem(StatusCode::INTERNAL_SERVER_ERROR, &format!("metrics cannot be written: {error}"))
        }
    }
}

/// What a reset may be told.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetRequest {
    /// New seed of the policies; absent: the one in force.
    #[serde(default)]
    seed: Option<u64>,
}

#[derive(Serialize)]
struct ResetAnswer {
    epoch: u64,
}

/// Starts the next epoch. The body is optional, and its content type is not looked at: people reset with plain curl.
async fn reset(State(admin): State<Arc<Admin>>, body: Bytes) -> Response {
    let asked = match body.trim_ascii() {
        [] => Ok(ResetRequest::default()),
        // serde would read an array as the members in order.
        [b'{', ..] => serde_json::from_slice(&body).map_err(|error| error.to_string()),
        _ => Err("it is no JSON object".to_owned()),
    };
    match asked {
        Ok(ResetRequest { seed }) => {
            let world = admin.writer.reset(forebay_workers::Parts::USUAL, seed);
            admin.resets.inc();
            tracing::info!(epoch = world.epoch(), seed = world.seed(), "reset");
            Json(ResetAnswer { epoch: world.epoch() }).into_response()
        }
        Err(error) => problem(
            StatusCode::BAD_REQUEST,
            &format!("the body must be empty or {{\"seed\": number}}: {error}"),
        ),
    }
}

#[derive(Serialize)]
struct WorkerList {
    epoch: u64,
    total: usize,
    workers: Vec<WorkerEntry>,
}

#[derive(Serialize)]
struct WorkerEntry {
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

async fn workers(State(admin): State<Arc<Admin>>) -> Json<WorkerList> {
    let world = admin.reader.world();
    let entry = |worker: &Arc<Worker>| WorkerEntry {
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

async fn nothing(uri: Uri) -> Response {
    problem(StatusCode::NOT_FOUND, &format!("{} is no path of the admin API", uri.path()))
}

fn problem(status: StatusCode, message: &str) -> Response {
    let error = serde_json::json!({"error": {"message": message, "code": status.as_u16()}});
    (status, Json(error)).into_response()
}
