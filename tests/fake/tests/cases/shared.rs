//! A large transfer that the peer helps with, over a module that copies between processes.

use crate::cases;
use crate::stage::{context, pending};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use tieline::{Access, AtomicOp, Context, Outcome, Request, Status, Width, Worker};
use tieline_fake::{Act, Lane, Rule, Slot, World};
use tieline_plugin_api::caps;

/// Enough chunks that the helper gets some.
const LEN: usize = 8 << 20;

/// Asks for help.
const ASSIST: u32 = 0xf006;

/// What a remote key begins with: its kind and version.
const HEAD: usize = 5;

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

fn over_three(world: &'static World) -> Context {
    context(world, &[("TIELINE_PROVIDERS", "fake,shm,other")])
}

/// Messages whose wire the test sees, and what copies.
fn over_wire() -> Vec<Lane> {
    vec![Lane::messages("wire"), copying().of_the_other()]
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

    /// The word that both take pieces with lies where the peer can write.
    fn a_peer_that_gives_pieces_back_is_found_out() {
        let world = World::new(1, over_wire());
        let (at_a, at_b) = (over_three(world), over_three(world));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let target = at_b.register_with(vec![0; LEN], Access::ALL).unwrap();
        let local = at_a.register_with(vec![3; LEN], Access::ALL).unwrap();
        let ab = a.connect(&b.address().unwrap()).unwrap();
        let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
        while key.is_settling() {
            let _ = a.progress() + b.progress();
        }
        assert_eq!(&*key.path(), "other:copy/copy");
        // What asks for help says where the word is.
        let asked = loop {
            let put = ab.put(&local, 0..LEN, &key, 0).unwrap();
            if let Some(asked) = world.on_the_way(ASSIST) {
                break asked;
            }
            while !matches!(put, Outcome::Done(_)) && a.pending() > 0 {
                let _ = a.progress() + b.progress();
            }
            let _ = a.progress() + b.progress();
        };
        let len = usize::from(u16::from_le_bytes([asked[45], asked[46]]));
        let (control, at_a) = (asked[47..47 + len].to_vec(), a.address().unwrap());
        let (ready, is_ready) = mpsc::channel();
        let liar = std::thread::spawn(move || {
            let at_c = over_three(world);
            let c = at_c.worker().unwrap();
            let ca = c.connect(&at_a).unwrap();
            let control = ca.import_key(&control).unwrap();
            while control.is_settling() {
                let _ = c.progress();
            }
            ready.send(()).unwrap();
            assert!(world.await_stop(), "the put has not begun");
            for slot in 0..16 {
                let word = slot * 128;
                let seen = c.finish(ca.fetch(AtomicOp::Or, Width::Bits64, &control, word, 0).unwrap());
                let seen = seen.unwrap();
                // As if nothing had been taken, in a transfer of the same number.
                let put = ca.compare_swap(Width::Bits64, &control, word, seen, seen >> 48 << 48);
                let _ = c.finish(put.unwrap()).unwrap();
            }
            world.go_on();
        });
        while is_ready.try_recv().is_err() {
            let _ = a.progress();
        }
        world.rule(Rule::next(Slot::Put, Act::Stop).on("copy"));
        let put = ab.put(&local, 0..LEN, &key, 0);
        liar.join().unwrap();
        assert_eq!(put.expect_err("it took a piece twice").status(), Status::BadData);
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    /// However many transfers peers want help with, one call copies some pieces, and the next some more.
    fn one_progress_call_copies_a_bounded_part_of_what_peers_want_help_with() {
        const SLOTS: u16 = 16;
        // Pieces at once, and chunks of a piece at most.
        const BOUND: u64 = 8 * 16;
        let world = World::new(1, over_wire());
        let (at_a, at_b) = (over_three(world), over_three(world));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let target = at_a.register_with(vec![0; LEN], Access::ALL).unwrap();
        let source = at_b.register_with(vec![3; LEN], Access::ALL).unwrap();
        let words = at_b.alloc(usize::from(SLOTS) * 128).unwrap();
        let (ab, ba) = (a.connect(&b.address().unwrap()).unwrap(), b.connect(&a.address().unwrap()).unwrap());
        let key = ba.import_key(&target.remote_key().unwrap()).unwrap();
        let met = pending(ba.flush_messages());
        while b.test(&met).is_none() || key.is_settling() {
            let _ = a.progress() + b.progress();
        }
        let ask = |slot: u16| {
            words.atomic_u64(usize::from(slot) * 128).unwrap().store(1 << 48, Ordering::SeqCst);
            let record = target.remote_key().unwrap();
            let plan = [
                &[1, 1, 0][..],
                &slot.to_le_bytes(),
                &(LEN as u64).to_le_bytes(),
                &0u64.to_le_bytes(),
                // Number and generation of the region, behind the head and the context's number.
                &record[HEAD + 16..HEAD + 32],
                &0u64.to_le_bytes(),
            ].concat();
            let blob = |bytes: &[u8]| [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat();
            [plan, blob(&words.remote_key().unwrap()), blob(&source.remote_key().unwrap())].concat()
        };
        let (at, from) = (world.interface(0, "wire"), world.interface(1, "wire"));
        // The keys are known once one was helped with.
        while a.counters().assisted_chunks == 0 {
            world.forge(from, at, ASSIST, 0, &ask(0));
            (0..20).for_each(|_| { let _ = a.progress() + b.progress(); });
        }
        (0..200).for_each(|_| { let _ = a.progress() + b.progress(); });
        assert_eq!(a.counters().malformed, 0);
        for slot in 0..SLOTS {
            world.forge(from, at, ASSIST, 0, &ask(slot));
        }
        let (mut before, mut most) = (a.counters().assisted_chunks, 0);
        let begin = before;
        for _ in 0..1_000 {
            let _ = a.progress();
            most = most.max(a.counters().assisted_chunks - before);
            before = a.counters().assisted_chunks;
        }
        let all = u64::from(SLOTS) * (LEN as u64 / (64 << 10));
        assert_eq!(before - begin, all, "all of it in the end");
        assert!(most <= BOUND, "{most} chunks in one call");
        drop((ab, key));
        assert_eq!(world.faults(), Vec::<String>::new());
    }
}
