//! The address of an interface or a connector, as its provider last reported it.
//!
//! A provider that has failed is not called any more. Its last address stays in the worker's address, because candidates and
//! schemes refer to each other by position. Peers that use another provider need the complete address.

use std::cell::RefCell;

/// The last known address of an object opened from a provider. The provider is called before the cell is borrowed.
#[derive(Debug)]
pub(crate) struct Said(RefCell<Vec<u8>>);

impl Said {
    /// Records the first address. A module that cannot report its address is not used.
    pub(crate) fn first(address: Vec<u8>) -> Said {
        Said(RefCell::new(address))
    }

    /// Returns the current address, or the last known one if the provider does not return any.
    pub(crate) fn last<E>(&self, ask: impl FnOnce() -> Result<Vec<u8>, E>) -> Vec<u8> {
        if let Ok(now) = ask() {
            *self.0.borrow_mut() = now;
        }
        self.0.borrow().clone()
    }
}
