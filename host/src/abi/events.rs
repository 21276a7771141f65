//! The events of one poll, and the access to their payloads, to which a provider's pointers lead.

use std::mem::MaybeUninit;
use std::ops::Deref;
use tieline_plugin_api::abi::Event;

/// The maximum number of events per poll.
pub const BATCH: usize = 16;

/// A buffer for the events of one poll, uninitialised at first. After a poll, [`Batch::written`] returns the part that was written.
pub struct Batch {
    slots: [MaybeUninit<Event>; BATCH],
}

impl Batch {
    /// Makes an empty buffer.
    #[inline]
    #[expect(
        clippy::new_without_default,
        reason = "a poll fills the buffer; a default would claim contents"
    )]
    pub fn new() -> Batch {
        Batch { slots: [const { MaybeUninit::uninit() }; BATCH] }
    }

    /// Returns the address and the capacity for a poll.
    #[inline]
    pub fn room(&mut self) -> (*mut Event, u32) {
        (self.slots.as_mut_ptr().cast(), BATCH as u32)
    }

    /// Returns the first `count` events.
    ///
    /// # Safety
    /// A poll into the memory of [`Batch::room`] has returned `count`, which does not exceed the capacity.
    #[inline]
    pub unsafe fn written(&self, count: usize) -> &[Polled] {
        // SAFETY: by the ABI, a result of `count` means that the provider's poll wrote the first `count` slots. A `Polled` is an
        // event.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), count) }
    }
}

/// An event from a poll. Only polls create events with a pointer, so the owner of a `Polled` may read its payload.
#[repr(transparent)]
pub struct Polled(Event);

impl Polled {
    /// An empty event, for a message before its first event.
    pub const NONE: &'static Polled = &Polled(Event::empty());

    /// Makes an event without a payload, for the core itself.
    #[inline]
    pub fn without_payload(event: Event) -> Polled {
        Polled(Event { data: std::ptr::null(), len: 0, ..event })
    }

    /// Runs a function with an event whose payload is this one without its first `skip` bytes. `event` supplies the other fields.
    /// `None`: the payload is shorter, and the function was not called.
    pub fn with_rest<R>(
        &self,
        skip: usize,
        event: Event,
        with: impl FnOnce(&Polled) -> R,
    ) -> Option<R> {
        let len = self.0.len.checked_sub(skip).filter(|_| !self.0.data.is_null())?;
        Some(with(&Polled(Event { data: self.0.data.wrapping_add(skip), len, ..event })))
    }

    /// Copies the event, so that the copy outlives its batch.
    ///
    /// # Safety
    /// The conditions are those of the poll that returned the event: its payload is read only before the next poll and while the
    /// interface is open.
    #[inline]
    pub unsafe fn again(&self) -> Polled {
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

/// Returns the payload or text of an event, valid until the next poll of its interface.
#[inline]
pub fn payload(event: &Polled) -> &[u8] {
    if event.len == 0 || event.data.is_null() {
        return &[];
    }
    // SAFETY: by the ABI, `data` is readable for `len` bytes until the next poll. The caller of the poll stops reading before the
    // next one.
    unsafe { std::slice::from_raw_parts(event.data, event.len) }
}
