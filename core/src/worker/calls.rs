//! What a worker does for its endpoints.

use super::Inner;
use crate::address::WorkerAddress;
use crate::endpoint::task::{Job, Waiting};
use crate::endpoint::{Inner as EndpointInner, Way, WorkerCalls};
use crate::op::Id;
use crate::registry::abi::RawEndpoint;
use crate::{Error, Status};
use std::rc::Rc;

impl WorkerCalls for Inner {
    fn identity(&self) -> Result<Vec<u8>, Error> {
        self.identity()
    }

    fn endpoint_at(&self, place: usize) -> Option<Rc<EndpointInner>> {
        self.endpoint_at(place)
    }

    fn all_endpoints(&self) -> Vec<Rc<EndpointInner>> {
        self.all_endpoints()
    }

    fn connect_internal(
        self: Rc<Self>,
        address: WorkerAddress,
    ) -> Result<Rc<EndpointInner>, Error> {
        Inner::connect_internal(&self, address)
    }

    fn make_busy(&self, endpoint: &EndpointInner) {
        self.make_busy(endpoint);
    }

    fn remove_endpoint(&self, id: Id) {
        self.remove_endpoint(id);
    }

    fn add_copy(&self, copy: Job) {
        self.copies.borrow_mut().push(copy);
        self.shared.note_work();
    }

    fn wire(self: Rc<Self>, endpoint: &EndpointInner, way: Way) -> Result<RawEndpoint, Error> {
        Inner::wire(&self, endpoint, way)
    }

    fn line_forms(&self, endpoint: &EndpointInner, interface: usize) -> bool {
        self.line_forms(endpoint, interface)
    }

    fn line_over(&self, endpoint: &EndpointInner, interface: usize) -> Option<u64> {
        self.line_over(endpoint, interface)
    }

    fn lines_of(&self, endpoint: &EndpointInner) -> Vec<u64> {
        self.lines_of(endpoint)
    }

    fn end_lines(self: Rc<Self>, endpoint: &EndpointInner, error: &Error) {
        Inner::end_lines(&self, endpoint, error);
    }

    fn drop_dead_lines_of(&self, endpoint: &EndpointInner) {
        self.drop_dead_lines_of(endpoint);
    }

    fn release_lines(&self, endpoint: &EndpointInner) {
        self.release_lines(endpoint);
    }

    fn provider_failed(&self, interface: usize) {
        self.provider_failed(interface);
    }

    fn peer_failed(&self, context: [u8; 16], error: &Error) {
        self.peer_failed(context, error);
    }

    fn service_peer_lost(self: Rc<Self>, peer: [u8; 16], error: &Error) {
        Inner::service_peer_lost(&self, peer, error);
    }

    fn answer_lost(&self, endpoint: &EndpointInner, lost: Waiting, status: Status) {
        self.answer_lost(endpoint, lost, status);
    }

    fn answer_another_way(&self, failed: &EndpointInner) {
        self.answer_another_way(failed);
    }
}
