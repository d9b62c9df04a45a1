//! `POST /admin/reset`: reads what is to be reset, has it done, tells what was. The order of steps is the router's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_router::{Emptied, ResetDone, ResetOrder, ResetRefused, Said, TRIAL_NAME_LIMIT, UnderWay};
use forebay_workers::{Parts, World};
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::report::Report;
use super::{Admin, problem};

/// Longest wait for idleness, in seconds.
const WAIT_LIMIT: f64 = 3600.0;

/// Most requests under way that a refusal lists.
const LISTED: usize = 1000;

/// What a reset may be told.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Body {
    /// Name of the trial that begins.
    trial: Option<String>,
    /// New seed of the policies; absent: the one in force.
    seed: Option<u64>,
    /// What begins afresh; absent: everything but health.
    only: Option<Vec<Part>>,
    /// Seconds to wait for requests under way.
    wait_idle_secs: Option<f64>,
    /// Without idleness nothing is reset.
    require_idle: bool,
    /// Workers have to empty their prefix caches.
    reset_workers_prefix_cache: bool,
}

/// What can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Policies,
    Breakers,
    Health,
    /// They begin with every trial.
    Counters,
    /// What is remembered of clients: it lives in the policies.
    Sessions,
}

/// A reset of everything, or of what the body names.
pub(super) async fn all(State(admin): State<Arc<Admin>>, body: Bytes) -> Response {
    match read(&body).and_then(|body| order(body, None)) {
        Ok(order) => carry_out(admin, order).await,
        Err(error) => refuse(&error),
    }
}

/// A reset of one part, which the path names.
pub(super) async fn part(State(admin): State<Arc<Admin>>, Path(part): Path<String>, body: Bytes) -> Response {
    let part = match part.as_str() {
        "counters" => Part::Counters,
        "breakers" => Part::Breakers,
        "policies" => Part::Policies,
        _ => return problem(StatusCode::NOT_FOUND, "only counters, breakers or policies can be reset so"),
    };
    match read(&body).and_then(|body| order(body, Some(part))) {
        Ok(order) => carry_out(admin, order).await,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, &format!("the body must be empty or a JSON object: {error}"))
}

/// The body is optional, and its content type is not looked at: people reset with plain curl.
fn read(body: &[u8]) -> Result<Body, String> {
    match body.trim_ascii() {
        [] => Ok(Body::default()),
        // serde would read an array as the members in order.
        [b'{', ..] => serde_json::from_slice(body).map_err(|error| error.to_string()),
        _ => Err("it is none".to_owned()),
    }
}

fn order(body: Body, path: Option<Part>) -> Result<ResetOrder, String> {
    let parts = match (path, body.only) {
        (Some(_), Some(_)) => return Err("`only` says the same as the path".to_owned()),
        (Some(part), None) => named(&[part]),
        (None, Some(only)) if only.is_empty() => return Err("`only` names nothing".to_owned()),
        (None, Some(only)) => named(&only),
        (None, None) => Parts::USUAL,
    };
    if body.seed.is_some() && !parts.policies {
        return Err("`seed` is of use only where policies are reset".to_owned());
    }
    let name_fits =
        |name: &String| (1..=TRIAL_NAME_LIMIT).contains(&name.len()) && !name.contains(char::is_control);
    if !body.trial.as_ref().is_none_or(name_fits) {
        return Err(format!("`trial` is a name of 1 to {TRIAL_NAME_LIMIT} bytes without control characters"));
    }
    if !body.wait_idle_secs.is_none_or(|secs| (0.0..=WAIT_LIMIT).contains(&secs)) {
        return Err(format!("`wait_idle_secs` is a number of seconds from 0 to {WAIT_LIMIT}"));
    }
    Ok(ResetOrder {
        parts,
        seed: body.seed,
        trial: body.trial.map(Arc::from),
        wait_idle: body.wait_idle_secs.map(Duration::from_secs_f64),
        require_idle: body.require_idle,
        empty_caches: body.reset_workers_prefix_cache,
    })
}

fn named(only: &[Part]) -> Parts {
    let mut parts = Parts::NONE;
    for part in only {
        match part {
            Part::Policies | Part::Sessions => parts.policies = true,
            Part::Breakers => parts.breakers = true,
            Part::Health => parts.health = true,
            Part::Counters => {}
        }
    }
    parts
}

/// Has it done where no request waits for it. A client that leaves before it is done calls it off.
async fn carry_out(admin: Arc<Admin>, order: ResetOrder) -> Response {
    let began = Instant::now();
    // What its clients have got belongs to the trial that ends, and is not under way.
    admin.fence.pass().await;
    let (router, shard) = (Arc::clone(&admin.router), Arc::clone(&admin.shard));
    let running = admin.control().spawn(async move { router.reset(&shard, order).await });
    match AbortOnDropHandle::new(running).await {
        Ok(Ok(done)) => {
            admin.resets.inc();
            let (epoch, seed) = (done.world.epoch(), done.world.seed());
            tracing::info!(epoch, seed, held_us = done.held.as_micros(), "reset");
            Json(Answer::of(&admin, &done, began)).into_response()
        }
        Ok(Err(ResetRefused::Busy)) => problem(StatusCode::CONFLICT, "another reset is under way"),
        Ok(Err(ResetRefused::NotIdle(list))) => not_idle(&admin.reader.world(), &list),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &format!("the reset failed: {error}")),
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    epoch: u64,
    trial: Option<String>,
    seed: u64,
    previous: Option<Report<'a>>,
    workers: Vec<WorkerAnswer>,
    held_ms: f64,
    took_ms: f64,
}

#[derive(Serialize)]
struct WorkerAnswer {
    worker: String,
    in_flight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_cache: Option<PrefixCache>,
}

#[derive(Serialize)]
struct PrefixCache {
    outcome: &'static str,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl<'a> Answer<'a> {
    fn of(admin: &'a Admin, done: &ResetDone, began: Instant) -> Self {
        let view = |epoch| admin.router.trial(Some(epoch));
        let workers = done.world.workers().iter().map(|worker| {
            let said = done.emptied.iter().find(|said| said.url == worker.url().as_str());
            WorkerAnswer {
                worker: worker.name().to_owned(),
                in_flight: worker.in_flight(),
                prefix_cache: said.map(PrefixCache::of),
            }
        });
        Self {
            epoch: done.world.epoch(),
            trial: view(done.world.epoch()).and_then(|view| view.opening.name.as_deref().map(str::to_owned)),
            seed: done.world.seed(),
            previous: view(done.previous).map(|view| Report::of(&admin.config, view)),
            workers: workers.collect(),
            held_ms: millis(done.held),
            took_ms: millis(began.elapsed()),
        }
    }
}

impl PrefixCache {
    fn of(said: &Emptied) -> Self {
        let (status, error) = match &said.said {
            Said::Refused(status) => (Some(*status), None),
            Said::Silent(error) => (None, Some(error.clone())),
            Said::Done | Said::NoEndpoint | Said::BlocksHeld => (None, None),
        };
        Self { outcome: said.said.as_str(), attempts: said.attempts, status, error }
    }
}

#[derive(Serialize)]
struct NotIdle<'a> {
    error: Problem,
    in_flight: Vec<InFlight<'a>>,
}

#[derive(Serialize)]
struct Problem {
    message: String,
    code: u16,
}

#[derive(Serialize)]
struct InFlight<'a> {
    id: &'a str,
    route: &'static str,
    worker: Option<&'a str>,
    epoch: u64,
    age_ms: f64,
}

/// Who is under way, oldest first.
fn not_idle(world: &World, list: &[UnderWay]) -> Response {
    let in_flight = list.iter().take(LISTED).map(|request| InFlight {
        id: &request.id,
        route: request.route,
        worker: request.worker.and_then(|slot| world.worker(slot)).map(|worker| worker.name()),
        epoch: request.epoch,
        age_ms: millis(request.age),
    });
    let message = format!("nothing was reset: {} requests are under way", list.len());
    let error = Problem { message, code: StatusCode::CONFLICT.as_u16() };
    (StatusCode::CONFLICT, Json(NotIdle { error, in_flight: in_flight.collect() })).into_response()
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}
