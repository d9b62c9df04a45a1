//! The pools of one view of the fleet, by the names that requests give. Chooses nobody.

use std::collections::HashMap;
use std::sync::Arc;

use crate::by::PoolError;
use crate::pool::Pool;

/// The pools of one world.
pub(crate) struct Pools {
    pub(crate) by_model: HashMap<Box<str>, Arc<Pool>>,
    /// Workers whose models cannot be read: they take any name.
    pub(crate) any: Option<Arc<Pool>>,
    pub(crate) base: Base,
    pub(crate) all: Arc<Pool>,
    /// Whether at least one worker has told what it serves.
    pub(crate) read: bool,
}

/// Where a request goes that names no model.
pub(crate) enum Base {
    None,
    One(Arc<Pool>),
    Several,
}

impl Pools {
    /// Those that requests find by a name, or by none.
    pub(crate) fn named(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.by_model.values().chain(self.any.as_ref())
    }

    /// The pool for a request that names `model`, or none.
    pub(crate) fn find(&self, model: Option<&str>) -> Result<&Arc<Pool>, PoolError> {
        match model {
            Some(name) => self.by_model.get(name).or(self.any.as_ref()).ok_or(self.unknown()),
            None => match &self.base {
                Base::One(pool) => Ok(pool),
                Base::Several => Err(PoolError::ModelNeeded),
                Base::None => self.any.as_ref().ok_or(self.unknown()),
            },
        }
    }

    fn unknown(&self) -> PoolError {
        if self.read { PoolError::UnknownModel } else { PoolError::NothingKnown }
    }
}
