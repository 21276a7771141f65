//! What a worker says of itself: its address, from what its modules say of where they are.
//!
//! A provider that broke does not answer any more. What it said last stands then: candidates and schemes name each other by
//! their places, and peers that come by another provider need the rest.

use super::{Inner, InterfaceSlot};
use crate::Error;
use crate::address::{Candidate, Party, WorkerAddress};
use std::cell::RefCell;

/// The address of something that was opened from a provider, as it was last heard.
#[derive(Debug)]
pub(super) struct Said(RefCell<Vec<u8>>);

impl Said {
    /// What it says first; a module that cannot say where it is, is not used.
    pub(super) fn first(address: Vec<u8>) -> Said {
        Said(RefCell::new(address))
    }

    /// What it says now, or else what it said last.
    pub(super) fn last<E>(&self, ask: impl FnOnce() -> Result<Vec<u8>, E>) -> Vec<u8> {
        if let Ok(now) = ask() {
            *self.0.borrow_mut() = now;
        }
        self.0.borrow().clone()
    }
}

impl Inner {
    /// The bytes of this worker's address.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        WorkerAddress {
            context: self.core.id,
            messages: crate::address::MESSAGES,
            place: self.core.place.clone(),
            party: self.party(),
            service: self.core.service_party(&self.id),
        }
        .pack()
    }

    /// How this worker is reached.
    pub(crate) fn party(&self) -> Party {
        let candidate = |(slot, said): (&InterfaceSlot, &Said)| Candidate {
            provider: slot.provider.name.clone(),
            domain: slot.domain.clone(),
            module: slot.module.clone(),
            priority: slot.priority,
            address: slot.address(said),
        };
        let candidates = self.interfaces.iter().zip(&self.said).map(candidate).collect();
        Party { worker: self.id, candidates, schemes: self.schemes() }
    }
}

impl InterfaceSlot {
    /// The bytes that lead a peer to this interface.
    fn address(&self, said: &Said) -> Vec<u8> {
        let broken = self.out_of_use.borrow().clone();
        said.last(|| broken.map_or_else(|| self.interface.address(), Err))
    }
}
