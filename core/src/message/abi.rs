//! Payloads that providers lend.

#![allow(unsafe_code)]

pub(crate) use tieline_host::abi::events::{Polled, payload};

use super::{Inbox, Message};
use crate::interface::InterfaceSlot;
use crate::shared::Shared;
use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{event, event_flags};

/// An event of a poll, owned by its only reader.
pub(crate) struct Handed<'a>(&'a Polled);

impl Deref for Handed<'_> {
    type Target = Polled;

    #[inline]
    fn deref(&self) -> &Polled {
        self.0
    }
}

impl<'a> Handed<'a> {
    /// # Safety
    /// The caller makes at most one `Handed` of an event, and no other code reads the event.
    #[inline]
    pub(crate) unsafe fn new(event: &'a Polled) -> Handed<'a> {
        Handed(event)
    }

    /// Returns the message if its payload is lent, otherwise the event, which is released with its batch.
    #[inline]
    pub(crate) fn lent(self) -> Result<LentMessage<'a>, &'a Polled> {
        match self.flags & event_flags::LENT {
            0 => Err(self.0),
            _ => Ok(LentMessage(self)),
        }
    }

    /// Returns the event of a message without a loan, which is released with its batch.
    #[inline(always)]
    pub(crate) fn not_lent(self) -> &'a Polled {
        debug_assert_eq!(self.flags & event_flags::LENT, 0);
        self.0
    }

    /// Runs a function with the message that follows the first `skip` bytes of this one. `event` supplies the fields other than the
    /// payload and its loan.
    pub(crate) fn behind(self, skip: usize, event: Event, with: impl FnOnce(Handed<'_>)) {
        let event = Event { flags: self.flags, cookie: self.cookie, ..event };
        let handed = self.0.with_rest(skip, event, |rest| with(Handed(rest)));
        debug_assert!(handed.is_some(), "the caller has read the head");
    }

    /// Releases the event: a lent payload returns to the provider.
    pub(crate) fn give_back(self, slot: &InterfaceSlot) {
        if self.kind == event::MESSAGE && self.flags & event_flags::LENT != 0 {
            // SAFETY: `self` was the only reader.
            unsafe { slot.interface.release(self.cookie) }
        }
    }
}

/// A message with a lent payload.
pub(crate) struct LentMessage<'a>(Handed<'a>);

impl LentMessage<'_> {
    /// Runs a handler with the message. The payload returns to the provider when the handler has returned or panicked, or later
    /// with the kept message.
    #[inline]
    pub(crate) fn hand_to(
        self,
        inbox: &Inbox,
        interface: usize,
        handler: impl FnOnce(&Message<'_>),
    ) {
        let mut message = Return(Message::new(&self.0, inbox, interface));
        message.0.lent = Some(GoesBack(()));
        handler(&message.0);
    }
}

/// A mark of a message whose payload returns to the provider after its handler, and after a message that was kept from it.
pub(super) struct GoesBack(());

/// A message with a lent payload, for its handler.
struct Return<'a>(Message<'a>);

impl Drop for Return<'_> {
    #[cold]
    fn drop(&mut self) {
        let Return(message) = self;
        if message.kept.take().is_none_or(|readers| readers.handler_done()) {
            // SAFETY: the token belongs to a lent event that was passed to one handler. `Readers` reports once that neither the
            // kept message nor the handler reads the payload any more.
            unsafe { message.slot().interface.release(message.event.cookie) }
        }
    }
}

impl Message<'_> {
    /// Keeps a lent payload beyond the handler. Only the first call returns the payload. `None` also for a payload that is not
    /// lent.
    pub(super) fn keep_lent(&self) -> Option<Lent> {
        let before = self.kept.take();
        if self.lent.is_none() || before.is_some() {
            self.kept.set(before);
            return None;
        }
        let readers = Rc::<Readers>::default();
        self.kept.set(Some(readers.clone()));
        let (data, len, token) = (self.event.data, self.event.len, self.event.cookie);
        Some(Lent {
            data,
            len,
            token,
            shared: self.inbox.shared.clone(),
            interface: self.interface,
            readers,
        })
    }
}

/// The readers of a lent payload that was kept: the handler, through its message, and the kept message.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    handler_is_done: Cell<bool>,
    kept_is_gone: Cell<bool>,
}

impl Readers {
    /// Records that the handler has ended. `true`: the payload has no reader any more.
    fn handler_done(&self) -> bool {
        self.handler_is_done.set(true);
        self.kept_is_gone.get()
    }

    /// Records that the kept message was dropped. `true`: the payload has no reader any more.
    fn kept_gone(&self) -> bool {
        self.kept_is_gone.set(true);
        self.handler_is_done.get()
    }
}

/// A lent payload that can outlive its handler. The buffer returns to the provider when this value is dropped, but not before the
/// handler, which reads the payload as well, has ended.
pub(crate) struct Lent {
    data: *const u8,
    len: usize,
    token: u64,
    shared: Rc<Shared>,
    interface: usize,
    readers: Rc<Readers>,
}

impl Lent {
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: by the ABI a lent payload stays readable until its release, which happens when this is dropped or later. The
        // interface is open as long as `shared` is held here.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // In a forked child the buffer belongs to the parent, which releases it itself.
        if self.readers.kept_gone() && self.shared.same_process() {
            // SAFETY: the token belongs to a lent event. `Readers` reports once that neither this value nor the handler reads the
            // payload any more.
            unsafe { self.shared.interfaces[self.interface].interface.release(self.token) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_buffer_is_released_once_after_handler_and_kept_message() {
        let first_kept = Readers::default();
        assert!(!first_kept.kept_gone(), "the handler may ask for the payload again");
        assert!(first_kept.handler_done());
        let first_handler = Readers::default();
        assert!(!first_handler.handler_done());
        assert!(first_handler.kept_gone());
    }

    /// Another reader of the event could release the buffer while its bytes are kept.
    #[test]
    fn only_what_is_handed_to_a_handler_as_lent_is_kept_as_that() {
        let context = crate::Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let worker = context.worker().unwrap();
        let lent = Event { kind: event::MESSAGE, flags: event_flags::LENT, ..Event::empty() };
        let event = Polled::without_payload(lent);
        let message = Message::new(&event, &worker.inner.inbox, 0);
        assert!(message.keep_lent().is_none());
    }
}
