//! The owner's side of announced accesses: finds out which accessors are inside a region.
//!
//! A provider that copies from and to another process's memory checks the region's key in that memory and then copies. Between the
//! two steps the owner may revoke the key, in order to free the memory. So the accessor announces itself first, as readers announce
//! hazard pointers. It writes the region's *token*, a number that is never reused, into a word that the owner can read. Then it
//! fences, checks the key, copies, and clears the word. The owner revokes the key, fences, and reads the words. Either the accessor
//! finds the key revoked, or the owner finds the token.
//!
//! The words lie in a memory file of the owner. An accessor takes the file's descriptor out of the owner's process, which requires
//! the same right as copying does. It opens the file anew, locks the slot's byte through that description, and writes its process
//! number next to it. The kernel releases such a lock when the process has ended for any reason, and not before its last thread has
//! finished. So a token in an unlocked slot belongs to no process, and an accessor that has ended does not block the owner. An
//! accessor that keeps its token, because it was stopped or is hostile, only keeps the owner waiting.
//!
//! Locks owned by the process serve only if the file cannot be opened anew, as in some sandboxes. A process loses them when it
//! closes the first descriptor of the file. Two copies of this code in one process (two provider files, two libraries) have one
//! descriptor each. Forked children share a description and keep it open; then the number shows that the process has ended.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use tieline_plugin_api::Failure;

use crate::order;
use crate::sys::{self, Mapping, PAGE};

/// The size of an accessor's slot: one cache line. The first slot is the header.
const SLOT: usize = 64;
/// The number of slots. All but the first one are for accessors.
pub(crate) const SLOTS: usize = 4096;
pub(crate) const PER_PAGE: usize = PAGE / SLOT;
/// The length of the file, in bytes. Its pages get memory when their first slot is claimed.
pub(crate) const LEN: usize = SLOT * SLOTS;

/// The offset, in the header, of the number from which on slots were never claimed.
const USED: usize = 0;
/// The offset, in the header, of two words that identify the file.
const NONCE: usize = 8;

/// The offset, in the header, of the number of revocations plus one. An owner that does not count them has 0 there.
const REVOKED: usize = 24;

/// A random number that identifies an owner.
pub type Nonce = [u8; 16];

static NOWHERE: AtomicU64 = AtomicU64::new(0);

/// Executes the fence between a side's own store and its read of the other side's word. The value of `word` at that time comes
/// before the read. Tests record the fence, because a single processor does not show its absence.
#[inline(always)]
pub(crate) fn fenced(word: &AtomicU64) {
    note(word, "fence");
    fence(order::ANNOUNCED);
}

/// Reads an accessor's announcement.
#[inline(always)]
fn look(word: &AtomicU64) -> u64 {
    note(word, "look");
    word.load(order::LOOK)
}

#[cfg(not(test))]
#[inline(always)]
fn note(_: &AtomicU64, _: &str) {}

#[cfg(test)]
fn note(word: &AtomicU64, step: &'static str) {
    STEPS.with_borrow_mut(|steps| steps.push((step, word.load(Ordering::Relaxed))));
}

#[cfg(test)]
thread_local! {
    /// This thread's fences and reads, each with the value of its word.
    pub(crate) static STEPS: std::cell::RefCell<Vec<(&'static str, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[inline(always)]
fn word(map: &Mapping, at: usize) -> &AtomicU64 {
    map.word(at).unwrap_or(&NOWHERE) // always inside, because `slot` is below SLOTS everywhere
}

/// Returns the word with the token of the region that the slot's accessor is inside; 0 means none.
#[inline(always)]
pub(crate) fn inside(map: &Mapping, slot: usize) -> &AtomicU64 {
    word(map, slot * SLOT)
}

/// Returns the word with the process number of the slot's holder, written while the holder has the lock; 0 means that the slot is
/// free.
pub(crate) fn claim(map: &Mapping, slot: usize) -> &AtomicU64 {
    word(map, slot * SLOT + 8)
}

pub(crate) fn used(map: &Mapping) -> &AtomicU64 {
    word(map, USED)
}

pub(crate) fn revocations(map: &Mapping) -> &AtomicU64 {
    word(map, REVOKED)
}

pub(crate) fn nonce_words(nonce: &Nonce) -> [u64; 2] {
    let half = |at: usize| nonce[at..at + 8].iter().fold(0, |sum, &b| sum << 8 | u64::from(b));
    [half(0), half(8)]
}

pub(crate) fn has_nonce(map: &Mapping, nonce: &Nonce) -> bool {
    let [a, b] = nonce_words(nonce);
    word(map, NONCE).load(Ordering::Relaxed) == a
        && word(map, NONCE + 8).load(Ordering::Relaxed) == b
}

/// The file in which the accessors of one owner's regions announce themselves. Any thread may use it.
#[derive(Debug)]
pub struct Announcements {
    fd: OwnedFd,
    map: Mapping,
}

impl Announcements {
    /// Creates the file. Accessors identify it by its descriptor and by the unique `nonce`.
    ///
    /// # Errors
    /// Memory files are forbidden in this process, or there is no memory or descriptor.
    pub fn new(nonce: &Nonce) -> Result<Announcements, Failure> {
        let fd = sys::memory_file(c"tieline-announcements", LEN)?;
        sys::reserve(&fd, 0, PAGE)?;
        let map = Mapping::new(fd.as_fd(), LEN, true)?;
        used(&map).store(1, Ordering::Relaxed);
        revocations(&map).store(1, Ordering::Relaxed);
        for (n, half) in nonce_words(nonce).into_iter().enumerate() {
            word(&map, NONCE + n * 8).store(half, Ordering::Release);
        }
        Ok(Announcements { fd, map })
    }

    /// Returns the number of the descriptor, for [`Accessor::open`](crate::Accessor::open).
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Returns the memory of the file in bytes: the pages up to the highest slot that was ever claimed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let used = usize::try_from(used(&self.map).load(Ordering::Relaxed)).unwrap_or(SLOTS);
        (used.min(SLOTS) * SLOT).next_multiple_of(PAGE)
    }

    /// Counts a revocation. The caller has made the key invalid before. Afterwards, [`Accessor::is_unchanged`](crate::Accessor::is_unchanged)
    /// is false for each accessor that checked the key before.
    pub fn count_revocation(&self) {
        let _ = revocations(&self.map).fetch_add(1, order::COUNT_REVOCATION);
    }

    /// Checks whether an accessor that may have found `token` valid is still inside. The caller must have made the key invalid
    /// *before*. If the result is `true`, the caller calls again later.
    #[must_use]
    pub fn is_inside(&self, token: u64) -> bool {
        let used = used(&self.map);
        fenced(used);
        let used = usize::try_from(used.load(Ordering::SeqCst)).unwrap_or(SLOTS);
        (1..used.min(SLOTS)).any(|slot| self.holds(slot, token))
    }

    fn holds(&self, slot: usize, token: u64) -> bool {
        let place = inside(&self.map, slot);
        if token == 0 || look(place) != token {
            return false;
        }
        if self.is_alive(slot) {
            // The accessor may have left meanwhile.
            return look(place) == token;
        }
        // The accessor's process has ended. The next holder of the slot finds the key revoked.
        let _ = place.compare_exchange(token, 0, Ordering::SeqCst, Ordering::SeqCst);
        false
    }

    /// Checks whether the slot's holder is a process that has not ended.
    fn is_alive(&self, slot: usize) -> bool {
        let number = || claim(&self.map, slot).load(Ordering::SeqCst);
        match sys::is_locked(&self.fd, slot) {
            // Only the holder writes the number, and a false number gains the holder no more than a false token.
            Some(locked) => locked && !sys::is_no_process(number()),
            None => {
                number() == sys::own_pid() as u64
                    || sys::is_locked_by_another_process(&self.fd, slot)
            }
        }
    }
}
