//! Transient registrations: regions that operations use in place, without a registration or a key. Peers get keys only of
//! registered parts of such a region. Also the counted copies for rendezvous messages, and the return of a region's buffer.

use super::table::UNREGISTERED;
use super::{Access, Backing, NotClosed, Region, RegionState};
use crate::mem::Memory;
use crate::sys::{OwnedBuffer, Span};
use crate::{Error, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A copy whose bytes count against an endpoint's budget while the copy exists.
pub(crate) struct Counted {
    buffer: OwnedBuffer,
    count: Arc<AtomicUsize>,
}

impl Counted {
    pub(crate) fn new(bytes: Box<[u8]>, count: &Arc<AtomicUsize>) -> Counted {
        let _ = count.fetch_add(bytes.len(), Ordering::Relaxed);
        Counted { buffer: OwnedBuffer::new(bytes), count: count.clone() }
    }
}

impl Counted {
    pub(in crate::mem) fn buffer(&self) -> &OwnedBuffer {
        &self.buffer
    }

    /// Leaks the memory; the endpoint continues without it.
    pub(super) fn forget(self) {
        let _ = self.count.fetch_sub(self.buffer.len(), Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.count.fetch_sub(self.buffer.len(), Ordering::Relaxed);
    }
}

impl Memory {
    /// Makes a region of memory for operations of this context, without any registration.
    pub(crate) fn lend(self: &Arc<Self>, span: Span, backing: Backing) -> Result<Region, Error> {
        self.guard.check("a context")?;
        let inner = RegionState::new(self.clone(), (UNREGISTERED, 0), span, Access::LOCAL, backing);
        Ok(inner.into_region())
    }
}

impl Region {
    /// Checks that peers may get keys of parts of the region, which is refused once the region is being closed.
    pub(in crate::mem) fn check_lends_parts(&self) -> Result<(), Error> {
        if self.inner.revoked.load(Ordering::Acquire) { Err(being_closed()) } else { Ok(()) }
    }

    /// Checks whether the region is not registered anywhere.
    pub(crate) fn is_lent(&self) -> bool {
        self.inner.id == UNREGISTERED
    }

    /// Closes the region like [`Region::close`], and returns the buffer given to
    /// [`Context::register_transient`](crate::Context::register_transient) or [`Context::register`](crate::Context::register).
    ///
    /// # Errors
    /// The errors of [`Region::close`]: a pending operation holds the region, or one that has failed with a provider still at work.
    /// `Invalid` for memory that was never a buffer: memory of [`Context::alloc`](crate::Context::alloc), or memory that the
    /// application owns. With `Invalid`, the region is unchanged and not closed.
    pub fn into_buffer(self) -> Result<Box<[u8]>, NotClosed> {
        let mut region = self;
        // The backing is checked before the close: a domain frees its memory with the registrations, so the region could not be
        // returned afterwards.
        if !matches!(&region.inner.backing, Backing::Owned(buffer) if buffer.is_box()) {
            return Err(NotClosed { region, error: not_a_buffer() });
        }
        if let Err(error) = region.try_close() {
            return Err(NotClosed { region, error });
        }
        // The region is closed, so no other handle exists.
        let ended = Arc::get_mut(&mut region.inner);
        let backing = ended.map(|inner| std::mem::replace(&mut inner.backing, Backing::Borrowed));
        let buffer = match backing {
            Some(Backing::Owned(buffer)) => buffer.into_box(),
            _ => None,
        };
        buffer.ok_or_else(|| NotClosed { region, error: not_a_buffer() })
    }
}

#[cold]
fn not_a_buffer() -> Error {
    Error::new(
        Status::Invalid,
        "a region without a buffer",
        "its memory is the application's own, or shared with peers",
        "read its bytes by a copy, and close it",
    )
}

#[cold]
fn being_closed() -> Error {
    Error::new(
        Status::Busy,
        "a part of a region for peers that is being closed",
        "no new key of it is issued after the call that closes it",
        "close it first, and use other memory or register it anew",
    )
}

#[cold]
pub(super) fn no_key() -> Error {
    Error::new(
        Status::Invalid,
        "a remote key of a transient registration",
        "it is local memory of operations, and registered nowhere",
        "register it in the context for peers to reach",
    )
}
