//! The interface of a worker to its endpoints, besides their shared state: two traits. None of it is on the fast path of an
//! operation.

use super::inner::EndpointState;
use super::queued::{SharedCopy, Waiting};
use super::route::ModulePair;
use crate::address::WorkerAddress;
use crate::interface::{LaneLimits, PeerId};
use crate::op::Id;
use crate::registry::abi::RawEndpoint;
use crate::{Error, Status};
use std::rc::Rc;

/// Connections of modules that connect to an endpoint. They belong to the worker.
pub(crate) trait Circuits {
    /// The provider endpoint of a circuit for `endpoint` over `pair`, and its limits; forms the circuit if there is none. `Again`:
    /// it is being formed, and the endpoint continues when it stands.
    fn wire(
        self: Rc<Self>,
        endpoint: &EndpointState,
        pair: ModulePair,
    ) -> Result<(RawEndpoint, LaneLimits), Error>;

    /// Whether this endpoint's circuit over an interface is being formed.
    fn circuit_forms(&self, endpoint: &EndpointState, interface: usize) -> bool;

    /// The circuit that an endpoint uses over an interface.
    fn circuit_over(&self, endpoint: &EndpointState, interface: usize) -> Option<u64>;

    /// Whether another endpoint uses the same circuit over an interface.
    fn is_shared(&self, endpoint: &EndpointState, interface: usize) -> bool;

    /// An endpoint is about to be dropped while operations on a circuit have not been checked by a flush.
    fn leave_unasked(&self, circuit: u64);

    /// The circuits that an endpoint uses.
    fn circuits_of(&self, endpoint: &EndpointState) -> Vec<u64>;

    /// An endpoint has failed: its circuits are abandoned unless other endpoints use them.
    fn end_circuits(self: Rc<Self>, endpoint: &EndpointState, error: &Error);

    /// This endpoint's packer has returned; it could not leave its circuits before.
    fn drop_dead_circuits_of(&self, endpoint: &EndpointState);

    /// An endpoint was dropped: its circuits stay for the next one, unless they are dead.
    fn release_circuits(&self, endpoint: &EndpointState);
}

/// A worker, as its endpoints see it. They hold it, and thus their circuits.
pub(crate) trait WorkerCalls: Circuits {
    /// The bytes of the worker's address.
    fn identity(&self) -> Result<Vec<u8>, Error>;

    /// The endpoint with this index.
    fn endpoint_at(&self, place: usize) -> Option<Rc<EndpointState>>;

    /// All endpoints.
    fn all_endpoints(&self) -> Vec<Rc<EndpointState>>;

    /// Makes an internal endpoint.
    fn connect_internal(self: Rc<Self>, address: WorkerAddress)
    -> Result<Rc<EndpointState>, Error>;

    /// This endpoint was closed: keeps it until this flush has ended and its rendezvous messages have been received or refused.
    fn keep_until(&self, endpoint: Rc<EndpointState>, flushed: Option<Id>);

    /// An operation was queued on this endpoint.
    fn make_busy(&self, endpoint: &EndpointState);

    /// An endpoint was dropped.
    fn remove_endpoint(&self, endpoint: &EndpointState);

    /// The number of the worker to which an endpoint leads.
    fn peer_of(&self, endpoint: &EndpointState) -> PeerId;

    /// The application holds this endpoint.
    fn named(&self, endpoint: &EndpointState);

    /// The application has dropped this endpoint.
    fn not_named(&self, endpoint: &EndpointState);

    /// The reason why an endpoint has failed, with the peer's report of its exit.
    fn with_exit(&self, endpoint: &EndpointState, error: Error) -> Error;

    /// This endpoint has failed: notifies the application, if it holds it.
    fn endpoint_failed(&self, endpoint: &EndpointState, error: &Error);

    /// A peer still copies its part of a large transfer: progress completes it.
    fn add_copy(&self, copy: SharedCopy);

    /// The provider of this interface broke its contract: takes all of its interfaces, and only these, out of use.
    fn provider_failed(&self, interface: usize);

    /// The route to a worker has failed: ends its service calls.
    fn service_peer_lost(self: Rc<Self>, peer: [u8; 16], error: &Error);

    /// An endpoint has failed before this answer was sent.
    fn answer_lost(&self, endpoint: &EndpointState, lost: Waiting, status: Status);

    /// This endpoint has failed: answers to its peer take another route. Other holders of the endpoint keep its lanes open, and
    /// thus memory that providers may still access. The worker must not be one of these holders.
    fn answer_another_way(&self, failed: &EndpointState);
}
