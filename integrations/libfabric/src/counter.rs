//! Counters of completed operations.

use crate::domain::Domain;
use std::cell::Cell;
use std::rc::Rc;

/// A counter.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) domain: Rc<Domain>,
    pub(crate) value: Cell<u64>,
    pub(crate) errors: Cell<u64>,
    /// The number of errors of which the application has learned.
    pub(crate) known_errors: Cell<u64>,
    /// The number of objects that are bound to the counter.
    pub(crate) users: Cell<usize>,
}

impl Counter {
    pub(crate) fn new(domain: Rc<Domain>) -> Counter {
        let (errors, known_errors) = (Cell::new(0), Cell::new(0));
        Counter { domain, value: Cell::new(0), errors, known_errors, users: Cell::new(0) }
    }

    /// Returns the number of errors to the application.
    pub(crate) fn read_errors(&self) -> u64 {
        self.known_errors.set(self.errors.get());
        self.errors.get()
    }

    /// Counts one operation.
    #[inline]
    pub(crate) fn count(&self, failed: bool) {
        let cell = if failed { &self.errors } else { &self.value };
        cell.set(cell.get().wrapping_add(1));
    }
}
