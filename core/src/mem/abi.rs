//! Regions that keep their memory alive, or the region of which they are a part.

#![allow(unsafe_code)]

use super::DomainSlot;
use super::Memory;
use super::access::Access;
use super::region::{Backing, Counted, Region, Registration};
use crate::Error;
use crate::sys::{OwnedBuffer, Span};
use std::ops::Range;
use std::sync::Arc;
use tieline_host::abi::objects::Registered;

impl Memory {
    /// Registers a buffer, which the region owns.
    pub(crate) fn register_owned(
        self: &Arc<Self>,
        buffer: OwnedBuffer,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: the buffer becomes the region's backing, which exists until nothing uses the region's span any more.
        let span = unsafe { buffer.span() };
        self.register(span, access, Backing::Owned(buffer))
    }

    /// Makes a transient region for the local memory of operations, without registration.
    pub(crate) fn lend_owned(self: &Arc<Self>, buffer: OwnedBuffer) -> Result<Region, Error> {
        // SAFETY: the buffer becomes the region's backing, which exists until nothing uses the region's span any more.
        let span = unsafe { buffer.span() };
        self.lend(span, Backing::Owned(buffer))
    }

    /// Registers a copy of bytes that peers may get.
    pub(crate) fn readable_copy(self: &Arc<Self>, copy: Counted) -> Result<Region, Error> {
        // SAFETY: the copy becomes the region's backing, which exists until nothing uses the region's span any more.
        let span = unsafe { copy.buffer().span() };
        self.register(span, Access::READ, Backing::Copied(copy))
    }

    /// Makes a region for peers from a part of a region; peers can access only that part. The part is accessible as long as the
    /// returned region exists. `wanted` selects the domains.
    pub(crate) fn part_for_peers(
        self: &Arc<Self>,
        of: &Region,
        range: Range<usize>,
        access: Access,
        wanted: impl Fn(&DomainSlot) -> bool,
    ) -> Result<Region, Error> {
        let (span, backing) = part(of, range)?;
        self.register_in(span, access, backing, wanted)
    }

    /// Makes a region from a part of a region for a peer that shares a copy over one domain, registered only with that domain.
    pub(crate) fn part_for_copy(
        self: &Arc<Self>,
        of: &Region,
        range: Range<usize>,
        access: Access,
        (provider, domain): (&str, &str),
    ) -> Result<Region, Error> {
        let (span, backing) = part(of, range)?;
        self.register_in(span, access, backing, |slot| {
            (&*slot.provider.name, &*slot.name) == (provider, domain)
        })
    }

    /// Registers memory that a domain allocated.
    pub(super) fn register_given(
        self: &Arc<Self>,
        domain: usize,
        memory: Registered,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: the region owns the registration, and ends it after all other registrations have ended and nothing uses the
        // region's span any more.
        let span = unsafe { memory.span() };
        let given = Registration { domain, memory, gives: true };
        self.complete(span, access, Some(given), Backing::Domain, |_| true)
    }
}

/// Returns a part of a region, and the backing that keeps the part alive.
fn part(of: &Region, range: Range<usize>) -> Result<(Span, Backing), Error> {
    of.check_lends_parts()?;
    // SAFETY: the region made of the two values holds the region of which it is a part.
    let span = unsafe { of.inner.span.part(range.start, range.len()) }?;
    Ok((span, Backing::Part(of.hold())))
}
