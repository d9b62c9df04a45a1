//! The admin API: resets, reports of trials, the list of workers, metrics. Whoever gets in here has been let in already.
//!
//! - [`reset`]: one trial ends, the next begins.
//! - [`report`]: what a trial came to, and whether it can be compared.
//! - `in_force`: the settings that it shows; `named`: the part of it that requests named; `doubt`: why it cannot.
//! - [`workers`]: the list of workers; `old_names`: series as vllm-router calls them.

mod doubt;
mod in_force;
mod named;
mod old_names;
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
use forebay_workers::Reader;
use prometheus::{Registry, TextEncoder};
use tokio::runtime::Handle;

use crate::familiar::{self, Familiar};
use crate::fence::Fence;
use crate::fleet::{self, Fleet};

pub use in_force::Config;
pub use old_names::{Departed, MetricsPrefix};

/// What the admin API works on.
pub struct Admin {
    /// Reads the fleet.
    pub reader: Reader,
    /// Changes it.
    pub(crate) fleet: Fleet,
    /// Passed before numbers are read.
    pub(crate) fence: Fence,
    /// Resets, and knows what trials came to.
    pub router: Arc<forebay_router::Router>,
    /// Connections to workers for resets.
    pub shard: Arc<Shard>,
    /// What reports say of the settings.
    pub config: Config,
    /// All series.
    pub registry: Registry,
    /// Counts resets.
    pub resets: prometheus::IntCounter,
    /// Which names series have.
    pub prefix: MetricsPrefix,
    /// What workers that are gone had counted.
    pub departed: Departed,
}

impl Admin {
    /// Where resets run: not where requests do.
    fn control(&self) -> &Handle {
        &self.fleet.watcher.runtime
    }
}

/// The admin API as a service.
pub fn api(admin: Admin) -> Router {
    let fleet = admin.fleet.clone();
    let familiar =
        Familiar { fleet: fleet.clone(), router: Arc::clone(&admin.router), shard: Arc::clone(&admin.shard) };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/admin/reset", post(reset::all))
        .route("/admin/reset/{part}", post(reset::part))
        .route("/admin/trial", get(report::current))
        .route("/admin/trials/{epoch}", get(report::of_epoch))
        .route("/workers", get(workers::list))
        .fallback(nothing)
        .with_state(Arc::new(admin))
        .merge(fleet::routes(fleet))
        .merge(familiar::routes(familiar))
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    admin.fence.pass().await;
    let mut families = admin.registry.gather();
    if admin.prefix == MetricsPrefix::VllmRouter {
        let all = admin.departed.all_choices(&admin.reader);
        families.extend(old_names::of(&families, &admin.reader.world(), &all));
    }
    match TextEncoder::new().encode_to_string(&families) {
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
