//! A worker's endpoints: those that the application opened, and the library's own.

use super::WorkerState;
use crate::address::WorkerAddress;
use crate::endpoint::{EndpointState, Owner, Route, ServiceWorker};
use crate::proto::Origin;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_order::Id;

impl WorkerState {
    /// Makes an endpoint to an address.
    pub(super) fn open_endpoint(
        self: &Rc<Self>,
        address: WorkerAddress,
        owner: Owner,
    ) -> Result<Rc<EndpointState>, Error> {
        self.check_open()?;
        let wires = |slot, candidate| self.can_wire(&address, slot, candidate);
        let mut route = Route::choose(&self.shared, &address, wires);
        route.put_last(|pair| self.avoided_until(address.entry.worker, pair.interface));
        if route.message().is_none() {
            let error = route.unreachable(&self.shared.core, &address);
            if let Some(journal) = self.shared.core.journal() {
                journal.tell_of_failure(Some(address.entry.worker), &error.to_string());
            }
            return Err(error);
        }
        self.place_endpoint(address, route, owner)
    }

    /// Makes an endpoint with a route, and assigns its number.
    pub(super) fn place_endpoint(
        self: &Rc<Self>,
        address: WorkerAddress,
        route: Route,
        owner: Owner,
    ) -> Result<Rc<EndpointState>, Error> {
        // A closed worker would never end the endpoint, and the endpoint would hold the worker.
        self.check_open()?;
        let mut endpoints = self.endpoints.borrow_mut();
        let id = endpoints.insert(()).ok_or_else(|| {
            Error::new(
                Status::NoMemory,
                "one endpoint more",
                format!("the worker has {} already", endpoints.count()),
                "drop those that are not used",
            )
        })?;
        let inner = Rc::new(EndpointState::new(
            self.shared.clone(),
            self.clone(),
            id,
            address,
            route,
            owner,
        ));
        if let Some(place) = endpoints.cold_mut(id) {
            *place = Rc::downgrade(&inner);
        }
        Ok(inner)
    }

    /// Returns the endpoint with this number, which is the cookie of its lanes.
    pub(crate) fn endpoint(&self, cookie: u64) -> Option<Rc<EndpointState>> {
        self.endpoints.borrow().cold(Id::from_raw(cookie)?)?.upgrade()
    }

    /// Returns the endpoint with this index.
    pub(crate) fn endpoint_at(&self, place: usize) -> Option<Rc<EndpointState>> {
        let endpoints = self.endpoints.borrow();
        endpoints.cold(endpoints.at(place)?)?.upgrade()
    }

    /// Returns a peer's service worker, which the endpoints to workers of its process share.
    pub(crate) fn service_worker(&self, address: WorkerAddress) -> Rc<ServiceWorker> {
        self.peers.borrow_mut().service_worker(address)
    }

    /// Returns all endpoints.
    pub(crate) fn all_endpoints(&self) -> Vec<Rc<EndpointState>> {
        let endpoints = self.endpoints.borrow();
        endpoints.ids().filter_map(|id| endpoints.cold(id)?.upgrade()).collect()
    }

    /// Returns the endpoint for the answer to an internal message. If a circuit carried the message, the answer uses the same
    /// circuit. If the circuit fails, its requests fail at the requester, so no requester waits for an answer that was lost with
    /// it.
    pub(crate) fn answer_endpoint(
        self: &Rc<Self>,
        from: Origin,
    ) -> Result<Rc<EndpointState>, Error> {
        match from.circuit {
            Some(circuit) => self.answers_over(circuit),
            None => {
                match self.endpoint_there(from.peer)?.or_else(|| self.let_go_endpoint(from.peer)) {
                    Some(endpoint) => Ok(endpoint),
                    None => self.own_endpoint(from.peer),
                }
            }
        }
    }

    /// Returns an endpoint to a peer: an existing one, whose owner does not change, or an internal one.
    pub(crate) fn reply_endpoint(self: &Rc<Self>, peer: u32) -> Result<Rc<EndpointState>, Error> {
        match self.endpoint_there(peer)? {
            Some(endpoint) => Ok(endpoint),
            None => self.own_endpoint(peer),
        }
    }

    /// Returns an existing endpoint, if there is a usable one: the application's, or an internal one.
    fn endpoint_there(&self, peer: u32) -> Result<Option<Rc<EndpointState>>, Error> {
        let own = {
            let peers = self.peers.borrow();
            let entry = peers.get(peer).ok_or_else(unknown)?;
            // The same endpoint as before is used, even if an internal one was needed meanwhile, so answers keep their order.
            if let Some(reply) = entry.borrowed.upgrade().filter(alive) {
                return Ok(Some(reply));
            }
            entry.reply.clone().filter(alive)
        };
        let Some(endpoint) = self.known_endpoint(peer) else { return Ok(own) };
        if let Some(entry) = self.peers.borrow_mut().get_mut(peer) {
            entry.borrowed = Rc::downgrade(&endpoint);
        }
        Ok(Some(endpoint))
    }

    /// Returns an endpoint that the application has dropped and that still exists, because a new connection might be impossible.
    fn let_go_endpoint(&self, peer: u32) -> Option<Rc<EndpointState>> {
        let (peers, endpoints) = (self.peers.borrow(), self.endpoints.borrow());
        peers.let_go_to(peer).filter_map(|id| endpoints.cold(id)?.upgrade()).find(alive)
    }

    /// Returns the application's endpoint to a peer: the oldest one that has not failed.
    pub(crate) fn known_endpoint(&self, peer: u32) -> Option<Rc<EndpointState>> {
        let (peers, endpoints) = (self.peers.borrow(), self.endpoints.borrow());
        let mut all = peers.endpoints_to(peer).filter_map(|id| endpoints.cold(id)?.upgrade());
        all.find(|endpoint| endpoint.is_alive())
    }

    /// Returns an internal endpoint to a peer. The worker keeps it until it fails or the peer is forgotten.
    pub(super) fn own_endpoint(self: &Rc<Self>, peer: u32) -> Result<Rc<EndpointState>, Error> {
        let address = {
            let peers = self.peers.borrow();
            let entry = peers.get(peer).ok_or_else(unknown)?;
            if let Some(own) = entry.reply.clone().filter(alive) {
                return Ok(own);
            }
            entry.address.clone().ok_or_else(unknown)?
        };
        let endpoint = self.open_endpoint(address, Owner::Library)?;
        // The previous endpoint is dropped while nothing is borrowed.
        let before = match self.peers.borrow_mut().get_mut(peer) {
            Some(entry) => entry.reply.replace(endpoint.clone()),
            None => None,
        };
        drop(before);
        Ok(endpoint)
    }
}

fn alive(endpoint: &Rc<EndpointState>) -> bool {
    endpoint.check_alive().is_ok()
}

fn unknown() -> Error {
    Error::new(Status::Invalid, "an unknown peer", "no peer of this worker has that number", "")
}
