//! The lock of a domain.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock of a domain. If the application serializes the calls itself, entering costs nothing.
#[derive(Debug)]
pub(crate) struct Gate {
    mutex: Mutex<()>,
    is_shared: bool,
}

impl Gate {
    /// Makes a lock; `is_shared`: several threads may call at the same time.
    pub(crate) fn new(is_shared: bool) -> Gate {
        Gate { mutex: Mutex::new(()), is_shared }
    }

    #[inline]
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        // A panic under the lock is recorded by the domain.
        self.is_shared.then(|| self.mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
