//! The worker's address, assembled from the addresses of its modules.

use super::WorkerState;
use crate::Error;
use crate::address::{CONNECTS_ONLY, Candidate, WorkerAddress, WorkerEntry};
use crate::interface::{InterfaceSlot, Said};
use crate::wireup::MAX_IDENTITY;
use tieline_plugin_api::Status;

impl WorkerState {
    /// Returns the bytes of this worker's address.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        let core = &self.shared.core;
        WorkerAddress {
            context: core.id,
            messages: crate::address::MESSAGES,
            location: core.location().clone(),
            entry: self.entry(),
            service: core.service_entry(&self.shared.id),
            polls_often: core.promises_to_poll(),
            name: self.known_name().map_or_else(Box::default, |name| name.as_bytes().into()),
        }
        .pack()
    }

    /// Returns the bytes of this worker's address for wire-up requests.
    ///
    /// # Errors
    /// `TooLarge` if no request can carry the address: the peer could not answer a truncated one.
    pub(crate) fn identity_to_carry(&self) -> Result<Vec<u8>, Error> {
        let identity = self.identity()?;
        if identity.len() <= MAX_IDENTITY {
            return Ok(identity);
        }
        Err(Error::new(
            Status::TooLarge,
            "this worker's address does not fit into a request for a connection",
            format!("it has {} bytes, and a request carries {MAX_IDENTITY}", identity.len()),
            "leave providers or devices out (TIELINE_PROVIDERS), or do without a progress thread",
        ))
    }

    /// Returns the worker's candidates and schemes.
    pub(crate) fn entry(&self) -> WorkerEntry {
        let candidate = |(slot, said): (&InterfaceSlot, &Said)| Candidate {
            provider: slot.provider.name.clone(),
            domain: slot.domain.clone(),
            module: slot.module.clone(),
            priority: match slot.roles.message || slot.roles.memory {
                true => slot.priority.max(CONNECTS_ONLY + 1),
                false => CONNECTS_ONLY,
            },
            address: slot.address(said),
        };
        let candidates = self.shared.interfaces.iter().zip(&self.said).map(candidate).collect();
        WorkerEntry { worker: self.shared.id, candidates, schemes: self.schemes() }
    }
}
