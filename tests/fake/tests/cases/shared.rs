//! A large transfer that the peer helps with, over a module that copies between processes.

use crate::cases;
use crate::stage::{context, pending};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use tieline::{Access, Context, Outcome, Request, Worker};
use tieline_fake::{Act, Lane, Rule, Slot, World};
use tieline_plugin_api::caps;

/// Enough chunks that the helper gets some.
const LEN: usize = 8 << 20;

/// Where it begins in the local region, and in the target, which goes on behind it.
const FROM: usize = 192;
const TO: usize = 4160;

/// Bytes of which no two pieces are the same.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// Copies between processes, as the kernel can: there is nothing to poll for.
fn copying() -> Lane {
    let lane = Lane::memory("copy").without_atomics().synchronous();
    let caps = (lane.caps | caps::LOCAL_ONLY) & !caps::NEEDS_POLL;
    Lane { caps, priority: 0, ..lane }
}

fn over_shared_memory(world: &'static World) -> Context {
    context(world, &[("TIELINE_PROVIDERS", "shm,fake")])
}

/// Runs `body` with a worker whose put of [`LEN`] bytes is pending because the peer, on a thread of its own, has
/// stopped while it copies a part; with the key of a word of the peer's that this side reaches by itself.
fn while_the_helper_stands_still(
    body: impl FnOnce(&Worker, &tieline::Endpoint, &Request, &tieline::RemoteKey, &tieline::Region),
) {
    let world = World::new(1, vec![copying()]);
    let (to_main, from_helper) = mpsc::channel();
    let end = std::sync::Arc::new(AtomicBool::new(false));
    let ended = end.clone();
    let helper = std::thread::spawn(move || {
        let at_b = over_shared_memory(world);
        let b = at_b.worker().unwrap();
        let target = at_b.register_with(vec![0; TO + LEN + 64], Access::ALL).unwrap();
        let word = at_b.alloc(64).unwrap();
        let keys = (target.remote_key().unwrap(), word.remote_key().unwrap());
        to_main.send((b.address().unwrap(), keys, target.clone(), word.clone())).unwrap();
        while !ended.load(Ordering::Relaxed) {
            let _ = b.progress();
            std::thread::yield_now();
        }
    });
    let (address, keys, target, word) = from_helper.recv().unwrap();
    let at_a = over_shared_memory(world);
    let a = at_a.worker().unwrap();
    let ab = a.connect(&address).unwrap();
    let met = ab.flush_messages().unwrap();
    assert_eq!(a.finish(met), Ok(0));
    let (key, word_key) = (ab.import_key(&keys.0).unwrap(), ab.import_key(&keys.1).unwrap());
    while key.is_settling() || word_key.is_settling() {
        let _ = a.progress();
    }
    assert_eq!((&*key.path(), &*word_key.path()), ("fake:copy/copy", "shm/ring"));
    let moved = bytes(FROM + LEN);
    let local = at_a.register_with(moved.clone(), Access::ALL).unwrap();
    // The helper learns the keys by the first transfers, which it may come too late for.
    for _ in 0..3 {
        assert_eq!(a.finish(ab.put(&local, FROM..1 << 20, &key, TO as u64).unwrap()), Ok(0));
        assert_eq!(a.finish(ab.flush_messages().unwrap()), Ok(0));
        // It asks for what the keys name, too.
        some_progress(&a);
    }
    // This side waits in its first copy until the helper has taken a part.
    world.rule(Rule::next(Slot::Put, Act::AwaitStop).on("copy"));
    world.rule(Rule::next(Slot::Get, Act::Stop).on("copy"));
    let put = ab.put(&local, FROM..FROM + LEN, &key, TO as u64).unwrap();
    let done = catch_unwind(AssertUnwindSafe(|| match &put {
        Outcome::Pending(request) => body(&a, &ab, request, &word_key, &word),
        Outcome::Done(_) => panic!("nobody helped"),
    }));
    world.go_on();
    if done.is_ok() {
        assert_eq!(a.finish(put), Ok(0));
        let there = target.to_vec(0..TO + LEN + 64).unwrap();
        assert!(there[TO..TO + LEN] == moved[FROM..], "some pieces lie elsewhere");
        assert!(
            there[..TO].iter().chain(&there[TO + LEN..]).all(|byte| *byte == 0),
            "bytes beside the range"
        );
    } else {
        drop(put);
    }
    drop((key, word_key, ab, target, word));
    end.store(true, Ordering::Relaxed);
    helper.join().unwrap();
    if let Err(panic) = done {
        resume_unwind(panic);
    }
    assert_eq!(world.faults(), Vec::<String>::new());
}

/// Often enough for whatever might end wrongly.
fn some_progress(a: &Worker) {
    for _ in 0..1_000 {
        let _ = a.progress();
    }
}

cases! {
    fn a_flush_waits_for_what_a_helper_still_copies() {
        while_the_helper_stands_still(|a, ab, put, _, _| {
            let flush = pending(ab.flush());
            some_progress(a);
            assert!(a.test(put).is_none());
            assert!(a.test(&flush).is_none(), "the flush did not wait for the put");
        });
    }

    fn an_atomic_behind_a_fence_waits_for_what_a_helper_still_copies() {
        while_the_helper_stands_still(|a, ab, put, word_key, word| {
            ab.fence().unwrap();
            let atomic = ab.fetch_add(word_key, 8, 5);
            some_progress(a);
            assert!(a.test(put).is_none());
            let now = word.atomic_u64(8).unwrap().load(Ordering::SeqCst);
            assert_eq!(now, 0, "the atomic overtook the put: {atomic:?}");
        });
    }

    /// The helper's part is the application's memory too.
    fn a_worker_is_not_idle_while_a_helper_copies() {
        while_the_helper_stands_still(|a, _, _, _, _| {
            some_progress(a);
            assert_eq!(a.pending(), 1);
        });
    }
}
