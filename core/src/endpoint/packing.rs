//! Calls of an application's packer, which a provider makes in the middle of a call on the endpoint. The packer may make progress
//! and close the worker. If the connection ends meanwhile, the provider's endpoint must not be closed while the provider uses it.
//! The core releases it after the packer has returned.

use super::inner::{EndpointState, Packing};
use crate::{Error, Status};

/// A mark of an endpoint whose packer runs, which the drop removes, because a packer may panic.
pub(super) struct Packs<'a> {
    endpoint: &'a EndpointState,
    /// The previous state, because a packer may send on the same endpoint.
    before: Packing,
}

impl EndpointState {
    #[inline]
    pub(super) fn begin_packing(&self) -> Packs<'_> {
        Packs { endpoint: self, before: self.packing.replace(Packing::Yes) }
    }

    /// Checks whether the endpoint's packer runs. If it runs, the endpoint leaves its circuits when the packer has returned.
    pub(super) fn packs(&self) -> bool {
        let packs = self.packing.get() != Packing::No;
        if packs {
            self.packing.set(Packing::Leaves);
        }
        packs
    }

    #[cold]
    fn leave_after_packing(&self, before: Packing) {
        match before {
            Packing::No => self.worker.drop_dead_circuits_of(self),
            _ => self.packing.set(Packing::Leaves),
        }
    }
}

impl Drop for Packs<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.endpoint.packing.replace(self.before) == Packing::Leaves {
            self.endpoint.leave_after_packing(self.before);
        }
    }
}

/// Makes the error for a packer that reports more bytes than its buffer holds.
#[cold]
pub(super) fn packed_too_much(max_len: usize) -> Error {
    Error::new(
        Status::Invalid,
        format!("a message of at most {max_len} bytes"),
        "its packer reported more bytes than that",
        "ask for as much room as it needs, and return what it wrote",
    )
}
