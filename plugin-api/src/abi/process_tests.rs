use super::*;
use std::sync::{Mutex, OnceLock};
use tieline_testing::holds_in_child;

#[test]
fn each_generation_has_another_number_and_its_own_mark() {
    let (own, mark) = (number(), Mark::new());
    assert!(mark.is_here() && number() == own);
    assert!(holds_in_child(|| {
        let (child, childs) = (number(), Mark::new());
        let apart = child != own && !mark.is_here() && childs.is_here() && number() == child;
        apart
            && holds_in_child(|| {
                let new = ![own, child].contains(&number());
                new && !mark.is_here() && !childs.is_here() && Mark::new().is_here()
            })
    }));
    assert!(mark.is_here() && number() == own);
}

#[test]
fn a_child_begins_anew_although_its_parent_holds_the_lock() {
    static LOCKED: PerProcess<Mutex<Vec<u8>>> = PerProcess::new();
    let mut held = LOCKED.lock().unwrap();
    held.push(1);
    assert!(holds_in_child(|| {
        let mut own = LOCKED.lock().unwrap();
        own.push(2);
        *own == [2]
    }));
    assert_eq!(*held, [1]);
}

#[test]
fn a_child_makes_for_itself_what_its_parent_is_making() {
    static MADE: PerProcess<OnceLock<u8>> = PerProcess::new();
    let _ = MADE.get_or_init(|| {
        assert!(holds_in_child(|| *MADE.get_or_init(|| 2) == 2));
        1
    });
    assert_eq!(MADE.get().get(), Some(&1));
}

#[test]
fn a_value_of_a_parent_is_dropped_by_the_parent_alone() {
    struct Told<'a>(&'a AtomicU64);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            let _ = self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = AtomicU64::new(0);
    let of_each: PerProcess<Mutex<Option<Told<'_>>>> = PerProcess::new();
    *of_each.lock().unwrap() = Some(Told(&dropped));
    let mut of_each = Some(of_each);
    assert!(holds_in_child(|| {
        of_each = None;
        dropped.load(Ordering::Relaxed) == 0
    }));
    of_each = None;
    assert!(of_each.is_none() && dropped.load(Ordering::Relaxed) == 1);
}

#[test]
fn many_threads_share_one_value_and_keep_all_that_each_adds() {
    static SHARED: PerProcess<Mutex<usize>> = PerProcess::new();
    static LIST: Kept<usize> = Kept::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let _ = scope.spawn(move || {
                *SHARED.lock().unwrap() += 1;
                for n in 0..100 {
                    assert_eq!(*LIST.add(thread * 100 + n), thread * 100 + n);
                }
            });
        }
    });
    assert_eq!(*SHARED.lock().unwrap(), 4);
    let mut all: Vec<usize> = LIST.iter().copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..400).collect::<Vec<_>>());
    assert!(holds_in_child(|| LIST.iter().count() == 400 && *LIST.add(400) == 400));
}

#[test]
fn a_child_begins_no_call_that_a_thread_of_its_parent_was_in() {
    static CALLS: Calls = Calls::new();
    drop(CALLS.begin().expect("nobody is inside"));
    assert!(holds_in_child(|| CALLS.begin().is_some()));
    let inside = CALLS.begin();
    assert!(inside.is_some() && holds_in_child(|| CALLS.begin().is_none()));
    assert!(CALLS.begin().is_some(), "more than one thread may be inside");
}

#[test]
fn a_child_does_not_get_a_library_that_its_parent_has_taken() {
    static OWNER: Owner = Owner::new();
    assert!(holds_in_child(|| OWNER.take() && OWNER.take()), "nobody has it");
    assert!(OWNER.take() && OWNER.take());
    assert!(holds_in_child(|| !OWNER.take()));
}

#[test]
fn numbers_of_linux_are_those_of_libc() {
    assert_eq!((PROT_READ, PROT_WRITE), (libc::PROT_READ, libc::PROT_WRITE));
    assert_eq!((MAP_PRIVATE, MAP_ANONYMOUS), (libc::MAP_PRIVATE, libc::MAP_ANONYMOUS));
    assert_eq!(MADV_WIPEONFORK, libc::MADV_WIPEONFORK);
    assert_eq!(libc::MAP_FAILED.addr(), usize::MAX);
}
