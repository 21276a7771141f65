//! A worker's address, made of the addresses of its modules.

use super::Inner;
use crate::Error;
use crate::address::{Candidate, WorkerAddress, WorkerEntry};
use crate::interface::{InterfaceSlot, Said};

impl Inner {
    /// The bytes of this worker's address.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        let core = &self.shared.core;
        WorkerAddress {
            context: core.id,
            messages: crate::address::MESSAGES,
            location: core.location.clone(),
            entry: self.entry(),
            service: core.service_entry(&self.shared.id),
            polls_often: core.promises_to_poll(),
        }
        .pack()
    }

    /// How this worker is reached.
    pub(crate) fn entry(&self) -> WorkerEntry {
        let candidate = |(slot, said): (&InterfaceSlot, &Said)| Candidate {
            provider: slot.provider.name.clone(),
            domain: slot.domain.clone(),
            module: slot.module.clone(),
            priority: slot.priority,
            address: slot.address(said),
        };
        let candidates = self.shared.interfaces.iter().zip(&self.said).map(candidate).collect();
        WorkerEntry { worker: self.shared.id, candidates, schemes: self.schemes() }
    }
}
