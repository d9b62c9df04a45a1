//! What the router answers by itself: pages from what is known of the workers, and failures.

use std::sync::Arc;

use bytes::Bytes;
use forebay_openai::{Change, Splices};
use forebay_workers::{Blocker, Models, Worker, World};
use http::header::ALLOW;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::aliases::Aliases;
use crate::clock;
use crate::failure::{Failure, json};
use crate::outcome::Outcome;
use crate::record::Record;
use crate::relay::ResponseBody;
use crate::route::Page;

/// What the readiness page depends on beside the workers.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The process is about to end.
    pub draining: bool,
    /// Nobody answers what no prefill worker has prefilled.
    pub needs_prefill: bool,
}

/// Answers a page.
pub(crate) fn answer(page: Page, world: &World, aliases: &Aliases, terms: Terms) -> Response<ResponseBody> {
    match page {
        Page::Alive => page_of(StatusCode::OK, &Alive { status: "ok", total_workers: world.workers().len() }),
        Page::Ready => readiness(world, clock::now_ms(), terms),
        Page::Models => page_of(StatusCode::OK, &models(world, aliases)),
        Page::Version => page_of(StatusCode::OK, &version(world)),
        Page::Options(methods) => options(methods),
    }
}

impl Record {
    /// The router answers by itself.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Response<ResponseBody>, Failure>,
    ) -> Response<ResponseBody> {
        let response = match answer {
            Ok(response) => {
                self.account.outcome = Outcome::Own;
                response
            }
            Err(failure) => {
                if let Failure::PolicyInvariant(broken) = &failure {
                    self.note_broken(*broken);
                }
                self.account.outcome = failure.outcome();
                failure.response(self.account.route.dialect).map(ResponseBody::Whole)
            }
        };
        if let ResponseBody::Whole(body) = response.body() {
            self.handed_out(body);
        }
        self.status(response.status(), false);
        response
    }
}

#[derive(Serialize)]
struct Alive {
    status: &'static str,
    total_workers: usize,
}

#[derive(Serialize)]
struct Ready {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    healthy_workers: usize,
    paused_workers: usize,
    total_workers: usize,
}

/// Ready means that a worker that answers clients could be chosen now: one that is healthy, or if there is none, one that is
/// paused; and such a prefill worker, where nobody answers without.
fn readiness(world: &World, now_ms: u64, terms: Terms) -> Response<ResponseBody> {
    let (workers, count) = (world.workers(), |is: &dyn Fn(&Worker) -> bool| {
        world.workers().iter().filter(|worker| is(worker)).count()
    });
    let healthy_workers = count(&|worker| worker.admits(now_ms));
    let healthy = count(&|worker| worker.admits(now_ms) && answers(worker));
    // Asked after that: a pause that has just come to its end is none.
    let paused_workers = count(&Worker::is_only_paused);
    let paused = count(&|worker| worker.is_only_paused() && answers(worker));
    let prefilling = count(&|worker| !answers(worker) && (worker.admits(now_ms) || worker.is_only_paused()));
    let (is_ready, reason) = match (healthy, paused) {
        _ if terms.draining => (false, Some("the router is about to end")),
        (0, 0) if healthy_workers > 0 => (false, Some("no decode worker can be chosen: nobody would answer")),
        (0, 0) => (false, Some(why_nobody(workers))),
        _ if terms.needs_prefill && prefilling == 0 => {
            (false, Some("no prefill worker can be chosen: nobody would answer without"))
        }
        (0, _) => {
            (true, Some("no worker is healthy but those that are paused: requests go to them all the same"))
        }
        _ => (true, None),
    };
    let (code, status) =
        if is_ready { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not_ready") };
    page_of(code, &Ready { status, reason, healthy_workers, paused_workers, total_workers: workers.len() })
}

fn answers(worker: &Worker) -> bool {
    worker.host().role().answers()
}

/// Why no worker can be chosen.
fn why_nobody(workers: &[Arc<Worker>]) -> &'static str {
    let any = |is: &dyn Fn(&Worker) -> bool| workers.iter().any(|worker| is(worker));
    if workers.is_empty() {
        "there are no workers"
    } else if any(&|worker| worker.is_awake() && !worker.blocked_by(Blocker::Draining)) {
        "the circuit breaker of every healthy worker is open: requests pass now and then"
    } else if any(&Worker::is_awake) {
        "every healthy worker is draining"
    } else if any(&Worker::is_well) {
        "every healthy worker sleeps"
    } else {
        "no worker is healthy"
    }
}

#[derive(Serialize)]
struct ModelList {
    object: &'static str,
    data: Vec<Box<RawValue>>,
}

/// The entries of all workers, each name once, as the first worker that serves it gave it; then those of aliases, which are
/// their models' but for the name.
fn models(world: &World, aliases: &Aliases) -> ModelList {
    let mut seen: Vec<(String, Box<RawValue>)> = Vec::new();
    for worker in world.workers() {
        let known = worker.models();
        let Models::Named(served) = &*known else { continue };
        for model in served {
            if !seen.iter().any(|(name, _)| *name == model.id)
                && let Ok(entry) = RawValue::from_string(model.entry.clone())
            {
                seen.push((model.id.clone(), entry));
            }
        }
    }
    for (alias, model) in aliases.all() {
        let is_new = !seen.iter().any(|(name, _)| name == alias);
        let served = seen.iter().find(|(name, _)| is_new && name == model);
        if let Some(entry) = served.and_then(|(_, entry)| called(entry, alias)) {
            seen.push((alias.to_owned(), entry));
        }
    }
    ModelList { object: "list", data: seen.into_iter().map(|(_, entry)| entry).collect() }
}

/// The entry of a model under another name.
fn called(entry: &RawValue, name: &str) -> Option<Box<RawValue>> {
    let id = Bytes::from(serde_json::to_vec(name).ok()?);
    let entry = Bytes::copy_from_slice(entry.get().as_bytes());
    let mut splices = Splices::default();
    splices.change(&entry, &[], &[Change::Replace("id", id)]).ok()?;
    RawValue::from_string(String::from_utf8(splices.apply(&entry).into()).ok()?).ok()
}

fn options(methods: &str) -> Response<ResponseBody> {
    let mut answer = Response::new(ResponseBody::Whole(Bytes::new()));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    if let Ok(methods) = HeaderValue::from_str(&format!("{methods}, OPTIONS")) {
        answer.headers_mut().insert(ALLOW, methods);
    }
    answer
}

#[derive(Serialize)]
struct Version {
    /// The engine's, as vLLM's clients expect here.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    forebay: &'static str,
}

fn version(world: &World) -> Version {
    let version = world.workers().iter().find_map(|worker| (*worker.version()).clone());
    Version { version, forebay: env!("CARGO_PKG_VERSION") }
}

fn page_of<T: Serialize>(status: StatusCode, page: &T) -> Response<ResponseBody> {
    json(status, Bytes::from(serde_json::to_vec(page).unwrap_or_default())).map(ResponseBody::Whole)
}
