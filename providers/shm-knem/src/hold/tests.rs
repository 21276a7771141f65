//! Tests of held pages over the real kernel, by plain references to the pages, and of the setting for forks.

use super::*;
use crate::double::plain::{Child, Kind, Memory, PAGE, Reference};

const KINDS: [Kind; 3] = [Kind::Anonymous, Kind::PrivateFile, Kind::Shared];

/// The lock that lets one test run at a time: a fork in another test would also fork this test's memory.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a holder, or `None` if the machine cannot have one.
fn holder(forks: Forks) -> Option<Holder> {
    let holder = Holder::open(forks);
    holder.inspect_err(|why| println!("skipped: {why}")).ok()
}

/// The time of the owner's fork. The child lives until the end of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fork {
    Never,
    BeforeTheReference,
    AfterTheReference,
}

/// Checks whether a reference that was taken under these conditions leads to the owner's latest stores.
fn leads_to_the_owner(holder: Option<&Holder>, kind: Kind, filled: bool, fork: Fork) -> bool {
    let memory = Memory::of(kind, 3);
    if filled {
        memory.fill(0x11);
    }
    let early = (fork == Fork::BeforeTheReference).then(Child::fork);
    let hold = holder.map(|holder| holder.hold(memory.base() + 5, memory.len() - 9).unwrap());
    let reference = Reference::to(&memory);
    let late = (fork == Fork::AfterTheReference).then(Child::fork);
    memory.fill(0x5a);
    let leads = reference.bytes().iter().all(|byte| *byte == 0x5a);
    drop((early, late));
    if let (Some(holder), Some(hold)) = (holder, hold) {
        holder.release(hold);
    }
    leads
}

#[test]
fn reference_to_held_pages_sees_the_owners_stores() {
    let _alone = alone();
    let Some(holder) = holder(Forks::Allowed) else { return };
    let mut astray = 0;
    for kind in KINDS {
        for filled in [false, true] {
            for fork in [Fork::Never, Fork::BeforeTheReference, Fork::AfterTheReference] {
                assert!(
                    leads_to_the_owner(Some(&holder), kind, filled, fork),
                    "{kind:?}, filled before: {filled}, fork: {fork:?}"
                );
                astray += usize::from(!leads_to_the_owner(None, kind, filled, fork));
            }
        }
    }
    // Without this check the test could detect nothing: pages that are not held do move away.
    assert!(astray >= 6, "{astray} references went astray without a holder");
}

#[test]
fn without_forks_populated_pages_are_enough() {
    let _alone = alone();
    let Some(holder) = holder(Forks::Never) else { return };
    for kind in KINDS {
        for filled in [false, true] {
            for fork in [Fork::Never, Fork::BeforeTheReference] {
                assert!(leads_to_the_owner(Some(&holder), kind, filled, fork), "{kind:?} {filled}");
            }
        }
    }
    // This setting has a limit: pages are not protected at a fork.
    assert!(!leads_to_the_owner(Some(&holder), Kind::Anonymous, true, Fork::AfterTheReference));
}

#[test]
fn memory_that_its_owner_cannot_write_and_holes_are_not_held() {
    for forks in [Forks::Allowed, Forks::Never] {
        let Some(holder) = holder(forks) else { continue };
        let memory = Memory::of(Kind::Anonymous, 2);
        memory.make_read_only();
        let read_only = holder.hold(memory.base(), 100).unwrap_err();
        let base = memory.base();
        // No mapping has an address that low.
        let hole = holder.hold(PAGE as u64, 100).unwrap_err();
        for errno in [read_only, hole] {
            let failure = why_not_held(base, 100, errno);
            assert!(
                matches!(failure.status, Status::Unsupported | Status::NoMemory),
                "{forks:?} {failure:?}"
            );
            assert!(failure.text.contains("100 bytes"), "{failure:?}");
        }
        assert_eq!(why_not_held(base, 100, read_only).status, Status::Unsupported);
    }
}

#[test]
fn a_long_range_is_held_in_pieces_and_a_full_ring_is_followed_by_another() {
    let _alone = alone();
    let Some(mut holder) = holder(Forks::Allowed) else { return };
    holder.most_bytes = PAGE as u64;
    let memory = Memory::of(Kind::Anonymous, 5);
    let hold = holder.hold(memory.base() + 1, memory.len() - 1).unwrap();
    assert_eq!(hold.slots.len(), 5);
    holder.release(hold);
    let free = |holder: &Holder| locked(holder.table.as_ref().unwrap()).free.len();
    assert_eq!(free(&holder), SLOTS as usize);
    // The range has a hole in the middle: the part held before the hole is released.
    holder.most_bytes = 2 * PAGE as u64;
    let beyond = u64::MAX - memory.base();
    assert!(holder.hold(memory.base(), beyond).is_err());
    assert_eq!(free(&holder), SLOTS as usize);
    let holds: Vec<_> = (0..=SLOTS).map(|_| holder.hold(memory.base(), 1).unwrap()).collect();
    assert_eq!(free(&holder), SLOTS as usize - 1);
    let reference = Reference::to(&memory);
    let child = Child::fork();
    memory.fill(7);
    assert_eq!(reference.bytes()[0], 7);
    drop(child);
    for hold in holds {
        holder.release(hold);
    }
    assert_eq!(free(&holder), 2 * SLOTS as usize);
}

#[test]
fn released_pages_are_ordinary_memory() {
    let _alone = alone();
    let Some(holder) = holder(Forks::Allowed) else { return };
    let memory = Memory::of(Kind::Anonymous, 2);
    memory.fill(1);
    let hold = holder.hold(memory.base(), memory.len()).unwrap();
    holder.release(hold);
    // The kernel releases the pages a moment later.
    let moves = || {
        let reference = Reference::to(&memory);
        let child = Child::fork();
        memory.fill(2);
        let moved = reference.bytes()[0] == 1;
        memory.fill(1);
        drop(child);
        moved
    };
    let late = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !moves() {
        assert!(std::time::Instant::now() < late, "released pages still stay at a fork");
        std::thread::yield_now();
    }
}

#[test]
fn missing_page_holder_is_reported_with_the_remedy() {
    let all = [
        (libc::ENOSYS, Status::Permission, "io_uring_disabled"),
        (libc::EPERM, Status::Permission, "io_uring_disabled"),
        (libc::EINVAL, Status::Unsupported, "Linux 5.13"),
        (libc::EMFILE, Failure::from_io("", &std::io::Error::from_raw_os_error(24)).status, "open"),
    ];
    for (errno, status, word) in all {
        let failure = why_no_ring(errno);
        assert_eq!(failure.status, status, "{failure:?}");
        assert!(failure.text.contains(word), "{failure:?}");
        assert!(failure.text.contains("TIELINE_SHM_KNEM_FORK=never"), "{failure:?}");
    }
    assert!(why_not_held(0, 1, libc::ENOMEM).text.contains("ulimit -l"));
    assert!(why_not_held(0, 1, libc::ENOSPC).text.contains("65536 ranges"));
}

#[test]
fn the_setting_says_whether_programs_fork() {
    let forks = |text: Option<&str>| {
        let set = |_: &str| text.map(str::to_string);
        tieline_plugin_api::config::values(VARIABLES, set).map(Forks::read)
    };
    assert_eq!(forks(None), Ok(Forks::Allowed));
    assert_eq!(
        (forks(Some("Never")), forks(Some("allowed"))),
        (Ok(Forks::Never), Ok(Forks::Allowed))
    );
    assert!(forks(Some("often")).unwrap_err().text.contains("TIELINE_SHM_KNEM_FORK"));
}
