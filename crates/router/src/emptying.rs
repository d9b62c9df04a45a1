//! Workers told to empty their prefix caches before a trial, as often as it takes while they still hold blocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_workers::{Worker, World};
use http::Request;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use crate::fanout::Order;
use crate::route::Action;
use crate::router::Router;
use crate::shard::Shard;

/// Between two tries with one worker.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a worker has for its answer at least. Requests may be held meanwhile: one that stands still must not hold them
/// for ever.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What one worker made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emptied {
    /// The worker's URL.
    pub url: String,
    /// How often it was asked.
    pub attempts: u32,
    /// What it said last.
    pub said: Said,
}

/// What a worker said when it was asked to empty its prefix cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It did.
    Done,
    /// It has no such endpoint: vLLM has it in its development mode only.
    NoEndpoint,
    /// Requests that it runs hold blocks.
    BlocksHeld,
    /// Something else, with this status.
    Refused(u16),
    /// Nothing: it could not be reached, and why.
    Silent(String),
}

impl Emptied {
    /// Whether its prefix cache is empty now.
    pub fn is_done(&self) -> bool {
        self.said == Said::Done
    }
}

impl Said {
    /// Name in answers.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "emptied",
            Self::NoEndpoint => "no_endpoint",
            Self::BlocksHeld => "blocks_held",
            Self::Refused(_) => "refused",
            Self::Silent(_) => "unreachable",
        }
    }
}

/// Asks workers.
pub(crate) struct Emptying {
    router: Arc<Router>,
    shard: Arc<Shard>,
}

impl Emptying {
    pub(crate) fn new(router: &Arc<Router>, shard: &Arc<Shard>) -> Self {
        Self { router: Arc::clone(router), shard: Arc::clone(shard) }
    }

    /// All workers side by side, one for each URL; those that hold blocks again and again, for as long as `wait`.
    pub(crate) async fn of_all(self, world: &World, wait: Duration) -> Vec<Emptied> {
        let until = Instant::now().checked_add(wait);
        let emptying = Arc::new(self);
        let mut running = JoinSet::new();
        for worker in world.wholes() {
            let (emptying, worker) = (Arc::clone(&emptying), Arc::clone(worker));
            running.spawn(async move { emptying.of(&worker, until).await });
        }
        let mut all = running.join_all().await;
        all.sort_by(|a, b| a.url.cmp(&b.url));
        all
    }

    async fn of(&self, worker: &Arc<Worker>, until: Option<Instant>) -> Emptied {
        let mut emptied =
            Emptied { url: worker.url().to_string(), attempts: 0, said: Said::Silent(String::new()) };
        loop {
            emptied.attempts += 1;
            let least = Instant::now() + ANSWER_WAIT;
            let limit = until.map_or(least, |until| until.max(least));
            let said = timeout_at(limit.into(), self.ask(worker)).await;
            emptied.said = said.unwrap_or_else(|_| Said::Silent("no answer in time".to_owned()));
            let may_go_on = until.is_none_or(|until| Instant::now() + PAUSE < until);
            if emptied.said != Said::BlocksHeld || !may_go_on {
                return emptied;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(&self, worker: &Arc<Worker>) -> Said {
        let told = self.order().tell(worker).await;
        match told.status {
            0 => Said::Silent(told.error.unwrap_or_default()),
            200..300 if told.refused => Said::BlocksHeld,
            200..300 => Said::Done,
            404 | 405 | 501 => Said::NoEndpoint,
            status => Said::Refused(status),
        }
    }

    fn order(&self) -> Order {
        let mut parts = Request::new(()).into_parts().0;
        parts.method = http::Method::POST;
        parts.uri = http::Uri::from_static("/reset_prefix_cache");
        Order {
            router: Arc::clone(&self.router),
            shard: Arc::clone(&self.shard),
            parts: Box::new(parts),
            made_id: Some(self.shard.fresh_id()),
            body: Bytes::new(),
            action: Action::EMPTIES,
        }
    }
}
