//! A worker as its endpoints call it, beyond what they share with it: two traits. None of it is on the fast path of an operation.

use super::inner::Inner;
use super::queued::{SharedCopy, Waiting};
use super::route::ModulePair;
use crate::address::WorkerAddress;
use crate::interface::{LaneLimits, PeerId};
use crate::op::Id;
use crate::registry::abi::RawEndpoint;
use crate::{Error, Status};
use std::rc::Rc;

/// Connections of modules that connect to an endpoint: they belong to the worker.
pub(crate) trait Circuits {
    /// The provider endpoint of a circuit for `endpoint` over `pair`, and what it carries; forms it when there is none. `Again`: it
    /// is being formed, and the endpoint will be worked on when it is there.
    fn wire(
        self: Rc<Self>,
        endpoint: &Inner,
        pair: ModulePair,
    ) -> Result<(RawEndpoint, LaneLimits), Error>;

    /// Whether this endpoint's circuit over an interface is being formed.
    fn circuit_forms(&self, endpoint: &Inner, interface: usize) -> bool;

    /// The circuit that an endpoint uses over an interface.
    fn circuit_over(&self, endpoint: &Inner, interface: usize) -> Option<u64>;

    /// Whether another endpoint uses the circuit that this one uses over an interface.
    fn is_shared(&self, endpoint: &Inner, interface: usize) -> bool;

    /// An endpoint is about to be dropped that has left something on a circuit which nobody has asked for.
    fn leave_unasked(&self, circuit: u64);

    /// The circuits that an endpoint uses.
    fn circuits_of(&self, endpoint: &Inner) -> Vec<u64>;

    /// An endpoint has failed: its circuits lead to a peer that is given up, unless somebody else uses them.
    fn end_circuits(self: Rc<Self>, endpoint: &Inner, error: &Error);

    /// This endpoint has packed, and could not leave its circuits before.
    fn drop_dead_circuits_of(&self, endpoint: &Inner);

    /// An endpoint is gone: its circuits stay for the next one, unless they are dead.
    fn release_circuits(&self, endpoint: &Inner);
}

/// A worker, as its endpoints see it. They keep it, and with it their circuits.
pub(crate) trait WorkerCalls: Circuits {
    /// The bytes of the worker's address.
    fn identity(&self) -> Result<Vec<u8>, Error>;

    /// The endpoint at a place.
    fn endpoint_at(&self, place: usize) -> Option<Rc<Inner>>;

    /// Every endpoint that there is.
    fn all_endpoints(&self) -> Vec<Rc<Inner>>;

    /// An endpoint of the library's own.
    fn connect_internal(self: Rc<Self>, address: WorkerAddress) -> Result<Rc<Inner>, Error>;

    /// This endpoint was closed: it stays, whoever drops it, until this flush has ended and its messages have been taken.
    fn keep_until(&self, endpoint: Rc<Inner>, flushed: Option<Id>);

    /// Something is queued on this endpoint.
    fn make_busy(&self, endpoint: &Inner);

    /// An endpoint is gone.
    fn remove_endpoint(&self, endpoint: &Inner);

    /// The number of the worker that an endpoint leads to.
    fn peer_of(&self, endpoint: &Inner) -> PeerId;

    /// The application holds this endpoint.
    fn named(&self, endpoint: &Inner);

    /// And does so no more.
    fn not_named(&self, endpoint: &Inner);

    /// The reason why an endpoint has failed, with the peer's report of its exit.
    fn with_exit(&self, endpoint: &Inner, error: Error) -> Error;

    /// This endpoint has failed: the application hears of it, if it holds it.
    fn endpoint_failed(&self, endpoint: &Inner, error: &Error);

    /// A peer still copies its part of a large transfer: progress is to end it.
    fn add_copy(&self, copy: SharedCopy);

    /// The provider of this interface broke its contract: everything of it is taken out of use, and nothing else.
    fn provider_failed(&self, interface: usize);

    /// The way to a worker is gone: what waits there for a service ends.
    fn service_peer_lost(self: Rc<Self>, peer: [u8; 16], error: &Error);

    /// An endpoint has failed with this answer still to be given.
    fn answer_lost(&self, endpoint: &Inner, lost: Waiting, status: Status);

    /// This endpoint has failed: answers to its peer go another way. Whoever else has it keeps its lanes open, and with
    /// them what providers may still touch; that must not be the worker.
    fn answer_another_way(&self, failed: &Inner);
}
