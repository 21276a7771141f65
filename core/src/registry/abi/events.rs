//! The events of one poll: the only place where the core dereferences pointers that a provider wrote.

use std::mem::MaybeUninit;
use std::ops::Deref;
use tieline_plugin_api::abi::Event;

/// The limit of events per poll.
pub(crate) const BATCH: usize = 16;

/// Room for the events of one poll, on the stack and uninitialised. A poll fills it and then borrows the part that was written.
pub(crate) struct Batch {
    slots: [MaybeUninit<Event>; BATCH],
}

impl Batch {
    #[inline]
    pub(crate) fn new() -> Batch {
        Batch { slots: [const { MaybeUninit::uninit() }; BATCH] }
    }

    /// The address and the capacity for a poll.
    #[inline]
    pub(super) fn room(&mut self) -> (*mut Event, u32) {
        (self.slots.as_mut_ptr().cast(), BATCH as u32)
    }

    /// The first `count` events.
    ///
    /// # Safety
    /// A poll that was given [`Batch::room`] has returned `count`, which does not exceed that capacity.
    #[inline]
    pub(super) unsafe fn written(&self, count: usize) -> &[Polled] {
        // SAFETY: by the ABI, the result says that the provider's poll wrote the first `count` slots. A `Polled` is an event.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), count) }
    }
}

/// An event from a poll. Only polls create events with a pointer, so the owner of a `Polled` may read its payload.
#[repr(transparent)]
pub(crate) struct Polled(Event);

impl Polled {
    /// No event, for a message that does not come from one yet.
    pub(crate) const NONE: &'static Polled = &Polled(Event::empty());

    /// An event without a payload that the core makes itself.
    pub(crate) fn without_payload(event: Event) -> Polled {
        Polled(Event { data: std::ptr::null(), len: 0, ..event })
    }

    /// A copy of the event that outlives its batch.
    ///
    /// # Safety
    /// The same as for the poll that brought it: its payload is read only before the next poll and while the interface is open.
    pub(crate) unsafe fn again(&self) -> Polled {
        Polled(self.0)
    }
}

impl Deref for Polled {
    type Target = Event;

    #[inline]
    fn deref(&self) -> &Event {
        &self.0
    }
}

/// The payload or text of an event, valid until the next poll of its interface.
#[inline]
pub(crate) fn payload(event: &Polled) -> &[u8] {
    if event.len == 0 || event.data.is_null() {
        return &[];
    }
    // SAFETY: by the ABI, `data` is readable for `len` bytes until the next poll. The caller of the poll is finished with it by
    // then.
    unsafe { std::slice::from_raw_parts(event.data, event.len) }
}
