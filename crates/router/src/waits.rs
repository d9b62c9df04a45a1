//! What a request waits for before it has a worker: the end of a hold, a worker that is well, a place at one. It chooses
//! nobody.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use crate::call::Call;
use crate::classify::Asked;
use crate::failure::Failure;
use crate::line::InLine;
use crate::pick::pick_pool;
use crate::router::Router;
use crate::shard::Shard;

/// Between two attempts of a request that waits for a worker.
const ASK_AGAIN: Duration = Duration::from_millis(10);

impl Router {
    /// Waits while a reset holds new requests. The request goes on in the trial and the world as they are then.
    pub(crate) async fn let_in(&self, shard: &Arc<Shard>, call: &mut Call) {
        call.waited = true;
        call.record.entered = None;
        loop {
            let released = self.trials().gate().released();
            if call.enter(&self.reader, shard) {
                return;
            }
            released.await;
        }
    }

    /// Waits until a worker is well, as long as it may. The request goes on in the trial and the world as they are then.
    pub(crate) async fn worker_came(&self, shard: &Arc<Shard>, call: &mut Call) -> Option<()> {
        let limit = self.settings.admission.no_worker_wait;
        let deadline = limit.and_then(|limit| call.record.account.started.checked_add(limit))?;
        let came = async {
            // A worker may be well and yet refuse: it is not asked in a tight loop.
            tokio::time::sleep(ASK_AGAIN).await;
            self.reader.wait_for(|world| world.workers().iter().any(|worker| worker.is_awake())).await
        };
        timeout_at(deadline.into(), came).await.ok()?;
        self.let_in(shard, call).await;
        Some(())
    }

    /// Waits in line until a worker of the pool may have a place. Who has just come to the end of the line looks once
    /// more, behind those who were called: a place may have come free meanwhile.
    pub(crate) async fn place_came<'a>(
        &'a self,
        shard: &Arc<Shard>,
        call: &mut Call,
        (asked, line): (&Asked, &mut Option<InLine<'a>>),
    ) -> Result<(), Failure> {
        match line {
            Some(line) => line.called().await?,
            None => {
                let pool = pick_pool(&call.record.account.world, &call.route, asked)?;
                let places = pool.bound().ok_or(Failure::Overloaded)?;
                let line = line.insert(InLine::join(&self.admission, places, pool.label())?);
                if !line.may_look() {
                    line.called().await?;
                }
            }
        }
        self.let_in(shard, call).await;
        Ok(())
    }
}
