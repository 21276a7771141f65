//! The dispatch list: events that wait for their handlers, and the turn to run handlers.
//!
//! A progress call under the worker's lock appends events. A thread that has left the lock then tries to take the turn. The holder
//! of the turn runs handlers one at a time, in the order of the list, without the worker's lock. It gives the turn back in the same
//! critical section in which it finds the list empty. Therefore no event stays in the list without a holder of the turn, except after
//! [`Ran::Leftover`], whose receiver wakes the progress thread.

use super::event::Event;
use crate::exit::thread_number;
use crate::{Error, Status};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The weight of the waiting events from which no more progress is made until some were dispatched. A message weighs 1, and 1 more
/// for each [`BYTES`] of its payload.
const MOST: usize = 4096;
const BYTES: usize = 1024;
/// The maximum number of batches that one call runs. A waiting caller then returns to its own condition.
const BATCHES: usize = 8;

/// Subtracts the weight of events from that of the waiting ones. What their handlers have stored precedes it.
const HANDLED: Ordering = Ordering::AcqRel;
/// Loads the weight. A thread that finds no event left then loads what the handlers of other threads have stored.
const LOOK: Ordering = Ordering::Acquire;

/// The right to run handlers. [`Dispatch::run`] makes the only one that exists at a time.
pub(super) struct Turn(());

/// The result of an attempt to run handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// The list was empty, or its events were run.
    All,
    /// Another thread has the turn, and runs the events.
    Elsewhere,
    /// Events are left, and no thread has the turn.
    Leftover,
}

#[derive(Default)]
pub(super) struct Dispatch {
    list: Mutex<List>,
    /// Woken when the turn is given back.
    idle: Condvar,
    /// The weight of the events that were not dispatched.
    weight: AtomicUsize,
    /// The number of the thread that has the turn; 0: none.
    runner: AtomicUsize,
    /// Whether no more handler may begin.
    ended: AtomicBool,
    /// The first panic of a handler that no call has raised yet.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    has_panic: AtomicBool,
}

#[derive(Default)]
struct List {
    events: VecDeque<Event>,
    running: bool,
}

/// The mark in the list of a running dispatch. Its drop clears the mark.
struct Marked<'a> {
    dispatch: &'a Dispatch,
    turn: Turn,
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        let mut list = self.dispatch.list();
        self.dispatch.release(&mut list);
    }
}

/// Returns the weight of a message with this payload.
pub(super) fn weight(payload: usize) -> usize {
    1 + payload / BYTES
}

impl Dispatch {
    fn list(&self) -> MutexGuard<'_, List> {
        // No code of the application runs while the list is locked.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, list: &mut List) {
        list.running = false;
        self.runner.store(0, Ordering::Relaxed);
        self.idle.notify_all();
    }

    /// Appends an event. The caller has the worker's lock.
    pub(super) fn push(&self, event: Event) {
        let _ = self.weight.fetch_add(event.weight(), Ordering::Relaxed);
        self.list().events.push_back(event);
    }

    /// Checks whether so many events wait that no more should be received.
    pub(super) fn is_full(&self) -> bool {
        self.weight.load(Ordering::Relaxed) >= MOST
    }

    /// Checks whether all events were dispatched, and their handlers have returned. What they stored is then visible.
    pub(super) fn is_empty(&self) -> bool {
        self.weight.load(LOOK) == 0
    }

    /// Checks whether this thread is inside a handler.
    pub(super) fn is_in_handler(&self) -> bool {
        self.runner.load(Ordering::Relaxed) == thread_number()
    }

    /// Refuses a call inside a handler.
    pub(super) fn check_no_handler(&self, what: &str) -> Result<(), Error> {
        match self.is_in_handler() {
            false => Ok(()),
            true => Err(Error::new(
                Status::Busy,
                format!("{what} inside a handler"),
                "the handlers of a driven worker run one at a time, and the next one waits for this one",
                "return from the handler first, or hand the wait to another thread",
            )),
        }
    }

    /// Runs the waiting events. `run` runs the handler of one event; without a turn, it only drops the event. `after` runs after
    /// each batch, with whether the list was full.
    pub(super) fn run(
        &self,
        mut run: impl FnMut(Option<&Turn>, Event),
        mut after: impl FnMut(bool),
    ) -> Ran {
        if self.is_empty() {
            return Ran::All;
        }
        let mut list = self.list();
        if list.running {
            return Ran::Elsewhere;
        }
        if list.events.is_empty() {
            return Ran::All;
        }
        list.running = true;
        self.runner.store(thread_number(), Ordering::Relaxed);
        let marked = Marked { dispatch: self, turn: Turn(()) };
        for _ in 0..BATCHES {
            let batch = std::mem::take(&mut list.events);
            drop(list);
            let mut done = 0;
            for event in batch {
                done += event.weight();
                let turn = (!self.ended.load(Ordering::Acquire)).then_some(&marked.turn);
                // The event counts as dispatched, whatever its handler does.
                let outcome = catch_unwind(AssertUnwindSafe(|| run(turn, event)));
                outcome.unwrap_or_else(|panic| self.keep_panic(panic));
            }
            let before = self.weight.fetch_sub(done, HANDLED);
            after(before >= MOST);
            list = self.list();
            if list.events.is_empty() {
                self.release(&mut list);
                drop(list);
                std::mem::forget(marked);
                return Ran::All;
            }
        }
        drop(list);
        drop(marked);
        Ran::Leftover
    }

    #[cold]
    fn keep_panic(&self, panic: Box<dyn Any + Send>) {
        let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        let late = if first.is_none() { first.replace(panic) } else { Some(panic) };
        self.has_panic.store(true, Ordering::Release);
        drop(first);
        // The drop of a panic's value may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(late)));
    }

    /// Returns the first panic of a handler that was not raised yet.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        if !self.has_panic.load(Ordering::Acquire) {
            return None;
        }
        let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_panic.store(false, Ordering::Release);
        first.take()
    }

    /// Waits until no other thread runs a handler. The caller holds no lock. Inside a handler the call returns immediately.
    pub(super) fn wait_until_idle(&self) {
        if self.is_in_handler() {
            return;
        }
        let mut list = self.list();
        while list.running {
            list = self.idle.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Prevents every further handler. The running one, if any, continues.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Removes the events that will not be dispatched. The caller drops them without a lock.
    pub(super) fn take_events(&self) -> VecDeque<Event> {
        let events = std::mem::take(&mut self.list().events);
        let gone = events.iter().map(Event::weight).sum();
        let _ = self.weight.fetch_sub(gone, HANDLED);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering::Relaxed;
    use tieline_testing::litmus::Protocol;
    use tieline_testing::litmus::Step::{Load, Store, Swap};

    /// The weight 1 stands for none.
    #[test]
    fn thread_that_finds_no_event_left_sees_what_handlers_stored() {
        Protocol {
            orders: &[("handled", HANDLED), ("look", LOOK)],
            threads: |order| {
                vec![
                    vec![Store("data", 1, Relaxed), Swap("weight", 1, "before", order[0])],
                    vec![Load("weight", "weight", order[1]), Load("data", "data", Relaxed)],
                ]
            },
            is_wrong: |end| (end.of("weight"), end.of("data")) == (1, 0),
        }
        .check();
    }
}
