//! Locking without poison: a panicking test thread must not take the worker with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) trait Held<T> {
    /// The lock, poisoned or not.
    fn held(&self) -> MutexGuard<'_, T>;
}

impl<T> Held<T> for Mutex<T> {
    fn held(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
