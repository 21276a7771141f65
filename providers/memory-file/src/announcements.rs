//! The owner's side: who is inside which region?
//!
//! A provider that copies from and to another process's memory checks the region's key there and then copies.
//! Between the two the owner may revoke the key, and whoever revoked a key wants to free the memory. So the
//! accessor announces itself first, as readers announce hazard pointers: it writes the region's *token* (a number that
//! is never used twice) into a word that the owner can read, fences, checks the key, copies, and clears the word. The
//! owner revokes the key, fences, and reads the words. Either the accessor finds the key revoked, or the owner finds
//! the token.
//!
//! The words lie in a memory file of the owner's. An accessor takes its descriptor out of the owner's process, which
//! needs the right that copying needs as well, opens the file anew, locks the slot's byte by that description, and writes its
//! number beside it. The kernel gives such a lock up when the process has ended, whatever ended it, and not before its last
//! thread is through: so a token whose slot is not locked belongs to nobody, and nobody needs to be trusted for the owner to
//! get on. An accessor that keeps its token there, because it was stopped or is hostile, keeps the owner waiting and no more.
//!
//! Locks of a process would not do: it loses them with the first descriptor of the file that it closes, and two copies of this
//! code in one process (two providers' files, two libraries) have one each. A description is shared with forked children, who keep
//! it open: there the number tells that the process has ended.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use tieline_plugin_api::Failure;

use crate::sys::{self, Mapping, PAGE};

/// One cache line for each accessor; the first one is the header.
const SLOT: usize = 64;
/// Most accessors at a time.
pub(crate) const SLOTS: usize = 4096;
pub(crate) const PER_PAGE: usize = PAGE / SLOT;
/// The length of the file. Its pages get memory when the first slot in them is claimed.
pub(crate) const LEN: usize = SLOT * SLOTS;

/// In the header: slots from this number on were never claimed.
const USED: usize = 0;
/// In the header: two words that tell the file from every other.
const NONCE: usize = 8;

/// A random number that tells one owner from another.
pub type Nonce = [u8; 16];

static NOWHERE: AtomicU64 = AtomicU64::new(0);

/// The fence between what one side has done and its look at what the other has: what stands in `word` by then is before it.
/// Tests note it: on one processor nobody notices that it is missing.
#[inline(always)]
pub(crate) fn fenced(word: &AtomicU64) {
    note(word, "fence");
    fence(Ordering::SeqCst);
}

/// A look at what an accessor says.
#[inline(always)]
fn look(word: &AtomicU64) -> u64 {
    note(word, "look");
    word.load(Ordering::SeqCst)
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
    /// This thread's fences and looks, each with what stood in its word.
    pub(crate) static STEPS: std::cell::RefCell<Vec<(&'static str, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[inline(always)]
fn word(map: &Mapping, at: usize) -> &AtomicU64 {
    map.word(at).unwrap_or(&NOWHERE) // all of them lie inside: `slot` is below SLOTS everywhere
}

/// The token of the region that the slot's accessor is inside; 0: of none.
#[inline(always)]
pub(crate) fn inside(map: &Mapping, slot: usize) -> &AtomicU64 {
    word(map, slot * SLOT)
}

/// The number of the process that has the slot, written while it has the lock; 0: nobody has.
pub(crate) fn claim(map: &Mapping, slot: usize) -> &AtomicU64 {
    word(map, slot * SLOT + 8)
}

pub(crate) fn used(map: &Mapping) -> &AtomicU64 {
    word(map, USED)
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

/// Where the accessors of one owner's regions announce themselves. Any thread.
#[derive(Debug)]
pub struct Announcements {
    fd: OwnedFd,
    map: Mapping,
}

impl Announcements {
    /// Makes the file. Accessors know it by its descriptor and by `nonce`, which nobody else has.
    ///
    /// # Errors
    /// Memory files are forbidden here, or there is no memory or descriptor.
    pub fn new(nonce: &Nonce) -> Result<Announcements, Failure> {
        let fd = sys::memory_file(c"tieline-announcements", LEN)?;
        sys::reserve(&fd, 0, PAGE)?;
        let map = Mapping::new(fd.as_fd(), LEN, true)?;
        used(&map).store(1, Ordering::Relaxed);
        for (n, half) in nonce_words(nonce).into_iter().enumerate() {
            word(&map, NONCE + n * 8).store(half, Ordering::Release);
        }
        Ok(Announcements { fd, map })
    }

    /// The number of the descriptor, for [`Accessor::open`](crate::Accessor::open).
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Bytes of memory that the file has: for as many accessors as there were at once.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let used = usize::try_from(used(&self.map).load(Ordering::Relaxed)).unwrap_or(SLOTS);
        (used.min(SLOTS) * SLOT).next_multiple_of(PAGE)
    }

    /// Whether somebody who may have found `token` valid is still inside. The caller has made the key invalid *before*;
    /// while this says `true`, call again later.
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
            // It may have left meanwhile.
            return look(place) == token;
        }
        // Its process is gone. Whoever gets the slot next finds the key revoked.
        let _ = place.compare_exchange(token, 0, Ordering::SeqCst, Ordering::SeqCst);
        false
    }

    /// Whether the slot is somebody's who has not ended.
    fn is_alive(&self, slot: usize) -> bool {
        let number = || claim(&self.map, slot).load(Ordering::SeqCst);
        match sys::is_locked(&self.fd, slot) {
            // Only its holder writes the number, and others have no more to gain by that than by its token.
            Some(locked) => locked && !sys::is_no_process(number()),
            None => {
                number() == sys::own_pid() as u64
                    || sys::is_locked_by_another_process(&self.fd, slot)
            }
        }
    }
}
