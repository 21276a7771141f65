//! The worker's services to its endpoints, except for circuits. Endpoints hold the worker, and thus their circuits.

use super::WorkerState;
use super::arrivals::PeerEvent;
use super::owed::Debt;
use crate::address::WorkerAddress;
use crate::endpoint::queued::{SharedCopy, Waiting};
use crate::endpoint::{EndpointState, Owner};
use crate::interface::PeerId;
use crate::proto::Origin;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_order::Id;

impl WorkerState {
    /// Makes an internal endpoint.
    pub(crate) fn connect_internal(
        self: Rc<Self>,
        address: WorkerAddress,
    ) -> Result<Rc<EndpointState>, Error> {
        self.open_endpoint(address, Owner::Library)
    }

    /// Keeps a closed endpoint until this flush has ended and the endpoint's rendezvous messages have been received or refused.
    pub(crate) fn keep_until(&self, endpoint: Rc<EndpointState>, flushed: Option<Id>) {
        let announced = self.shared.ops.borrow().announced_of(endpoint.index) > 0;
        let mut kept = self.kept.borrow_mut();
        kept.extend(flushed.map(|flush| (Some(flush), endpoint.clone())));
        kept.extend(announced.then_some((None, endpoint)));
    }

    /// Adds a large transfer of which the peer still copies a part; progress completes it.
    pub(crate) fn add_copy(&self, copy: SharedCopy) {
        self.copies.borrow_mut().push(copy);
        self.shared.note_work();
    }

    /// Removes a dropped endpoint.
    pub(crate) fn remove_endpoint(&self, endpoint: &EndpointState) {
        let _ = self.endpoints.borrow_mut().remove(endpoint.id);
        self.shared.ops.borrow_mut().forget_owner(endpoint.id.place());
        self.peers.borrow_mut().gone(&endpoint.address.entry.worker, endpoint.id);
        self.tell_of_loss(&endpoint.address.entry.worker);
    }

    /// Returns the number of the worker to which an endpoint leads.
    pub(crate) fn peer_of(&self, endpoint: &EndpointState) -> PeerId {
        PeerId(self.peer_number(&endpoint.address))
    }

    /// Notes that the application holds this endpoint.
    pub(crate) fn named(&self, endpoint: &EndpointState) {
        self.peers.borrow_mut().named(endpoint.address.entry.worker, endpoint.id);
    }

    /// Notes that the application has dropped this endpoint.
    pub(crate) fn not_named(&self, endpoint: &EndpointState) {
        let worker = &endpoint.address.entry.worker;
        let forgotten = self.peers.borrow_mut().not_named(worker, endpoint.id);
        drop(forgotten);
    }

    /// Notifies the application that this endpoint has failed, if the application holds it.
    pub(crate) fn endpoint_failed(&self, endpoint: &EndpointState, error: &Error) {
        if endpoint.is_named() && !self.closed.get() {
            self.tell(PeerEvent::Failed(endpoint.id, error.clone()));
        }
    }

    /// Handles an answer that was not sent before its endpoint failed.
    pub(crate) fn answer_lost(&self, endpoint: &EndpointState, lost: Waiting, status: Status) {
        // If a circuit carried the request, the request has ended with the circuit.
        if endpoint.owner == Owner::Circuit || status == Status::PeerFailed || self.closed.get() {
            return;
        }
        let peer = self.peers.borrow().known_number(&endpoint.address.entry.worker);
        if let Some(peer) = peer {
            let to = Origin { peer, circuit: None };
            let Waiting { answer, owed_since } = lost;
            // The time limit is measured from the first attempt, even if connections form and fail repeatedly.
            let since = owed_since.unwrap_or_else(|| self.wiring.now());
            self.owed.debts.borrow_mut().push_back(Debt { to, answer, since, status });
            self.shared.note_work();
        }
    }

    /// Sends the answers to a failed endpoint's peer over another route. Other holders of the endpoint keep its lanes open, and
    /// thus memory that providers may still access. The worker must not hold the endpoint.
    pub(crate) fn answer_another_way(&self, failed: &EndpointState) {
        let worker = &failed.address.entry.worker;
        let Some(number) = self.peers.borrow().known_number(worker) else { return };
        let gone = match self.peers.borrow_mut().get_mut(number) {
            Some(peer) => peer.reply.take_if(|reply| std::ptr::eq(&raw const **reply, failed)),
            None => None,
        };
        drop(gone);
    }
}
