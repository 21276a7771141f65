//! The unsafe calls of a worker: it polls interfaces and connectors, and closes endpoints that belong to it.
//!
//! Every call requires a value that proves the permission to make it. The right to poll exists once, in a progress call that has
//! dispatched the backlog of earlier calls ([`Polls`]). An event of an interface is dispatched at most once ([`Handed`]). The value
//! by which an endpoint is closed cannot be copied.

#![allow(unsafe_code)]

use crate::Status;
use crate::message::abi::Handed;
use crate::registry::abi::OwnedEndpoint;
use crate::registry::abi::events::{Batch, Polled};
use crate::registry::abi::objects::{OpenConnector, OpenInterface};
use crate::shared::Shared;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// A mark that a progress call is running. Its drop, which also happens during a panic, clears the mark.
pub(super) struct Running<'a>(&'a Cell<bool>);

impl Running<'_> {
    /// Marks the progress call as running. `None`: a progress call is already running.
    #[inline]
    pub(super) fn begin(shared: &Shared) -> Option<Running<'_>> {
        match shared.in_progress.replace(true) {
            true => None,
            false => Some(Running(&shared.in_progress)),
        }
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
        self.0.set(false);
    }
}

/// A progress call that has not polled yet.
pub(super) struct Turn<'a>(PhantomData<&'a mut ()>);

impl<'a> Turn<'a> {
    /// Exchanges the value for the right to poll. `None`: there is a backlog of an earlier poll.
    #[inline]
    pub(super) fn polls(self, left_over: &LeftOver) -> Option<Polls<'a>> {
        match left_over.is_there() {
            true => None,
            false => Some(Polls(PhantomData)),
        }
    }
}

/// The right to poll: memory referenced by events of earlier polls is not read any more, except for lent payloads.
pub(super) struct Polls<'a>(PhantomData<&'a mut ()>);

/// Polls an interface and dispatches its events, and returns their number.
#[inline]
pub(super) fn all_of(
    (interface, open): (usize, &OpenInterface),
    left_over: &LeftOver,
    _right: &mut Polls<'_>,
    hand_on: impl FnOnce(Hand<'_>),
) -> Result<usize, Status> {
    let mut batch = Batch::new();
    // SAFETY: the holder of the right to poll lends it for this call, in which all events are dispatched. `LeftOver` keeps the
    // events that follow a panic.
    let rest = unsafe { open.poll(&mut batch) }?;
    if !rest.is_empty() {
        hand_on(Hand { left_over, interface, rest });
    }
    Ok(rest.len())
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
    /// Returns the index of the interface that reported the events.
    #[inline]
    pub(super) fn interface(&self) -> usize {
        self.interface
    }

    /// Dispatches the events one by one. An event counts as dispatched regardless of how its handler ends. After a panic, the next
    /// progress call dispatches the remaining events.
    #[inline]
    pub(super) fn each(self, mut each: impl FnMut(Handed<'a>)) {
        let mut hand = Rest(self);
        while let Some((event, rest)) = hand.0.rest.split_first() {
            hand.0.rest = rest;
            // SAFETY: the event was just removed from the rest, which has no other owner.
            each(unsafe { Handed::new(event) });
        }
    }
}

/// A `Hand` from which events are removed.
struct Rest<'a>(Hand<'a>);

impl Drop for Rest<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.rest.is_empty() {
            self.0.left_over.keep(&self.0);
        }
    }
}

/// The backlog: events that handlers with a panic left undispatched.
#[derive(Default)]
pub(super) struct LeftOver {
    all: RefCell<VecDeque<(usize, Vec<Polled>)>>,
    is_there: Cell<bool>,
}

impl LeftOver {
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.is_there.get()
    }

    #[cold]
    fn keep(&self, hand: &Hand<'_>) {
        // SAFETY: the memory that the events reference stays valid until their interface is polled again. The panic ends this
        // progress call, and with it the right to poll. The next progress call gets the right to poll when the backlog is empty,
        // and the worker keeps its interfaces open.
        let events = hand.rest.iter().map(|event| unsafe { event.again() }).collect();
        self.all.borrow_mut().push_back((hand.interface, events));
        self.is_there.set(true);
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
    pub(super) fn give_back(&self, shared: &Shared) {
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
