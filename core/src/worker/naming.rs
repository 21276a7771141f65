//! The name of a worker that peers knew before it had one: these peers get it in a message of its own (`NAMED`), once.
//!
//! All other peers find the name in the worker's address. A worker that is named before it gives its address sends nothing.

use super::WorkerState;
use crate::Status;
use crate::address::NAMED;
use crate::endpoint::queued::QueuedOp;
use crate::proto::{Origin, id};
use std::collections::BTreeSet;
use std::rc::Rc;
use tieline_lookup::WorkerName;

impl WorkerState {
    /// Records that the application gets the worker's address, with which peers may connect at any later time.
    pub(super) fn note_address(&self) {
        if self.names.own.borrow().is_none() {
            self.names.nameless.set(true);
        }
    }

    /// Records that the worker has a name now, which its connected peers do not know.
    pub(super) fn tell_name_to_all(&self) {
        let mut peers: BTreeSet<u32> = self.peers.borrow().with_connections().collect();
        for endpoint in self.all_endpoints().iter().filter(|endpoint| endpoint.is_connected()) {
            // The peer has a number only if something has asked for it.
            let _ = peers.insert(self.peer_number(&endpoint.address));
        }
        if self.peers.borrow().len() > 0 {
            // A connection that is forming has given the address as it was before.
            self.names.nameless.set(true);
        }
        peers.into_iter().for_each(|peer| self.tell_name_to(peer));
    }

    /// Records that this peer is connected, possibly with an address without the name.
    pub(super) fn tell_name_to(&self, peer: u32) {
        if self.names.nameless.get() && self.names.own.borrow().is_some() {
            self.names.untold.borrow_mut().push(peer);
            self.shared.note_work();
        }
    }

    /// Sends the worker's name to the peers that do not know it.
    pub(super) fn tell_name(self: &Rc<Self>) {
        if self.names.untold.borrow().is_empty() {
            return;
        }
        let untold = self.names.untold.take();
        let Some(name) = self.known_name() else { return };
        for peer in untold {
            let is_service = self.peers.borrow().is_service(peer);
            // A peer that has left needs no name.
            let Ok(endpoint) = self.answer_endpoint(Origin { peer, circuit: None }) else {
                continue;
            };
            if !is_service && endpoint.address.messages.1 >= NAMED {
                endpoint.post(QueuedOp::tell(id::NAMED, name.as_bytes().to_vec()));
            }
        }
    }

    /// Handles the name of a peer that had none when it connected.
    pub(super) fn on_named(&self, peer: u32, name: &[u8]) -> Result<(), Status> {
        if name.is_empty() || name.len() > WorkerName::MAX_LEN {
            return Err(Status::BadData);
        }
        let mut peers = self.peers.borrow_mut();
        let address = peers.get_mut(peer).and_then(|peer| peer.address.as_mut());
        address.ok_or(Status::BadData)?.name = name.into();
        Ok(())
    }
}
