//! The unsafe calls of a worker: it polls interfaces and connectors, and closes endpoints that belong to it.
//!
//! Every call requires a value that proves the permission to make it. The right to poll exists once, in a progress call that has
//! dispatched the backlog of earlier calls ([`Polls`]). An event of an interface is dispatched at most once ([`Handed`]). The value
//! by which an endpoint is closed cannot be copied.

#![allow(unsafe_code)]

use crate::Status;
use crate::exit::Entrance;
use crate::message::abi::Handed;
use crate::shared::Shared;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::rc::Rc;
use tieline_host::abi::events::{Batch, Polled};
use tieline_host::abi::objects::{OpenConnector, OpenInterface, PollCall};
use tieline_host::abi::{Look, OwnedEndpoint, WatchWords};

/// A mark that a progress call is running. Its drop, which also happens during a panic, clears the mark.
pub(super) struct Running<'a>(&'a Entrance);

impl Running<'_> {
    /// Marks the progress call as running. `None`: a progress call is already running.
    #[inline]
    pub(super) fn begin(shared: &Shared) -> Option<Running<'_>> {
        shared.entrance.begin_progress().then(|| Running(&shared.entrance))
    }

    /// Returns the rights of this progress call.
    #[inline]
    pub(super) fn turn(&mut self) -> Turn<'_> {
        Turn(PhantomData)
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end_progress();
    }
}

/// A progress call that has not polled yet.
pub(super) struct Turn<'a>(PhantomData<&'a mut ()>);

impl<'a> Turn<'a> {
    /// Checks whether polls of an interface would return no event, by its watch words. `words` are those of an interface of this
    /// worker, or none. The words are read only if `may_read` holds.
    #[inline(always)]
    pub(super) fn is_quiet(
        &self,
        shared: &Shared,
        words: WatchWords,
        may_read: impl FnOnce() -> bool,
    ) -> bool {
        // SAFETY: `shared` keeps the interfaces of this worker open, and this is its thread. A progress call runs inside a
        // provider's call only if that call runs a packer. The words are read only in the process that opened the interfaces. Until
        // this progress call ends, no other thread makes an interface leave at the exit of the process.
        unsafe { words.are_unchanged(|| may_read() && shared.same_process()) }
    }

    /// Does the same as [`Turn::is_quiet`], and tells a changed word from an empty list.
    #[inline(always)]
    pub(super) fn look(
        &self,
        shared: &Shared,
        words: WatchWords,
        may_read: impl FnOnce() -> bool,
    ) -> Look {
        // SAFETY: as in `is_quiet`.
        unsafe { words.look(|| may_read() && shared.same_process()) }
    }

    /// Polls the interface that is polled without any other step, or compares the words of a list of another length than two. It is
    /// this process, and the words may be read. `may_poll`: it is not the turn of other interfaces.
    #[inline(always)]
    pub(super) fn ask(self, alone: &Alone, words: WatchWords, may_poll: bool) -> Asked {
        Asked(alone.ask(words, may_poll))
    }

    /// Returns the answer to [`Turn::ask`] in the same progress call. `None`: there was no poll.
    #[inline(always)]
    pub(super) fn answer(self, asked: Asked, alone: &'a Alone) -> Option<Answer<'a>> {
        let Asked(count) = asked;
        (count != NOT_POLLED).then_some(Answer { count, alone, turn: self })
    }

    /// Exchanges the value for the right to poll. `None`: there is a backlog of an earlier poll.
    #[inline]
    pub(super) fn polls(self, left_over: &LeftOver) -> Option<Polls<'a>> {
        match left_over.is_there() {
            true => None,
            false => Some(Polls(PhantomData)),
        }
    }
}

/// The only active interface, if it has no watch words: what a poll without any other step needs.
pub(super) struct Alone {
    call: Cell<PollCall>,
    /// What keeps the interface open.
    _shared: Rc<Shared>,
    /// The events of the running progress call.
    batch: UnsafeCell<Batch>,
}

impl Alone {
    pub(super) fn new(shared: Rc<Shared>) -> Alone {
        Alone {
            call: Cell::new(PollCall::NONE),
            _shared: shared,
            batch: UnsafeCell::new(Batch::new()),
        }
    }

    /// Does the same as [`Turn::ask`], and returns the provider's result, 0 if the words are unchanged, or [`NOT_POLLED`]. The call of
    /// the provider is the last step, so this function needs no frame.
    #[inline(never)]
    fn ask(&self, words: WatchWords, may_poll: bool) -> i64 {
        if !words.are_of_one_alone() {
            // SAFETY: as in `Turn::is_quiet`.
            let unchanged = unsafe { words.are_unchanged(|| true) };
            return if unchanged { 0 } else { NOT_POLLED };
        }
        if !may_poll {
            return NOT_POLLED;
        }
        // SAFETY: `shared` keeps the interface open, and this is its thread. A worker has such words only while it has no backlog and
        // the provider has not failed. Only a `Turn` calls this function, and the batch belongs to its progress call.
        unsafe { self.call.get().call(&mut *self.batch.get()) }
    }

    /// Sets the interface. `None`: there is no such interface, or the worker has more to do than polling.
    pub(super) fn set(&self, interface: Option<&OpenInterface>) {
        self.call.set(interface.map_or(PollCall::NONE, OpenInterface::poll_call));
    }
}

/// A number that no provider may return.
const NOT_POLLED: i64 = i64::MIN;

/// The result of [`Turn::ask`].
pub(super) struct Asked(i64);

impl Asked {
    /// Checks whether there is no event.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.0 == 0
    }
}

/// The answer of the interface that was polled alone.
pub(super) struct Answer<'a> {
    count: i64,
    alone: &'a Alone,
    turn: Turn<'a>,
}

impl<'a> Answer<'a> {
    /// Returns the events. `interface` is the index of the interface.
    #[inline(always)]
    pub(super) fn hand<'b>(
        &'b mut self,
        interface: usize,
        left_over: &'b LeftOver,
    ) -> Result<Hand<'b>, Status> {
        // SAFETY: the call has written into this batch, which nothing else uses until the progress call ends. `LeftOver` keeps the
        // events that follow a panic.
        let rest = unsafe { PollCall::events(self.count, &*self.alone.batch.get()) }?;
        Ok(Hand { left_over, interface, rest })
    }

    /// Exchanges the value for the right to poll, as [`Turn::polls`] does. The events are dispatched.
    #[inline]
    pub(super) fn polls(self, left_over: &LeftOver) -> Option<Polls<'a>> {
        self.turn.polls(left_over)
    }
}

/// The right to poll: memory referenced by events of earlier polls is not read any more, except for lent payloads.
pub(super) struct Polls<'a>(PhantomData<&'a mut ()>);

impl Polls<'_> {
    /// Does the same as [`Turn::is_quiet`].
    #[inline(always)]
    pub(super) fn is_quiet(
        &self,
        shared: &Shared,
        words: WatchWords,
        may_read: impl FnOnce() -> bool,
    ) -> bool {
        Turn(PhantomData).is_quiet(shared, words, may_read)
    }
}

/// Polls an interface and returns its events. They are dispatched before the holder of the right to poll can use it again.
#[inline(always)] // inlined into `progress`
pub(super) fn polled<'a>(
    (interface, open): (usize, &OpenInterface),
    left_over: &'a LeftOver,
    _right: &'a mut Polls<'_>,
    batch: &'a mut Batch,
) -> Result<Hand<'a>, Status> {
    // SAFETY: the right to poll is borrowed as long as the events are. `LeftOver` keeps the events that follow a panic.
    let rest = unsafe { open.poll(batch) }?;
    Ok(Hand { left_over, interface, rest })
}

/// Does the same as [`polled`], with the array of the running progress call.
#[inline(always)]
pub(super) fn polled_into<'a>(
    (interface, open): (usize, &OpenInterface),
    left_over: &'a LeftOver,
    _right: &'a mut Polls<'_>,
    alone: &'a Alone,
) -> Result<Hand<'a>, Status> {
    // SAFETY: as in `polled`. The array belongs to the running progress call, and the right to poll is borrowed as long as its
    // events are.
    let rest = unsafe { open.poll(&mut *alone.batch.get()) }?;
    Ok(Hand { left_over, interface, rest })
}

/// Polls a connector and dispatches its events one by one, and returns their number.
pub(super) fn each_of(
    connector: &OpenConnector,
    _right: &mut Polls<'_>,
    each: impl FnMut(&Polled),
) -> Result<usize, Status> {
    let mut batch = Batch::new();
    // SAFETY: the holder of the right to poll lends it for this call, in which all events are dispatched.
    let events = unsafe { connector.poll(&mut batch) }?;
    events.iter().for_each(each);
    Ok(events.len())
}

/// The events of a poll that have to be dispatched.
pub(super) struct Hand<'a> {
    left_over: &'a LeftOver,
    interface: usize,
    rest: &'a [Polled],
}

impl<'a> Hand<'a> {
    /// Returns the number of events.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.rest.len()
    }

    /// Returns the index of the interface that reported the events.
    #[inline]
    pub(super) fn interface(&self) -> usize {
        self.interface
    }

    /// Begins to dispatch the events one by one.
    #[inline(always)] // inlined into `progress`
    pub(super) fn begin(self) -> Rest<'a> {
        Rest(self)
    }
}

/// The events of a [`Hand`] that are not dispatched yet. An event counts as dispatched from its removal on, regardless of how its
/// handler ends. After a panic, the next progress call dispatches the remaining events.
pub(super) struct Rest<'a>(Hand<'a>);

impl<'a> Rest<'a> {
    /// Returns the next events without removing them.
    #[inline(always)]
    pub(super) fn following(&self) -> &'a [Polled] {
        self.0.rest
    }

    /// Removes the next `count` events, which are dispatched.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: usize) {
        self.0.rest = self.0.rest.get(count..).unwrap_or_default();
    }

    /// Removes the next event.
    #[inline(always)] // inlined into `progress`
    pub(super) fn next(&mut self) -> Option<Handed<'a>> {
        let (event, rest) = self.0.rest.split_first()?;
        self.0.rest = rest;
        // SAFETY: the event was just removed from the rest, which has no other owner.
        Some(unsafe { Handed::new(event) })
    }
}

impl Drop for Rest<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // By value: an address of this record would keep it in memory.
        let Hand { left_over, interface, rest } = &self.0;
        let (left_over, interface, rest) = (*left_over, *interface, *rest);
        if !rest.is_empty() {
            left_over.keep(interface, rest);
        }
    }
}

/// The backlog: events that handlers with a panic left undispatched.
pub(super) struct LeftOver {
    all: RefCell<VecDeque<(usize, Vec<Polled>)>>,
    is_there: Cell<bool>,
    shared: Rc<Shared>,
}

impl LeftOver {
    pub(super) fn new(shared: Rc<Shared>) -> LeftOver {
        LeftOver { all: RefCell::default(), is_there: Cell::new(false), shared }
    }

    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.is_there.get()
    }

    #[cold]
    fn keep(&self, interface: usize, rest: &[Polled]) {
        // SAFETY: the memory that the events reference stays valid until their interface is polled again. The panic ends this
        // progress call, and with it the right to poll. The next progress call gets the right to poll when the backlog is empty,
        // and the worker keeps its interfaces open.
        let events = rest.iter().map(|event| unsafe { event.again() }).collect();
        self.all.borrow_mut().push_back((interface, events));
        self.is_there.set(true);
        self.shared.note_work();
    }

    /// Dispatches the backlog, and returns the number of events. After another panic, the next call dispatches the rest.
    pub(super) fn hand_on(&self, _turn: &mut Turn<'_>, mut hand_on: impl FnMut(Hand<'_>)) -> usize {
        let mut count = 0;
        let waiting = self.all.borrow().len();
        for _ in 0..waiting {
            let next = self.all.borrow_mut().pop_front();
            let Some((interface, events)) = next else { break };
            count += events.len();
            hand_on(Hand { left_over: self, interface, rest: &events });
        }
        self.is_there.set(!self.all.borrow().is_empty());
        count
    }

    /// Returns payloads that a provider has lent and that no handler will read, when the worker ends.
    pub(super) fn give_back(&self) {
        let shared = &self.shared;
        for (interface, events) in self.all.take() {
            for event in &events {
                // SAFETY: the event was just removed from its only place.
                unsafe { Handed::new(event) }.give_back(&shared.interfaces[interface]);
            }
        }
    }
}

/// Closes an endpoint of a circuit, or one that carries datagrams.
pub(super) fn close(owned: OwnedEndpoint) {
    // SAFETY: the endpoint was removed from the only list of open ones that contains it (the circuits, `Carried`), when no endpoint
    // used it any more: keys and operations over a circuit hold such an endpoint.
    unsafe { owned.close() }
}
