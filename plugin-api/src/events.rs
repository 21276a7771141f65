//! The sink for the events of a poll of a provider in Rust.

use crate::Status;
use crate::abi::Event;
use crate::flags::event;

/// The sink for the events of `poll`: the caller's array, without allocation.
pub struct Events<'a> {
    pub(crate) slots: &'a mut [core::mem::MaybeUninit<Event>],
    pub(crate) len: usize,
}

impl<'a> Events<'a> {
    /// Makes a sink over the caller's array.
    #[must_use]
    pub fn new(slots: &'a mut [core::mem::MaybeUninit<Event>]) -> Events<'a> {
        Events { slots, len: 0 }
    }

    /// Returns the number of events that still fit.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.len() - self.len
    }

    /// Returns the number of events that were pushed.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Checks whether no event was pushed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an event. Returns `false` if the array is full; the caller then keeps the event.
    #[inline]
    pub fn push(&mut self, event: Event) -> bool {
        match self.slots.get_mut(self.len) {
            Some(slot) => {
                let _ = slot.write(event);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Adds a message, whose `data` must stay valid until the next poll. Returns `false` as [`Events::push`] does.
    #[inline]
    pub fn push_message(
        &mut self,
        peer: u64,
        id: u32,
        header: u64,
        data: *const u8,
        len: usize,
    ) -> bool {
        self.push(Event {
            kind: event::MESSAGE,
            id,
            status: 0,
            flags: 0,
            peer,
            header,
            data,
            len,
            cookie: 0,
            reserved: 0,
        })
    }

    /// Adds the end of a pending operation. Returns `false` as [`Events::push`] does.
    pub fn push_completion(&mut self, cookie: u64, result: Result<u64, Status>) -> bool {
        let (status, header) = match result {
            Ok(value) => (0, value),
            Err(status) => (status as i32, 0),
        };
        self.push(Event { kind: event::COMPLETION, status, header, cookie, ..Event::empty() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_say_how_many_there_are_and_refuse_what_does_not_fit() {
        let mut slots = [core::mem::MaybeUninit::uninit(); 2];
        let mut events = Events::new(&mut slots);
        assert!((events.len(), events.room(), events.is_empty()) == (0, 2, true));
        assert!(events.push_completion(7, Ok(1)));
        assert!((events.len(), events.room(), events.is_empty()) == (1, 1, false));
        assert!(events.push_message(1, 2, 3, core::ptr::null(), 0));
        assert!(!events.push(Event::empty()));
        assert!((events.len(), events.room(), events.is_empty()) == (2, 0, false));
    }

    #[test]
    #[allow(unsafe_code)]
    fn pushed_events_have_the_fields_that_the_core_reads() {
        let mut slots = [core::mem::MaybeUninit::uninit(); 3];
        let mut events = Events::new(&mut slots);
        let data = [7u8; 4];
        assert!(events.push_message(1, 2, 3, data.as_ptr(), 4));
        assert!(events.push_completion(5, Ok(6)));
        assert!(events.push_completion(7, Err(Status::PeerFailed)));
        // SAFETY: all three slots were written.
        let [message, done, failed] = slots.map(|slot| unsafe { slot.assume_init() });
        assert_eq!((message.kind, message.peer, message.id), (event::MESSAGE, 1, 2));
        assert_eq!((message.header, message.data, message.len), (3, data.as_ptr(), 4));
        assert_eq!((message.status, message.flags, message.cookie), (0, 0, 0));
        assert_eq!(
            (done.kind, done.cookie, done.status, done.header),
            (event::COMPLETION, 5, 0, 6)
        );
        let status = Status::PeerFailed as i32;
        assert_eq!((failed.kind, failed.cookie), (event::COMPLETION, 7));
        assert_eq!((failed.status, failed.header), (status, 0));
    }
}
