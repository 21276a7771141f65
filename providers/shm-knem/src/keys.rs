//! Registrations of this process, and remote keys.
//!
//! A registration that was exposed to peers has two parts. A region of the driver pins the registration's pages and records its
//! rights. An entry of the table is the part that peers read. A key names the entry. The driver's cookie, the length and the rights
//! are in the entry, so a forged or stale key reveals nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_memory_file::{Nonce, PeerRegistrations, Place};
use tieline_plugin_api::process::Mark;
use tieline_plugin_api::{Failure, Revoked, Status, access};
use tieline_single_copy::{Keys, Shared, system};

use crate::hold::{self, Hold};
use crate::sys::{self, Cookie, Kernel};

/// The form of a packed key: magic, nonce, generation, entry, padding.
pub(crate) const KEYS: Keys =
    Keys { provider: crate::DOMAIN, magic: *b"tl-knem\x01", len: Keys::PLACE_LEN };

/// The state that the registrations of one domain share.
pub(crate) struct Owner {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) shared: Shared<3>,
    /// The mark of the process that made the regions: in a forked child the regions belong to its parent.
    mark: Mark,
}

impl Owner {
    pub(crate) fn new(kernel: Arc<dyn Kernel>) -> Result<Owner, Failure> {
        Ok(Owner { kernel, shared: Shared::new()?, mark: Mark::new() })
    }
}

/// Registered memory. Dropping it ends the region and revokes every key that was made from it.
///
/// The driver's region is made with the first key. Only a key gives a peer access, so memory without a key, such as the source
/// of puts, need not be pinned. At registration it is unknown for which peers keys will be made, and whether `shm-cma` would
/// serve them.
pub struct Registration {
    owner: Arc<Owner>,
    base: u64,
    len: u64,
    rights: u64,
    offered: Mutex<Offered>,
}

/// A region of the driver, and the hold on its pages.
#[derive(Debug)]
struct Pinned {
    cookie: Cookie,
    hold: Hold,
}

/// The part of a registration that peers can access.
enum Offered {
    /// The registration is not exposed yet.
    NotYet,
    /// The registration has this entry and this region of the driver. `None` means that peers may access nothing.
    As(Place, Option<Pinned>),
    /// The registration was revoked before any key was made.
    NoMore,
}

impl Registration {
    pub(crate) fn new(owner: &Arc<Owner>, base: u64, len: u64, rights: u64) -> Registration {
        let offered = Mutex::new(Offered::NotYet);
        Registration { owner: owner.clone(), base, len, rights, offered }
    }

    fn offered(&self) -> MutexGuard<'_, Offered> {
        // Every change is one assignment.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exposes the memory to peers, unless it is exposed already. Fails if the region was revoked.
    pub(crate) fn offer(&self) -> Result<(Place, Option<Cookie>), Failure> {
        let mut offered = self.offered();
        match &*offered {
            Offered::As(place, pinned) => {
                return Ok((*place, pinned.as_ref().map(|pinned| pinned.cookie)));
            }
            Offered::NoMore => return Err(Failure::new(Status::Closed, "the region was revoked")),
            Offered::NotYet => {}
        }
        let (kernel, base, len) = (&self.owner.kernel, self.base, self.len);
        let may = |right| self.rights & right != 0;
        let (readable, writable) = (may(access::REMOTE_READ), may(access::REMOTE_WRITE));
        let pinned = if len > 0 && (readable || writable) {
            Some(Pinned::new(&**kernel, base, len, readable, writable)?)
        } else {
            None
        };
        let cookie = pinned.as_ref().map(|pinned| pinned.cookie);
        match self.owner.shared.table.enter([cookie.unwrap_or(0), len, self.rights]) {
            Ok(place) => {
                *offered = Offered::As(place, pinned);
                Ok((place, cookie))
            }
            Err(failure) => {
                let _ = pinned.map(|pinned| pinned.end(&**kernel));
                Err(failure)
            }
        }
    }

    /// Invalidates all keys of this registration. Returns whether an access that passed the check is still in progress.
    pub(crate) fn revoke(&self) -> Revoked {
        let mut offered = self.offered();
        let place = match &*offered {
            Offered::As(place, _) => *place,
            Offered::NotYet | Offered::NoMore => {
                *offered = Offered::NoMore;
                return Revoked::Quiet;
            }
        };
        self.owner.shared.revoke(place)
    }

    /// Packs the key into a buffer of its length.
    pub(crate) fn pack(&self, out: &mut [u8]) -> Result<(), Failure> {
        let (place, _) = self.offer()?;
        KEYS.write(&self.owner.shared.nonce, place, out);
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.owner.mark.is_here() {
            return;
        }
        let ended = core::mem::replace(&mut *self.offered(), Offered::NoMore);
        let Offered::As(place, pinned) = ended else { return };
        self.owner.shared.table.leave(place);
        let _ = pinned.map(|pinned| pinned.end(&*self.owner.kernel));
    }
}

impl Pinned {
    /// Makes the region. It holds the pages first, because the driver pins the pages that it finds.
    fn new(
        kernel: &dyn Kernel,
        base: u64,
        len: u64,
        readable: bool,
        writable: bool,
    ) -> Result<Pinned, Failure> {
        let held = kernel.hold(base, len);
        let hold = held.map_err(|errno| hold::why_not_held(base, len, errno))?;
        match kernel.create(base, len, readable, writable) {
            Ok(cookie) => Ok(Pinned { cookie, hold }),
            Err(errno) => {
                kernel.release(hold);
                Err(why_not_pinned(base, len, errno))
            }
        }
    }

    fn end(self, kernel: &dyn Kernel) {
        // The only possible error is a missing region, which has then ended.
        let _ = kernel.destroy(self.cookie);
        kernel.release(self.hold);
    }
}

fn why_not_pinned(base: u64, len: u64, errno: sys::Errno) -> Failure {
    let what = format!("knem does not pin {len} bytes at {base:#x}");
    match errno {
        libc::EFAULT | libc::EINVAL => Failure::new(
            Status::Invalid,
            format!(
                "{what}: a part is not mapped, cannot be written though REMOTE_WRITE was asked for, or is a device's"
            ),
        ),
        errno => system(&what, errno),
    }
}

/// A peer's imported key.
#[derive(Debug)]
pub struct RemoteKey {
    pub(crate) place: Place,
    pub(crate) cookie: Cookie,
    pub(crate) len: u64,
    pub(crate) access: u64,
}

impl RemoteKey {
    /// Parses a packed key of the domain with this nonce, and reads its entry in `table`.
    pub(crate) fn unpack(
        bytes: &[u8],
        nonce: &Nonce,
        table: &PeerRegistrations,
    ) -> Result<RemoteKey, Failure> {
        let (place, [cookie, len, access]) = KEYS.read(bytes, nonce, table)?;
        Ok(RemoteKey { place, cookie, len, access })
    }
}
