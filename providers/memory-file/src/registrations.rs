//! Which registrations of an owner live, in a memory file that peers read and cannot write.
//!
//! A key names an entry and a *generation*, a number that is never used twice; what the key is for (length, rights, the
//! kernel's name of the region) stands in the entry and not in the key, so that a key can be old or foreign but never
//! say more than its owner granted. An entry whose generation is another one, or 0, is not the key's any more.
//!
//! The generation is also the token of an announced access: see [`Announcements`](crate::Announcements). A reader whose
//! owner has died goes on seeing the last state; who needs to know that asks the kernel.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use tieline_plugin_api::{Failure, Status};

use crate::announcements::Nonce;
use crate::announcements::nonce_words;
use crate::sys::{self, Mapping, PAGE, SEAL_WRITERS};

/// Words of an entry that are the provider's, where it says no other number.
pub const WORDS: usize = 3;
/// The first entry's place; before it, in the second and third word, the nonce.
const FIRST: usize = 64;
const NONCE: usize = 8;
/// Most registrations that live at a time.
const ENTRIES: usize = 1 << 16;

/// An entry of so many words of the provider's: its generation stands before them.
const fn entry_len(words: usize) -> usize {
    8 * (1 + words)
}

/// The length of the file. Its pages get memory when the first entry in them is used.
const fn file_len(words: usize) -> usize {
    (FIRST + ENTRIES * entry_len(words)).next_multiple_of(PAGE)
}

/// Where an entry begins.
const fn start(words: usize, entry: usize) -> usize {
    FIRST + entry * entry_len(words)
}

/// The pages that an entry lies in: where they begin, and their length.
const fn pages(words: usize, entry: usize) -> (usize, usize) {
    let (start, len) = (start(words, entry), entry_len(words));
    let (first, last) = (start / PAGE, (start + len - 1) / PAGE);
    (first * PAGE, (last - first + 1) * PAGE)
}

/// Where an entry is, and whose it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the entry.
    pub entry: u32,
    /// The number of the registration; never 0, never used twice.
    pub generation: u64,
}

static NOWHERE: AtomicU64 = AtomicU64::new(0);

fn at<const N: usize>(map: &Mapping, entry: usize, word: usize) -> &AtomicU64 {
    map.word(start(N, entry) + word * 8).unwrap_or(&NOWHERE)
}

/// The owner's side. Any thread. `N` words of an entry are the provider's.
#[derive(Debug)]
pub struct Registrations<const N: usize = WORDS> {
    fd: OwnedFd,
    map: Mapping,
    room: Mutex<Room>,
}

#[derive(Debug)]
struct Room {
    free: Vec<u32>,
    /// Entries below this number were used.
    used: u32,
    next: u64,
}

impl<const N: usize> Registrations<N> {
    /// Makes the file. Readers know it by its descriptor and by `nonce`, which nobody else has.
    ///
    /// # Errors
    /// Memory files are forbidden here, or there is no memory or descriptor.
    pub fn new(nonce: &Nonce) -> Result<Registrations<N>, Failure> {
        let fd = sys::memory_file(c"tieline-registrations", file_len(N))?;
        let map = Mapping::new(fd.as_fd(), file_len(N), true)?;
        sys::reserve(&fd, 0, PAGE)?;
        for (n, half) in nonce_words(nonce).into_iter().enumerate() {
            map.word(NONCE + n * 8).unwrap_or(&NOWHERE).store(half, Ordering::Release);
        }
        sys::seal(&fd, SEAL_WRITERS)?;
        let room = Mutex::new(Room { free: Vec::new(), used: 0, next: 1 });
        Ok(Registrations { fd, map, room })
    }

    /// The number of the descriptor, for [`PeerRegistrations::open`].
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Bytes of memory that the file has: for as many registrations as have lived at once.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        start(N, room.used as usize).next_multiple_of(PAGE)
    }

    /// Enters a registration.
    ///
    /// # Errors
    /// As many live as fit, or there is no memory.
    pub fn enter(&self, words: [u64; N]) -> Result<Place, Failure> {
        // Every change below is complete before anything can panic.
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match room.free.pop() {
            Some(entry) => entry,
            None if room.used as usize == ENTRIES => {
                let text = format!("more than {ENTRIES} registrations of one context live at once");
                return Err(Failure::new(Status::NoMemory, text));
            }
            None => {
                let (start, len) = pages(N, room.used as usize);
                self.map.populate(start, len)?;
                room.used += 1;
                room.used - 1
            }
        };
        let generation = room.next;
        room.next += 1;
        for (n, word) in words.into_iter().enumerate() {
            at::<N>(&self.map, entry as usize, 1 + n).store(word, Ordering::Relaxed);
        }
        at::<N>(&self.map, entry as usize, 0).store(generation, Ordering::Release);
        Ok(Place { entry, generation })
    }

    /// No key of this registration is valid from here on. Whoever found it valid before has announced itself.
    pub fn revoke(&self, place: Place) {
        at::<N>(&self.map, place.entry as usize, 0).store(0, Ordering::SeqCst);
    }

    /// Revokes, and gives the entry to the next registration.
    pub fn leave(&self, place: Place) {
        self.revoke(place);
        // A reader that still sees the old generation behind new words was before them in the order.
        fence(Ordering::SeqCst);
        self.room.lock().unwrap_or_else(PoisonError::into_inner).free.push(place.entry);
    }
}

/// A reader's side. Any thread.
#[derive(Debug)]
pub struct PeerRegistrations<const N: usize = WORDS> {
    map: Mapping,
    /// Bytes from the start on that were looked at.
    reached: AtomicUsize,
}

impl<const N: usize> PeerRegistrations<N> {
    /// Maps the table of process `pid`, which has its file open as `descriptor`.
    ///
    /// # Errors
    /// The kernel does not hand the descriptor over, or it is not (any more) the file that `nonce` names.
    pub fn open(pid: i32, descriptor: i32, nonce: &Nonce) -> Result<PeerRegistrations<N>, Failure> {
        let fd = sys::descriptor_of(pid, descriptor).map_err(|error| {
            let what = format!(
                "taking the descriptor of the key table out of process {pid} (pidfd_getfd, or /proc/{pid}/fd)"
            );
            Failure::from_io(&what, &error)
        })?;
        let map = sys::map_peer_control(&fd, file_len(N), false);
        let is_theirs = |map: &Mapping| {
            nonce_words(nonce).into_iter().enumerate().all(|(n, half)| {
                map.word(NONCE + n * 8).is_some_and(|word| word.load(Ordering::Acquire) == half)
            })
        };
        let opened = |map| PeerRegistrations { map, reached: AtomicUsize::new(PAGE) };
        map.filter(is_theirs).map(opened).ok_or_else(|| {
            let text = "the peer's descriptor for its key table is another one by now: it has closed the domain";
            Failure::new(Status::PeerFailed, text)
        })
    }

    /// Bytes of the table, from its start on, that were mapped here for what was read: at most those of the whole table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.reached.load(Ordering::Relaxed)
    }

    /// The provider's words of a registration that lives; `None`: it does not.
    #[must_use]
    pub fn read(&self, place: Place) -> Option<[u64; N]> {
        let entry = usize::try_from(place.entry).ok().filter(|entry| *entry < ENTRIES)?;
        if place.generation == 0 {
            return None;
        }
        // The owner gives a page memory before it uses it; one without any is read as zeros, at our cost.
        let (start, len) = pages(N, entry);
        self.map.populate(start, len).ok()?;
        let _ = self.reached.fetch_max(start + len, Ordering::Relaxed);
        if at::<N>(&self.map, entry, 0).load(Ordering::Acquire) != place.generation {
            return None;
        }
        let mut words = [0; N];
        for (n, word) in words.iter_mut().enumerate() {
            *word = at::<N>(&self.map, entry, 1 + n).load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        // Words of the next registration come only after a generation of its own or none.
        self.is_live(place).then_some(words)
    }

    /// Whether a registration that was [read](Self::read) lives. For an access: announce it, then ask.
    #[inline]
    #[must_use]
    pub fn is_live(&self, place: Place) -> bool {
        at::<N>(&self.map, place.entry as usize, 0).load(Ordering::SeqCst) == place.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Registrations, PeerRegistrations) {
        let owner = Registrations::new(&[5; 16]).unwrap();
        let reader = PeerRegistrations::open(sys::own_pid(), owner.descriptor(), &[5; 16]).unwrap();
        (owner, reader)
    }

    #[test]
    fn a_registration_is_read_until_it_is_revoked_and_its_entry_is_never_the_old_keys_again() {
        let (owner, reader) = both();
        let first = owner.enter([1, 2, 3]).unwrap();
        let second = owner.enter([4, 5, 6]).unwrap();
        assert_eq!((reader.read(first), reader.read(second)), (Some([1, 2, 3]), Some([4, 5, 6])));
        owner.revoke(first);
        assert!(!reader.is_live(first) && reader.is_live(second));
        assert_eq!(reader.read(first), None);
        owner.leave(first);
        let third = owner.enter([7, 8, 9]).unwrap();
        assert_eq!(third.entry, first.entry, "the entry is used again");
        assert_ne!(third.generation, first.generation);
        assert_eq!((reader.read(first), reader.read(third)), (None, Some([7, 8, 9])));
    }

    #[test]
    fn a_key_that_names_nothing_reads_nothing() {
        let (owner, reader) = both();
        let place = owner.enter([1, 2, 3]).unwrap();
        for wrong in [
            Place { generation: 0, ..place },
            Place { generation: place.generation + 1, ..place },
            Place { entry: place.entry + 1, generation: 0 },
            Place { entry: ENTRIES as u32, ..place },
            Place { entry: u32::MAX, ..place },
        ] {
            assert_eq!(reader.read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_reader_cannot_write_and_another_owners_table_is_refused() {
        let (owner, _) = both();
        let open = |descriptor, nonce| {
            PeerRegistrations::<WORDS>::open(sys::own_pid(), descriptor, &nonce)
        };
        let refused = open(owner.descriptor(), [6; 16]);
        assert_eq!(refused.err().unwrap().status, Status::PeerFailed);
        assert!(open(1 << 20, [5; 16]).is_err());
        let fd = sys::descriptor_of(sys::own_pid(), owner.descriptor()).unwrap();
        assert!(sys::is_write_sealed(&fd));
        assert!(sys::map_peer_control(&fd, file_len(WORDS), true).is_none());
    }

    #[test]
    fn entries_end_and_come_back() {
        let (owner, reader) = both();
        let all: Vec<Place> = (0..ENTRIES as u64).map(|n| owner.enter([n; 3]).unwrap()).collect();
        assert_eq!(owner.enter([0; 3]).unwrap_err().status, Status::NoMemory);
        assert_eq!(reader.read(all[ENTRIES - 1]), Some([ENTRIES as u64 - 1; 3]));
        assert_eq!((owner.bytes(), reader.bytes()), (file_len(3), file_len(3)));
        owner.leave(all[77]);
        assert_eq!(owner.enter([9; 3]).unwrap().entry, all[77].entry);
    }

    #[test]
    fn entries_have_as_many_words_as_their_provider_says_and_a_table_of_other_ones_is_refused() {
        let owner = Registrations::<5>::new(&[8; 16]).unwrap();
        let (pid, descriptor) = (sys::own_pid(), owner.descriptor());
        let reader = PeerRegistrations::<5>::open(pid, descriptor, &[8; 16]).unwrap();
        // More than fit into the first pages, so that some lie in two.
        let all: Vec<Place> = (0..500).map(|n| owner.enter([n, 1, 2, 3, !n]).unwrap()).collect();
        for (n, place) in all.iter().enumerate() {
            assert_eq!(reader.read(*place), Some([n as u64, 1, 2, 3, !(n as u64)]));
        }
        assert!(PeerRegistrations::<6>::open(pid, descriptor, &[8; 16]).is_err());
    }
}
