//! Registrations of this process, and remote keys.
//!
//! A registration is a region of the driver, which pins its pages and knows its rights, and an entry of the table that
//! peers read. A key names the entry; the driver's cookie, the length and the rights stand there, so a key that was
//! made up or has grown old says nothing.

use std::sync::Arc;

use tieline_memory_file::{Announcements, Nonce, PeerRegistrations, Place, Registrations};
use tieline_plugin_api::{Failure, Revoked, Status, access};

use crate::sys::{self, Cookie, Kernel};

/// Length of a packed key: magic, nonce, generation, entry, nothing.
pub(crate) const PACKED_LEN: usize = 40;
/// The last byte is the version.
const MAGIC: [u8; 8] = *b"tl-knem\x01";

/// What registrations of one domain have in common.
pub(crate) struct Owner {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) nonce: Nonce,
    pub(crate) table: Registrations,
    pub(crate) announcements: Announcements,
    /// In a forked child the regions are its parent's.
    pid: i32,
}

impl Owner {
    pub(crate) fn new(kernel: Arc<dyn Kernel>) -> Result<Owner, Failure> {
        let nonce = sys::random()?;
        let (table, announcements) = (Registrations::new(&nonce)?, Announcements::new(&nonce)?);
        Ok(Owner { kernel, nonce, table, announcements, pid: sys::own_pid() })
    }
}

/// Registered memory; dropping it ends the region and revokes every key that was made from it.
pub struct Registration {
    owner: Arc<Owner>,
    place: Place,
    /// `None`: there is nothing that a peer may touch.
    cookie: Option<Cookie>,
}

impl Registration {
    pub(crate) fn new(
        owner: &Arc<Owner>,
        base: u64,
        len: u64,
        rights: u64,
    ) -> Result<Registration, Failure> {
        let may = |right| rights & right != 0;
        let (readable, writable) = (may(access::REMOTE_READ), may(access::REMOTE_WRITE));
        let cookie = if len > 0 && (readable || writable) {
            let made = owner.kernel.create(base, len, readable, writable);
            Some(made.map_err(|errno| why_not_pinned(base, len, errno))?)
        } else {
            None
        };
        // From here on the region ends with the registration, whatever happens.
        let mut made =
            Registration { owner: owner.clone(), place: Place { entry: 0, generation: 0 }, cookie };
        made.place = owner.table.enter([cookie.unwrap_or(0), len, rights])?;
        Ok(made)
    }

    /// No key of this registration is valid from here on; says whether somebody who found one valid is still inside.
    pub(crate) fn revoke(&self) -> Revoked {
        self.owner.table.revoke(self.place);
        if self.owner.announcements.is_inside(self.place.generation) {
            Revoked::Busy
        } else {
            Revoked::Quiet
        }
    }

    /// Writes the packed key.
    pub(crate) fn pack(&self, out: &mut [u8]) -> Result<usize, Failure> {
        let out = out.get_mut(..PACKED_LEN).ok_or_else(|| {
            let text = format!("a shm-knem key takes {PACKED_LEN} bytes and the buffer is shorter");
            Failure::new(Status::TooLarge, text)
        })?;
        out[..8].copy_from_slice(&MAGIC);
        out[8..24].copy_from_slice(&self.owner.nonce);
        out[24..32].copy_from_slice(&self.place.generation.to_ne_bytes());
        out[32..].copy_from_slice(&u64::from(self.place.entry).to_ne_bytes());
        Ok(PACKED_LEN)
    }

    /// The driver's name of the region.
    pub(crate) fn cookie(&self) -> Option<Cookie> {
        self.cookie
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if sys::own_pid() != self.owner.pid {
            return;
        }
        if self.place.generation != 0 {
            self.owner.table.leave(self.place);
        }
        if let Some(cookie) = self.cookie {
            // It can only say that there is no such region; then it has ended.
            let _ = self.owner.kernel.destroy(cookie);
        }
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
        errno => Failure::from_io(&what, &std::io::Error::from_raw_os_error(errno)),
    }
}

/// A peer's key after import.
#[derive(Debug)]
pub struct RemoteKey {
    pub(crate) place: Place,
    pub(crate) cookie: Cookie,
    pub(crate) len: u64,
    pub(crate) access: u64,
}

impl RemoteKey {
    /// Reads a packed key of the domain that `nonce` names, and what `table` says of it.
    pub(crate) fn unpack(
        bytes: &[u8],
        nonce: &Nonce,
        table: &PeerRegistrations,
    ) -> Result<RemoteKey, Failure> {
        let rejected =
            |why: &str| Failure::new(Status::KeyRejected, format!("the remote key {why}"));
        let bytes: &[u8; PACKED_LEN] = bytes.try_into().map_err(|_| {
            rejected(&format!("is {} bytes long; a shm-knem key has {PACKED_LEN}", bytes.len()))
        })?;
        if bytes[..8] != MAGIC {
            return Err(rejected("is not one of shm-knem"));
        }
        if bytes[8..24] != nonce[..] {
            return Err(rejected(
                "belongs to another process or context than this endpoint's peer",
            ));
        }
        let half = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(number)
        };
        let gone = || rejected("names no region that is registered now");
        let entry = u32::try_from(half(32)).map_err(|_| gone())?;
        let place = Place { entry, generation: half(24) };
        let [cookie, len, access] = table.read(place).ok_or_else(gone)?;
        Ok(RemoteKey { place, cookie, len, access })
    }

    /// Whether the region holds `len` bytes at `offset`.
    pub(crate) fn holds(&self, offset: u64, len: usize) -> Result<(), Status> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Status::OutOfRange),
        }
    }
}
