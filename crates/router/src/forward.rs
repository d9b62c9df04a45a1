//! Choosing a worker and getting the head of its answer, with as many workers as it takes.

use std::io;
use std::sync::Arc;

use forebay_policy::{Ask, Choice, Policy};
use forebay_workers::{Guard, Pool, Tried, Worker};
use http::Method;

use crate::classify::Asked;
use crate::failure::Failure;
use crate::headers::Written;
use crate::metrics::RouterMetrics;
use crate::settings::RouterSettings;
use crate::shard::Shard;
use crate::upstream::{Answer, Conn, ExchangeError};

/// A worker's answer, and the load that goes with it.
pub(crate) struct Forwarded {
    pub answer: Answer,
    pub guard: Guard,
    /// What was chosen, unless the request named its worker.
    pub chosen: Option<Chosen>,
}

/// A choice, and whose it was.
pub(crate) struct Chosen {
    pub choice: Choice,
    pub policy: Arc<Policy>,
    /// Whether the prompt was text, not ids.
    pub is_text: bool,
}

/// What forwarding needs beside the request itself.
pub(crate) struct Forward<'a> {
    pub shard: &'a Shard,
    pub settings: &'a RouterSettings,
    pub metrics: &'a RouterMetrics,
    pub head: &'a Written<'a>,
    /// When the request came, on the shard's clock.
    pub now_ms: u64,
}

/// Why one attempt gave no answer.
enum AttemptError {
    /// No connection: the request has not left, so any other worker may have it.
    Unreachable(io::Error),
    /// The router itself lacked something.
    OutOfResources(io::Error),
    /// The connection failed with the request under way.
    Exchange(ExchangeError),
}

impl Forward<'_> {
    /// Chooses workers until one takes the request.
    pub(crate) async fn to_any_of(&self, pool: &Pool, asked: &Asked) -> Result<Forwarded, Failure> {
        let ask = Ask {
            prefix: asked.prefix.as_ref(),
            tokens: asked.tokens,
            streamed: asked.streamed,
            hash: asked.hash,
            now_ms: self.now_ms,
        };
        let mut tried = Tried::default();
        loop {
            let Some(selected) = pool.select(&ask, &tried) else {
                return Err(exhausted(pool, &tried));
            };
            let worker = selected.guard.worker();
            note(worker, &selected.choice);
            match self.attempt(worker, asked).await {
                Ok(answer) => {
                    let policy = Arc::clone(pool.policy());
                    let chosen = Chosen { choice: selected.choice, policy, is_text: asked.tokens.is_none() };
                    return Ok(Forwarded { answer, guard: selected.guard, chosen: Some(chosen) });
                }
                Err(AttemptError::Unreachable(error)) => {
                    tracing::debug!(worker = worker.name(), %error, "worker cannot be reached, another is tried");
                    worker.suspect();
                    tried.add(worker.slot());
                    self.metrics.note_retry("unreachable");
                }
                Err(error) => return Err(failure(worker, error)),
            }
        }
    }

    /// To this worker and no other.
    pub(crate) async fn to(&self, worker: &Arc<Worker>, asked: &Asked) -> Result<Forwarded, Failure> {
        let guard = worker.hold();
        match self.attempt(worker, asked).await {
            Ok(answer) => Ok(Forwarded { answer, guard, chosen: None }),
            Err(error) => Err(failure(worker, error)),
        }
    }

    /// One exchange with the worker. A kept connection may have died of age just now; if it did, and nothing of an
    /// answer had come, the request goes out once more on a new one: the worker never saw it.
    async fn attempt(&self, worker: &Arc<Worker>, asked: &Asked) -> Result<Answer, AttemptError> {
        if let Some(conn) = self.shard.idle.take(worker.slot()) {
            match self.exchange(conn, worker, asked).await {
                Err(ExchangeError::Silent { reused: true, .. }) => self.metrics.resends.inc(),
                result => return result.map_err(AttemptError::Exchange),
            }
        }
        let conn = Conn::open(worker.url(), self.settings.connect_timeout).await.map_err(|error| {
            if is_own_fault(&error) {
                AttemptError::OutOfResources(error)
            } else {
                AttemptError::Unreachable(error)
            }
        })?;
        self.exchange(conn, worker, asked).await.map_err(AttemptError::Exchange)
    }

    async fn exchange(
        &self,
        conn: Conn,
        worker: &Arc<Worker>,
        asked: &Asked,
    ) -> Result<Answer, ExchangeError> {
        let method: &Method = &self.head.parts.method;
        let write = |out: &mut Vec<u8>| self.head.write(worker.url(), out);
        conn.exchange(method, write, &asked.body, (&self.shard.idle, worker.slot())).await
    }
}

/// One line for each decision, for who asks for it.
fn note(worker: &Worker, choice: &Choice) {
    tracing::debug!(
        worker = worker.name(),
        reason = choice.reason.as_str(),
        matched_bytes = choice.matched,
        prompt_bytes = choice.key_len,
        prompt_tokens = choice.prompt_tokens,
        uncached_tokens = choice.uncached_tokens,
        draw = choice.draw,
        "worker chosen"
    );
}

/// Errors that say something of this process, not of the worker.
fn is_own_fault(error: &io::Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const EADDRNOTAVAIL: i32 = 99;
    const ENOBUFS: i32 = 105;
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE | EADDRNOTAVAIL | ENOBUFS))
}

fn exhausted(pool: &Pool, tried: &Tried) -> Failure {
    let unhealthy = pool.workers().filter(|worker| !worker.eligible()).count();
    Failure::PoolExhausted {
        // Every worker tried was a failure, and each after the first a retry.
        retries: tried.count().saturating_sub(1) as u64,
        pool_size: pool.workers().len() as u64,
        unhealthy: unhealthy as u64,
    }
}

/// What the client is told. Names of workers stay in the log.
fn failure(worker: &Worker, error: AttemptError) -> Failure {
    match error {
        AttemptError::Unreachable(error) => {
            worker.suspect();
            tracing::warn!(worker = worker.name(), %error, "worker cannot be reached");
            Failure::PoolExhausted { retries: 0, pool_size: 1, unhealthy: 1 }
        }
        AttemptError::OutOfResources(error) => {
            tracing::error!(%error, "out of resources");
            Failure::OutOfResources(error.kind().to_string())
        }
        AttemptError::Exchange(error) => {
            tracing::warn!(worker = worker.name(), %error, "no answer from worker");
            match error {
                ExchangeError::Silent { .. } | ExchangeError::InsideHead => Failure::WorkerDied,
                ExchangeError::Head(error) => Failure::InvalidResponse(error.to_string()),
                ExchangeError::Framing(error) => Failure::InvalidResponse(error.to_string()),
            }
        }
    }
}
