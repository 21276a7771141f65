//! Checks of several threads: functions of a domain, packers, and error texts.

use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, same_bytes, succeeds};
use crate::sys::{Memory, Moved};
use crate::watch::share;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::collections::VecDeque;
use std::time::Instant;
use tieline_plugin_api::Status;
use tieline_plugin_api::abi::fixed_str;

const THREADS: usize = 4;

fn all(work: impl Fn(usize) -> Checked + Sync) -> Checked {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        })
    })
}

pub(super) fn an_interface_goes_to_another_thread_and_back(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    for n in 0..4 {
        desk.send(n, 0, b"here")?;
        let moved = Moved(desk);
        let there = move || -> Result<Moved<Desk>, Stop> {
            let mut desk = moved.into_inner();
            equal("a message sent by one thread and received by another", n, desk.receive()?.id)?;
            desk.send(n, 1, b"there")?;
            Ok(Moved(desk))
        };
        let back = std::thread::scope(|scope| scope.spawn(there).join());
        desk = back.map_err(|_| Stop::Fail("a thread panicked".to_string()))??.into_inner();
        equal("the header of a message sent by another thread", 1, desk.receive()?.header)?;
    }
    // Another thread than the one that opened the desk closes it.
    let moved = Moved(desk);
    let close = move || drop(moved.into_inner());
    std::thread::scope(|scope| scope.spawn(close).join())
        .map_err(|_| Stop::Fail("a thread panicked".to_string()))
}

struct Kept {
    memory: Memory,
    packed: Vec<u8>,
    bytes: Vec<u8>,
}

pub(super) fn threads_that_register_and_pack_keys_at_once_get_right_ones(case: &Case) -> Checked {
    const CALLS: usize = 100_000;
    let (calls, end) = (AtomicUsize::new(0), Instant::now() + share(4));
    let work = |thread: usize| -> Checked {
        let mut desk = case.desk()?;
        let local = case.memory(4096, ALL_RIGHTS)?;
        let mut random = Random(thread as u64 + 1);
        let mut kept: VecDeque<Kept> = VecDeque::new();
        for n in 0usize.. {
            if calls.fetch_add(5, Relaxed) > CALLS || Instant::now() > end && n > 100 {
                break;
            }
            let len = 64 * (1 + random.below(8));
            let (memory, bytes) = (case.memory(len, ALL_RIGHTS)?, random.bytes(len));
            memory.write(0, &bytes);
            let packed = case.key_of(&memory)?;
            kept.push_back(Kept { memory, packed, bytes });
            for one in &kept {
                let what = "a region while other threads make regions";
                same_bytes(what, &one.bytes, &one.memory.read(0..one.bytes.len()))?;
            }
            if n % 16 == 0 {
                let one = &kept[random.below(kept.len())];
                let key = succeeds("import_key of a live region's key", desk.import(&one.packed)?)?;
                let len = one.bytes.len().min(match case.attr.max_get {
                    0 => usize::MAX,
                    most => most,
                });
                local.write(0, &vec![0; len]);
                succeeds("get", desk.rma(false, &[local.piece(0..len)], &key, 0)?)?;
                let what = "what a key leads to, made while other threads made theirs";
                same_bytes(what, &one.bytes[..len], &local.read(0..len))?;
            }
            if kept.len() > 6 {
                if let Some(mut oldest) = kept.pop_front() {
                    succeeds("deregister", desk.revoke(&mut oldest.memory)?)?;
                }
            }
        }
        Ok(())
    };
    all(work)
}

/// The known regions, each at the index of its number, unless another one is there.
struct Regions(Vec<AtomicUsize>);

impl Regions {
    fn place(&self, region: usize) -> &AtomicUsize {
        let spread = (region >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(spread >> 40) % self.0.len()]
    }

    /// Adds a region. Returns `true` if the region is in the table already.
    fn enter(&self, region: usize) -> bool {
        self.place(region).compare_exchange(0, region, SeqCst, SeqCst) == Err(region)
    }

    fn leave(&self, region: usize) {
        let _ = self.place(region).compare_exchange(region, 0, SeqCst, SeqCst);
    }
}

/// There is little other work, so that the calls of the threads often overlap.
pub(super) fn regions_that_threads_make_at_the_same_moment_are_different(case: &Case) -> Checked {
    const MOST: usize = 4_000_000;
    let (calls, end) = (AtomicUsize::new(0), Instant::now() + share(8));
    let regions = Regions((0..1 << 16).map(|_| AtomicUsize::new(0)).collect());
    all(|_| {
        let mut kept = VecDeque::new();
        while calls.fetch_add(4, Relaxed) < MOST && Instant::now() < end {
            let memory = case.memory(64, ALL_RIGHTS)?;
            let twice = regions.enter(memory.region.handle.addr());
            holds(!twice, "a region", "one of its own", "one that another thread has")?;
            let _ = case.key_of(&memory)?;
            kept.push_back(memory);
            if kept.len() < 4 {
                continue;
            }
            if let Some(mut oldest) = kept.pop_front() {
                regions.leave(oldest.region.handle.addr());
                succeeds("deregister of a region that no peer knows", oldest.revoke())?;
            }
        }
        for memory in &kept {
            regions.leave(memory.region.handle.addr());
        }
        Ok(())
    })
}

pub(super) fn packers_of_several_threads_do_not_meet(case: &Case) -> Checked {
    let work = |thread: usize| -> Checked {
        let mut desk = case.desk()?;
        let mut random = Random(thread as u64 + 50);
        let end = Instant::now() + share(8);
        for n in 0..400u64 {
            let (data, endpoint) = (random.bytes(case.attr.max_packed.min(1500)), desk.endpoint());
            let sent = desk.retry(|| {
                endpoint.am_packed(4, n, data.len(), |room| {
                    for (at, byte) in data.iter().enumerate() {
                        room[at] = *byte;
                        if at % 500 == 250 {
                            std::thread::yield_now(); // the other threads pack meanwhile
                        }
                    }
                    data.len() as i64
                })
            })?;
            equal("am_packed", Ok(data.len() as i64), sent)?;
            let message = desk.receive()?;
            equal("the header of a message that was packed beside others", n, message.header)?;
            same_bytes(
                "a message that was packed while other threads packed",
                &data,
                &message.data,
            )?;
            if n > 50 && Instant::now() > end {
                break;
            }
        }
        Ok(())
    };
    all(work)
}

pub(super) fn each_thread_hears_the_words_of_its_own_error(case: &Case) -> Checked {
    let module = fixed_str(&case.attr.name).unwrap_or("");
    let fails = |thread: usize| -> Result<String, Stop> {
        let failed = match (thread % 2, case.is_connector()) {
            (0, _) => case.provider.open_domain("no-such-domain").map(drop),
            (_, true) => {
                crate::connector::Connector::open(&case.domain, "no-such-module").map(drop)
            }
            (_, false) => case.domain.open_interface("no-such-module").map(drop),
        };
        match failed {
            Err(failure) => Ok(failure.text),
            Ok(()) => {
                Err(fail("a name that does not exist", "a refusal", format!("success ({module})")))
            }
        }
    };
    let alone = [fails(0)?, fails(1)?];
    if alone[0] == alone[1] || alone[0] != fails(0)? || alone[1] != fails(1)? {
        return Err(Stop::Skip("two errors have the same text, or never the same".to_string()));
    }
    let _ = fails(0)?;
    let other = std::thread::scope(|scope| scope.spawn(|| fails(1)).join());
    let _ = other.map_err(|_| Stop::Fail("a thread panicked".to_string()))??;
    let what = "last_error after a call of another thread's has failed";
    equal(what, alone[0].as_str(), &case.provider.failure(Status::Invalid).text)
}
