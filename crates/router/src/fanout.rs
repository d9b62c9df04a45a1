//! Requests that concern whole workers: to all of them side by side, or to the one addressed, with one merged answer.

use std::sync::Arc;

use bytes::Bytes;
use forebay_workers::{Worker, World};
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::authority;
use crate::classify::Asked;
use crate::failure::{Failure, json};
use crate::forward::Forward;
use crate::forwarded::Forwarded;
use crate::headers::{Length, TARGET, Written};
use crate::relay::ResponseBody;
use crate::route::Action;
use crate::router::Router;
use crate::settings::Secret;
use crate::shard::Shard;

/// Longest answer of one worker that is merged, in bytes.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;

/// The merged answer.
#[derive(Serialize)]
struct Merged {
    success: bool,
    workers: Vec<Part>,
}

/// What one worker said.
#[derive(Serialize)]
pub(crate) struct Part {
    url: String,
    /// 0 if it did not answer.
    pub status: u16,
    /// Whether it said that it had no success, with a status that says the opposite.
    #[serde(skip)]
    pub refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What is sent to each worker.
pub(crate) struct Order {
    pub router: Arc<Router>,
    pub shard: Arc<Shard>,
    pub parts: Box<http::request::Parts>,
    pub made_id: Option<http::HeaderValue>,
    pub body: Bytes,
    pub action: Action,
}

impl Order {
    /// Sends it to whom it is meant for.
    pub(crate) async fn carry_out(self, world: &World) -> Result<Response<ResponseBody>, Failure> {
        let targets = self.targets(world)?;
        let order = Arc::new(self);
        let mut running = JoinSet::new();
        for (place, worker) in targets.into_iter().enumerate() {
            let order = Arc::clone(&order);
            running.spawn(async move { (place, order.tell(&worker).await) });
        }
        let mut parts = running.join_all().await;
        parts.sort_by_key(|(place, _)| *place);
        let workers: Vec<Part> = parts.into_iter().map(|(_, part)| part).collect();
        let success = workers.iter().all(|part| (200..300).contains(&part.status) && !part.refused);
        let status = if success { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
        let body = serde_json::to_vec(&Merged { success, workers }).unwrap_or_default();
        Ok(json(status, body.into()).map(ResponseBody::Whole))
    }

    /// The worker that the header names, or one for each URL.
    fn targets(&self, world: &World) -> Result<Vec<Arc<Worker>>, Failure> {
        let mut targets: Vec<Arc<Worker>> = world.wholes().to_vec();
        if let Some(target) = self.parts.headers.get(TARGET) {
            targets.retain(|worker| worker.url().as_str().as_bytes() == target.as_bytes());
            return if targets.is_empty() { Err(Failure::TargetNeeded) } else { Ok(targets) };
        }
        if self.action.addressed && targets.len() > 1 { Err(Failure::TargetNeeded) } else { Ok(targets) }
    }

    /// Tells one worker, and draws the consequences for what is believed of it.
    pub(crate) async fn tell(&self, worker: &Arc<Worker>) -> Part {
        let url = worker.url().to_string();
        match self.ask(worker).await {
            Ok((status, content)) => {
                let refused = says_no(&content);
                if status.is_success() && !refused {
                    self.conclude(worker);
                }
                Part { url, status: status.as_u16(), refused, body: as_json(&content), error: None }
            }
            Err(error) => Part { url, status: 0, refused: false, body: None, error: Some(error) },
        }
    }

    async fn ask(&self, worker: &Arc<Worker>) -> Result<(StatusCode, Vec<u8>), String> {
        let settings = &self.router.settings;
        let api_key = settings.api_key.as_ref().map(Secret::expose);
        // The client's own `Authorization` is for the worker, unless it was the key to this router.
        let for_router = authority::shows_key(settings.admin_api_key.as_ref(), &self.parts.headers);
        let head = Written {
            parts: &self.parts,
            made_id: self.made_id.as_ref(),
            replaces_id: false,
            path: None,
            length: match self.parts.method {
                http::Method::POST => Length::Exact(self.body.len() as u64),
                _ => Length::None,
            },
            protocol: None,
            authorization: (api_key.is_some() || for_router).then_some(api_key),
        };
        let (metrics, writer) = (self.router.metrics(), &self.router.writer);
        let forward = Forward { shard: &self.shard, settings, metrics, writer, head: &head, now_ms: 0 };
        let asked = Asked { body: self.body.clone(), ..Asked::default() };
        let Forwarded { answer, leg, .. } = forward.to(worker, &asked).await.map_err(|f| f.to_string())?;
        let content = answer.body.collect(ANSWER_LIMIT).await;
        drop(leg);
        Ok((answer.status, content.map_err(|error| error.to_string())?))
    }

    fn conclude(&self, worker: &Worker) {
        if self.action.empties_cache {
            self.router.writer.emptied(worker.host());
        }
        if self.action.changes_models {
            worker.host().may_serve_others();
        }
        if let Some((rest, rests)) = self.action.rest {
            // Told to wake up in parts, it says itself when the last one is awake.
            if rests || self.parts.uri.query().is_none_or(|query| !query.contains("tags=")) {
                self.router.writer.rests(worker.host(), rest, rests);
            }
            worker.host().look_now();
        }
    }
}

/// Whether an answer says that there was no success.
fn says_no(content: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Verdict {
        success: Option<bool>,
    }
    serde_json::from_slice(content).is_ok_and(|verdict: Verdict| verdict.success == Some(false))
}

/// A worker's answer as JSON: itself if it is JSON, else as a string. Nothing for an empty one.
fn as_json(content: &[u8]) -> Option<Box<RawValue>> {
    if content.is_empty() {
        return None;
    }
    serde_json::from_slice(content)
        .ok()
        .or_else(|| serde_json::value::to_raw_value(&String::from_utf8_lossy(content)).ok())
}
