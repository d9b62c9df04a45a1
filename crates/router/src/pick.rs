//! Which pool a request goes to. It chooses nobody there.

use forebay_workers::{Pool, PoolError, World};

use crate::classify::Asked;
use crate::failure::Failure;
use crate::route::{Class, Route};

/// The pool that serves what is asked for. A body that could not name a model may go anywhere.
pub(crate) fn pick_pool<'w>(world: &'w World, route: &Route, asked: &Asked) -> Result<&'w Pool, Failure> {
    if !matches!(route.class, Class::Routable(_)) && !asked.is_object {
        return Ok(world.all(route.by()));
    }
    world.pool(route.by(), asked.model.as_deref()).map(|pool| &**pool).map_err(|error| match error {
        PoolError::UnknownModel => Failure::UnknownModel(asked.model.clone().unwrap_or_default()),
        PoolError::ModelNeeded => Failure::ModelNeeded,
        PoolError::NothingKnown => {
            let pool_size = world.workers().len() as u64;
            Failure::PoolExhausted { retries: 0, pool_size, open_circuits: 0, unhealthy: pool_size }
        }
    })
}
