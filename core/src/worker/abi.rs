//! The unsafe calls of a worker: it polls interfaces and connectors, and closes endpoints that belong to it.

#![allow(unsafe_code)]

use crate::Status;
use crate::registry::abi::RawEndpoint;
use crate::registry::abi::events::{Batch, Polled};
use crate::registry::abi::objects::{OpenConnector, OpenInterface};

/// Polls an interface and hands on what it brings; how much that was.
#[inline]
pub(super) fn all_of(
    interface: &OpenInterface,
    hand_on: impl FnOnce(&[Polled]),
) -> Result<usize, Status> {
    let mut batch = Batch::new();
    // SAFETY: all events are dealt with when this returns, and no interface is polled meanwhile (`in_progress`); for those behind a
    // panic see `kept`.
    let events = unsafe { interface.poll(&mut batch) }?;
    if !events.is_empty() {
        hand_on(events);
    }
    Ok(events.len())
}

/// Events that a handler left behind when it panicked.
#[cold]
pub(super) fn kept(events: &[Polled]) -> Vec<Polled> {
    // SAFETY: `progress` hands them on before it polls anything, and the worker keeps its interfaces open.
    events.iter().map(|event| unsafe { event.again() }).collect()
}

/// Polls a connector and hands on what it brings, one by one; how much that was.
pub(super) fn each_of(
    connector: &OpenConnector,
    each: impl FnMut(&Polled),
) -> Result<usize, Status> {
    let mut batch = Batch::new();
    // SAFETY: all events are dealt with when this returns, and no connector is polled meanwhile: `progress` alone does, which does not
    // run inside itself.
    let events = unsafe { connector.poll(&mut batch) }?;
    events.iter().for_each(each);
    Ok(events.len())
}

/// Closes an endpoint of a circuit, or one that carries datagrams.
pub(super) fn close(raw: RawEndpoint) {
    // SAFETY: whoever calls this has just taken it out of the one place that knows it as open (the circuits, `Carried`), when no
    // endpoint uses it any more: keys and operations over a circuit hold such an endpoint.
    unsafe { raw.close() }
}
