//! The interface of a worker to its endpoints, apart from the state that they share: two traits. The fast path of an operation
//! calls them at most to ask for further lanes.

use super::inner::EndpointState;
use super::queued::{SharedCopy, Waiting};
use super::route::ModulePair;
use crate::address::WorkerAddress;
use crate::interface::{LaneLimits, PeerId};
use crate::op::Id;
use crate::registry::abi::RawEndpoint;
use crate::{Error, Status};
use std::rc::Rc;

/// The calls that concern circuits, the connections of modules that connect to an endpoint. Circuits belong to the worker.
pub(crate) trait Circuits {
    /// Returns the provider endpoint of a circuit for `endpoint` over `pair`, and the circuit's limits. Begins to form the circuit
    /// if none exists. `Again`: the circuit is being formed, and the endpoint continues when the circuit is connected.
    fn wire(
        self: Rc<Self>,
        endpoint: &EndpointState,
        pair: ModulePair,
    ) -> Result<(RawEndpoint, LaneLimits), Error>;

    /// Checks whether this endpoint's circuit over an interface is being formed.
    fn circuit_forms(&self, endpoint: &EndpointState, interface: usize) -> bool;

    /// Returns the circuit that an endpoint uses over an interface.
    fn circuit_over(&self, endpoint: &EndpointState, interface: usize) -> Option<u64>;

    /// Checks whether another endpoint uses the same circuit over an interface.
    fn is_shared(&self, endpoint: &EndpointState, interface: usize) -> bool;

    /// Notes before an endpoint is dropped that no flush has checked its operations on a circuit.
    fn leave_unasked(&self, circuit: u64);

    /// Returns the circuits that an endpoint uses.
    fn circuits_of(&self, endpoint: &EndpointState) -> Vec<u64>;

    /// Abandons the circuits of a failed endpoint unless other endpoints use them.
    fn end_circuits(self: Rc<Self>, endpoint: &EndpointState, error: &Error);

    /// Releases the dead circuits of an endpoint whose packer has returned; an endpoint keeps its circuits while its packer runs.
    fn drop_dead_circuits_of(&self, endpoint: &EndpointState);

    /// Releases the circuits of a dropped endpoint; usable circuits stay for the next endpoint.
    fn release_circuits(&self, endpoint: &EndpointState);
}

/// A worker's functions that its endpoints call. Endpoints hold the worker, and thus their circuits.
pub(crate) trait WorkerCalls: Circuits {
    /// Returns the bytes of the worker's address.
    fn identity(&self) -> Result<Vec<u8>, Error>;

    /// Returns the endpoint with this index.
    fn endpoint_at(&self, place: usize) -> Option<Rc<EndpointState>>;

    /// Returns all endpoints.
    fn all_endpoints(&self) -> Vec<Rc<EndpointState>>;

    /// Makes an internal endpoint.
    fn connect_internal(self: Rc<Self>, address: WorkerAddress)
    -> Result<Rc<EndpointState>, Error>;

    /// Keeps a closed endpoint until this flush has ended and the endpoint's rendezvous messages have been received or refused.
    fn keep_until(&self, endpoint: Rc<EndpointState>, flushed: Option<Id>);

    /// Notes that an operation was queued on this endpoint.
    fn make_busy(&self, endpoint: &EndpointState);

    /// Removes a dropped endpoint.
    fn remove_endpoint(&self, endpoint: &EndpointState);

    /// Returns the number of the worker to which an endpoint leads.
    fn peer_of(&self, endpoint: &EndpointState) -> PeerId;

    /// Notes that the application holds this endpoint.
    fn named(&self, endpoint: &EndpointState);

    /// Notes that the application has dropped this endpoint.
    fn not_named(&self, endpoint: &EndpointState);

    /// Adds the peer's report of its exit, if one has arrived, to the error of a failed endpoint.
    fn with_exit(&self, endpoint: &EndpointState, error: Error) -> Error;

    /// Notifies the application that this endpoint has failed, if the application holds it.
    fn endpoint_failed(&self, endpoint: &EndpointState, error: &Error);

    /// Adds a large transfer of which the peer still copies a part; progress completes it.
    fn add_copy(&self, copy: SharedCopy);

    /// Takes all interfaces of the provider of this interface out of use, because the provider broke its contract; other interfaces
    /// remain.
    fn provider_failed(&self, interface: usize);

    /// Ends the service calls to a worker whose route has failed.
    fn service_peer_lost(self: Rc<Self>, peer: [u8; 16], error: &Error);

    /// Handles an answer that was not sent before its endpoint failed.
    fn answer_lost(&self, endpoint: &EndpointState, lost: Waiting, status: Status);

    /// Releases a failed endpoint as the worker's route for answers to its peer, so that later answers take another route. If the
    /// worker held the endpoint, its lanes would stay open, and thus memory that providers may still access.
    fn answer_another_way(&self, failed: &EndpointState);
}
