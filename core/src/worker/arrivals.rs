//! Peers come and go: the numbers that interfaces have for them.

use super::Inner;
use crate::address::WorkerAddress;
use crate::interface::{InterfaceSlot, PeerId};

impl Inner {
    /// The worker's number of a peer, which may be new.
    pub(super) fn peer_number(&self, address: &WorkerAddress) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().number(address);
        drop(forgotten);
        number
    }

    /// A number for a peer whose address makes no sense.
    pub(super) fn nobodys_number(&self) -> u32 {
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
    pub(super) fn closed_in_good_order(&self, slot: &InterfaceSlot, number: u64) {
        self.tell_of_leaving(self.forget_number(slot, number));
    }

    /// Tells the application that a peer has left in good order.
    #[cold]
    pub(super) fn tell_of_leaving(&self, gone: Option<PeerId>) {
        let handler = self.on_left.borrow().clone();
        if let (Some(peer), Some(handler)) = (gone, handler) {
            handler(peer);
        }
    }
}
