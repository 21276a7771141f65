//! State that endpoints and channels share with their interface, and interfaces with their domain.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use tieline_plugin_api::abi::{Event, Watch};
use tieline_plugin_api::{Failure, HostHandle, Status, event, event_flags, log_level};

use crate::closer::Closer;
use crate::config::Settings;
use crate::hello::Id;
use crate::host::HostFacts;
use crate::keys::Exports;
use crate::pool::Pool;
use crate::sys::Epoll;

/// The purpose of a descriptor that epoll reports as ready.
pub(crate) mod token {
    pub(crate) const LISTENER: u64 = 0;
    pub(crate) const TICKER: u64 = 1;
    const OUTBOUND: u64 = 1 << 62;
    const INBOUND: u64 = 2 << 62;
    const HANDSHAKE: u64 = 3 << 62;

    pub(crate) const fn outbound(index: usize) -> u64 {
        OUTBOUND | index as u64
    }
    pub(crate) const fn inbound(index: usize) -> u64 {
        INBOUND | index as u64
    }
    pub(crate) const fn handshake(index: usize) -> u64 {
        HANDSHAKE | index as u64
    }
    /// Returns the class (0 to 3) and the index.
    pub(crate) const fn split(token: u64) -> (u64, usize) {
        (token >> 62, (token & !HANDSHAKE) as usize)
    }
}

/// The state that the interfaces of a domain share. Any thread may use it.
pub(crate) struct DomainState {
    pub(crate) id: Id,
    /// The identity of the host, read by the first interface.
    pub(crate) host: OnceLock<HostFacts>,
    pub(crate) exports: Exports,
    /// The host for messages to the operator; `None` in unit tests.
    pub(crate) log: Option<HostHandle>,
    pub(crate) warned: Once,
    /// The reported reasons why this side could not admit peers.
    pub(crate) lacked: Mutex<Vec<String>>,
}

/// The maximum number of reasons for refusing peers that are reported.
const MOST_REASONS: usize = 8;

impl DomainState {
    /// Returns the identity of this process's host.
    pub(crate) fn host(&self) -> &HostFacts {
        self.host.get_or_init(HostFacts::read)
    }

    /// Checks whether the host supports events that return messages; a test has no host, and supports them.
    pub(crate) fn takes_messages_back(&self) -> bool {
        self.log.as_ref().is_none_or(|host| host.abi_minor() >= 1)
    }

    /// Records that a peer was refused for lack of a resource. The peer reads a refusal of one byte; the log names the resource,
    /// each reason once, and at most [`MOST_REASONS`] reasons.
    #[cold]
    pub(crate) fn lacks(&self, what: &Failure) {
        let mut lacked = self.lacked.lock().unwrap_or_else(PoisonError::into_inner);
        if lacked.len() >= MOST_REASONS || lacked.contains(&what.text) {
            return;
        }
        lacked.push(what.text.clone());
        if let Some(log) = &self.log {
            let text = format!(
                "a peer was refused, since this process cannot receive from it: {}",
                what.text
            );
            log.log(log_level::WARN, &text);
        }
    }

    /// Reports a text, unless a text was reported before.
    pub(crate) fn warn(&self, text: &str) {
        self.warned.call_once(|| {
            if let Some(log) = &self.log {
                log.log(log_level::WARN, text);
            }
        });
    }
}

/// The state that an interface shares with its endpoints and channels. Its lists are borrowed for a single access, without calls
/// meanwhile.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) domain: Arc<DomainState>,
    pub(crate) user: u32,
    pub(crate) epoll: Epoll,
    pub(crate) pool: Pool,
    /// Whether the pool was empty when a message needed a chunk.
    pub(crate) pool_starved: Cell<bool>,
    /// The number of polls.
    pub(crate) round: Cell<u64>,
    /// The time of the slow part of a poll, and the words that stand for polls.
    pub(crate) due: Due,
    pub(crate) fast_boxes: Cell<u64>,
    pub(crate) notices: RefCell<VecDeque<Notice>>,
    /// The failed endpoints by index, to be reported after the data that their peers had written.
    pub(crate) failures: RefCell<VecDeque<(usize, Notice)>>,
    /// The channels whose sender has disconnected, to be drained for the last time.
    pub(crate) ended: RefCell<Vec<u32>>,
    /// The number of connections that this interface refused, or closed because they sent no greeting.
    pub(crate) refused: Cell<u64>,
    /// The part that closes connections of other users.
    pub(crate) closer: Closer,
}

/// The time of the slow part of a poll: it runs when something waits for it, and when the clock is to be read. Until then, the core
/// may compare the words of the list instead of polling.
#[derive(Debug)]
pub(crate) struct Due {
    /// The number of polls until the slow part.
    polls: Cell<u32>,
    /// The number of polls after that until the clock is read. 0: the slow part reads the clock.
    then: Cell<u32>,
    /// Whether something waits for the slow part.
    attention: Cell<bool>,
    /// The words that the core may compare instead of polling.
    pub(crate) watch: Watch,
    /// Whether the core compares words.
    pub(crate) watches: Cell<bool>,
}

impl Due {
    pub(crate) fn new() -> Due {
        Due {
            polls: Cell::new(1),
            then: Cell::new(0),
            attention: Cell::new(false),
            watch: Watch::new(),
            watches: Cell::new(false),
        }
    }

    /// Counts a poll, and returns whether it runs the slow part.
    #[inline(always)]
    pub(crate) fn count(&self) -> bool {
        // At least 1: every slow part sets the number anew.
        self.polls.set(self.polls.get() - 1);
        self.polls.get() == 0
    }

    /// Checks whether the next poll runs the slow part.
    #[inline(always)]
    pub(crate) fn is_next(&self) -> bool {
        self.polls.get() <= 1
    }

    /// Counts a poll without the slow part that has delivered a message.
    #[inline(always)]
    pub(crate) fn delivered(&self) {
        let _ = self.count();
        self.watch.clear();
    }

    /// Counts polls that the core has left out, and returns whether the slow part is to be run.
    pub(crate) fn count_more(&self, polls: u32) -> bool {
        self.polls.set(self.polls.get().saturating_sub(polls));
        self.polls.get() == 0
    }

    /// Makes the next poll run the slow part.
    pub(crate) fn call(&self) {
        self.attention.set(true);
        self.watch.clear();
        self.then.set(self.then.get() + self.polls.replace(1).saturating_sub(1));
    }

    /// Checks whether something waits for the slow part.
    pub(crate) fn is_called(&self) -> bool {
        self.attention.get()
    }

    /// Begins the slow part. Returns whether the clock is to be read, which sets the number of polls until the next time.
    pub(crate) fn begin(&self) -> bool {
        self.attention.set(false);
        self.watch.clear();
        let then = self.then.take();
        self.polls.set(then.max(1));
        then == 0
    }

    /// Sets the number of polls until the clock is read again.
    pub(crate) fn read_clock_in(&self, polls: u32) {
        if self.attention.get() { self.then.set(polls - 1) } else { self.polls.set(polls) }
    }
}

/// A message that the peer has not received.
pub(crate) struct Returned {
    pub(crate) id: u32,
    pub(crate) header: u64,
    pub(crate) data: Box<[u8]>,
}

/// An event that waits for delivery, and its bytes.
pub(crate) struct Notice {
    pub(crate) event: Event,
    pub(crate) data: Box<[u8]>,
}

impl Notice {
    /// Returns the event for a poll. The event's bytes stay in this record.
    pub(crate) fn event(&self) -> Event {
        let data = if self.data.is_empty() { std::ptr::null() } else { self.data.as_ptr() };
        Event { data, len: self.data.len(), ..self.event }
    }
}

impl Shared {
    pub(crate) fn notify(&self, event: Event, data: &[u8]) {
        self.notices.borrow_mut().push_back(Notice { event, data: data.into() });
        self.due.call();
    }

    pub(crate) fn endpoint_failed(&self, place: usize, cookie: u64, status: Status, why: &str) {
        let event =
            Event { kind: event::ENDPOINT_FAILED, status: status as i32, cookie, ..Event::empty() };
        let notice = Notice { event, data: why.as_bytes().into() };
        self.failures.borrow_mut().push_back((place, notice));
        self.due.call();
    }

    /// Reports a failed endpoint whose peer received nothing: the messages sent to the peer are returned first.
    pub(crate) fn endpoint_untaken(
        &self,
        place: usize,
        cookie: u64,
        (status, why): (Status, &str),
        messages: Vec<Returned>,
    ) {
        let mut failures = self.failures.borrow_mut();
        for Returned { id, header, data } in messages {
            let event = Event { kind: event::RETURNED, id, header, cookie, ..Event::empty() };
            failures.push_back((place, Notice { event, data }));
        }
        let event = Event {
            kind: event::ENDPOINT_FAILED,
            flags: event_flags::UNTAKEN,
            status: status as i32,
            cookie,
            ..Event::empty()
        };
        failures.push_back((place, Notice { event, data: why.as_bytes().into() }));
        self.due.call();
    }

    /// Grants another fast box, unless the limit is reached.
    pub(crate) fn grant_fast_box(&self) -> bool {
        let granted = self.fast_boxes.get() < self.settings.fastbox_max;
        if granted {
            self.fast_boxes.set(self.fast_boxes.get() + 1);
        }
        granted
    }

    /// Records that a channel's sender has disconnected, wherever that was noticed.
    pub(crate) fn inbound_ended(&self, index: u32) {
        self.ended.borrow_mut().push(index);
        self.due.call();
    }

    /// Requests that the next poll checks sockets and notices.
    pub(crate) fn call_attention(&self) {
        self.due.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of polls until the slow part, each of which stands for `calls` progress calls.
    fn polls_until_slow(due: &Due, calls: u32) -> u32 {
        let mut polls = 1;
        while !(due.count() || (calls > 1 && due.count_more(calls - 1))) {
            polls += 1;
        }
        polls
    }

    #[test]
    fn clock_is_read_after_the_same_number_of_calls_with_and_without_a_list() {
        let due = Due::new();
        assert_eq!(polls_until_slow(&due, 1), 1);
        for (calls, polls) in [(1, 64), (16, 4), (64, 1), (1, 64)] {
            assert!(due.begin(), "the clock is to be read");
            due.read_clock_in(64);
            assert_eq!(polls_until_slow(&due, calls), polls, "{calls} calls for each poll");
        }
    }

    #[test]
    fn a_call_brings_the_slow_part_forward_and_leaves_the_clock_to_its_time() {
        let due = Due::new();
        assert!(due.count() && due.begin());
        due.read_clock_in(64);
        for left in [63, 62, 61] {
            due.call();
            due.call();
            assert!(due.is_called() && due.count());
            assert!(!due.begin() && !due.is_called(), "it is not time for the clock");
            assert_eq!(due.polls.get(), left);
        }
        assert_eq!(polls_until_slow(&due, 1), 61);
        assert!(due.begin(), "the clock is to be read");
        // Something else is to be done before that time.
        due.call();
        due.read_clock_in(64);
        assert!(due.count() && !due.begin());
        assert_eq!(polls_until_slow(&due, 1), 63);
    }

    #[test]
    fn each_call_for_the_slow_part_empties_the_list() {
        let (due, word) = (Due::new(), std::sync::atomic::AtomicU64::new(0));
        let empties = |by: &dyn Fn()| {
            due.watch.set([(&word, 0)]);
            by();
            assert!(due.watch.is_empty());
        };
        empties(&|| due.call());
        empties(&|| {
            let _ = due.begin();
        });
    }
}
