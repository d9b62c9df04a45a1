//! The admin API: resets, reports of trials, the list of workers, metrics. Whoever gets in here has been let in already.
//!
//! - [`reset`]: one trial ends, the next begins.
//! - [`report`]: what a trial came to, and whether it can be compared.
//! - `in_force`: the settings that it shows; `named`: the part of it that requests named; `doubt`: why it cannot.
//! - [`workers`]: the list of workers.

mod doubt;
mod in_force;
mod named;
mod report;
mod reset;
mod workers;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use forebay_router::Shard;
use forebay_workers::{Reader, Writer};
use prometheus::{Registry, TextEncoder};
use tokio::runtime::Handle;

use crate::fleet;

pub use in_force::Config;

/// What the admin API works on.
pub struct Admin {
    /// Reads the fleet.
    pub reader: Reader,
    /// Changes it.
    pub writer: Writer,
    /// Resets, and knows what trials came to.
    pub router: Arc<forebay_router::Router>,
    /// Connections to workers for resets.
    pub shard: Arc<Shard>,
    /// Where resets run: not where requests do.
    pub control: Handle,
    /// What reports say of the settings.
    pub config: Config,
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
        .route("/admin/reset", post(reset::all))
        .route("/admin/reset/{part}", post(reset::part))
        .route("/admin/trial", get(report::current))
        .route("/admin/trials/{epoch}", get(report::of_epoch))
        .route("/workers", get(workers::list))
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

async fn nothing(uri: Uri) -> Response {
    problem(StatusCode::NOT_FOUND, &format!("{} is no path of the admin API", uri.path()))
}

fn problem(status: StatusCode, message: &str) -> Response {
    let error = serde_json::json!({"error": {"message": message, "code": status.as_u16()}});
    (status, Json(error)).into_response()
}
