//! One trial ends and the next begins: hold, workers' caches, state, release; and what a trial came to. It decides nothing
//! about what is reset.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_workers::{By, Parts, Pool, World};
use tokio::time::timeout_at;

use crate::emptying::{Emptied, Emptying};
use crate::router::Router;
use crate::shard::Shard;
use crate::trial::{Beginning, TrialView, UnderWay, Warmth};

/// How long workers are asked to empty their caches while blocks are held, if no other wait was asked for.
const HELD_BLOCKS_WAIT: Duration = Duration::from_secs(5);

/// What a reset is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOrder {
    /// What begins afresh. The counts always do.
    pub parts: Parts,
    /// New seed of the policies; `None` is the one in force.
    pub seed: Option<u64>,
    /// Name of the trial that begins.
    pub trial: Option<Arc<str>>,
    /// How long to wait for requests under way; new ones are held meanwhile.
    pub wait_idle: Option<Duration>,
    /// Without idleness (after the wait, if any) nothing is reset.
    pub require_idle: bool,
    /// Workers have to empty their prefix caches.
    pub empty_caches: bool,
}

/// A reset that was done.
pub struct ResetDone {
    /// The first view of the trial that has begun.
    pub world: Arc<World>,
    /// Number of the one before.
    pub previous: u64,
    /// What workers said, if they were asked to empty their prefix caches: one for each URL.
    pub emptied: Vec<Emptied>,
    /// How long new requests were held.
    pub held: Duration,
}

/// Why nothing was reset.
#[derive(Debug)]
pub enum ResetRefused {
    /// Another reset is under way.
    Busy,
    /// These requests are under way, oldest first.
    NotIdle(Vec<UnderWay>),
}

impl Router {
    /// What one more data thread has to itself. `nonce` must differ between threads, and between processes: request ids
    /// begin with it.
    pub fn shard(&self, nonce: u64) -> Shard {
        Shard::new(nonce, self.trials().roll())
    }

    /// What the trial with this number, or the current one, came to. `None` if it is not remembered.
    pub fn trial(&self, epoch: Option<u64>) -> Option<TrialView> {
        self.trials().view(epoch, &self.reader.world())
    }

    /// Ends the trial and begins the next one. Dropped before it is done, it changes nothing and lets held requests go on.
    ///
    /// # Errors
    /// Another one is under way, or requests are although none must.
    pub async fn reset(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        order: ResetOrder,
    ) -> Result<ResetDone, ResetRefused> {
        let _alone = self.resetting.try_lock().map_err(|_| ResetRefused::Busy)?;
        let began = Instant::now();
        let hold = self.trials().hold();
        if let Some(wait) = order.wait_idle {
            self.idle_within(wait).await;
        }
        if order.require_idle && self.trials().under_way() > 0 {
            return Err(ResetRefused::NotIdle(self.trials().list_under_way()));
        }
        let emptied = if order.empty_caches {
            let wait = order.wait_idle.unwrap_or(HELD_BLOCKS_WAIT);
            Emptying::new(self, shard).of_all(&self.reader.world(), wait).await
        } else {
            Vec::new()
        };
        let old = self.reader.world();
        let warm = if order.parts.policies { Warmth::default() } else { warmth(&old) };
        let closing = self.trials().closing(&old);
        let world = self.writer.reset(order.parts, order.seed);
        if order.parts.policies {
            self.stored.clear(world.epoch());
        }
        let not_emptied =
            emptied.iter().filter(|said| !said.is_done()).map(|said| said.url.clone()).collect();
        self.trials().begin(closing, &world, Beginning { name: order.trial, warm, not_emptied });
        drop(hold);
        Ok(ResetDone { world, previous: old.epoch(), emptied, held: began.elapsed() })
    }

    /// Has workers empty their prefix caches in the midst of a trial. Whatever they say, no policy believes any more that
    /// they hold anything.
    pub async fn flush(self: &Arc<Self>, shard: &Arc<Shard>) -> Vec<Emptied> {
        let emptied = Emptying::new(self, shard).of_all(&self.reader.world(), HELD_BLOCKS_WAIT).await;
        self.reader.world().hosts().iter().for_each(|host| self.writer.emptied(host));
        emptied
    }

    /// Waits until nothing is under way, but no longer than this.
    async fn idle_within(&self, wait: Duration) {
        let Some(deadline) = Instant::now().checked_add(wait) else { return };
        let idle = async {
            loop {
                let left = self.trials().gate().left();
                if self.trials().under_way() == 0 {
                    return;
                }
                left.await;
            }
        };
        let _in_time = timeout_at(deadline.into(), idle).await;
    }
}

/// Choices that the policies of this view have made.
fn warmth(world: &World) -> Warmth {
    let choices = |pool: &Arc<Pool>| pool.policy().choices();
    Warmth {
        answering: world.pools().chain([world.all(By::Rank)]).map(choices).sum(),
        prefilling: world.prefill_pools().map(choices).sum(),
    }
}
