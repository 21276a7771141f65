//! The events of one poll: the only place where the core looks through pointers that a provider wrote.

use std::mem::MaybeUninit;
use tieline_plugin_api::abi::Event;

/// How many events one poll may bring.
pub(crate) const BATCH: usize = 16;

/// Room for one poll's events, on the stack and not initialised.
pub(crate) struct Batch {
    slots: [MaybeUninit<Event>; BATCH],
}

impl Batch {
    #[inline]
    pub(crate) fn new() -> Batch {
        Batch { slots: [const { MaybeUninit::uninit() }; BATCH] }
    }

    #[inline]
    pub(crate) fn slots(&mut self) -> &mut [MaybeUninit<Event>] {
        &mut self.slots
    }

    /// The first `count` events, which the poll that returned `count` has written.
    #[inline]
    pub(crate) fn events(&self, count: usize) -> &[Event] {
        let slots = &self.slots[..count.min(BATCH)];
        // SAFETY: the provider's poll wrote the first `count` slots: that is what its result means by the ABI.
        unsafe { &*(std::ptr::from_ref(slots) as *const [Event]) }
    }
}

/// The payload or text of an event, valid until the next poll of its interface.
#[inline]
pub(crate) fn payload(event: &Event) -> &[u8] {
    if event.len == 0 || event.data.is_null() {
        return &[];
    }
    // SAFETY: by the ABI `data` is readable for `len` bytes until the next poll, and the core drops the batch before it.
    unsafe { std::slice::from_raw_parts(event.data, event.len) }
}
