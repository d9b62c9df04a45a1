//! Changes of the list of workers that operators ask for.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use forebay_workers::{Blocker, Host, Reader, Writer};
use serde_json::json;

/// What they work on.
#[derive(Clone)]
struct Fleet {
    reader: Reader,
    writer: Writer,
}

/// The paths below `/workers/{id}`. An id is the number of a URL in the order of registration, from 0, or its
/// `host:port`.
pub(crate) fn routes(reader: Reader, writer: Writer) -> Router {
    Router::new()
        .route("/workers/{id}/drain", post(drain))
        .route("/workers/{id}/undrain", post(undrain))
        .with_state(Fleet { reader, writer })
}

/// No request goes there any more; when those under way have ended, it leaves the list.
async fn drain(State(fleet): State<Fleet>, Path(id): Path<String>) -> Response {
    let Some(host) = fleet.find(&id) else { return nobody(&id) };
    fleet.writer.drain(&host);
    tracing::info!(worker = host.url().as_str(), in_flight = in_flight(&host), "worker is draining");
    state_of(&host)
}

/// It takes requests again, unless it has left the list meanwhile.
async fn undrain(State(fleet): State<Fleet>, Path(id): Path<String>) -> Response {
    let Some(host) = fleet.find(&id).filter(|host| fleet.writer.undrain(host)) else { return nobody(&id) };
    tracing::info!(worker = host.url().as_str(), "worker is not draining any more");
    state_of(&host)
}

impl Fleet {
    fn find(&self, id: &str) -> Option<Arc<Host>> {
        self.reader.world().hosts().iter().find(|host| is_called(host, id)).cloned()
    }
}

fn nobody(id: &str) -> Response {
    let message = format!("no worker is called {id}: its number from 0 or its host:port is expected");
    (StatusCode::NOT_FOUND, Json(json!({"error": {"message": message, "code": 404}}))).into_response()
}

fn state_of(host: &Host) -> Response {
    let draining = host.blocked_by(Blocker::Draining);
    Json(json!({"url": host.url().as_str(), "draining": draining, "in_flight": in_flight(host)}))
        .into_response()
}

fn in_flight(host: &Host) -> u32 {
    host.workers().iter().map(|worker| worker.in_flight()).sum()
}

fn is_called(host: &Arc<Host>, id: &str) -> bool {
    host.number().to_string() == id || host.url().as_str().strip_prefix("http://") == Some(id)
}
