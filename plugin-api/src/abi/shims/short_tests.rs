//! Tests of the short forms of polls and sends: which methods of the provider run, and what the core gets.

use super::*;
use crate::provider::{AtOnce, Endpoint, Interface, Posting};
use crate::{Events, event};
use core::cell::Cell;
use core::mem::MaybeUninit;

/// The answer of a method: a number, or a panic.
type Says = Result<i64, ()>;

thread_local! {
    /// The answers of the methods in the order of their calls, and the names of the methods that ran.
    static SAYS: Cell<&'static [Says]> = const { Cell::new(&[]) };
    static RAN: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

fn next(name: &'static str) -> i64 {
    RAN.with_borrow_mut(|ran| ran.push(name));
    let (first, rest) = SAYS.get().split_first().expect("an answer for each call");
    SAYS.set(rest);
    first.expect("the provider panics here")
}

struct Module<const QUIETLY: bool, const AT_ONCE: bool>;

impl<const QUIETLY: bool, const AT_ONCE: bool> Interface for Module<QUIETLY, AT_ONCE> {
    type Endpoint = Self;

    const POLLS_QUIETLY: bool = QUIETLY;
    const POLLS_AT_ONCE: bool = AT_ONCE;

    fn poll_quietly(&self) -> bool {
        next("poll_quietly") != 0
    }

    fn poll_at_once(&self, event: &mut MaybeUninit<Event>) -> bool {
        let _ = event.write(Event { id: 1, ..Event::empty() });
        next("poll_at_once") != 0
    }

    fn poll_second(&self, event: &mut MaybeUninit<Event>) -> bool {
        let _ = event.write(Event { id: 2, ..Event::empty() });
        next("poll_second") != 0
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        match next("poll") {
            count @ 0.. => {
                let full = Event { id: 3, kind: event::MESSAGE, ..Event::empty() };
                (0..count).for_each(|_| assert!(events.push(full)));
                Ok(())
            }
            status => Err(Status::from_code(status as i32)),
        }
    }

    fn address(&self) -> Vec<u8> {
        Vec::new()
    }

    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    fn connect(&self, _: &[u8], _: &[u8], _: u64) -> Result<Self, Failure> {
        Ok(Module)
    }
}

impl<const QUIETLY: bool, const AT_ONCE: bool> Endpoint for Module<QUIETLY, AT_ONCE> {
    type Key = ();

    const SENDS_AT_ONCE: bool = AT_ONCE;

    fn am_short_at_once(&self, id: u32, header: u64, payload: &[u8]) -> AtOnce {
        assert_eq!((id, header), (70_000, u64::MAX));
        match next("am_short_at_once") {
            0 => AtOnce::Sent,
            1 => AtOnce::SentWithRest,
            _ => {
                assert!(payload.is_empty() || payload == b"bytes");
                AtOnce::NotSent
            }
        }
    }

    fn after_at_once(&self) {
        let _ = next("after_at_once");
    }

    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        assert_eq!((id, header), (70_000, u64::MAX));
        assert!(payload.is_empty() || payload == b"bytes");
        match next("am_short") {
            0 => Ok(Posting::Done),
            status => Err(Status::from_code(status as i32)),
        }
    }
}

const FAILED: i64 = Status::ProviderFailed as i64;
const IO: i64 = Status::Io as i64;
const PANIC: Says = Err(());

/// Makes one call with these answers. Returns the result, the methods that ran, and whether the provider is poisoned.
fn with(
    says: &'static [Says],
    call: impl FnOnce(&'static AtomicBool) -> i64,
) -> (i64, Vec<&'static str>, bool) {
    SAYS.set(says);
    let poisoned: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let result = call(poisoned);
    assert!(SAYS.get().is_empty(), "a method did not run");
    (result, RAN.take(), poisoned.load(Ordering::Relaxed))
}

/// Polls once. Returns the result, the methods that ran, and the id of the first event.
fn polls<const QUIETLY: bool, const AT_ONCE: bool>(
    says: &'static [Says],
) -> (i64, Vec<&'static str>, u32) {
    let mut events = [Event::empty(); 16];
    let (count, ran, poisoned) = with(says, |poisoned| {
        let handle = Shared::into_raw(Module::<QUIETLY, AT_ONCE>, poisoned);
        // SAFETY: the handle is that of this interface, which is closed once; the array has 16 events.
        unsafe {
            let count =
                interface::poll::<Module<QUIETLY, AT_ONCE>>(handle, events.as_mut_ptr(), 16);
            close::<Module<QUIETLY, AT_ONCE>>(handle);
            count
        }
    });
    assert_eq!(poisoned, count == FAILED);
    (count, ran, if count > 0 { events[0].id } else { 0 })
}

#[test]
fn first_form_of_a_poll_with_an_answer_ends_the_poll() {
    assert_eq!(polls::<false, false>(&[Ok(2)]), (2, vec!["poll"], 3));
    assert_eq!(polls::<true, false>(&[Ok(1)]), (0, vec!["poll_quietly"], 0));
    let both = vec!["poll_quietly", "poll"];
    assert_eq!(polls::<true, false>(&[Ok(0), Ok(16)]), (16, both.clone(), 3));
    assert_eq!(polls::<true, false>(&[Ok(0), Ok(0)]), (0, both.clone(), 0));
    assert_eq!(polls::<true, false>(&[Ok(0), Ok(IO)]), (IO, both, 0));
    assert_eq!(polls::<false, true>(&[Ok(1)]), (1, vec!["poll_at_once"], 1));
    let two = vec!["poll_at_once", "poll_second"];
    assert_eq!(polls::<false, true>(&[Ok(0), Ok(1)]), (1, two, 2));
    let all = vec!["poll_at_once", "poll_second", "poll"];
    assert_eq!(polls::<false, true>(&[Ok(0), Ok(0), Ok(5)]), (5, all.clone(), 3));
    assert_eq!(polls::<false, true>(&[Ok(0), Ok(0), Ok(IO)]), (IO, all, 0));
}

#[test]
fn panic_in_any_form_of_a_poll_ends_the_poll_and_poisons_the_provider() {
    assert_eq!(polls::<true, false>(&[PANIC]), (FAILED, vec!["poll_quietly"], 0));
    let both = vec!["poll_quietly", "poll"];
    assert_eq!(polls::<true, false>(&[Ok(0), PANIC]), (FAILED, both, 0));
    assert_eq!(polls::<false, true>(&[PANIC]), (FAILED, vec!["poll_at_once"], 0));
    let two = vec!["poll_at_once", "poll_second"];
    assert_eq!(polls::<false, true>(&[Ok(0), PANIC]), (FAILED, two, 0));
}

/// Sends a message of `len` bytes. Without bytes, the address is null.
fn sends<const AT_ONCE: bool>(says: &'static [Says], len: usize) -> (i64, Vec<&'static str>) {
    let data = if len == 0 { ptr::null() } else { b"bytes".as_ptr() };
    let (sent, ran, poisoned) = with(says, |poisoned| {
        let handle = Shared::into_raw(Module::<false, AT_ONCE>, poisoned);
        // SAFETY: the handle is that of this endpoint, which is closed once; `data` has `len` bytes.
        unsafe {
            let sent =
                endpoint::am_short::<Module<false, AT_ONCE>>(handle, 70_000, u64::MAX, data, len);
            close::<Module<false, AT_ONCE>>(handle);
            i64::from(sent)
        }
    });
    assert_eq!(poisoned, sent == FAILED);
    (sent, ran)
}

#[test]
fn form_of_a_send_that_sends_is_the_last_one() {
    for len in [0, 5] {
        assert_eq!(sends::<false>(&[Ok(0)], len), (0, vec!["am_short"]));
        assert_eq!(sends::<true>(&[Ok(0)], len), (0, vec!["am_short_at_once"]));
        let rest = vec!["am_short_at_once", "after_at_once"];
        assert_eq!(sends::<true>(&[Ok(1), Ok(0)], len), (0, rest.clone()));
        assert_eq!(sends::<true>(&[Ok(1), PANIC], len), (FAILED, rest));
        let both = vec!["am_short_at_once", "am_short"];
        assert_eq!(sends::<true>(&[Ok(2), Ok(0)], len), (0, both.clone()));
        assert_eq!(sends::<true>(&[Ok(2), Ok(IO)], len), (IO, both.clone()));
        assert_eq!(sends::<true>(&[Ok(2), PANIC], len), (FAILED, both));
        assert_eq!(sends::<true>(&[PANIC], len), (FAILED, vec!["am_short_at_once"]));
    }
}
