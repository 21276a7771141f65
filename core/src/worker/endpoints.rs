//! A worker's endpoints: those that the application opened, and those of the library's own.

use super::Inner;
use crate::address::WorkerAddress;
use crate::endpoint::{Inner as EndpointInner, Owner, Route};
use crate::op::Id;
use crate::proto::Origin;
use crate::shared::Senders;
use crate::{Error, Status};
use std::any::Any;
use std::rc::Rc;

impl Inner {
    /// Makes an endpoint to an address.
    pub(super) fn open_endpoint(
        self: &Rc<Self>,
        address: WorkerAddress,
        owner: Owner,
    ) -> Result<Rc<EndpointInner>, Error> {
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

    /// Gives a new endpoint its place.
    pub(super) fn place_endpoint(
        self: &Rc<Self>,
        address: WorkerAddress,
        route: Route,
        owner: Owner,
    ) -> Result<Rc<EndpointInner>, Error> {
        // Nothing would end it, and it would hold the worker.
        self.check_open()?;
        let mut endpoints = self.endpoints.borrow_mut();
        let id = endpoints.insert(()).ok_or_else(|| {
            Error::new(
                Status::NoMemory,
                "one endpoint more",
                format!("the worker has {} already", endpoints.len()),
                "drop those that are not used",
            )
        })?;
        let inner = Rc::new(EndpointInner::new(
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

    /// The endpoint with the number that is the cookie of its lanes.
    pub(crate) fn endpoint(&self, cookie: u64) -> Option<Rc<EndpointInner>> {
        self.endpoints.borrow().cold(Id::from_raw(cookie)?)?.upgrade()
    }

    /// The endpoint at a place.
    pub(crate) fn endpoint_at(&self, place: usize) -> Option<Rc<EndpointInner>> {
        let endpoints = self.endpoints.borrow();
        endpoints.cold(endpoints.at(place)?)?.upgrade()
    }

    /// Every endpoint that there is.
    pub(crate) fn all_endpoints(&self) -> Vec<Rc<EndpointInner>> {
        let endpoints = self.endpoints.borrow();
        endpoints.ids().filter_map(|id| endpoints.cold(id)?.upgrade()).collect()
    }

    /// The endpoint that the answer to one of the core's own messages goes through. One that came over a circuit is
    /// answered over that circuit: where the circuit dies, what was asked over it fails at whoever asked, so nobody waits
    /// for an answer that went another way and was lost there.
    pub(crate) fn answer_endpoint(
        self: &Rc<Self>,
        from: Origin,
    ) -> Result<Rc<EndpointInner>, Error> {
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

    /// An endpoint that leads to a peer: one that there is, which stays whose it is, or one of our own.
    pub(crate) fn reply_endpoint(self: &Rc<Self>, peer: u32) -> Result<Rc<EndpointInner>, Error> {
        match self.endpoint_there(peer)? {
            Some(endpoint) => Ok(endpoint),
            None => self.own_endpoint(peer),
        }
    }

    /// One that there is: the application's, or our own.
    fn endpoint_there(&self, peer: u32) -> Result<Option<Rc<EndpointInner>>, Error> {
        let own = {
            let peers = self.peers.borrow();
            let entry = peers.get(peer).ok_or_else(unknown)?;
            // The same as before, also where one of our own was needed meanwhile: what goes over it keeps its order.
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

    /// One that the application holds no more, and that is there still: another connection may not come about.
    fn let_go_endpoint(&self, peer: u32) -> Option<Rc<EndpointInner>> {
        let (peers, endpoints) = (self.peers.borrow(), self.endpoints.borrow());
        peers.let_go_to(peer).filter_map(|id| endpoints.cold(id)?.upgrade()).find(alive)
    }

    /// The application's endpoint to a peer: of those that it holds and that have not failed the one that was opened first.
    pub(super) fn known_endpoint(&self, peer: u32) -> Option<Rc<EndpointInner>> {
        let (peers, endpoints) = (self.peers.borrow(), self.endpoints.borrow());
        let mut all = peers.endpoints_to(peer).filter_map(|id| endpoints.cold(id)?.upgrade());
        all.find(|endpoint| endpoint.is_alive())
    }

    /// An endpoint of our own that leads to a peer, for as long as the peer is known.
    pub(super) fn own_endpoint(self: &Rc<Self>, peer: u32) -> Result<Rc<EndpointInner>, Error> {
        let address = {
            let peers = self.peers.borrow();
            let entry = peers.get(peer).ok_or_else(unknown)?;
            if let Some(own) = entry.reply.clone().filter(alive) {
                return Ok(own);
            }
            entry.address.clone().ok_or_else(unknown)?
        };
        let endpoint = self.open_endpoint(address, Owner::Library)?;
        // What was there before goes once nothing is borrowed.
        let before = match self.peers.borrow_mut().get_mut(peer) {
            Some(entry) => entry.reply.replace(endpoint.clone()),
            None => None,
        };
        drop(before);
        Ok(endpoint)
    }
}

impl Senders for Inner {
    fn endpoint_to(&self, peer: u32) -> Option<Rc<dyn Any>> {
        Some(self.known_endpoint(peer)?)
    }

    fn take_announcement(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.announcements.take_current()?))
    }
}

fn alive(endpoint: &Rc<EndpointInner>) -> bool {
    endpoint.check_alive().is_ok()
}

fn unknown() -> Error {
    Error::new(Status::Invalid, "an unknown peer", "no peer of this worker has that number", "")
}
