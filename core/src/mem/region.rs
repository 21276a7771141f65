//! Registered memory, and the table through which peers' emulated operations access it.
//!
//! ```no_run
//! # fn main() -> Result<(), tieline::Error> {
//! let context = tieline::Context::open()?;
//! let region = context.alloc(4096)?; // zeroed; local peers access it by load and store if a provider maps it
//! region.write(0, b"hello")?;
//! let key = region.remote_key()?;    // bytes for a peer: `endpoint.import_key(&key)`
//! # Ok(()) }
//! ```
//!
//! A region belongs to its context and is usable from all of its workers. A region is deregistered by [`Region::close`], or when
//! the last clone is dropped and no operation uses it any more. After deregistration, every remote operation on the region is
//! refused.
//!
//! Memory that the library owns ([`Context::alloc`](crate::Context::alloc), [`Context::register`](crate::Context::register)) is
//! kept until no operation or peer accesses it. Memory of [`Context::register_raw`](crate::Context::register_raw) may be unmapped,
//! freed or reused only after [`Region::close`] has returned `Ok`. It is not sufficient to drop a region: operations may be in
//! progress, and peers may be in the middle of a copy.

mod close;
mod handle;
mod lent;
mod numbers;
mod sent;
mod table;
#[cfg(test)]
mod tests;

pub use close::NotClosed;
pub(crate) use close::Parked;
pub use handle::KeyHandle;
pub(crate) use lent::Counted;
pub(crate) use sent::{PartsOfTransient, Recipient};
pub(crate) use table::Table;

use super::Memory;
pub use super::access::Access;
use super::key::{Form, KeyWriter};
use crate::sys::{OwnedBuffer, Span};
use crate::wire::Writer;
use crate::{Error, Status};
use once_cell::sync::OnceCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tieline_host::abi::objects::Registered;

/// The owner of a region's bytes.
pub(crate) enum Backing {
    /// Memory allocated by a domain; its deregistration frees the memory.
    Domain,
    /// A buffer that the application transferred to the library.
    Owned(#[allow(dead_code)] OwnedBuffer), // held for its drop
    /// Memory that the application owns and has promised to keep mapped.
    Borrowed,
    /// A part of another region, which this backing keeps alive.
    Part(Region),
    /// A copy of an endpoint's outgoing data, which counts against the endpoint's budget while the copy exists.
    Copied(#[allow(dead_code)] lent::Counted), // held for its drop
}

impl Backing {
    /// Checks whether the bytes are the application's own, which it may unmap in spite of its promise.
    pub(crate) fn is_borrowed(&self) -> bool {
        match self {
            Backing::Borrowed => true,
            Backing::Part(region) => region.inner.backing.is_borrowed(),
            Backing::Domain | Backing::Owned(_) | Backing::Copied(_) => false,
        }
    }

    /// Checks whether the bytes are a part of a region whose memory this domain has allocated.
    pub(crate) fn is_part_given_by(&self, domain: usize) -> bool {
        let Backing::Part(of) = self else { return false };
        of.inner.registrations.iter().any(|one| one.gives && one.domain == domain)
    }
}

/// The registration of a region with one domain.
pub(crate) struct Registration {
    pub(crate) domain: usize,
    pub(crate) memory: Registered,
    /// Whether this domain owns the memory and frees it with the registration, which therefore ends last.
    pub(crate) gives: bool,
}

pub(crate) struct RegionState {
    pub(crate) memory: Arc<Memory>,
    pub(crate) id: u64,
    pub(crate) generation: u64,
    pub(crate) span: Span,
    pub(crate) access: Access,
    pub(crate) registrations: Vec<Registration>,
    /// The domain whose device executes atomics on the region; `None`: processors do.
    pub(crate) device_atomics: Option<usize>,
    /// The region's remote key, packed on first use.
    pub(crate) packed: OnceCell<Vec<u8>>,
    pub(crate) backing: Backing,
    /// The number of the application's handles, without the handles that the library holds for operations.
    handles: AtomicUsize,
    /// Whether all keys of the region are revoked.
    revoked: AtomicBool,
    /// The reason that a provider's later accesses to the memory cannot be excluded; `None`: there is none.
    unsure: Option<Error>,
    /// The region's parts that peers are still accessing although nothing else refers to them.
    parts: close::Parts,
    /// The region's parts that wait for their next message.
    waiting: sent::Waiting,
    /// The peer to whose messages the region belongs, as a part of another region.
    sent_to: Option<Box<sent::SentTo>>,
}

/// Registered memory. Clones share one region.
///
/// # Calls, and when each is allowed
///
/// A region belongs to its context, not to a worker. Every method may be called at any time, from any thread and inside a handler.
/// No method waits for an operation or a peer, makes progress or runs a handler. Operations of every worker of the context may use
/// a region at the same time.
///
/// * **Bytes**: [`read`](Region::read), [`write`](Region::write), [`to_vec`](Region::to_vec) and the atomic views access the memory
///   concurrently with peers. Bytes that two sides access at the same time may be torn; words of the atomic views are not.
/// * **Keys**: [`remote_key`](Region::remote_key) makes the key once and then returns the same bytes. [`handle`](Region::handle)
///   returns an 8-byte handle of the key, which is also the same for each call. [`publish`](Region::publish) makes the key available
///   under a number of the application.
/// * **End**: [`close`](Region::close) reports when no operation or peer accesses the memory any more. Dropping the last clone does
///   not report that. Pending operations hold the region, so dropping it does not end them.
///
/// In a forked child, shared memory ([`is_shared`](Region::is_shared)) is not mapped, and accessing its bytes returns `Invalid`.
/// Private memory is the child's own copy. `Invalid` is also the result of `close` and `handle`, and of `remote_key` if the key was
/// not made before the fork. Dropping the region has no effect on the parent.
pub struct Region {
    pub(crate) inner: Arc<RegionState>,
    /// Whether the library holds this handle, for an operation in progress.
    held: bool,
}

impl Clone for Region {
    fn clone(&self) -> Region {
        if !self.held {
            let _ = self.inner.handles.fetch_add(1, Ordering::Relaxed);
        }
        Region { inner: self.inner.clone(), held: self.held }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.held {
            let _ = self.inner.handles.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.inner.id, self.len())
    }
}

impl Region {
    /// Makes a handle for an operation that outlives its posting call. A region is closed only when no such handle exists.
    #[must_use]
    pub(crate) fn hold(&self) -> Region {
        Region { inner: self.inner.clone(), held: true }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.span.len()
    }

    /// Checks whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first byte. Peers may read and write the memory at any time, so a Rust reference to the memory
    /// needs the caller's own synchronization. [`Region::read`], [`Region::write`] and the atomic views need none. Memory of
    /// `Context::alloc` is not mapped in a forked child.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.span.base()
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// `OutOfRange`; `Invalid` for shared memory in a forked child.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check_mapped()?;
        self.inner.span.read(offset, out).map_err(|s| self.outside(s, offset, out.len()))
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// The errors of [`Region::read`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check_mapped()?;
        self.inner.span.write(offset, data).map_err(|s| self.outside(s, offset, data.len()))
    }

    /// Returns a copy of a range.
    ///
    /// # Errors
    /// The errors of [`Region::read`].
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let len = range.end.saturating_sub(range.start);
        // The range is checked before memory is allocated, since an invalid length may be impossible to allocate.
        let _ = self
            .inner
            .span
            .range(range.start, len)
            .map_err(|s| self.outside(s, range.start, len))?;
        let mut out = vec![0; len];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// Returns the 64-bit word at `offset`, which must be a multiple of 8. Remote atomics are atomic with respect to it, unless a
    /// device executes them (`TIELINE_ATOMICS=device`).
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`; `Invalid` for shared memory in a forked child.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.check_mapped()?;
        self.inner.span.word64(offset).map_err(|s| self.outside(s, offset, 8))
    }

    /// Returns the 32-bit word at `offset`, which must be a multiple of 4.
    ///
    /// # Errors
    /// The errors of [`Region::atomic_u64`].
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, Error> {
        self.check_mapped()?;
        self.inner.span.word32(offset).map_err(|s| self.outside(s, offset, 4))
    }

    /// Returns the remote key: the bytes by which a peer accesses this region; see `Endpoint::import_key`. The length depends on
    /// the modules that reach the memory. No two regions of a process ever have the same key.
    ///
    /// # Errors
    /// A provider's error if its device executes the region's atomics and the provider cannot make its part of the key. The part of
    /// any other provider that fails is left out. `Closed` after [`Region::close`] was called. `Invalid` for memory of
    /// [`Context::register_transient`](crate::Context::register_transient), which has no key.
    pub fn remote_key(&self) -> Result<Vec<u8>, Error> {
        self.packed_key().cloned()
    }

    /// Returns a remote key like [`Region::remote_key`] that also contains the address of the region's first byte in this process.
    /// The peer reads it by [`RemoteKey::address`](crate::RemoteKey::address), for a protocol that names remote memory by addresses.
    ///
    /// The address reveals the layout of this process's address space to everybody who has the key. Use this call only if the peers
    /// may know it. [`ContextBuilder::keys_with_addresses`](crate::ContextBuilder::keys_with_addresses) does the same for all keys of
    /// a context.
    ///
    /// # Errors
    /// The errors of [`Region::remote_key`].
    pub fn remote_key_with_address(&self) -> Result<Vec<u8>, Error> {
        self.check_keys()?;
        self.inner.memory.guard.check("a region")?;
        let mut w = Writer::default();
        self.append_key_with(&mut w, Form::Sealed, true)?;
        Ok(w.bytes)
    }

    /// Checks that the region may have keys.
    fn check_keys(&self) -> Result<(), Error> {
        if self.is_lent() {
            return Err(lent::no_key());
        }
        if self.inner.revoked.load(Ordering::Acquire) { Err(no_more_keys()) } else { Ok(()) }
    }

    pub(crate) fn packed_key(&self) -> Result<&Vec<u8>, Error> {
        self.check_keys()?;
        if self.inner.packed.get().is_none() {
            // In a forked child, a thread that does not exist there may be in the middle of packing, in the core or in a provider.
            self.inner.memory.guard.check("a region")?;
        }
        self.inner.packed.get_or_try_init(|| {
            let mut w = Writer::default();
            self.append_key(&mut w, Form::Sealed)?;
            Ok(w.bytes)
        })
    }

    /// Appends the remote key to other bytes, without keeping it.
    pub(crate) fn append_key(&self, w: &mut Writer, form: Form) -> Result<(), Error> {
        self.append_key_with(w, form, self.inner.memory.shows_addresses())
    }

    fn append_key_with(&self, w: &mut Writer, form: Form, address: bool) -> Result<(), Error> {
        let inner = &self.inner;
        if let Some(sent_to) = &inner.sent_to {
            let _ = w.raw(sent_to.key());
            return Ok(());
        }
        let whose = (&inner.memory.context, inner.id, inner.generation);
        let mut key = KeyWriter::begin(w, form, whose, self.len() as u64, inner.access);
        for registration in &inner.registrations {
            let slot = &inner.memory.domains[registration.domain];
            let is_home = Some(registration.domain) == inner.device_atomics;
            let names = (&*slot.provider.name, &*slot.name);
            let added = key.part(names, is_home, |out| registration.memory.append_key(out));
            if let Err(error) = added {
                // Atomics that are not executed by the device would not be atomic with respect to the device's own.
                if is_home {
                    return Err(error);
                }
                // Peers access the memory through the other domains, or by messages.
                let text = format!("{} provided no key of some memory: {error}", slot.name);
                inner.memory.notes.add_once(text);
            }
        }
        key.end(address.then(|| inner.span.base().addr() as u64));
        Ok(())
    }

    /// Returns an 8-byte handle for this region's [`remote_key`](Region::remote_key). The handle stays the same from the first call
    /// on. A process that has the handle and an endpoint to a worker of this context can get the key
    /// ([`Endpoint::key_by_handle`](crate::Endpoint::key_by_handle)), until the region is closed or dropped. No other region of
    /// this process ever has the same handle.
    ///
    /// # Errors
    /// The errors of [`Region::remote_key`].
    pub fn handle(&self) -> Result<KeyHandle, Error> {
        let (inner, key) = (&self.inner, self.packed_key()?);
        // The process is checked before any lock: in a forked child the lock's owner may be a thread that does not exist there.
        inner.memory.guard.check("a region")?;
        let (regions, next) = (&inner.memory.regions, || KeyHandle::next().raw());
        let handle = regions.handle(inner.id, inner.generation, key, next);
        Ok(KeyHandle::from_bytes(handle.ok_or_else(no_more_keys)?.to_le_bytes()))
    }

    /// Checks whether local peers can access the memory by load and store: memory of `Context::alloc` if a provider offers that.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.inner.backing, Backing::Domain)
    }

    /// Checks that the memory is mapped: memory of a domain is not mapped in a forked child.
    #[inline]
    fn check_mapped(&self) -> Result<(), Error> {
        if self.is_shared() { self.inner.memory.guard.check("a region") } else { Ok(()) }
    }

    /// Makes the error for bytes outside the region. The text shows a range that ends before it begins as the caller passed it.
    #[cold]
    pub(crate) fn outside(&self, status: Status, offset: usize, len: usize) -> Error {
        let is_reversed = len > isize::MAX as usize;
        let end = if is_reversed { offset.wrapping_add(len) } else { offset.saturating_add(len) };
        Error::new(
            status,
            format!("bytes {offset}..{end} of a region of {} bytes", self.len()),
            status.text(),
            "use a range inside the region, aligned for atomics",
        )
    }
}

#[cold]
fn no_more_keys() -> Error {
    Error::new(
        Status::Closed,
        "a remote key of a region that is being closed",
        "its keys are refused since the call that closes it",
        "register the memory anew once it is closed",
    )
}

impl RegionState {
    /// Makes a region of these bytes that is not in a table or a domain yet.
    pub(crate) fn new(
        memory: Arc<Memory>,
        (id, generation): (u64, u64),
        span: Span,
        access: Access,
        backing: Backing,
    ) -> RegionState {
        RegionState {
            memory,
            id,
            generation,
            span,
            access,
            registrations: Vec::new(),
            device_atomics: None,
            packed: OnceCell::new(),
            backing,
            handles: AtomicUsize::new(1),
            revoked: AtomicBool::new(false),
            unsure: None,
            parts: close::Parts::default(),
            waiting: sent::Waiting::default(),
            sent_to: None,
        }
    }

    /// Makes the region's first handle.
    pub(crate) fn into_region(self) -> Region {
        Region { inner: Arc::new(self), held: false }
    }
}
