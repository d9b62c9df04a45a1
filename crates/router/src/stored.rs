//! Responses that one worker keeps: who has which, and all workers asked side by side for one that nobody is known to
//! have. The first worker that knows it answers, and the questions to the others are dropped.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use forebay_workers::{By, Worker, World};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Uri, header};
use xxhash_rust::xxh3::xxh3_64;

use crate::call::Call;
use crate::classify::Asked;
use crate::clock;
use crate::failure::Failure;
use crate::forward::Forward;
use crate::forwarded::Forwarded;
use crate::headers::{Length, Written};
use crate::records::first_id;
use crate::retry::Again;
use crate::router::Router;
use crate::shard::Shard;

/// Most responses whose worker is remembered.
const REMEMBERED: usize = 65_536;

/// Longest answer that says that a response is not known, in bytes: the connection is used again after a shorter one.
const UNKNOWN_LIMIT: u64 = 64 * 1024;

/// Where responses are kept, as far as that was seen.
#[derive(Default)]
pub(crate) struct Stored(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// The trial in which all was forgotten last. Answers that began before it have nothing to say any more.
    since: u64,
    /// Number of the URL, by the hash of the id.
    by_id: HashMap<u64, u32>,
    /// The hashes, oldest first.
    order: VecDeque<u64>,
}

impl Stored {
    /// A request of this trial has seen who keeps the response.
    fn remember(&self, id: &str, host: u32, epoch: u64) {
        let hash = xxh3_64(id.as_bytes());
        let mut places = self.places();
        if epoch < places.since || places.by_id.insert(hash, host).is_some() {
            return;
        }
        places.order.push_back(hash);
        if places.order.len() > REMEMBERED
            && let Some(oldest) = places.order.pop_front()
        {
            places.by_id.remove(&oldest);
        }
    }

    fn host_of(&self, id: &str) -> Option<u32> {
        self.places().by_id.get(&xxh3_64(id.as_bytes())).copied()
    }

    /// Forgets everything, since this trial begins.
    pub(crate) fn clear(&self, epoch: u64) {
        *self.places() = Places { since: epoch, ..Places::default() };
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker that may keep the answer which it gives.
pub(crate) struct Keeper {
    stored: Arc<Stored>,
    host: u32,
    /// The trial of the request.
    epoch: u64,
}

impl Keeper {
    pub(crate) fn new(stored: &Arc<Stored>, worker: &Worker, epoch: u64) -> Self {
        Self { stored: Arc::clone(stored), host: worker.host().number(), epoch }
    }

    /// The answer begins so.
    pub(crate) fn begins(self, begin: &[u8]) {
        if let Some(id) = first_id(begin) {
            self.stored.remember(id, self.host, self.epoch);
        }
    }
}

/// The id of the response that a path below `/v1/responses/` is about.
fn id_in(path: &str) -> &str {
    let rest = path.strip_prefix("/v1/responses/").unwrap_or_default();
    rest.split('/').next().unwrap_or_default()
}

/// Asks for a response, side by side.
struct Search<'a> {
    forward: Forward<'a>,
    asked: &'a Asked,
}

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Forwarded, Failure>> + Send + 'a>>;

impl Router {
    /// A request about a response that one worker keeps.
    pub(crate) async fn find_stored(
        &self,
        shard: &Arc<Shard>,
        call: &mut Call,
        asked: &Asked,
    ) -> Result<Forwarded, Failure> {
        let world = Arc::clone(&call.record.account.world);
        // Nobody is chosen from it: it says in which series the request is counted.
        let _pool = call.record.pick_pool(|world| Ok(world.all(By::Url)))?;
        let id = id_in(call.parts.uri.path()).to_owned();
        let head = Written {
            parts: &call.parts,
            made_id: call.made_id.as_ref(),
            replaces_id: false,
            path: None,
            length: asked.length(&call.parts.headers),
            protocol: None,
            authorization: None,
        };
        let found = self.search(shard, &world, (&head, asked), &id).await?;
        if found.answer.status.is_success() && call.parts.method != Method::DELETE {
            self.stored.remember(&id, found.leg.worker().host().number(), world.epoch());
        }
        Ok(found)
    }

    /// Where the response is that a request continues; `None` if nobody knows it, or there is no choice.
    pub(crate) async fn find_previous(&self, shard: &Arc<Shard>, call: &Call, id: &str) -> Option<u32> {
        let world = &call.record.account.world;
        let hosts = world.hosts();
        if hosts.len() < 2 {
            return None;
        }
        let known =
            self.stored.host_of(id).filter(|number| hosts.iter().any(|host| host.number() == *number));
        if known.is_some() {
            return known;
        }
        let parts = question(id, call.parts.headers.get(header::AUTHORIZATION))?;
        let head = Written {
            parts: &parts,
            made_id: None,
            replaces_id: false,
            path: None,
            length: Length::None,
            protocol: None,
            authorization: None,
        };
        let asked = Asked::default();
        let found = self.search(shard, world, (&head, &asked), id).await.ok()?;
        let number = found.leg.worker().host().number();
        found.answer.status.is_success().then(|| {
            self.stored.remember(id, number, world.epoch());
            number
        })
    }

    /// The answer of the worker that is known to have it, or of the first that does.
    async fn search(
        &self,
        shard: &Arc<Shard>,
        world: &World,
        (head, asked): (&Written<'_>, &Asked),
        id: &str,
    ) -> Result<Forwarded, Failure> {
        let (metrics, writer) = (self.metrics(), &self.writer);
        let now_ms = clock::now_ms();
        let forward = Forward { shard, settings: &self.settings, metrics, writer, head, now_ms };
        let search = Search { forward, asked };
        let (mut first, mut others): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        let known = self.stored.host_of(id);
        for worker in world.wholes().iter().filter(|worker| worker.is_well()) {
            if known == Some(worker.host().number()) { first.push(worker) } else { others.push(worker) }
        }
        let told = search.side_by_side(&first).await;
        match told {
            Some(Ok(found)) if found.answer.status != StatusCode::NOT_FOUND => return Ok(found),
            _ => {}
        }
        let none = || Failure::PoolExhausted {
            retries: 0,
            pool_size: world.wholes().len() as u64,
            open_circuits: 0,
            unhealthy: world.wholes().iter().filter(|worker| !worker.is_well()).count() as u64,
        };
        // Who is known to have it and cannot be asked now is not overruled by those who have not.
        let is_here = |number: &u32| world.hosts().iter().any(|host| host.number() == *number);
        let keeper = first.is_empty().then_some(known).flatten().filter(is_here).map(|_| Err(none()));
        let all = [search.side_by_side(&others).await, told, keeper];
        all.into_iter().flatten().min_by_key(rank_of).unwrap_or_else(|| Err(none()))
    }
}

impl Search<'_> {
    async fn ask(&self, worker: &Arc<Worker>) -> Result<Forwarded, Failure> {
        let mut found = self.forward.to(worker, self.asked).await?;
        if found.answer.status == StatusCode::NOT_FOUND {
            found.answer.body.read_ahead(UNKNOWN_LIMIT).await.map_err(|_| Failure::WorkerDied)?;
        }
        Ok(found)
    }

    /// The best answer of these workers: the first that says something of the response; else why somebody could not be
    /// asked, since that one may have it; else that it is not known. `None` if there is nobody to ask.
    async fn side_by_side(&self, workers: &[&Arc<Worker>]) -> Option<Result<Forwarded, Failure>> {
        let mut asking: Vec<Asking<'_>> =
            workers.iter().map(|worker| Box::pin(self.ask(worker)) as Asking<'_>).collect();
        let mut best: Option<Result<Forwarded, Failure>> = None;
        while !asking.is_empty() {
            let (at, told) = poll_fn(|cx| {
                for (at, asking) in asking.iter_mut().enumerate() {
                    if let Poll::Ready(told) = asking.as_mut().poll(cx) {
                        return Poll::Ready((at, told));
                    }
                }
                Poll::Pending
            })
            .await;
            drop(asking.swap_remove(at));
            let rank = rank_of(&told);
            if rank == 0 {
                return Some(told);
            }
            if best.as_ref().is_none_or(|best| rank < rank_of(best)) {
                best = Some(told);
            }
        }
        best
    }
}

/// How good an answer is: 0 is the best.
fn rank_of(told: &Result<Forwarded, Failure>) -> u8 {
    match told {
        Ok(found) if found.answer.status == StatusCode::NOT_FOUND => 3,
        Ok(found) if Again::of(found.answer.status) != Again::No => 1,
        Ok(_) => 0,
        Err(_) => 2,
    }
}

/// The head that asks whether a worker has a response; `None` if the id cannot stand in a path.
fn question(id: &str, authorization: Option<&HeaderValue>) -> Option<Parts> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.starts_with('.') || !id.bytes().all(fits) {
        return None;
    }
    let uri = Uri::from_maybe_shared(Bytes::from(format!("/v1/responses/{id}"))).ok()?;
    let mut parts = http::Request::new(()).into_parts().0;
    parts.uri = uri;
    if let Some(value) = authorization {
        parts.headers.insert(header::AUTHORIZATION, value.clone());
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_when_there_are_too_many() {
        let stored = Stored::default();
        for i in 0..REMEMBERED + 10 {
            stored.remember(&format!("resp_{i}"), i as u32, 1);
        }
        assert_eq!((stored.host_of("resp_9"), stored.host_of("resp_10")), (None, Some(10)));
        assert_eq!(stored.places().by_id.len(), REMEMBERED);
        stored.clear(2);
        assert_eq!(stored.host_of("resp_10"), None);
    }

    #[test]
    fn answers_that_began_before_a_reset_are_not_remembered_after_it() {
        let stored = Arc::new(Stored::default());
        let keeper = |epoch| Keeper { stored: Arc::clone(&stored), host: 7, epoch };
        let (before, after) = (keeper(1), keeper(2));
        stored.clear(2);
        before.begins(br#"{"id":"resp_1"}"#);
        assert_eq!(stored.host_of("resp_1"), None);
        after.begins(br#"{"id":"resp_1"}"#);
        assert_eq!(stored.host_of("resp_1"), Some(7));
    }

    #[test]
    fn ids_are_read_from_paths_and_only_plain_ones_asked_for() {
        assert_eq!(id_in("/v1/responses/resp_1/cancel"), "resp_1");
        assert_eq!(id_in("/v1/responses/resp_1"), "resp_1");
        assert_eq!(question("resp_1", None).unwrap().uri, "/v1/responses/resp_1");
        for odd in ["", "..", "a/b", "a?b", "a b", "a%2fb", "\u{e9}"] {
            assert!(question(odd, None).is_none(), "{odd}");
        }
    }
}
