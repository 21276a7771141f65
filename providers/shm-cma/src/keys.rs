//! The key table of this process, and remote keys.
//!
//! Peers read an entry directly from this process's memory for each access to its region. An entry therefore stays at its address,
//! mapped, for the life of the process; only its contents change. An entry and its key hold the same 56 bytes, the *image*. The two
//! match only while that very registration lives, because no generation is reused. They match only at the entry's own address,
//! which is part of the image. A copy elsewhere in this process is no entry, and every packed key is such a copy. The generation is
//! also the token of an announced access.

use crate::sys;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_memory_file::Announcements;
use tieline_plugin_api::process::PerProcess;
use tieline_plugin_api::{Failure, Revoked};
use tieline_single_copy::{Keys, number, rejected};

/// The length of the bytes that identify a registration: cookie, generation, base, length, access, and the address of the
/// registration's entry.
pub(crate) const IMAGE_LEN: usize = 56;
/// The length of a packed key, in bytes: magic and image.
pub(crate) const PACKED_LEN: usize = 8 + IMAGE_LEN;
/// The form of a packed key.
pub(crate) const KEYS: Keys =
    Keys { provider: crate::DOMAIN, magic: *b"tl-cma\0\x02", len: PACKED_LEN };

const ENTRIES_PER_CHUNK: usize = 64;

/// An unguessable random number that identifies one domain of one process.
pub(crate) type Cookie = [u8; 16];

/// The entry of one registration, in the form that peers read. The order of the fields is that of the image.
#[repr(C, align(64))]
struct Entry {
    cookie: [AtomicU64; 2],
    /// The generation of the registration; 0 if it was revoked or the entry is free.
    generation: AtomicU64,
    base: AtomicU64,
    len: AtomicU64,
    access: AtomicU64,
    at: AtomicU64,
}

const _: () = assert!(core::mem::offset_of!(Entry, at) + 8 == IMAGE_LEN);

impl Entry {
    fn free() -> Entry {
        let zero = || AtomicU64::new(0);
        Entry {
            cookie: [zero(), zero()],
            generation: zero(),
            base: zero(),
            len: zero(),
            access: zero(),
            at: zero(),
        }
    }
}

/// The free entries of this process. Chunks are leaked on purpose: see the module's documentation. The maximum number of concurrent
/// registrations bounds their number. A forked child starts with a new list, because its parent's entries are read in the parent.
static FREE: PerProcess<Mutex<Vec<&'static Entry>>> = PerProcess::new();
/// The number of entries of this process.
static ENTRIES: AtomicUsize = AtomicUsize::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// A live entry of the key table. Dropping it revokes every key that was made from it.
pub struct Registration {
    entry: &'static Entry,
    image: [u8; IMAGE_LEN],
    generation: u64,
    /// The file on which peers announce their accesses; `None` if peers have no access.
    announcements: Option<Arc<Announcements>>,
}

impl Registration {
    pub(crate) fn new(
        cookie: &Cookie,
        base: u64,
        len: u64,
        access: u64,
        announcements: Option<Arc<Announcements>>,
    ) -> Registration {
        let entry = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            if free.is_empty() {
                let chunk: Box<[Entry]> = (0..ENTRIES_PER_CHUNK).map(|_| Entry::free()).collect();
                free.extend(Box::leak(chunk).iter().rev());
                let _ = ENTRIES.fetch_add(ENTRIES_PER_CHUNK, Ordering::Relaxed);
            }
            free.pop()
        };
        let entry = entry.expect("the list was filled above, under the same lock");
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        let at = address_of(entry);
        let fields = [number(cookie, 0), number(cookie, 8), generation, base, len, access, at];
        entry.cookie[0].store(fields[0], Ordering::Relaxed);
        entry.cookie[1].store(fields[1], Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.access.store(access, Ordering::Relaxed);
        entry.at.store(at, Ordering::Relaxed);
        // A peer reads the entry by a system call, and compares all words. A mix of two registrations therefore matches no key; the
        // order only lets the peer of a key that has just been sent find it whole.
        entry.generation.store(generation, Ordering::Release);
        let mut image = [0; IMAGE_LEN];
        for (bytes, field) in image.chunks_exact_mut(8).zip(fields) {
            bytes.copy_from_slice(&field.to_ne_bytes());
        }
        Registration { entry, image, generation, announcements }
    }

    /// Invalidates all keys of this registration. Returns whether an access that passed the check is still in progress.
    pub(crate) fn revoke(&self) -> Revoked {
        // The counterpart is the check of an announced access. `is_inside` has the fence between the two sides (`order.rs` in
        // `memory-file`).
        let before = self.entry.generation.swap(0, Ordering::SeqCst);
        let Some(all) = &self.announcements else { return Revoked::Quiet };
        if before != 0 {
            all.count_revocation();
        }
        match all.is_inside(self.generation) {
            true => Revoked::Busy,
            false => Revoked::Quiet,
        }
    }

    /// Returns the address at which peers read the entry.
    pub(crate) fn address(&self) -> u64 {
        address_of(self.entry)
    }

    /// Packs the key into a buffer of its length.
    pub(crate) fn pack(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&KEYS.magic);
        out[8..].copy_from_slice(&self.image);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The generation is cleared first, unless it is zero already: from here on no image matches.
        let before = self.entry.generation.swap(0, Ordering::Relaxed);
        if let Some(all) = self.announcements.as_ref().filter(|_| before != 0) {
            all.count_revocation();
        }
        // The words of the entry's next registration follow the end of this one.
        fence(Ordering::SeqCst);
        for field in [&self.entry.len, &self.entry.access, &self.entry.base] {
            field.store(0, Ordering::Relaxed);
        }
        for half in &self.entry.cookie {
            half.store(0, Ordering::Relaxed);
        }
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.entry);
    }
}

/// The contents, besides the cookie, of the entry that an interface's address names. This entry grants no right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The file descriptor on which accesses are announced; `None` if there is none, and access is impossible.
    pub(crate) descriptor: Option<i32>,
}

impl Card {
    pub(crate) fn register(self, cookie: &Cookie) -> Registration {
        let descriptor = self.descriptor.map_or(u64::MAX, |number| number as u64);
        Registration::new(cookie, descriptor, 0, 0, None)
    }

    /// Parses an image. Returns `None` if the image belongs to another domain.
    pub(crate) fn read(image: &[u8; IMAGE_LEN], cookie: &Cookie) -> Option<Card> {
        let descriptor = i32::try_from(number(image, 24)).ok();
        (image[..16] == cookie[..]).then_some(Card { descriptor })
    }
}

/// A peer's imported key: the address of the peer's entry and its expected contents.
pub struct RemoteKey {
    pub(crate) entry: u64,
    pub(crate) image: [u8; IMAGE_LEN],
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) access: u64,
    pub(crate) generation: u64,
    /// The number of the owner's revocations before the entry was last found to match; 0: it was not.
    pub(crate) matched: Cell<u64>,
}

impl RemoteKey {
    /// Parses a packed key of the domain with this cookie.
    pub(crate) fn unpack(bytes: &[u8], cookie: &Cookie) -> Result<RemoteKey, Failure> {
        KEYS.check(bytes, cookie)?;
        let mut image = [0; IMAGE_LEN];
        image.copy_from_slice(&bytes[8..]);
        let key = RemoteKey {
            entry: number(&image, 48),
            base: number(&image, 24),
            len: number(&image, 32),
            access: number(&image, 40),
            generation: number(&image, 16),
            matched: Cell::new(0),
            image,
        };
        if key.generation == 0 || key.base.checked_add(key.len).is_none() {
            return Err(rejected("describes no region"));
        }
        Ok(key)
    }
}

/// Returns the bytes of the key table, which has the size for the largest number of concurrent registrations that there was.
pub(crate) fn table_bytes() -> usize {
    ENTRIES.load(Ordering::Relaxed) * size_of::<Entry>()
}

fn address_of(entry: &'static Entry) -> u64 {
    core::ptr::from_ref(entry).expose_provenance() as u64
}

/// Makes a new cookie.
pub(crate) fn cookie() -> Result<Cookie, Failure> {
    sys::random()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::Status;
    use tieline_testing::holds_in_child;

    const COOKIE: Cookie = [7; 16];

    fn packed(registration: &Registration) -> [u8; PACKED_LEN] {
        let mut bytes = [0; PACKED_LEN];
        registration.pack(&mut bytes);
        bytes
    }

    fn entry_bytes(address: u64) -> [u8; IMAGE_LEN] {
        let mut image = [0; IMAGE_LEN];
        sys::read(sys::own_pid(), address, &mut image).unwrap();
        image
    }

    #[test]
    fn a_key_matches_its_entry_until_it_is_revoked() {
        let registration = Registration::new(&COOKIE, 0x1000, 64, 3, None);
        let key = RemoteKey::unpack(&packed(&registration), &COOKIE).unwrap();
        assert_eq!((key.base, key.len, key.access), (0x1000, 64, 3));
        assert_eq!(entry_bytes(key.entry), key.image);
        drop(registration);
        assert_ne!(entry_bytes(key.entry), key.image);
    }

    #[test]
    fn a_reused_entry_does_not_match_the_old_key() {
        // Concurrent tests also take entries, so this test keeps new entries until the old one is reused.
        let first = Registration::new(&COOKIE, 0x1000, 64, 3, None);
        let old = RemoteKey::unpack(&packed(&first), &COOKIE).unwrap();
        drop(first);
        let mut held = Vec::new();
        while held.last().is_none_or(|r: &Registration| r.address() != old.entry) {
            held.push(Registration::new(&COOKIE, 0x1000, 64, 3, None));
            assert!(held.len() < 10_000, "the entry never came back");
        }
        assert_ne!(entry_bytes(old.entry), old.image);
    }

    #[test]
    fn a_forked_child_registers_while_another_thread_of_its_parent_does() {
        let ours = Registration::new(&COOKIE, 0x1000, 64, 3, None);
        let held = FREE.lock().unwrap();
        assert!(holds_in_child(|| {
            let own = Registration::new(&COOKIE, 0x2000, 64, 3, None);
            let key = RemoteKey::unpack(&packed(&own), &COOKIE).unwrap();
            entry_bytes(key.entry) == key.image && own.address() != ours.address()
        }));
        drop(held);
    }

    #[test]
    fn copy_of_an_entry_matches_no_key() {
        let registration = Registration::new(&COOKIE, 0x1000, 64, 3, None);
        let (mut key, copy) = (packed(&registration), Box::new(registration.image));
        let at = key.windows(8).position(|it| it == registration.address().to_ne_bytes()).unwrap();
        let elsewhere = core::ptr::from_ref(&*copy).expose_provenance() as u64;
        key[at..at + 8].copy_from_slice(&elsewhere.to_ne_bytes());
        let forged = RemoteKey::unpack(&key, &COOKIE).unwrap();
        assert_eq!(entry_bytes(forged.entry), *copy, "it leads to the copy");
        assert_ne!(forged.image, *copy, "and asks for another one there");
    }

    #[test]
    fn a_short_buffer_and_malformed_keys_are_refused() {
        let registration = Registration::new(&COOKIE, 0x1000, 64, 3, None);
        assert_eq!(KEYS.room(&mut [0; 63]).unwrap_err().status, Status::TooLarge);
        let good = packed(&registration);
        for bytes in [&good[..63], &[], &[0; PACKED_LEN]] {
            let refused = RemoteKey::unpack(bytes, &COOKIE).err().unwrap();
            assert_eq!(refused.status, Status::KeyRejected);
        }
        assert!(RemoteKey::unpack(&good, &[8; 16]).is_err(), "a key of another domain");
    }

    #[test]
    fn registering_from_many_threads_gives_every_one_its_own_entry() {
        let mut live: Vec<Registration> = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    scope.spawn(move || {
                        let mut kept = Vec::new();
                        for i in 0..500u64 {
                            let registration =
                                Registration::new(&COOKIE, t * 10_000 + i, 1, 1, None);
                            if i % 3 == 0 {
                                kept.push(registration);
                            }
                        }
                        kept
                    })
                })
                .collect();
            for thread in threads {
                live.extend(thread.join().unwrap());
            }
        });
        for registration in &live {
            assert_eq!(entry_bytes(registration.address()), registration.image);
        }
        let mut addresses: Vec<u64> = live.iter().map(Registration::address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), live.len());
    }
}
