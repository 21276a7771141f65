//! The accessor's side of [announcements](crate::Announcements).

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tieline_plugin_api::process::{Mark, PerProcess};
use tieline_plugin_api::{Failure, Status};

use crate::announcements::{
    LEN, Nonce, PER_PAGE, SLOTS, claim, fenced, has_nonce, inside, revocations, used,
};
use crate::order;
use crate::sys::{self, AddressSpace, Holder, Mapping, PAGE};

/// The files of owners that this process has open, with one descriptor each for all users. If the locks belong to the process,
/// closing another descriptor of the same file would release all of them. A forked child starts with an empty list, because it does
/// not inherit the mappings.
static OPEN: PerProcess<Mutex<HashMap<Nonce, Weak<PeerFile>>>> = PerProcess::new();

fn files() -> MutexGuard<'static, HashMap<Nonce, Weak<PeerFile>>> {
    // Every change below is complete before a panic can occur.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owner's file.
#[derive(Debug)]
struct PeerFile {
    fd: OwnedFd,
    /// The owner of the locks that are taken through this file.
    holder: Holder,
    map: Mapping,
    /// The owner's address space, opened before the nonce was found; `None` if the kernel does not let this process open it.
    space: Option<AddressSpace>,
    /// The slots that were locked through this file: these locks do not exclude their own holder.
    mine: Mutex<HashSet<usize>>,
}

impl PeerFile {
    fn open(pid: i32, descriptor: i32, nonce: &Nonce) -> Result<PeerFile, Failure> {
        let space = AddressSpace::open(pid);
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
        // The received description belongs to the owner, so locks through it would be the owner's. Not every sandbox supports such
        // locks.
        let has_locks = |fd: &OwnedFd| sys::is_locked(fd, 0).is_some();
        let (fd, holder) = match sys::reopened(&fd).filter(has_locks) {
            Some(own) => (own, Holder::Description),
            None => (fd, Holder::Process),
        };
        Ok(PeerFile { fd, holder, map, space, mine: Mutex::default() })
    }

    /// Claims a free slot, or the slot of a process that has ended.
    fn claim(&self) -> Option<usize> {
        let mut mine = self.mine.lock().unwrap_or_else(PoisonError::into_inner);
        for left_behind in [false, true] {
            for slot in 1..SLOTS {
                if slot % PER_PAGE == 0 && self.map.populate(slot / PER_PAGE * PAGE, PAGE).is_err()
                {
                    break;
                }
                // The lock decides; the process number only suggests where to try first.
                let number = claim(&self.map, slot);
                let free = left_behind || number.load(Ordering::SeqCst) == 0;
                if free && !mine.contains(&slot) && sys::lock(&self.fd, self.holder, slot) {
                    inside(&self.map, slot).store(0, Ordering::SeqCst);
                    number.store(sys::own_pid() as u64, Ordering::SeqCst);
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
        // The number is cleared before the unlock: afterwards the slot may belong to another accessor.
        let (number, pid) = (claim(&self.map, slot), sys::own_pid() as u64);
        let _ = number.compare_exchange(pid, 0, Ordering::SeqCst, Ordering::SeqCst);
        sys::unlock(&self.fd, self.holder, slot);
    }
}

/// The right to access one owner's regions, for one thread at a time.
#[derive(Debug)]
pub struct Accessor {
    /// The owner's file; `None` only during the drop.
    file: Option<Arc<PeerFile>>,
    slot: usize,
    mark: Mark,
    one_thread: PhantomData<Cell<()>>,
}

impl Accessor {
    /// Claims a slot in the announcements of process `pid`, which has its announcement file open as `descriptor`.
    ///
    /// # Errors
    /// The kernel does not supply the descriptor, the descriptor is not (any more) the file with this `nonce`, or all slots are
    /// taken.
    pub fn open(pid: i32, descriptor: i32, nonce: &Nonce) -> Result<Accessor, Failure> {
        let mut known = files();
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
        Ok(Accessor { file: Some(file), slot, mark: Mark::new(), one_thread: PhantomData })
    }

    /// Returns the number of bytes of the owner's file that this process has mapped, up to this accessor's slot. All accessors of
    /// this process share the mapping.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.slot / PER_PAGE + 1) * PAGE
    }

    /// Announces an access to the region with this `token`. The caller checks the region's key *after* this call, copies, and drops
    /// the returned value. An accessor makes one access at a time.
    #[inline]
    pub fn enter(&self, token: u64) -> Inside<'_> {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        let word = self.file.as_ref().map_or(&NOWHERE, |file| inside(&file.map, self.slot));
        word.store(token, Ordering::Relaxed);
        // The owner revokes, fences and reads this word: at least one side sees the other's step.
        fenced(word);
        Inside { word }
    }

    /// Returns the number of the owner's revocations, for [`is_unchanged`](Accessor::is_unchanged). Call it inside an access, before the
    /// check of a key. The result is 0 if the owner does not count them.
    #[inline]
    #[must_use]
    pub fn revocations(&self, _announced: &Inside<'_>) -> u64 {
        self.file.as_ref().map_or(0, |file| revocations(&file.map).load(order::COUNTED))
    }

    /// Checks whether a key that was found valid after [`revocations`](Accessor::revocations) had returned `before` is still valid: the owner
    /// has revoked nothing since then, and its process still has the same memory. `false` means that the key has to be checked again.
    #[inline]
    #[must_use]
    pub fn is_unchanged(&self, before: u64, announced: &Inside<'_>) -> bool {
        let is_alive =
            |file: &Arc<PeerFile>| file.space.as_ref().is_some_and(AddressSpace::is_in_use);
        before != 0
            && self.revocations(announced) == before
            && self.file.as_ref().is_some_and(is_alive)
    }
}

impl Drop for Accessor {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if !self.mark.is_here() {
            // In a forked child there is no mapping to write to, and closing the descriptor could release locks of the child
            // itself.
            core::mem::forget(file);
            return;
        }
        // The list stays locked until the file is dropped. If another thread opened a descriptor of the file before this one is
        // closed, the close could release the locks taken through the other.
        let _files = files();
        file.release(self.slot);
        drop(file);
    }
}

/// An announced access, which ends when this value is dropped.
#[must_use]
pub struct Inside<'a> {
    word: &'a AtomicU64,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        fence(order::LEFT);
        self.word.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Announcements;
    use tieline_testing::holds_in_child;

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
    fn owner_is_unchanged_until_it_counts_a_revocation() {
        let owner = Announcements::new(&[17; 16]).unwrap();
        let accessor = open(&owner, [17; 16]).unwrap();
        let inside = accessor.enter(5);
        let before = accessor.revocations(&inside);
        assert!(accessor.is_unchanged(before, &inside));
        assert!(!accessor.is_unchanged(0, &inside), "an owner that does not count");
        owner.count_revocation();
        assert!(!accessor.is_unchanged(before, &inside));
        let now = accessor.revocations(&inside);
        assert!(accessor.is_unchanged(now, &inside));
        drop(inside);
        // The kernel did not let this process open the address space.
        let file = PeerFile { space: None, ..file_of(&owner, [17; 16]) };
        let slot = file.claim().unwrap();
        let (file, mark) = (Some(Arc::new(file)), Mark::new());
        let accessor = Accessor { file, slot, mark, one_thread: PhantomData };
        let inside = accessor.enter(5);
        assert!(!accessor.is_unchanged(now, &inside));
    }

    #[test]
    fn accessor_and_owner_fence_between_store_and_load() {
        use crate::announcements::STEPS;
        let owner = Announcements::new(&[8; 16]).unwrap();
        let accessor = open(&owner, [8; 16]).unwrap();
        let _ = STEPS.take();
        let inside = accessor.enter(5);
        assert_eq!(STEPS.take(), [("fence", 5)], "it is announced by then");
        assert!(!owner.is_inside(4));
        let steps: Vec<_> = STEPS.take().iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, ["fence", "look"]);
        drop(inside);
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

    #[test]
    fn both_sides_report_pages_of_slots_ever_claimed() {
        let owner = Announcements::new(&[10; 16]).unwrap();
        assert_eq!(owner.bytes(), PAGE, "the header");
        // The first slot of the first page is the header.
        let all: Vec<Accessor> = (1..=PER_PAGE).map(|_| open(&owner, [10; 16]).unwrap()).collect();
        let (first, last) = (&all[..PER_PAGE - 1], &all[PER_PAGE - 1]);
        assert!(first.iter().all(|accessor| accessor.bytes() == PAGE));
        assert_eq!((last.bytes(), owner.bytes()), (2 * PAGE, 2 * PAGE));
        drop(all);
        assert_eq!(owner.bytes(), 2 * PAGE, "that memory stays");
        assert_eq!(open(&owner, [10; 16]).unwrap().slot, 1);
    }

    #[test]
    fn files_of_owners_without_accessors_are_closed() {
        for n in 100..120 {
            let owner = Announcements::new(&[n; 16]).unwrap();
            let accessor = open(&owner, [n; 16]).unwrap();
            let is_known = |n| files().contains_key(&[n; 16]);
            assert!(is_known(n) && !is_known(n - 1));
            drop(accessor);
        }
    }

    /// Returns the file state of another copy of this code in this process, which does not share `OPEN`.
    fn file_of(owner: &Announcements, nonce: Nonce) -> PeerFile {
        PeerFile::open(sys::own_pid(), owner.descriptor(), &nonce).unwrap()
    }

    #[test]
    fn two_copies_of_this_code_in_one_process_keep_each_others_announcements() {
        let owner = Announcements::new(&[11; 16]).unwrap();
        let (one, two) = (file_of(&owner, [11; 16]), file_of(&owner, [11; 16]));
        assert_eq!(one.holder, Holder::Description);
        let (first, second) = (one.claim().unwrap(), two.claim().unwrap());
        assert_ne!(first, second);
        inside(&one.map, first).store(4, Ordering::SeqCst);
        inside(&two.map, second).store(5, Ordering::SeqCst);
        drop(one);
        assert!(owner.is_inside(5), "though a descriptor of the file was closed here");
        assert!(!owner.is_inside(4), "its copy was unloaded in the middle");
        two.release(second);
        assert!(!owner.is_inside(5));
    }

    #[test]
    fn a_number_beside_a_token_that_nobody_has_locked_holds_no_owner() {
        let owner = Announcements::new(&[12; 16]).unwrap();
        let (gone, there) = (file_of(&owner, [12; 16]), file_of(&owner, [12; 16]));
        let slot = gone.claim().unwrap();
        inside(&gone.map, slot).store(5, Ordering::SeqCst);
        assert!(owner.is_inside(5));
        drop(gone);
        claim(&there.map, slot).store(sys::own_pid() as u64, Ordering::SeqCst);
        assert!(!owner.is_inside(5), "the owner's own number says nothing");
        assert_eq!(inside(&there.map, slot).load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_lock_that_a_forked_child_keeps_ends_with_the_process_that_took_it() {
        let owner = Announcements::new(&[13; 16]).unwrap();
        let file = file_of(&owner, [13; 16]);
        let slot = file.claim().unwrap();
        inside(&file.map, slot).store(5, Ordering::SeqCst);
        let _childs = file.fd.try_clone().unwrap();
        let mut ended = std::process::Command::new("true").spawn().expect("true");
        let number = u64::from(ended.id());
        assert!(ended.wait().is_ok());
        let there = file_of(&owner, [13; 16]);
        drop(file);
        assert!(owner.is_inside(5), "its process lives");
        claim(&there.map, slot).store(number, Ordering::SeqCst);
        assert!(!owner.is_inside(5));
    }

    #[test]
    fn a_forked_child_finds_no_lock_held_and_leaves_its_parents_place() {
        let owner = Announcements::new(&[18; 16]).unwrap();
        let mut ours = Some(Accessor::open(sys::own_pid(), owner.descriptor(), &[18; 16]).unwrap());
        let file = file_of(&owner, [18; 16]);
        let place = ours.as_ref().unwrap().slot;
        let number = claim(&file.map, place).load(Ordering::SeqCst);
        let held = files();
        assert!(holds_in_child(|| {
            let own = Accessor::open(sys::own_pid(), owner.descriptor(), &[18; 16]).unwrap();
            ours = None;
            own.slot != place
        }));
        drop(held);
        assert_eq!(claim(&file.map, place).load(Ordering::SeqCst), number);
        let entered = ours.as_ref().unwrap().enter(5);
        assert!(owner.is_inside(5));
        drop(entered);
    }

    #[test]
    fn locks_of_the_process_serve_where_the_file_cannot_be_opened_anew() {
        let owner = Announcements::new(&[14; 16]).unwrap();
        let fd = sys::descriptor_of(sys::own_pid(), owner.descriptor()).unwrap();
        let map = sys::map_peer_control(&fd, LEN, true).unwrap();
        let file =
            PeerFile { fd, holder: Holder::Process, map, space: None, mine: Mutex::default() };
        let slots = [file.claim().unwrap(), file.claim().unwrap()];
        assert_ne!(slots[0], slots[1]);
        inside(&file.map, slots[1]).store(5, Ordering::SeqCst);
        assert!(owner.is_inside(5));
        let other = file_of(&owner, [14; 16]).claim().unwrap();
        assert!(!slots.contains(&other), "the two ways keep each other out");
    }

    #[test]
    fn released_slot_clears_only_its_own_number() {
        let owner = Announcements::new(&[15; 16]).unwrap();
        let file = file_of(&owner, [15; 16]);
        let (first, second) = (file.claim().unwrap(), file.claim().unwrap());
        claim(&file.map, second).store(77, Ordering::SeqCst);
        file.release(first);
        file.release(second);
        let numbers = [first, second].map(|slot| claim(&file.map, slot).load(Ordering::SeqCst));
        assert_eq!(numbers, [0, 77]);
    }

    #[test]
    fn token_of_previous_holder_is_cleared_on_claim() {
        let owner = Announcements::new(&[16; 16]).unwrap();
        let (before, file) = (file_of(&owner, [16; 16]), file_of(&owner, [16; 16]));
        let slot = before.claim().unwrap();
        inside(&before.map, slot).store(5, Ordering::SeqCst);
        claim(&before.map, slot).store(0, Ordering::SeqCst);
        drop(before);
        assert_eq!(file.claim(), Some(slot), "nobody has it");
        assert!(!owner.is_inside(5), "who has it now has announced nothing");
        assert_eq!(inside(&file.map, slot).load(Ordering::SeqCst), 0);
    }
}
