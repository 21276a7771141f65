//! Events for the core: a FIFO backlog, and the data to which delivered events point.

use std::collections::VecDeque;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Events, Failure, Status, event};

/// The events of an interface. `M` is the buffer that holds a message.
pub(crate) struct Notices<M> {
    backlog: VecDeque<(Event, Attached<M>)>,
    /// Texts to which events of the last poll point.
    texts: Vec<Box<[u8]>>,
    messages: Vec<M>,
}

/// Makes the event of a successful completion with this value.
#[inline(always)]
pub(crate) fn completion(cookie: u64, value: u64) -> Event {
    Event { kind: event::COMPLETION, header: value, cookie, ..Event::empty() }
}

/// The data to which an event points.
pub(crate) enum Attached<M> {
    Nothing,
    Text(Box<[u8]>),
    /// A message buffer, whose address is already in the event.
    Message(M),
}

impl<M> Default for Notices<M> {
    fn default() -> Notices<M> {
        Notices { backlog: VecDeque::new(), texts: Vec::new(), messages: Vec::new() }
    }
}

impl<M> Notices<M> {
    /// Delivers an event if there is room and the backlog is empty. Otherwise the event joins the backlog.
    #[inline]
    pub(crate) fn push(
        &mut self,
        event: Event,
        attached: Attached<M>,
        events: Option<&mut Events<'_>>,
    ) {
        match events {
            Some(events) if self.backlog.is_empty() && events.room() > 0 => {
                self.hand_over(event, attached, events);
            }
            _ => self.backlog.push_back((event, attached)),
        }
    }

    /// Reports an arrived message. The event already has the message's address.
    #[inline]
    pub(crate) fn message(&mut self, event: Event, message: M, events: Option<&mut Events<'_>>) {
        match events {
            Some(events) if self.backlog.is_empty() && events.room() > 0 => {
                self.messages.push(message);
                let _ = events.push(event);
            }
            _ => self.backlog.push_back((event, Attached::Message(message))),
        }
    }

    /// Delivers a message without using the backlog, which must be empty. Returns `false`, without effect, if `events` is full.
    #[inline(always)]
    pub(crate) fn message_at_once(
        &mut self,
        event: Event,
        message: M,
        events: &mut Events<'_>,
    ) -> bool {
        let goes = events.push(event);
        if goes {
            self.messages.push(message);
        }
        goes
    }

    /// Reports the end of an operation.
    #[inline]
    pub(crate) fn completed(
        &mut self,
        cookie: u64,
        result: Result<u64, Status>,
        events: Option<&mut Events<'_>>,
    ) {
        let event = match result {
            Ok(value) => completion(cookie, value),
            Err(status) => Event { status: status as i32, ..completion(cookie, 0) },
        };
        match events {
            Some(events) if self.backlog.is_empty() && events.room() > 0 => {
                let _ = events.push(event);
            }
            _ => self.backlog.push_back((event, Attached::Nothing)),
        }
    }

    /// Reports a failed operation with a text, the device's error number (`header`), and the index of the first failed part of a list
    /// (`id`).
    pub(crate) fn failed(
        &mut self,
        cookie: u64,
        status: Status,
        (header, id): (u64, u32),
        why: &str,
        events: Option<&mut Events<'_>>,
    ) {
        let (kind, status) = (event::COMPLETION, status as i32);
        let event = Event { kind, status, header, cookie, id, ..Event::empty() };
        self.push(event, Attached::Text(why.as_bytes().into()), events);
    }

    /// Reports the failure of an endpoint.
    pub(crate) fn endpoint_failed(
        &mut self,
        cookie: u64,
        failure: &Failure,
        events: Option<&mut Events<'_>>,
    ) {
        let (kind, status) = (event::ENDPOINT_FAILED, failure.status as i32);
        let event = Event { kind, status, cookie, ..Event::empty() };
        self.push(event, Attached::Text(failure.text.as_bytes().into()), events);
    }

    #[inline]
    fn hand_over(&mut self, mut event: Event, attached: Attached<M>, events: &mut Events<'_>) {
        match attached {
            Attached::Nothing => {}
            Attached::Text(text) => {
                (event.data, event.len) = (text.as_ptr(), text.len());
                self.texts.push(text);
            }
            Attached::Message(message) => self.messages.push(message),
        }
        let _ = events.push(event);
    }

    /// Delivers as much of the backlog as fits into `events`. Returns whether `events` can take more.
    #[inline]
    pub(crate) fn hand_out(&mut self, events: &mut Events<'_>) -> bool {
        while events.room() > 0 {
            let Some((event, attached)) = self.backlog.pop_front() else { return true };
            self.hand_over(event, attached, events);
        }
        false
    }

    /// Checks whether the backlog is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Checks whether the application may still read data to which delivered events point.
    #[inline]
    pub(crate) fn are_out(&self) -> bool {
        !self.messages.is_empty() || !self.texts.is_empty()
    }

    /// Returns a nonzero number if the backlog has events or the application still holds data.
    #[inline(always)]
    pub(crate) fn waits(&self) -> usize {
        self.backlog.len() | self.messages.len() | self.texts.len()
    }

    /// Drops the texts of the last poll, because the application is done with them. [`Notices::taken`] then returns the messages.
    #[inline]
    pub(crate) fn release_texts(&mut self) {
        self.texts.clear();
    }

    /// Returns a message that the application is done with, if any.
    #[inline]
    pub(crate) fn taken(&mut self) -> Option<M> {
        self.messages.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::sys::{payload, pushed};
    use core::mem::MaybeUninit;

    /// Returns the cookies and texts of the events that `act` delivers into an array of this length.
    fn with_room<T>(
        room: usize,
        act: impl FnOnce(&mut Events<'_>) -> T,
    ) -> (T, Vec<(u64, Vec<u8>)>) {
        let mut slots = [const { MaybeUninit::uninit() }; 8];
        let mut events = Events::new(&mut slots[..room]);
        let of_act = act(&mut events);
        let len = events.len();
        let told = pushed(&slots, len);
        (of_act, told.iter().map(|event| (event.cookie, payload(event))).collect())
    }

    fn message(cookie: u64) -> Event {
        Event { kind: event::MESSAGE, cookie, ..Event::empty() }
    }

    #[test]
    fn events_keep_their_order_and_wait_for_room() {
        let mut notices = Notices::<u8>::default();
        assert_eq!((notices.waits(), notices.is_empty(), notices.are_out()), (0, true, false));
        notices.completed(1, Ok(0), None);
        assert!(notices.waits() != 0 && !notices.is_empty() && !notices.are_out());
        let ((), told) = with_room(8, |events| {
            notices.message(message(2), 22, Some(&mut *events));
            notices.completed(3, Ok(0), Some(&mut *events));
            notices.failed(4, Status::Io, (0, 0), "why", Some(events));
        });
        assert_eq!(told, [], "nobody overtakes the first");
        let (more, told) = with_room(3, |events| notices.hand_out(events));
        assert_eq!((more, told), (false, [1, 2, 3].map(|cookie| (cookie, Vec::new())).to_vec()));
        assert!(notices.are_out() && !notices.is_empty());
        notices.release_texts();
        assert_eq!((notices.taken(), notices.taken()), (Some(22), None));
        assert!(!notices.are_out());
        let (more, told) = with_room(2, |events| notices.hand_out(events));
        assert_eq!((more, told), (true, vec![(4, b"why".to_vec())]));
        assert!(notices.are_out() && notices.is_empty() && notices.waits() != 0);
        notices.release_texts();
        assert_eq!((notices.are_out(), notices.waits()), (false, 0));
    }

    #[test]
    fn events_are_delivered_with_room_and_queued_without() {
        let mut notices = Notices::<u8>::default();
        let all = |notices: &mut Notices<u8>, events: &mut Events<'_>| {
            notices.message(message(1), 11, Some(&mut *events));
            notices.completed(2, Ok(0), Some(&mut *events));
            notices.endpoint_failed(3, &Failure::new(Status::Io, "end"), Some(events));
        };
        let expected = [(1, Vec::new()), (2, Vec::new()), (3, b"end".to_vec())];
        let ((), told) = with_room(3, |events| all(&mut notices, events));
        assert_eq!(told, expected);
        assert!(notices.is_empty() && notices.are_out());
        notices.release_texts();
        assert_eq!(notices.taken(), Some(11));
        let ((), told) = with_room(0, |events| all(&mut notices, events));
        assert!(told.is_empty() && !notices.are_out());
        let (more, told) = with_room(4, |events| notices.hand_out(events));
        assert_eq!((more, told), (true, expected.to_vec()));
        let (goes, _) = with_room(0, |events| notices.message_at_once(message(4), 44, events));
        assert!(!goes);
        assert_eq!((notices.taken(), notices.taken()), (Some(11), None), "it is not ours");
        let (goes, told) = with_room(1, |events| notices.message_at_once(message(4), 44, events));
        assert_eq!((goes, told, notices.taken()), (true, vec![(4, Vec::new())], Some(44)));
    }
}
