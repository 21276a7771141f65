//! The accessor's side of [announcements](crate::Announcements).

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tieline_plugin_api::{Failure, Status};

use crate::announcements::{LEN, Nonce, PER_PAGE, SLOTS, claim, has_nonce, inside, used};
use crate::sys::{self, Mapping, PAGE};

/// The files of owners that this process has open. One descriptor for each, whatever asks for it: closing another one
/// of the same file would give up all locks on it.
static OPEN: Mutex<Option<Files>> = Mutex::new(None);

struct Files {
    /// A forked child begins anew: neither locks nor mappings are inherited.
    pid: i32,
    by_nonce: HashMap<Nonce, Weak<PeerFile>>,
}

fn files() -> MutexGuard<'static, Option<Files>> {
    // Every change below is complete before anything can panic.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owner's file.
#[derive(Debug)]
struct PeerFile {
    fd: OwnedFd,
    map: Mapping,
    /// The slots of this process, which its own locks do not tell apart.
    mine: Mutex<HashSet<usize>>,
}

impl PeerFile {
    fn open(pid: i32, descriptor: i32, nonce: &Nonce) -> Result<PeerFile, Failure> {
        let fd = sys::descriptor_of(pid, descriptor).map_err(|error| {
            let what = format!(
                "taking the descriptor on which accesses are announced out of process {pid} (pidfd_getfd, or \
                 /proc/{pid}/fd)"
            );
            Failure::from_io(&what, &error)
        })?;
        let stranger = || {
            let text = "the peer's descriptor for announcements is another one by now: it has closed the domain";
            Failure::new(Status::PeerFailed, text)
        };
        let map = sys::map_peer_control(&fd, LEN, true).ok_or_else(stranger)?;
        if !has_nonce(&map, nonce) {
            return Err(stranger());
        }
        Ok(PeerFile { fd, map, mine: Mutex::default() })
    }

    /// Takes a slot that nobody has, or that of a process that has ended.
    fn claim(&self) -> Option<usize> {
        let mut mine = self.mine.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = sys::own_pid() as u64;
        for left_behind in [false, true] {
            for slot in 1..SLOTS {
                if slot % PER_PAGE == 0 && self.map.populate(slot / PER_PAGE * PAGE, PAGE).is_err()
                {
                    break;
                }
                let place = claim(&self.map, slot);
                let free = if left_behind {
                    !mine.contains(&slot)
                } else {
                    place.compare_exchange(0, pid, Ordering::SeqCst, Ordering::SeqCst).is_ok()
                };
                // The lock decides; the claim only says where to try.
                if free && sys::lock(&self.fd, slot) {
                    inside(&self.map, slot).store(0, Ordering::SeqCst);
                    place.store(pid, Ordering::SeqCst);
                    let _ = used(&self.map).fetch_max(slot as u64 + 1, Ordering::SeqCst);
                    let _ = mine.insert(slot);
                    return Some(slot);
                }
            }
        }
        None
    }

    fn release(&self, slot: usize) {
        let mut mine = self.mine.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = mine.remove(&slot);
        inside(&self.map, slot).store(0, Ordering::SeqCst);
        sys::unlock(&self.fd, slot);
        claim(&self.map, slot).store(0, Ordering::SeqCst);
    }
}

/// The right to access one owner's regions, for one thread at a time.
#[derive(Debug)]
pub struct Accessor {
    /// `None` only while it is dropped.
    file: Option<Arc<PeerFile>>,
    slot: usize,
    pid: i32,
    one_thread: PhantomData<Cell<()>>,
}

impl Accessor {
    /// Claims a place among the announcements of process `pid`, which has its file open as `descriptor`.
    ///
    /// # Errors
    /// The kernel does not hand the descriptor over, it is not (any more) the file that `nonce` names, or there are
    /// as many accessors as fit.
    pub fn open(pid: i32, descriptor: i32, nonce: &Nonce) -> Result<Accessor, Failure> {
        let own = sys::own_pid();
        let mut files = files();
        if files.as_ref().is_none_or(|files| files.pid != own) {
            *files = Some(Files { pid: own, by_nonce: HashMap::new() });
        }
        let Some(known) = files.as_mut().map(|files| &mut files.by_nonce) else {
            return Err(Status::Io.into());
        };
        let file = match known.get(nonce).and_then(Weak::upgrade) {
            Some(file) => file,
            None => {
                let file = Arc::new(PeerFile::open(pid, descriptor, nonce)?);
                known.retain(|_, file| file.strong_count() > 0);
                let _ = known.insert(*nonce, Arc::downgrade(&file));
                file
            }
        };
        let Some(slot) = file.claim() else {
            let text = format!("more than {} endpoints access the peer's memory", SLOTS - 1);
            return Err(Failure::new(Status::NoMemory, text));
        };
        Ok(Accessor { file: Some(file), slot, pid: own, one_thread: PhantomData })
    }

    /// Bytes of the owner's file that are mapped here, shared by all accessors of this process: those up to this one's place.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.slot / PER_PAGE + 1) * PAGE
    }

    /// Announces an access to the region that `token` names. Check its key *after* this, then copy, then drop what
    /// this returns. One access at a time.
    #[inline]
    pub fn enter(&self, token: u64) -> Inside<'_> {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        let word = self.file.as_ref().map_or(&NOWHERE, |file| inside(&file.map, self.slot));
        word.store(token, Ordering::Relaxed);
        // The owner revokes, fences and looks here: one of the two sees the other.
        fence(Ordering::SeqCst);
        Inside { word }
    }
}

impl Drop for Accessor {
    fn drop(&mut self) {
        // Under the lock: a descriptor that is closed after another one was opened would take that one's locks along.
        let _files = files();
        if let Some(file) = self.file.take() {
            // In a forked child there is no mapping to write to.
            if sys::own_pid() == self.pid {
                file.release(self.slot);
            }
        }
    }
}

/// An access that was announced; it ends when this is dropped.
#[must_use]
pub struct Inside<'a> {
    word: &'a AtomicU64,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Announcements;

    const NONCE: Nonce = [7; 16];

    fn open(owner: &Announcements, nonce: Nonce) -> Result<Accessor, Failure> {
        Accessor::open(sys::own_pid(), owner.descriptor(), &nonce)
    }

    #[test]
    fn an_access_is_seen_from_its_announcement_to_its_end() {
        let owner = Announcements::new(&NONCE).unwrap();
        let accessor = open(&owner, NONCE).unwrap();
        let second = open(&owner, NONCE).unwrap();
        assert!(!owner.is_inside(5));
        let inside = accessor.enter(5);
        let other = second.enter(6);
        assert!(owner.is_inside(5) && owner.is_inside(6));
        assert!(!owner.is_inside(4) && !owner.is_inside(0));
        drop(inside);
        assert!(!owner.is_inside(5) && owner.is_inside(6));
        drop(other);
        assert!(!owner.is_inside(6));
    }

    #[test]
    fn a_file_of_another_owner_is_refused() {
        let owner = Announcements::new(&[1; 16]).unwrap();
        assert_eq!(open(&owner, [2; 16]).err().unwrap().status, Status::PeerFailed);
        let not_one = sys::memory_file(c"test", PAGE).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&not_one);
        let refused = Accessor::open(sys::own_pid(), descriptor, &[3; 16]).err().unwrap();
        assert_eq!(refused.status, Status::PeerFailed);
        assert!(Accessor::open(sys::own_pid(), 1 << 20, &[3; 16]).is_err());
        assert!(Accessor::open(i32::MAX, 3, &[3; 16]).is_err());
    }

    #[test]
    fn slots_are_used_again_and_end() {
        let owner = Announcements::new(&[9; 16]).unwrap();
        let mut all: Vec<Accessor> = (1..SLOTS).map(|_| open(&owner, [9; 16]).unwrap()).collect();
        assert_eq!(open(&owner, [9; 16]).err().unwrap().status, Status::NoMemory);
        drop(all.swap_remove(1000));
        let last = open(&owner, [9; 16]).unwrap();
        let _inside = last.enter(77);
        assert!(owner.is_inside(77));
    }
}
