//! Registrations of this process, and remote keys.
//!
//! A registration is an entry of the table that peers read, and, unless peers may access nothing, memory of a kernel segment. While
//! registrations are few, each has a segment of its own that ends with it. Beyond that number they share one segment of all memory,
//! because each segment costs the process a walk at every unmap. A key names the entry. Segment, range and rights are in the entry,
//! so a forged or stale key reveals nothing.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tieline_memory_file::{Nonce, PeerRegistrations, Place, whole_pages};
use tieline_plugin_api::{Failure, Revoked, Status};
use tieline_single_copy::{Keys, Shared, is_inside, rejected, system};

use crate::attachments::{Attachment, Where, Whole};
use crate::device::Lease;
use crate::model::Accounts;
use crate::settings::Settings;
use crate::sys::{self, Segment};

/// The form of a packed key: magic, nonce, generation, entry.
pub(crate) const KEYS: Keys =
    Keys { provider: crate::DOMAIN, magic: *b"tl-xpme\x01", len: Keys::PLACE_LEN };
/// The number of words of an entry: segment, start of the segment, base of the region, its length, its rights.
pub(crate) const WORDS: usize = 5;

/// The state that the registrations of one domain share.
pub(crate) struct Owner {
    pub(crate) lease: Arc<Lease>,
    pub(crate) settings: Settings,
    pub(crate) shared: Shared<WORDS>,
    /// The number of registrations with a segment of their own.
    few: AtomicU64,
    /// The segment of all memory, and the number of registrations in it. The segment ends with the last of these registrations.
    all: Mutex<Option<(Segment, u64)>>,
}

impl Owner {
    pub(crate) fn new(lease: Arc<Lease>, settings: Settings) -> Result<Owner, Failure> {
        let (few, all) = (AtomicU64::new(0), Mutex::default());
        Ok(Owner { lease, settings, shared: Shared::new()?, few, all })
    }

    fn segment_of_all(&self) -> Result<Segment, Failure> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((segment, registrations)) = &mut *all {
            *registrations += 1;
            return Ok(*segment);
        }
        let made = self.lease.kernel.make(0, u64::MAX);
        let segment = made.map_err(|errno| not_made("all memory", errno))?;
        *all = Some((segment, 1));
        Ok(segment)
    }

    /// Records the end of a registration in the segment of all memory. Without registrations the segment is removed, because
    /// peers need not be able to attach everything.
    fn leave_all(&self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.take_if(|(_, registrations)| {
            *registrations -= 1;
            *registrations == 0
        });
        if let Some((segment, _)) = last {
            self.remove(segment);
        }
    }

    fn segment_of(&self, base: u64, len: u64) -> Result<Named, Failure> {
        let pages = whole_pages(base, len, self.settings.page).ok_or_else(|| {
            let text = format!("{len} bytes at {base:#x} are beyond the address space");
            Failure::new(Status::Invalid, text)
        })?;
        if !sys::may_be_attached(base, len) {
            let text = format!(
                "the kernel does not copy from {len} bytes at {base:#x} (device memory, another process's that is mapped here, \
                 or none at all): xpmem cannot make such memory available to peers"
            );
            return Err(Failure::new(Status::Unsupported, text));
        }
        if self.few.fetch_add(1, Ordering::Relaxed) < self.settings.segments {
            let made = self.lease.kernel.make(pages.start, pages.end - pages.start);
            match made {
                Ok(segment) => return Ok(Named { segment, start: pages.start, own: true }),
                // The module has no segment number left. The shared segment may already have a number.
                Err(libc::EBUSY) => {}
                Err(errno) => {
                    let _ = self.few.fetch_sub(1, Ordering::Relaxed);
                    return Err(not_made(&format!("{len} bytes at {base:#x}"), errno));
                }
            }
        }
        let _ = self.few.fetch_sub(1, Ordering::Relaxed);
        Ok(Named { segment: self.segment_of_all()?, start: 0, own: false })
    }

    fn remove(&self, segment: Segment) {
        // The only possible error is a missing segment, which has then ended.
        let _ = self.lease.kernel.remove(segment);
    }
}

/// Returns the error for a segment that could not be made.
pub(crate) fn not_made(what: &str, errno: sys::Errno) -> Failure {
    let what = format!("xpmem cannot make a segment of {what}");
    match errno {
        libc::EINVAL => {
            Failure::new(Status::Invalid, format!("{what}: it is no memory of this process"))
        }
        sys::NOT_OPENED => Failure::new(
            Status::PeerFailed,
            format!(
                "{what}: this process has closed a descriptor of the device, which ended all that it had made"
            ),
        ),
        errno => system(&what, errno),
    }
}

/// The segment that contains a registration.
#[derive(Clone, Copy)]
struct Named {
    segment: Segment,
    start: u64,
    own: bool,
}

/// Registered memory. Dropping it revokes every key that was made from it, and ends its segment if no other registration uses it.
pub struct Registration {
    owner: Arc<Owner>,
    place: Place,
    /// The segment of the registration; `None` if peers may access nothing.
    named: Option<Named>,
}

impl Registration {
    pub(crate) fn new(
        owner: &Arc<Owner>,
        base: u64,
        len: u64,
        rights: u64,
    ) -> Result<Registration, Failure> {
        let named = match len > 0 && rights != 0 {
            true => Some(owner.segment_of(base, len)?),
            false => None,
        };
        // From here on, dropping the registration releases the segment.
        let mut made =
            Registration { owner: owner.clone(), place: Place { entry: 0, generation: 0 }, named };
        let (segment, start) = named.map_or((0, 0), |named| (named.segment as u64, named.start));
        made.place = owner.shared.table.enter([segment, start, base, len, rights])?;
        Ok(made)
    }

    /// Invalidates all keys of this registration. Returns whether an access that passed the check is still in progress.
    pub(crate) fn revoke(&self) -> Revoked {
        self.owner.shared.revoke(self.place)
    }

    /// Packs the key into a buffer of its length.
    pub(crate) fn pack(&self, out: &mut [u8]) {
        KEYS.write(&self.owner.shared.nonce, self.place, out);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a forked child the segments belong to its parent.
        if !self.owner.lease.is_own() {
            return;
        }
        if self.place.generation != 0 {
            self.owner.shared.table.leave(self.place);
        }
        match self.named {
            Some(Named { segment, own: true, .. }) => {
                self.owner.remove(segment);
                let _ = self.owner.few.fetch_sub(1, Ordering::Relaxed);
            }
            Some(_) => self.owner.leave_all(),
            None => {}
        }
    }
}

/// A peer's imported key.
pub struct RemoteKey {
    pub(crate) place: Place,
    pub(crate) memory: Where,
    pub(crate) access: u64,
    /// The attachment of the last access.
    pub(crate) last: RefCell<Weak<Attachment>>,
    /// The savings so far that attaching the key's memory would have brought.
    pub(crate) accounts: RefCell<Accounts>,
    /// The whole registration, attached at the first request for a pointer.
    whole: RefCell<Option<Whole>>,
    lease: Arc<Lease>,
    table: Arc<PeerRegistrations<WORDS>>,
}

impl RemoteKey {
    /// Parses a packed key of the domain with this nonce, and reads its entry in `table`. `card` is the segment of the peer's
    /// card. Its lower half, the process number, is the same in all of the peer's segments. The region is attached in windows
    /// of length `window`.
    pub(crate) fn unpack(
        bytes: &[u8],
        (nonce, card, window): (&Nonce, Segment, u64),
        table: &Arc<PeerRegistrations<WORDS>>,
        lease: &Arc<Lease>,
    ) -> Result<RemoteKey, Failure> {
        let (place, words) = KEYS.read(bytes, nonce, table)?;
        let [segment, segment_start, base, len, access] = words;
        // The words come from the peer and may be invalid.
        let sound = base.checked_add(len).is_some() && segment_start <= base && segment as i64 >= 0;
        let theirs = segment == 0 || segment as u32 == card as u32;
        if !sound || !theirs {
            return Err(rejected("leads to an invalid entry"));
        }
        let generation = place.generation;
        let segment = segment as Segment;
        let owner = *nonce;
        let memory = Where { owner, card, generation, segment, segment_start, base, len, window };
        let (last, accounts, whole) = Default::default();
        let (lease, table) = (lease.clone(), table.clone());
        Ok(RemoteKey { place, memory, access, last, accounts, whole, lease, table })
    }

    /// Returns the owner's address of `len` bytes at `offset` of the region.
    pub(crate) fn address(&self, offset: u64, len: usize) -> Result<u64, Status> {
        is_inside(offset, len, self.memory.len)?;
        Ok(self.memory.base + offset)
    }

    /// Checks whether the registration is live.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.table.is_live(self.place)
    }

    /// Returns the local address of an owner's address, valid as long as this key exists.
    pub(crate) fn pointer(&self, address: u64) -> Result<u64, Failure> {
        let mut whole = self.whole.borrow_mut();
        let whole = match &*whole {
            Some(whole) => whole,
            None => {
                let made = self.lease.attachments.attach_whole(self.memory);
                whole.insert(made.map_err(|errno| why_not_whole(&self.memory, errno))?)
            }
        };
        whole.of(address).ok_or_else(|| Status::OutOfRange.into())
    }

    /// Releases the registration's attachments.
    pub(crate) fn forget(&self) {
        self.lease.attachments.forget(&self.memory.owner, self.memory.generation);
    }
}

impl Drop for RemoteKey {
    fn drop(&mut self) {
        // While the registration is live, its key may be imported again.
        if self.lease.is_own() && !self.is_live() {
            self.forget();
        }
    }
}

fn why_not_whole(memory: &Where, errno: sys::Errno) -> Failure {
    let what = format!("{} bytes of the peer's cannot be attached", memory.len);
    match errno {
        libc::ENOSPC => Failure::new(
            Status::NoMemory,
            format!(
                "{what}: as much is attached as TIELINE_SHM_XPMEM_CACHE and TIELINE_SHM_XPMEM_ATTACHMENTS allow"
            ),
        ),
        libc::EINVAL => {
            Failure::new(Status::KeyRejected, format!("{what}: there is no such memory"))
        }
        libc::EAGAIN => Failure::new(
            Status::NoMemory,
            format!(
                "{what}: all memory of this process is locked, and the limit of that is reached (ulimit -l)"
            ),
        ),
        libc::ENOENT => Failure::new(
            Status::Unreachable,
            format!("{what}: the owner has closed a descriptor of the device, or called exec"),
        ),
        errno => system(&what, errno),
    }
}
