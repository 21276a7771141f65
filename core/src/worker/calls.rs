//! The worker's side of [`WorkerCalls`]: its services to its endpoints, except for circuits.

use super::WorkerState;
use super::arrivals::PeerEvent;
use super::owed::Debt;
use crate::address::WorkerAddress;
use crate::endpoint::queued::{SharedCopy, Waiting};
use crate::endpoint::{EndpointState, Owner, WorkerCalls};
use crate::interface::PeerId;
use crate::op::Id;
use crate::proto::Origin;
use crate::{Error, Status};
use std::rc::Rc;

impl WorkerCalls for WorkerState {
    fn identity(&self) -> Result<Vec<u8>, Error> {
        self.identity()
    }

    fn endpoint_at(&self, place: usize) -> Option<Rc<EndpointState>> {
        self.endpoint_at(place)
    }

    fn all_endpoints(&self) -> Vec<Rc<EndpointState>> {
        self.all_endpoints()
    }

    fn connect_internal(
        self: Rc<Self>,
        address: WorkerAddress,
    ) -> Result<Rc<EndpointState>, Error> {
        self.open_endpoint(address, Owner::Library)
    }

    fn keep_until(&self, endpoint: Rc<EndpointState>, flushed: Option<Id>) {
        let announced = self.shared.ops.borrow().announced_of(endpoint.index) > 0;
        let mut kept = self.kept.borrow_mut();
        kept.extend(flushed.map(|flush| (Some(flush), endpoint.clone())));
        kept.extend(announced.then_some((None, endpoint)));
    }

    fn make_busy(&self, endpoint: &EndpointState) {
        self.make_busy(endpoint);
    }

    fn add_copy(&self, copy: SharedCopy) {
        self.copies.borrow_mut().push(copy);
        self.shared.note_work();
    }

    fn remove_endpoint(&self, endpoint: &EndpointState) {
        let _ = self.endpoints.borrow_mut().remove(endpoint.id);
        self.shared.ops.borrow_mut().forget_owner(endpoint.id.place());
        self.peers.borrow_mut().gone(&endpoint.address.entry.worker, endpoint.id);
        self.tell_of_loss(&endpoint.address.entry.worker);
    }

    fn peer_of(&self, endpoint: &EndpointState) -> PeerId {
        PeerId(self.peer_number(&endpoint.address))
    }

    fn named(&self, endpoint: &EndpointState) {
        self.peers.borrow_mut().named(endpoint.address.entry.worker, endpoint.id);
    }

    fn not_named(&self, endpoint: &EndpointState) {
        let worker = &endpoint.address.entry.worker;
        let forgotten = self.peers.borrow_mut().not_named(worker, endpoint.id);
        drop(forgotten);
    }

    fn with_exit(&self, endpoint: &EndpointState, error: Error) -> Error {
        WorkerState::with_exit(self, &endpoint.address.entry.worker, error)
    }

    fn endpoint_failed(&self, endpoint: &EndpointState, error: &Error) {
        if endpoint.is_named() && !self.closed.get() {
            self.tell(PeerEvent::Failed(endpoint.id, error.clone()));
        }
    }

    fn provider_failed(&self, interface: usize) {
        self.provider_failed(interface);
    }

    fn service_peer_lost(self: Rc<Self>, peer: [u8; 16], error: &Error) {
        WorkerState::service_peer_lost(&self, peer, error);
    }

    fn answer_lost(&self, endpoint: &EndpointState, lost: Waiting, status: Status) {
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

    fn answer_another_way(&self, failed: &EndpointState) {
        let worker = &failed.address.entry.worker;
        let Some(number) = self.peers.borrow().known_number(worker) else { return };
        let gone = match self.peers.borrow_mut().get_mut(number) {
            Some(peer) => peer.reply.take_if(|reply| std::ptr::eq(&raw const **reply, failed)),
            None => None,
        };
        drop(gone);
    }
}
