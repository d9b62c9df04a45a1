//! Changes of the list of workers that operators ask for: one comes, one drains, one goes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use axum::{Json, Router};
use forebay_discovery::Watcher;
use forebay_router::PairSettings;
use forebay_workers::{Blocker, Host, Reader, Role, WorkerUrl, World, Writer};
use serde::Deserialize;
use serde_json::json;

/// What they work on.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// Has new workers probed, where no request waits for it.
    pub(crate) watcher: Watcher,
    /// How long a new worker may take until it is well, for who waits for that.
    pub(crate) startup_timeout: Duration,
    /// How pairs are made, if workers are for prefill or decode.
    pub(crate) pairs: Option<PairSettings>,
}

/// A worker that comes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Newcomer {
    url: String,
    /// `worker_type` is vllm-router's name.
    #[serde(alias = "worker_type")]
    role: Option<RoleName>,
    /// Of a prefill worker.
    bootstrap_port: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleName {
    Regular,
    Prefill,
    Decode,
}

/// How one is to go.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Leaving {
    #[serde(default)]
    force: bool,
}

/// The paths of changes. An id is the number of a URL in the order of registration, from 0, its `host:port`, or the URL
/// itself with its slashes as `%2F`.
pub(crate) fn routes(fleet: Fleet) -> Router {
    Router::new()
        .route("/workers", post(add))
        .route("/workers/{id}", delete(remove))
        .route("/workers/{id}/drain", post(drain))
        .route("/workers/{id}/undrain", post(undrain))
        .with_state(fleet)
}

/// A worker comes. It is probed beside the others, and chosen when it is well.
async fn add(State(fleet): State<Fleet>, body: Bytes) -> Response {
    let newcomer: Newcomer = match serde_json::from_slice(&body) {
        Ok(newcomer) => newcomer,
        Err(error) => return refuse(&format!("the body must be {{\"url\": …, \"role\": …}}: {error}")),
    };
    match newcomer.read(fleet.pairs.is_some()).and_then(|(url, role)| fleet.add(url, role)) {
        Ok((host, is_new)) => {
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            let (url, role) = (host.url().as_str(), host.role().as_str());
            (status, Json(json!({"id": host.number(), "url": url, "role": role}))).into_response()
        }
        Err(Refused::Nonsense(problem)) => refuse(&problem),
        Err(Refused::Conflict(problem)) => problem_of(StatusCode::CONFLICT, &problem),
    }
}

/// Why a worker is not taken.
pub(crate) enum Refused {
    Nonsense(String),
    Conflict(String),
}

impl Newcomer {
    fn read(self, has_roles: bool) -> Result<(WorkerUrl, Role), Refused> {
        let url = self.url.parse::<WorkerUrl>().map_err(|error| Refused::Nonsense(error.to_string()))?;
        let role = match (self.role.unwrap_or(RoleName::Regular), has_roles) {
            (RoleName::Regular, false) => Role::Regular,
            (RoleName::Prefill, true) => Role::Prefill { bootstrap_port: self.bootstrap_port },
            (RoleName::Decode, true) => Role::Decode,
            (RoleName::Regular, true) => {
                let problem = "`role` must be prefill or decode: workers have roles here";
                return Err(Refused::Nonsense(problem.to_owned()));
            }
            (RoleName::Prefill | RoleName::Decode, false) => {
                let problem = "`role` can only be regular: there is no --vllm-pd-disaggregation";
                return Err(Refused::Nonsense(problem.to_owned()));
            }
        };
        if self.bootstrap_port.is_some() && !matches!(role, Role::Prefill { .. }) {
            return Err(Refused::Nonsense("`bootstrap_port` is for prefill workers".to_owned()));
        }
        Ok((url, role))
    }
}

impl Fleet {
    /// Puts it on the list; says whether it is new there.
    pub(crate) fn add(&self, url: WorkerUrl, role: Role) -> Result<(Arc<Host>, bool), Refused> {
        if let Some(problem) = self.has_no_pairs(&url, role) {
            return Err(Refused::Nonsense(problem));
        }
        let (host, is_new) = self.watcher.watch(url, role);
        let url = host.url().as_str();
        if is_new {
            tracing::info!(worker = url, role = role.as_str(), "worker is on the list");
        } else if host.role() != role {
            return Err(Refused::Conflict(format!("{url} is there already, as {}", host.role().as_str())));
        } else if host.blocked_by(Blocker::Draining) || host.blocked_by(Blocker::Removed) {
            let problem = format!("{url} is leaving: POST /workers/{}/undrain keeps it", host.number());
            return Err(Refused::Conflict(problem));
        }
        Ok((host, is_new))
    }

    /// Why such a worker would be in no pair, if that is so: it would be ready, and idle for ever.
    fn has_no_pairs(&self, url: &WorkerUrl, role: Role) -> Option<String> {
        let pairs = self.pairs.as_ref()?;
        let is_told = pairs.connector.makes_first_token() && role == Role::Decode;
        if pairs.connector.names_workers() {
            return Some(
                "with --kv-connector nccl workers announce themselves at --vllm-discovery-address".to_owned(),
            );
        }
        (is_told && !pairs.receivers.contains_key(url.as_str()))
            .then(|| format!("{url} is not in --decoder-registry: nobody knows where it takes in blocks"))
    }

    /// Takes it off the list at once. What is under way there ends on its own.
    pub(crate) fn remove(&self, host: &Arc<Host>) {
        self.writer.remove(host);
        tracing::info!(worker = host.url().as_str(), in_flight = in_flight(host), "worker is off the list");
    }
}

/// The worker with this URL, if it is on the list.
pub(crate) fn known<'w>(world: &'w World, url: &WorkerUrl) -> Option<&'w Arc<Host>> {
    world.hosts().iter().find(|host| host.url() == url)
}

/// Legs under way on all workers behind a URL.
pub(crate) fn in_flight(host: &Host) -> u32 {
    host.workers().iter().map(|worker| worker.in_flight()).sum()
}

/// A worker goes: when what it has under way has ended, or now.
async fn remove(
    State(fleet): State<Fleet>,
    Path(id): Path<String>,
    leaving: Result<Query<Leaving>, QueryRejection>,
) -> Response {
    let force = match leaving {
        Ok(Query(Leaving { force })) => force,
        Err(error) => return refuse(&error.body_text()),
    };
    let world = fleet.reader.world();
    let Some(host) = called(&world, &id) else { return nobody(&id) };
    let in_flight = in_flight(host);
    if force {
        fleet.remove(host);
    } else {
        fleet.writer.drain(host);
        for drained in fleet.writer.remove_drained() {
            tracing::info!(worker = drained.url().as_str(), "worker is drained, and off the list");
        }
    }
    let removed = host.blocked_by(Blocker::Removed);
    let status = if removed { StatusCode::OK } else { StatusCode::ACCEPTED };
    let url = host.url().as_str();
    (status, Json(json!({"url": url, "removed": removed, "in_flight": in_flight}))).into_response()
}

/// No request goes there any more; when those under way have ended, it leaves the list.
async fn drain(State(fleet): State<Fleet>, Path(id): Path<String>) -> Response {
    let world = fleet.reader.world();
    let Some(host) = called(&world, &id) else { return nobody(&id) };
    fleet.writer.drain(host);
    tracing::info!(worker = host.url().as_str(), in_flight = in_flight(host), "worker is draining");
    state_of(host)
}

/// It takes requests again, unless it has left the list meanwhile.
async fn undrain(State(fleet): State<Fleet>, Path(id): Path<String>) -> Response {
    let world = fleet.reader.world();
    let Some(host) = called(&world, &id).filter(|host| fleet.writer.undrain(host)) else {
        return nobody(&id);
    };
    tracing::info!(worker = host.url().as_str(), "worker is not draining any more");
    state_of(host)
}

fn state_of(host: &Host) -> Response {
    let draining = host.blocked_by(Blocker::Draining);
    Json(json!({"url": host.url().as_str(), "draining": draining, "in_flight": in_flight(host)}))
        .into_response()
}

/// The worker of an id.
fn called<'w>(world: &'w World, id: &str) -> Option<&'w Arc<Host>> {
    world.hosts().iter().find(|host| {
        let url = host.url().as_str();
        host.number().to_string() == id
            || url == id
            || url.split_once("://").is_some_and(|(_, rest)| rest == id)
    })
}

fn nobody(id: &str) -> Response {
    let problem =
        format!("no worker is called {id}: its number from 0, its host:port or its URL is expected");
    problem_of(StatusCode::NOT_FOUND, &problem)
}

fn refuse(problem: &str) -> Response {
    problem_of(StatusCode::BAD_REQUEST, problem)
}

pub(crate) fn problem_of(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": {"message": message, "code": status.as_u16()}}))).into_response()
}
