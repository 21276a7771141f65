//! The events of one poll: the only place where the core looks through pointers that a provider wrote.

use std::mem::MaybeUninit;
use std::ops::Deref;
use tieline_plugin_api::abi::Event;

/// How many events one poll may bring.
pub(crate) const BATCH: usize = 16;

/// Room for one poll's events, on the stack and not initialised. A poll fills it, and lends what it has written.
pub(crate) struct Batch {
    slots: [MaybeUninit<Event>; BATCH],
}

impl Batch {
    #[inline]
    pub(crate) fn new() -> Batch {
        Batch { slots: [const { MaybeUninit::uninit() }; BATCH] }
    }

    /// Where a poll writes, and how much.
    #[inline]
    pub(super) fn room(&mut self) -> (*mut Event, u32) {
        (self.slots.as_mut_ptr().cast(), BATCH as u32)
    }

    /// The first `count` events.
    ///
    /// # Safety
    /// A poll that was given [`Batch::room`] has returned `count`, which is no more than that.
    #[inline]
    pub(super) unsafe fn written(&self, count: usize) -> &[Polled] {
        // SAFETY: the provider's poll wrote the first `count` slots: that is what its result means by the ABI. A `Polled` is an event.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), count) }
    }
}

/// An event that a poll has brought: nothing else makes one that points to anything, so that what has one may read its payload.
#[repr(transparent)]
pub(crate) struct Polled(Event);

impl Polled {
    /// No event: a message that stands at none yet has this.
    pub(crate) const NONE: &'static Polled = &Polled(Event::empty());

    /// An event of the core's own making, without a payload.
    pub(crate) fn without_payload(event: Event) -> Polled {
        Polled(Event { data: std::ptr::null(), len: 0, ..event })
    }

    /// The same event once more, beyond the batch that it came in.
    ///
    /// # Safety
    /// As of the poll that has brought it: its payload is read only before the next one, and while the interface is open.
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
    // SAFETY: by the ABI `data` is readable for `len` bytes until the next poll, before which whoever has polled is through with it.
    unsafe { std::slice::from_raw_parts(event.data, event.len) }
}
