//! Registrations of local memory, for providers whose device accesses only registered memory. A [`Lender`] registers memory that
//! the application did not register itself, for the time of an operation or longer (a transient registration). An [`Arena`] holds
//! the provider's own buffers, many in one registration. [`key`] has the common part of remote keys.
//!
//! ```
//! use std::sync::Arc;
//! use tieline_plugin_api::Failure;
//! use tieline_registration::{Device, Lender, Limits};
//!
//! struct Adapter;
//! impl Device for Adapter {
//!     type Registration = u32; // a local key; a real registration ends when it is dropped
//!     fn register(&self, base: *mut u8, len: usize, written: bool) -> Result<u32, Failure> {
//! #       let _ = (base, len, written);
//!         Ok(7)
//!     }
//! }
//!
//! # fn main() -> Result<(), Failure> {
//! let limits = Limits { keep: false, bytes: 1 << 30, entries: 1024 };
//! let lender = Arc::new(Lender::new(Adapter, Some(limits)));
//! let mut memory = [0u8; 100];
//! let (loan, key) = lender.lend(memory.as_mut_ptr(), 100, true, |registration| *registration)?;
//! assert_eq!(key, 7);
//! drop(loan); // when the operation has ended
//! # Ok(()) }
//! ```
//!
//! Any thread may make any call. No system call is made under a lock.

mod arena;
mod cache;
pub mod key;
#[cfg(test)]
mod lender_tests;
mod sys;

pub use arena::{Arena, Piece};
pub use cache::Limits;
use cache::{Cache, Ticket};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_plugin_api::{Failure, Status};

/// The smallest size of a page, in bytes. Shared registrations cover whole pages: the kernel pins no less, and neighbours on one
/// page share a registration.
const PAGE: u64 = 4096;

/// The device that registers memory.
pub trait Device {
    /// A registration, which ends when it is dropped.
    type Registration;

    /// Registers `len` bytes at `base`. For an operation, the caller of the provider guarantees the memory until the operation has
    /// ended. `written` states whether the device will write to the memory.
    ///
    /// # Errors
    /// Errors of the system or the device. `NoMemory` states that a limit on locked memory is reached: the caller evicts unused
    /// registrations and, if there were any, retries once.
    fn register(
        &self,
        base: *mut u8,
        len: usize,
        written: bool,
    ) -> Result<Self::Registration, Failure>;
}

/// A source of registrations, each lent for the time of one operation.
pub struct Lender<D: Device> {
    device: D,
    /// The cache; `None` if every operation gets its own registration.
    cache: Option<Mutex<Cache<D::Registration>>>,
}

/// A registration for the time of one operation.
pub struct Loan<D: Device>(Held<D>);

enum Held<D: Device> {
    /// A registration that is not shared.
    Own { _registration: D::Registration },
    /// A registration that is shared through the cache.
    Shared { lender: Arc<Lender<D>>, ticket: Option<Ticket> },
}

impl<D: Device> Drop for Held<D> {
    fn drop(&mut self) {
        let Held::Shared { lender, ticket } = self else { return };
        let Some(ticket) = ticket.take() else { return };
        // The registration is destroyed after the lock is released, because that is a system call.
        let gone = lender.cache().and_then(|mut cache| cache.release(ticket));
        drop(gone);
    }
}

impl<D: Device> Lender<D> {
    /// Makes a lender with these limits; without limits it shares nothing.
    pub fn new(device: D, limits: Option<Limits>) -> Lender<D> {
        Lender { device, cache: limits.map(|limits| Mutex::new(Cache::new(limits))) }
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn cache(&self) -> Option<MutexGuard<'_, Cache<D::Registration>>> {
        self.cache.as_ref().map(|cache| cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `make`, which registers memory. If the result is `NoMemory`, evicts all unused registrations and, if there were any,
    /// calls `make` once more.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn pressed<T>(&self, make: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        make().or_else(|failure| {
            if failure.status != Status::NoMemory {
                return Err(failure);
            }
            let idle = self.cache().map(|mut cache| cache.forget_idle()).unwrap_or_default();
            if idle.is_empty() {
                return Err(failure);
            }
            drop(idle);
            make()
        })
    }

    /// Forgets the registrations of memory whose use its owner ends, and which the owner may unmap. These registrations are not
    /// found any more. Existing loans stay valid.
    pub fn forget(&self, start: u64, end: u64) {
        let gone = self.cache().map(|mut cache| cache.forget(start, end));
        drop(gone);
    }

    /// Returns a registration that covers the memory, and the result of `look` for this registration (its local key).
    ///
    /// # Errors
    /// The error of the device.
    pub fn lend<T>(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        written: bool,
        look: impl Fn(&D::Registration) -> T,
    ) -> Result<(Loan<D>, T), Failure> {
        let addr = base.expose_provenance() as u64;
        let (start, end) = (addr & !(PAGE - 1), (addr + len as u64).next_multiple_of(PAGE));
        let shared = |ticket| Loan(Held::Shared { lender: self.clone(), ticket: Some(ticket) });
        let own = |registration| Loan(Held::Own { _registration: registration });
        let room = match self.cache() {
            None => false,
            Some(mut cache) => {
                if let Some((ticket, registration)) = cache.find(start, end, written) {
                    let seen = look(registration);
                    return Ok((shared(ticket), seen));
                }
                let (gone, room) = cache.make_room(end - start);
                drop(cache);
                drop(gone);
                room
            }
        };
        if !room {
            let registration = self.pressed(|| self.device.register(base, len, written))?;
            let seen = look(&registration);
            return Ok((own(registration), seen));
        }
        let whole = base.wrapping_sub((addr - start) as usize);
        let registration =
            self.pressed(|| self.device.register(whole, (end - start) as usize, written))?;
        let seen = look(&registration);
        // If another thread has taken the room meanwhile, this registration is not shared.
        let Some(mut cache) = self.cache() else { return Ok((own(registration), seen)) };
        let (gone, room) = cache.make_room(end - start);
        let loan = match room {
            true => shared(cache.insert(start, end, written, registration)),
            false => own(registration),
        };
        drop(cache);
        drop(gone);
        Ok((loan, seen))
    }
}

impl<D: Device> fmt::Debug for Lender<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").field("shares", &self.cache.is_some()).finish_non_exhaustive()
    }
}

impl<D: Device> fmt::Debug for Loan<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = matches!(self.0, Held::Shared { .. });
        f.debug_struct("Loan").field("shared", &shared).finish_non_exhaustive()
    }
}
