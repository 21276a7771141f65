//! Payloads that providers lend.

#![allow(unsafe_code)]

pub(crate) use crate::registry::abi::events::{Polled, payload};

use crate::interface::InterfaceSlot;
use crate::shared::Shared;
use std::cell::Cell;
use std::rc::Rc;

/// Gives back the payload of a lent event that nobody has kept.
pub(crate) fn release(slot: &InterfaceSlot, event: &Polled) {
    // SAFETY: called once for an event, when its handler has returned and what was kept of it is gone (`Readers`), or when no
    // handler will be called with it any more.
    unsafe { slot.interface.release(event.cookie) }
}

/// Who still reads a payload that a provider lent: the handler, whose message has it, and what it kept.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    handler_is_done: Cell<bool>,
    kept_is_gone: Cell<bool>,
}

impl Readers {
    /// The handler has returned; `true`: nobody reads it any more.
    pub(crate) fn handler_done(&self) -> bool {
        self.handler_is_done.set(true);
        self.kept_is_gone.get()
    }

    /// What was kept is dropped; `true`: nobody reads it any more.
    fn kept_gone(&self) -> bool {
        self.kept_is_gone.set(true);
        self.handler_is_done.get()
    }
}

/// A payload that a provider lent, beyond its handler. The buffer goes back when this is dropped, and not before the
/// handler has returned, which has the payload too.
pub(crate) struct Lent {
    data: *const u8,
    len: usize,
    token: u64,
    shared: Rc<Shared>,
    interface: usize,
    readers: Rc<Readers>,
}

impl Lent {
    /// Takes over the duty to release what a lent event points to.
    pub(crate) fn new(
        event: &Polled,
        shared: Rc<Shared>,
        interface: usize,
        readers: Rc<Readers>,
    ) -> Lent {
        let (data, len, token) = (event.data, event.len, event.cookie);
        Lent { data, len, token, shared, interface, readers }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: by the ABI a lent payload stays readable until its release, which comes when this is dropped or later;
        // the interface is open as long as what is held here.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // In a forked child the buffer is the parent's, which gives it back itself.
        if self.readers.kept_gone() && self.shared.same_process() {
            // SAFETY: the token of a lent event; `Readers` says that neither this nor its handler reads it any more, once.
            unsafe { self.shared.interfaces[self.interface].interface.release(self.token) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_buffer_goes_back_once_when_neither_the_handler_nor_what_it_kept_reads_it() {
        let first_kept = Readers::default();
        assert!(!first_kept.kept_gone(), "the handler may ask for the payload again");
        assert!(first_kept.handler_done());
        let first_handler = Readers::default();
        assert!(!first_handler.handler_done());
        assert!(first_handler.kept_gone());
    }
}
