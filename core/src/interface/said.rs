//! The address of an interface or a connector, as its provider gave it last.
//!
//! A provider that broke does not answer any more. What it said last stands then: candidates and schemes name each other by
//! their places, and peers that come by another provider need the rest.

use std::cell::RefCell;

/// The address of something that was opened from a provider, as it was last heard. The provider is asked before the cell is borrowed.
#[derive(Debug)]
pub(crate) struct Said(RefCell<Vec<u8>>);

impl Said {
    /// What it says first; a module that cannot say where it is, is not used.
    pub(crate) fn first(address: Vec<u8>) -> Said {
        Said(RefCell::new(address))
    }

    /// What it says now, or else what it said last.
    pub(crate) fn last<E>(&self, ask: impl FnOnce() -> Result<Vec<u8>, E>) -> Vec<u8> {
        if let Ok(now) = ask() {
            *self.0.borrow_mut() = now;
        }
        self.0.borrow().clone()
    }
}
