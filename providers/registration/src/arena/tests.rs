//! Tests of the free list, compared with a table of bytes, and of the arena over a device that counts, and fails on demand.

use super::*;
use crate::Limits;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The length of the area in the test of the free list.
const LEN: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Step {
    Take {
        len: usize,
        align: usize,
    },
    /// The return of one of the taken parts.
    Give(usize),
}

fn steps(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let take =
        (1..longest, 0u32..10).prop_map(|(len, align)| Step::Take { len, align: 1 << align });
    prop::collection::vec(prop_oneof![take, any::<usize>().prop_map(Step::Give)], 1..80)
}

proptest! {
    #[test]
    fn a_part_is_found_where_there_is_one_and_belongs_to_nobody_else(steps in steps(LEN / 4)) {
        let (mut list, mut used, mut taken) = (FreeList::new(LEN), vec![false; LEN], Vec::new());
        for step in steps {
            match step {
                Step::Take { len, align } => {
                    let fits = |at: &usize| at + len <= LEN && !used[*at..at + len].contains(&true);
                    let expected = (0..LEN).step_by(align).find(fits);
                    prop_assert_eq!(list.take(len, align), expected);
                    if let Some(at) = expected {
                        used[at..at + len].fill(true);
                        taken.push((at, len));
                    }
                }
                Step::Give(which) if !taken.is_empty() => {
                    let (at, len) = taken.swap_remove(which % taken.len());
                    used[at..at + len].fill(false);
                    list.give(at, len);
                }
                Step::Give(_) => {}
            }
        }
        taken.into_iter().for_each(|(at, len)| list.give(at, len));
        prop_assert_eq!(list.take(LEN, 1), Some(0), "all of it is one part again");
    }

    #[test]
    fn pieces_keep_their_bytes_within_the_bound_and_leave_nothing_behind(steps in steps(200_000)) {
        const BOUND: usize = 3 << 20;
        let counting = Counting::default();
        let arena = arena(&counting, BOUND);
        let mut pieces: Vec<(u8, Piece<Counting>)> = Vec::new();
        let whole = |(mark, piece): &(u8, Piece<Counting>)| {
            piece.bytes(0, piece.len).iter().all(|byte| byte == mark)
        };
        for (mark, step) in (0..=255).cycle().zip(steps) {
            match step {
                Step::Take { len, align } => match arena.take(len, align) {
                    Ok(mut piece) => {
                        prop_assert!(piece.len >= len && piece.base.addr().get() % align == 0);
                        let all = piece.len;
                        piece.bytes_mut(0, all).fill(mark);
                        pieces.push((mark, piece));
                    }
                    Err(failure) => {
                        prop_assert_eq!(failure.status, Status::NoMemory);
                        let least = len.next_multiple_of(PAGE as usize);
                        prop_assert!(counting.bytes() + least > BOUND, "there was room");
                    }
                },
                Step::Give(which) if !pieces.is_empty() => {
                    let piece = pieces.swap_remove(which % pieces.len());
                    prop_assert!(whole(&piece), "somebody else wrote there");
                }
                Step::Give(_) => {}
            }
            prop_assert!(counting.bytes() <= BOUND);
        }
        prop_assert!(pieces.iter().all(whole));
        drop(pieces);
        prop_assert_eq!(counting.bytes(), 0, "no piece, no registration");
    }
}

/// A device that counts the registered bytes. It refuses longer areas, and more bytes in total, than its limits with `NoMemory`.
#[derive(Clone)]
struct Counting {
    bytes: Arc<AtomicUsize>,
    areas: Arc<AtomicUsize>,
    longest: usize,
    most: usize,
    /// A function that is called while an area of this number of bytes is registered.
    slow: Option<Arc<dyn Fn(usize) + Send + Sync>>,
}

impl Default for Counting {
    fn default() -> Counting {
        let (longest, most) = (usize::MAX, usize::MAX);
        Counting { bytes: Arc::default(), areas: Arc::default(), longest, most, slow: None }
    }
}

impl Counting {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A registration: its counter and its length.
struct Counted(Counting, usize);

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Device for Counting {
    type Registration = Counted;

    fn register(&self, base: *mut u8, len: usize, written: bool) -> Result<Counted, Failure> {
        assert!(base.addr() % PAGE as usize == 0);
        assert!(
            !written || len % HUGE != 0 || base.addr() % HUGE == 0,
            "huge pages could not back this area"
        );
        self.slow.iter().for_each(|slow| slow(len));
        if len > self.longest || self.bytes() + len > self.most {
            return Err(Failure::new(Status::NoMemory, "refused"));
        }
        let _ = self.bytes.fetch_add(len, Ordering::Relaxed);
        let _ = self.areas.fetch_add(1, Ordering::Relaxed);
        Ok(Counted(self.clone(), len))
    }
}

#[test]
fn many_pieces_share_few_registrations_and_little_waits_for_nobody() {
    let counting = Counting::default();
    let arena = arena(&counting, 1 << 30);
    let pieces: Vec<_> = (0..1000).map(|_| arena.take(10_000, 64).unwrap()).collect();
    let used: usize = pieces.iter().map(|piece| piece.len).sum();
    assert!(counting.bytes() <= used * 3 / 2 + PAGE as usize, "{} for {used}", counting.bytes());
    let areas = counting.areas.load(Ordering::Relaxed);
    assert!(areas <= 20, "{areas} registrations");
}

#[test]
fn refused_large_area_is_replaced_by_one_for_the_piece() {
    let counting = Counting { longest: 12 << 10, ..Counting::default() };
    let arena = arena(&counting, 1 << 30);
    let pieces: Vec<_> = (0..10).map(|_| arena.take(8 << 10, 64).unwrap()).collect();
    assert_eq!(pieces.len(), 10);
    assert_eq!(arena.take(16 << 10, 64).unwrap_err().status, Status::NoMemory);
    for (len, align) in [(0, 64), (1, 0), (1, 48), (1, 8 << 10), (usize::MAX, 64)] {
        assert_eq!(arena.take(len, align).unwrap_err().status, Status::Invalid);
    }
}

fn arena(counting: &Counting, bytes: usize) -> Arena<Counting> {
    let limits = Limits { keep: true, bytes: 1 << 30, entries: 8 };
    Arena::new(Arc::new(Lender::new(counting.clone(), Some(limits))), bytes)
}

#[test]
fn a_bound_is_whole_pages() {
    let counting = Counting::default();
    let arena = arena(&counting, 3 * PAGE as usize + 5);
    let pieces: Vec<_> = (0..3).map(|_| arena.take(PAGE as usize, 64).unwrap()).collect();
    assert_eq!(arena.take(1, 1).err().map(|failure| failure.status), Some(Status::NoMemory));
    assert_eq!(counting.bytes(), 3 * PAGE as usize);
    drop(pieces);
}

#[test]
fn unused_registrations_of_lender_are_evicted_for_buffers() {
    let counting = Counting { most: 64 << 10, ..Counting::default() };
    let arena = arena(&counting, 1 << 30);
    let mut memory = vec![0u8; 32 << 10];
    let used = arena.lender.lend(memory.as_mut_ptr(), 8 << 10, false, |_| ()).unwrap();
    drop(arena.lender.lend(memory[16 << 10..].as_mut_ptr(), 16 << 10, false, |_| ()).unwrap());
    let before = counting.bytes();
    let piece = arena.take(48 << 10, 64).unwrap();
    assert!(counting.bytes() < before + (48 << 10), "nothing that was kept went");
    assert_eq!(arena.take(32 << 10, 64).unwrap_err().status, Status::NoMemory, "it is in use");
    drop((piece, used));
}

#[test]
fn available_piece_is_taken_while_another_thread_creates_area() {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let made = Mutex::new((begun, may_go_on));
    let slow = Arc::new(move |len: usize| {
        if len > 1 << 20 {
            let (begun, may_go_on) = &*made.lock().unwrap();
            begun.send(()).unwrap();
            may_go_on
                .recv_timeout(Duration::from_secs(60))
                .expect("the other thread waits for this");
        }
    });
    let arena = arena(&Counting { slow: Some(slow), ..Counting::default() }, 1 << 30);
    let first = arena.take(64, 64).unwrap();
    std::thread::scope(|scope| {
        let large = scope.spawn(|| arena.take(3 << 20, 64).map(drop));
        has_begun.recv().unwrap();
        let second = arena.take(64, 64).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(large.join().unwrap(), Ok(()));
        drop((first, second));
    });
}

#[test]
fn concurrent_area_creation_does_not_inflate_area_sizes() {
    const THREADS: usize = 16;
    const LEN: usize = 270 << 10;
    let together = std::sync::Barrier::new(THREADS);
    let slow = Arc::new(move |_: usize| {
        let _ = together.wait();
    });
    let counting = Counting { slow: Some(slow), ..Counting::default() };
    let arena = arena(&counting, 1 << 30);
    let pieces: Vec<_> = std::thread::scope(|scope| {
        let takers: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| arena.take(LEN, 64).unwrap())).collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).collect()
    });
    let used = pieces.iter().map(|piece| piece.len.next_multiple_of(PAGE as usize)).sum::<usize>();
    assert!(counting.bytes() <= used * 3 / 2, "{} for {used}", counting.bytes());
}

/// Returns the kernel's flags for the mapping that contains an address (`proc_pid_smaps(5)`).
fn flags(address: usize) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut inside = false;
    table.lines().find_map(|line| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
            inside = (start..end).contains(&address);
        }
        line.strip_prefix("VmFlags:").filter(|_| inside).map(str::to_string)
    })
}

#[test]
fn a_forked_child_has_none_of_the_buffers() {
    let arena = arena(&Counting::default(), 1 << 30);
    for len in [64, 3 << 20, 2 * HUGE] {
        let piece = arena.take(len, 64).unwrap();
        let Some(flags) = flags(piece.address(len - 1, 1).addr()) else {
            return println!("skipped: the kernel has no flags of mappings");
        };
        // The flag `dc` means that the memory is not copied on fork.
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{len} bytes: {flags}");
    }
}
