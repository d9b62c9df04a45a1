//! Changes of the list of workers that operators ask for.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use forebay_workers::{Host, Reader, Writer};
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
    Router::new().route("/workers/{id}/drain", post(drain)).with_state(Fleet { reader, writer })
}

/// No request goes there any more; when those under way have ended, it leaves the list.
async fn drain(State(fleet): State<Fleet>, Path(id): Path<String>) -> Response {
    let world = fleet.reader.world();
    let Some(host) = world.hosts().iter().find(|host| is_called(host, &id)) else {
        let message = format!("no worker is called {id}: its number from 0 or its host:port is expected");
        let error = json!({"error": {"message": message, "code": 404}});
        return (StatusCode::NOT_FOUND, Json(error)).into_response();
    };
    fleet.writer.drain(host);
    let in_flight: u32 = host.workers().iter().map(|worker| worker.in_flight()).sum();
    tracing::info!(worker = host.url().as_str(), in_flight, "worker is draining");
    Json(json!({"url": host.url().as_str(), "draining": true, "in_flight": in_flight})).into_response()
}

fn is_called(host: &Arc<Host>, id: &str) -> bool {
    host.number().to_string() == id || host.url().as_str().strip_prefix("http://") == Some(id)
}
