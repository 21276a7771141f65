//! The live registrations of an owner, in a memory file that peers can read but, since Linux 5.1, not write.
//!
//! A key refers to an entry and a *generation*, a number that is never reused. The properties of the registration (length, rights,
//! the kernel's name of the region) are in the entry and not in the key. So a key can be outdated or foreign, but it never grants
//! more than its owner granted. If an entry has another generation, or 0, the key is invalid.
//!
//! The generation is also the token of an announced access: see [`Announcements`](crate::Announcements). If the owner has died,
//! readers still see the last state; a reader that needs to know asks the kernel.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use tieline_plugin_api::{Failure, Status};

use crate::announcements::Nonce;
use crate::announcements::nonce_words;
use crate::order;
use crate::sys::{self, Mapping, PAGE, SEAL_WRITERS};

/// The number of the provider's words in an entry, unless the provider specifies another number.
pub const WORDS: usize = 3;
/// The offset of the first entry. The second and third word of the file hold the nonce.
const FIRST: usize = 64;
const NONCE: usize = 8;
/// The limit on concurrent registrations.
const ENTRIES: usize = 1 << 16;

/// Returns the length of an entry with this number of words of the provider. The entry's generation precedes these words.
const fn entry_len(words: usize) -> usize {
    8 * (1 + words)
}

/// Returns the length of the file, in bytes. Its pages get memory when their first entry is used.
const fn file_len(words: usize) -> usize {
    (FIRST + ENTRIES * entry_len(words)).next_multiple_of(PAGE)
}

/// Returns the offset of an entry.
const fn start(words: usize, entry: usize) -> usize {
    FIRST + entry * entry_len(words)
}

/// Returns the offset and length of the pages that contain an entry.
const fn pages(words: usize, entry: usize) -> (usize, usize) {
    let (start, len) = (start(words, entry), entry_len(words));
    let (first, last) = (start / PAGE, (start + len - 1) / PAGE);
    (first * PAGE, (last - first + 1) * PAGE)
}

/// The entry of a registration, and the generation in the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the entry.
    pub entry: u32,
    /// The number of the registration; never 0, never reused.
    pub generation: u64,
}

static NOWHERE: AtomicU64 = AtomicU64::new(0);

fn at<const N: usize>(map: &Mapping, entry: usize, word: usize) -> &AtomicU64 {
    map.word(start(N, entry) + word * 8).unwrap_or(&NOWHERE)
}

/// The owner's side of the table. Any thread may use it. `N` words of an entry belong to the provider.
#[derive(Debug)]
pub struct Registrations<const N: usize = WORDS> {
    fd: OwnedFd,
    map: Mapping,
    room: Mutex<Room>,
}

#[derive(Debug)]
struct Room {
    free: Vec<u32>,
    /// The number of entries that were used: those below this number.
    used: u32,
    next: u64,
}

impl<const N: usize> Registrations<N> {
    /// Creates the file. Readers identify the file by its descriptor and by the unique `nonce`.
    ///
    /// # Errors
    /// Memory files are forbidden in this process, or there is no memory or descriptor.
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

    /// Returns the number of the descriptor, for [`PeerRegistrations::open`].
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Returns the memory of the file in bytes: enough for the largest number of concurrent registrations that there was.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        start(N, room.used as usize).next_multiple_of(PAGE)
    }

    /// Adds a registration to the table.
    ///
    /// # Errors
    /// The table is full, or there is no memory.
    pub fn enter(&self, words: [u64; N]) -> Result<Place, Failure> {
        // Every change below is complete before a panic can occur.
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
        at::<N>(&self.map, entry as usize, 0).store(generation, order::PUBLISH_ENTRY);
        Ok(Place { entry, generation })
    }

    /// Invalidates the keys of this registration. A reader that found a key valid before has announced itself.
    pub fn revoke(&self, place: Place) {
        at::<N>(&self.map, place.entry as usize, 0).store(0, Ordering::SeqCst);
    }

    /// Revokes the registration and frees its entry.
    pub fn leave(&self, place: Place) {
        self.revoke(place);
        // The fence orders the cleared generation before the words of the entry's next registration.
        fence(order::CLEARED);
        self.room.lock().unwrap_or_else(PoisonError::into_inner).free.push(place.entry);
    }
}

/// The reader's side of the table. Any thread may use it.
#[derive(Debug)]
pub struct PeerRegistrations<const N: usize = WORDS> {
    map: Mapping,
    /// The length of the part, from the start of the table, that was read.
    reached: AtomicUsize,
}

impl<const N: usize> PeerRegistrations<N> {
    /// Maps the table of process `pid`, which has its file open as `descriptor`.
    ///
    /// # Errors
    /// The kernel does not supply the descriptor, or the descriptor is not (any more) the file with this `nonce`.
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

    /// Returns the number of bytes of the table, from its start, that this process has mapped for reading: at most the whole table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.reached.load(Ordering::Relaxed)
    }

    /// Returns the provider's words of a live registration; `None` if it is not live.
    #[must_use]
    pub fn read(&self, place: Place) -> Option<[u64; N]> {
        let entry = usize::try_from(place.entry).ok().filter(|entry| *entry < ENTRIES)?;
        if place.generation == 0 {
            return None;
        }
        // The owner gives a page memory before using it. A page without memory is read as zeros, at this process's cost.
        let (start, len) = pages(N, entry);
        self.map.populate(start, len).ok()?;
        let _ = self.reached.fetch_max(start + len, Ordering::Relaxed);
        if at::<N>(&self.map, entry, 0).load(order::READ_ENTRY) != place.generation {
            return None;
        }
        let mut words = [0; N];
        for (n, word) in words.iter_mut().enumerate() {
            *word = at::<N>(&self.map, entry, 1 + n).load(Ordering::Relaxed);
        }
        fence(order::WAS_READ);
        // If a word is one of the entry's next registration, this check finds another generation.
        self.is_live(place).then_some(words)
    }

    /// Checks whether a registration that was [read](Self::read) is still live. A reader announces an access before it calls this
    /// function.
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
    fn registration_is_readable_until_revoked_and_old_key_stays_invalid() {
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
    fn entry_size_is_chosen_by_provider_and_other_tables_are_refused() {
        let owner = Registrations::<5>::new(&[8; 16]).unwrap();
        let (pid, descriptor) = (sys::own_pid(), owner.descriptor());
        let reader = PeerRegistrations::<5>::open(pid, descriptor, &[8; 16]).unwrap();
        // The number of entries exceeds that of the first pages, so that some entries lie in two pages.
        let all: Vec<Place> = (0..500).map(|n| owner.enter([n, 1, 2, 3, !n]).unwrap()).collect();
        for (n, place) in all.iter().enumerate() {
            assert_eq!(reader.read(*place), Some([n as u64, 1, 2, 3, !(n as u64)]));
        }
        assert!(PeerRegistrations::<6>::open(pid, descriptor, &[8; 16]).is_err());
    }
}
