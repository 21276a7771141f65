//! Peers that arrive, leave or fail: what interfaces report of them, and what the application is told.

use super::Inner;
use crate::address::WorkerAddress;
use crate::interface::{InterfaceSlot, PeerId};
use crate::registry::abi::events::payload;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::caps;

/// The status of a connection that was closed in good order.
const CLOSED: i32 = Status::Closed as i32;

/// A number of an interface's means nobody any more when this is gone.
struct Forget<'a> {
    worker: &'a Inner,
    slot: &'a InterfaceSlot,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let _ = self.worker.forget_number(self.slot, self.number);
    }
}

impl Inner {
    pub(super) fn peer_arrived(&self, slot: &InterfaceSlot, event: &Event) {
        let address = WorkerAddress::parse(payload(event)).ok();
        if address.is_none() {
            self.bump(|c| c.malformed += 1);
        }
        let index = match &address {
            Some(address) => self.peer_number(address),
            None => self.nobodys_number(),
        };
        self.note_peer(slot, event.peer, index);
    }

    pub(super) fn peer_left(self: &Rc<Self>, slot: &InterfaceSlot, event: &Event) {
        if matches!(event.status, 0 | CLOSED) {
            return self.closed_in_good_order(slot, event.peer);
        }
        // Also when the application's handler panics.
        let _forget = Forget { worker: self, slot, number: event.peer };
        self.peer_lost(slot, event);
    }

    fn peer_lost(self: &Rc<Self>, slot: &InterfaceSlot, event: &Event) {
        let peer = slot.peer(event.peer);
        let status = Status::from_code(event.status);
        let address = match self.peers.borrow().get(peer.0) {
            Some(entry) => entry.address.clone(),
            None => return,
        };
        let label = address.as_ref().map_or_else(|| peer.to_string(), WorkerAddress::label);
        let words = String::from_utf8_lossy(payload(event)).into_owned();
        let why = if words.is_empty() { status.text().to_string() } else { words };
        let error = Error::new(status, format!("{label} is gone"), why, "");
        // Who sees the peer's process itself knows; who only hears nothing of it any more may be the one that is deaf.
        let hearsay = slot.attr.caps & caps::LOCAL_ONLY == 0;
        let alive = |a: &WorkerAddress| hearsay && self.stands_elsewhere(a.entry.worker, slot);
        if address.as_ref().is_some_and(alive) {
            return;
        }
        if let (Status::PeerFailed, Some(address)) = (status, &address) {
            self.peer_failed(address.context, &error);
        }
        self.tell_of_failure(peer, &error);
    }

    /// Tells the application that a peer is gone, once.
    pub(super) fn tell_of_failure(&self, peer: PeerId, error: &Error) {
        if self.peers.borrow_mut().tell(peer.0) {
            self.tell(peer, Some(error.clone()));
        }
    }

    /// Tells the application that a peer is gone, or, without an error, that it has left. Any call may find that out; handlers
    /// run in those that make progress.
    fn tell(&self, peer: PeerId, error: Option<Error>) {
        if !self.shared.in_progress.get() {
            self.news.borrow_mut().push_back((peer, error));
            return self.shared.note_work();
        }
        // Not borrowed while they run: they may register others.
        let (on_failure, on_left) =
            (self.on_failure.borrow().clone(), self.on_left.borrow().clone());
        match (error, on_failure, on_left) {
            (Some(error), Some(handler), _) => handler(peer, &error),
            (None, _, Some(handler)) => handler(peer),
            _ => {}
        }
    }

    /// Tells what other calls have found out.
    pub(super) fn tell_news(&self) -> usize {
        let mut told = 0;
        loop {
            let next = self.news.borrow_mut().pop_front();
            let Some((peer, error)) = next else { return told };
            self.tell(peer, error);
            told += 1;
        }
    }

    /// A process is gone: every endpoint that leads to it ends.
    pub(super) fn peer_failed(&self, context: [u8; 16], error: &Error) {
        let mut lost = self.all_endpoints();
        lost.retain(|endpoint| endpoint.address.context == context);
        for endpoint in &lost {
            endpoint.fail(error.clone());
        }
        self.forget_replies(&lost);
    }

    /// The worker's number of a peer, which may be new.
    pub(super) fn peer_number(&self, address: &WorkerAddress) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().number(address);
        drop(forgotten);
        number
    }

    /// A number for a peer whose address makes no sense.
    fn nobodys_number(&self) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().add(None);
        drop(forgotten);
        number
    }

    /// A number of an interface's means that peer from now on.
    pub(super) fn note_peer(&self, slot: &InterfaceSlot, number: u64, peer: u32) {
        let before = slot.note_number(number, peer);
        let forgotten = {
            let mut peers = self.peers.borrow_mut();
            peers.arrived(peer);
            peers.left(before)
        };
        drop(forgotten);
    }

    /// A number of an interface's means nobody any more. Returns whom it meant, where nothing else leads here from it.
    pub(super) fn forget_number(&self, slot: &InterfaceSlot, number: u64) -> Option<PeerId> {
        let before = slot.forget_number(number);
        let (forgotten, gone) = {
            let mut peers = self.peers.borrow_mut();
            let was = peers.is_here(before);
            (peers.left(before), was && !peers.is_here(before))
        };
        drop(forgotten);
        gone.then_some(PeerId(before))
    }

    /// A peer has closed one of its connections in good order; where that was the last one, the application hears it.
    #[cold]
    fn closed_in_good_order(&self, slot: &InterfaceSlot, number: u64) {
        self.tell_of_leaving(self.forget_number(slot, number));
    }

    /// Tells the application that a peer has left in good order.
    #[cold]
    pub(super) fn tell_of_leaving(&self, gone: Option<PeerId>) {
        if let Some(peer) = gone {
            self.tell(peer, None);
        }
    }
}
