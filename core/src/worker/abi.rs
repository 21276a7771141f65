//! The unsafe calls of a worker: it polls interfaces and connectors, and closes endpoints that belong to it.
//!
//! Whoever asks for one has what proves that it may: the right to poll is there once, in a progress call that has handed on what was
//! left over ([`Polls`]); an event of a poll is handed on once ([`Handed`]); what an endpoint is closed by is not copied.

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

/// A progress call is running: on the way out, also by a panic, it says that none is.
pub(super) struct Running<'a>(&'a Cell<bool>);

impl Running<'_> {
    /// `None`: one is running already.
    #[inline]
    pub(super) fn begin(shared: &Shared) -> Option<Running<'_>> {
        match shared.in_progress.replace(true) {
            true => None,
            false => Some(Running(&shared.in_progress)),
        }
    }

    /// What that call may do.
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

/// A progress call that has polled nothing yet.
pub(super) struct Turn<'a>(PhantomData<&'a mut ()>);

impl<'a> Turn<'a> {
    /// `None`: something is left over of a poll before.
    #[inline]
    pub(super) fn polls(self, left_over: &LeftOver) -> Option<Polls<'a>> {
        match left_over.is_there() {
            true => None,
            false => Some(Polls(PhantomData)),
        }
    }
}

/// The right to poll: what the events of earlier polls point to is read no more.
pub(super) struct Polls<'a>(PhantomData<&'a mut ()>);

/// Polls an interface and hands on what it brings; how much that was.
#[inline]
pub(super) fn all_of(
    (interface, open): (usize, &OpenInterface),
    left_over: &LeftOver,
    _right: &mut Polls<'_>,
    hand_on: impl FnOnce(Hand<'_>),
) -> Result<usize, Status> {
    let mut batch = Batch::new();
    // SAFETY: who has the right to poll lends it for this call, in which the events are dealt with; for those behind a panic see
    // `LeftOver`.
    let rest = unsafe { open.poll(&mut batch) }?;
    if !rest.is_empty() {
        hand_on(Hand { left_over, interface, rest });
    }
    Ok(rest.len())
}

/// Polls a connector and hands on what it brings, one by one; how much that was.
pub(super) fn each_of(
    connector: &OpenConnector,
    _right: &mut Polls<'_>,
    each: impl FnMut(&Polled),
) -> Result<usize, Status> {
    let mut batch = Batch::new();
    // SAFETY: who has the right to poll lends it for this call, in which the events are dealt with.
    let events = unsafe { connector.poll(&mut batch) }?;
    events.iter().for_each(each);
    Ok(events.len())
}

/// Events of a poll that are to be handed on.
pub(super) struct Hand<'a> {
    left_over: &'a LeftOver,
    interface: usize,
    rest: &'a [Polled],
}

impl<'a> Hand<'a> {
    /// The place of the interface that they came over.
    #[inline]
    pub(super) fn interface(&self) -> usize {
        self.interface
    }

    /// Hands them on, one by one. An event counts as dealt with, however that ends; a panic leaves those behind it to the next progress
    /// call.
    #[inline]
    pub(super) fn each(self, mut each: impl FnMut(Handed<'a>)) {
        let mut hand = Rest(self);
        while let Some((event, rest)) = hand.0.rest.split_first() {
            hand.0.rest = rest;
            // SAFETY: it was just taken out of the rest, which is nobody else's.
            each(unsafe { Handed::new(event) });
        }
    }
}

/// A hand out of which events are taken.
struct Rest<'a>(Hand<'a>);

impl Drop for Rest<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.rest.is_empty() {
            self.0.left_over.keep(&self.0);
        }
    }
}

/// What handlers left of their batches when they panicked.
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
        // SAFETY: what they point to stays until their interface is polled again. The panic that leaves them ends this progress call and
        // its right to poll; the next one gets it once nothing is left over, and the worker keeps its interfaces open.
        let events = hand.rest.iter().map(|event| unsafe { event.again() }).collect();
        self.all.borrow_mut().push_back((hand.interface, events));
        self.is_there.set(true);
    }

    /// Hands it on; how much that was. What is left again, by another panic, is left for the next call.
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

    /// The worker ends: payloads that a provider has lent and no handler will see go back.
    pub(super) fn give_back(&self, shared: &Shared) {
        for (interface, events) in self.all.take() {
            for event in &events {
                // SAFETY: it was just taken out of its one place.
                unsafe { Handed::new(event) }.give_back(&shared.interfaces[interface]);
            }
        }
    }
}

/// Closes an endpoint of a circuit, or one that carries datagrams.
pub(super) fn close(owned: OwnedEndpoint) {
    // SAFETY: it was taken out of the one place that knows it as open (the circuits, `Carried`), when no endpoint uses it any more:
    // keys and operations over a circuit hold such an endpoint.
    unsafe { owned.close() }
}
