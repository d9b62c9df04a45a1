//! Paths of vllm-router's for the list of workers, answered as there: scripts that were written for it go on working.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use forebay_router::Shard;
use forebay_workers::{Blocker, Host, Models, Role, UrlError, WorkerUrl};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::fleet::{Fleet, Refused, in_flight, known};

/// What they work on.
#[derive(Clone)]
pub(crate) struct Familiar {
    pub(crate) fleet: Fleet,
    /// Empties prefix caches.
    pub(crate) router: Arc<forebay_router::Router>,
    pub(crate) shard: Arc<Shard>,
}

/// Which worker is meant.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    url: String,
}

type Asked = Result<Query<Which>, QueryRejection>;

/// The paths.
pub(crate) fn routes(familiar: Familiar) -> Router {
    Router::new()
        .route("/add_worker", post(add))
        .route("/remove_worker", post(remove))
        .route("/list_workers", get(list))
        .route("/get_loads", get(loads))
        .route("/flush_cache", post(flush))
        .route("/get_server_info", get(server_info))
        .route("/get_model_info", get(model_info))
        .with_state(familiar)
}

/// The URL, or what is wrong with it.
fn read(asked: Asked) -> Result<WorkerUrl, String> {
    let Query(Which { url }) = asked.map_err(|error| error.body_text())?;
    url.parse().map_err(|error: UrlError| error.to_string())
}

fn refuse(problem: String) -> Response {
    (StatusCode::BAD_REQUEST, problem).into_response()
}

/// Answers when the worker is well. One that is not in time is taken off the list again.
async fn add(State(familiar): State<Familiar>, asked: Asked) -> Response {
    let url = match read(asked) {
        Ok(url) => url,
        Err(problem) => return refuse(problem),
    };
    let fleet = &familiar.fleet;
    if fleet.pairs.is_some() {
        return refuse("workers have roles here: POST /workers with a role adds one".to_owned());
    }
    let host = match fleet.add(url, Role::Regular) {
        Ok((host, true)) => host,
        Ok((host, false)) => {
            return refuse(format!("Worker {} already exists", host.url()));
        }
        Err(Refused::Nonsense(problem) | Refused::Conflict(problem)) => {
            return refuse(problem);
        }
    };
    let settled = fleet.reader.wait_for(|_| host.is_well() || host.blocked_by(Blocker::Removed));
    let in_time = tokio::select! {
        settled = tokio::time::timeout(fleet.startup_timeout, settled) => settled.is_ok(),
        // Nobody is probed any more, and the end of the process waits for this answer.
        () = fleet.watcher.probe.stop.cancelled() => {
            return refuse(format!("The router ended before worker {} was healthy", host.url()));
        }
    };
    if host.blocked_by(Blocker::Removed) {
        return refuse(format!("Worker {} was removed before it was healthy", host.url()));
    }
    if !in_time {
        fleet.remove(&host);
        let limit = fleet.startup_timeout.as_secs_f64();
        return refuse(format!("Timeout {limit}s waiting for worker {} to become healthy", host.url()));
    }
    format!("Successfully added worker: {}", host.url()).into_response()
}

/// At once, and without a word if there is no such worker.
async fn remove(State(familiar): State<Familiar>, asked: Asked) -> Response {
    let url = match read(asked) {
        Ok(url) => url,
        Err(problem) => return refuse(problem),
    };
    let fleet = &familiar.fleet;
    if let Some(host) = known(&fleet.reader.world(), &url) {
        fleet.remove(host);
    }
    format!("Successfully removed worker: {url}").into_response()
}

async fn list(State(familiar): State<Familiar>) -> Response {
    let world = familiar.fleet.reader.world();
    let urls: Vec<&str> = world.hosts().iter().map(|host| host.url().as_str()).collect();
    Json(json!({"urls": urls})).into_response()
}

async fn loads(State(familiar): State<Familiar>) -> Response {
    let world = familiar.fleet.reader.world();
    let load = |host: &Arc<Host>| json!({"worker": host.url().as_str(), "load": in_flight(host)});
    let workers: Vec<Value> = world.hosts().iter().map(load).collect();
    Json(json!({"workers": workers})).into_response()
}

/// Workers empty their prefix caches, and no policy believes any more that they hold anything, whatever they said.
async fn flush(State(familiar): State<Familiar>) -> Response {
    let (router, shard) = (Arc::clone(&familiar.router), Arc::clone(&familiar.shard));
    // Where no request waits for it.
    let running = familiar.fleet.watcher.runtime.spawn(async move { router.flush(&shard).await });
    let Ok(emptied) = AbortOnDropHandle::new(running).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the flush failed").into_response();
    };
    let failed: Vec<String> = emptied
        .iter()
        .filter(|one| !one.is_done())
        .map(|one| format!("{} {}", one.url, one.said.as_str()))
        .collect();
    if failed.is_empty() {
        return "Cache flushed on all servers".into_response();
    }
    let problem = format!("Cache flush failed on one or more servers: {}", failed.join(", "));
    (StatusCode::INTERNAL_SERVER_ERROR, problem).into_response()
}

/// From what is known of the workers: vLLM has no such page.
async fn server_info(State(familiar): State<Familiar>) -> Response {
    let world = familiar.fleet.reader.world();
    let one = |host: &Arc<Host>| {
        let (url, role) = (host.url().as_str(), host.role().as_str());
        json!({"url": url, "role": role, "version": *host.version(), "models": names(&host.models())})
    };
    let servers: Vec<Value> = world.hosts().iter().map(one).collect();
    Json(json!({"forebay": env!("CARGO_PKG_VERSION"), "epoch": world.epoch(), "servers": servers}))
        .into_response()
}

/// The first base model that a worker serves.
async fn model_info(State(familiar): State<Familiar>) -> Response {
    let world = familiar.fleet.reader.world();
    let base = world.hosts().iter().find_map(|host| match &*host.models() {
        Models::Named(served) => served.iter().find(|model| model.parent.is_none()).cloned(),
        Models::Unread | Models::Any => None,
    });
    let Some(base) = base else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no worker has told what it serves").into_response();
    };
    let entry: Value = serde_json::from_str(&base.entry).unwrap_or_default();
    Json(json!({
        "model_path": base.root,
        "served_model_name": base.id,
        "max_model_len": entry["max_model_len"],
    }))
    .into_response()
}

fn names(models: &Models) -> Option<Vec<String>> {
    match models {
        Models::Named(served) => Some(served.iter().map(|model| model.id.clone()).collect()),
        Models::Unread | Models::Any => None,
    }
}
