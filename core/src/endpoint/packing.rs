//! Calls of an application's packer. Meanwhile a provider is inside of the endpoint that packs. The packer may make progress and
//! close the worker; what ends its connection then must not close that endpoint under the provider. It is closed when it has packed.

use super::inner::{Inner, Packing};
use crate::{Error, Status};

/// An endpoint that packs, until this is dropped: a packer may panic.
pub(super) struct Packs<'a> {
    endpoint: &'a Inner,
    /// A packer may send on the endpoint that it packs for.
    before: Packing,
}

impl Inner {
    #[inline]
    pub(super) fn begin_packing(&self) -> Packs<'_> {
        Packs { endpoint: self, before: self.packing.replace(Packing::Yes) }
    }

    /// Whether it packs; then it leaves its circuits when it has packed.
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

/// The error of a packer that says that it wrote more than it was given room for.
#[cold]
pub(super) fn packed_too_much(max_len: usize) -> Error {
    Error::new(
        Status::Invalid,
        format!("a message of at most {max_len} bytes"),
        "its packer says that it wrote more than that",
        "ask for as much room as it needs, and return what it wrote",
    )
}
