//! Tests of large transfers with the peer's help, over a module that copies between processes.

mod refused;

use crate::cases;
use crate::stage::{context, pending};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tieline::{
    Access, AtomicOp, Context, Endpoint, Outcome, Region, RemoteKey, Request, Status, Width, Worker,
};
use tieline_fake::{Act, Lane, Rule, Slot, World};
use tieline_plugin_api::caps;

/// The length of a transfer that has enough chunks for the helper to copy some of them.
const LEN: usize = 8 << 20;

/// The size of a chunk: claims are multiples of this size.
const CHUNK: usize = 64 << 10;

const SLOTS: usize = 16;

const ASSIST: u32 = 0xf006;

/// The length of a remote key's head: its kind and version.
const HEAD: usize = 5;

/// The number of transfers, after a first transfer, that request help of a peer that never helps.
const TRIES: usize = 3;
/// A number of round trips that is larger than both sides need to learn which memory a key names.
const ROUND_TRIPS: usize = 100;

/// The offset of the transfer in the local region.
const FROM: usize = 192;
/// The offset of the transfer in the target, which is longer than the local region.
const TO: usize = 4160;

/// Returns bytes whose pieces are unlikely to be equal.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// Makes a lane that copies between processes, like the kernel's calls: it needs no polls.
pub(crate) fn copying() -> Lane {
    let lane = Lane::memory("copy").without_atomics().synchronous();
    let caps = (lane.caps | caps::LOCAL_ONLY) & !caps::NEEDS_POLL;
    Lane { caps, priority: 0, ..lane }
}

pub(crate) fn over_three(world: &'static World) -> Context {
    context(world, &[("TIELINE_PROVIDERS", "fake,shm,other")])
}

/// Makes a message lane whose messages the test can read, and a copying lane.
pub(crate) fn over_wire() -> Vec<Lane> {
    vec![Lane::messages("wire"), copying().on_other_provider()]
}

/// A put of [`LEN`] bytes that is pending because the peer, which has a separate thread, has stopped while it copies a part.
struct Standing<'a> {
    world: &'static World,
    at_a: &'a Context,
    a: &'a Worker,
    ab: &'a Endpoint,
    put: &'a Request,
    /// The source of the put; this field is the only handle of the region.
    local: Region,
    /// The peer's address and the key of the target.
    there: (&'a [u8], &'a [u8]),
    /// The key of a word of the peer that this side can access by itself, and a local region.
    word: (&'a RemoteKey, &'a Region),
}

/// Runs `body` while the helper is stopped. `body` returns the expected end of the put when the helper resumes.
fn while_the_helper_stands_still(body: impl FnOnce(Standing<'_>) -> Result<u64, Status>) {
    while_it_stands_still_and(None, body);
}

/// Runs `body` as [`while_the_helper_stands_still`] does, and applies `rule` to this side's copies when the helper has claimed a
/// part.
fn while_it_stands_still_and(
    rule: Option<Rule>,
    body: impl FnOnce(Standing<'_>) -> Result<u64, Status>,
) {
    let world = World::new(1, over_wire());
    let (to_main, from_helper) = mpsc::channel();
    let end = std::sync::Arc::new(AtomicBool::new(false));
    let ended = end.clone();
    let helper = std::thread::spawn(move || {
        let at_b = over_three(world);
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
    let at_a = over_three(world);
    let a = at_a.worker().unwrap();
    let ab = a.connect(&address).unwrap();
    let met = ab.flush_messages().unwrap();
    assert_eq!(a.finish(met), Ok(0));
    let (key, word_key) = (ab.import_key(&keys.0).unwrap(), ab.import_key(&keys.1).unwrap());
    while key.is_settling() || word_key.is_settling() {
        let _ = a.progress();
    }
    assert_eq!((&*key.path(), &*word_key.path()), ("other:copy/copy", "shm/ring"));
    let moved = bytes(FROM + LEN);
    let local = at_a.register_with(moved.clone(), Access::ALL).unwrap();
    // The helper learns the keys in the first transfer, which ends before the helper starts.
    assert_eq!(a.finish(ab.put(&local, FROM..1 << 20, &key, TO as u64).unwrap()), Ok(0));
    // After this rule the helper stops in its first copy.
    world.rule(Rule::next(Slot::Get, Act::Stop).on("copy"));
    let mut rule = rule;
    let put = (0..TRIES).find_map(|_| {
        // The helper asks this side which memory the keys name. The answer takes progress of both sides, and this side makes none
        // during a copy.
        for _ in 0..ROUND_TRIPS {
            assert_eq!(a.finish(ab.flush_messages().unwrap()), Ok(0));
        }
        // This side waits in its first copy until the helper has claimed a part.
        world.rule(Rule::next(Slot::Put, Act::AwaitStop).on("copy"));
        rule.take().into_iter().for_each(|rule| world.rule(rule.on("copy")));
        let put = ab.put(&local, FROM..FROM + LEN, &key, TO as u64).unwrap();
        matches!(put, Outcome::Pending(_)).then_some(put)
    });
    let put = put.expect("nobody helped");
    let done = catch_unwind(AssertUnwindSafe(|| match &put {
        Outcome::Pending(put) => {
            let there = (&address[..], &keys.0[..]);
            let (at_a, a, ab, word) = (&at_a, &a, &ab, (&word_key, &word));
            body(Standing { world, at_a, a, ab, put, local, there, word })
        }
        Outcome::Done(_) => unreachable!("it is pending"),
    }));
    world.go_on();
    if let Ok(expected) = done {
        assert_eq!(a.finish(put).map_err(|error| error.status()), expected);
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

/// A stage on which worker `a` helps to copy memory of worker `b`; the test forges the requests of `b`.
///
/// The order of the fields is the order in which they are dropped.
struct Asked {
    to_b: Endpoint,
    _key: RemoteKey,
    a: Worker,
    b: Worker,
    target: Region,
    /// The source of the copy and the slots, at `b`.
    source: Region,
    words: Region,
    _contexts: [Context; 2],
    world: &'static World,
}

/// The plan of a transfer, which a request for help states.
#[derive(Clone, Copy)]
struct Plan {
    put: bool,
    slot: u16,
    len: u64,
    at: u64,
    offset: u64,
}

/// The plan of a copy of both whole regions, in the first slot.
const WHOLE: Plan = Plan { put: true, slot: 0, len: LEN as u64, at: 0, offset: 0 };

impl Asked {
    fn new() -> Asked {
        let world = World::new(1, over_wire());
        let (at_a, at_b) = (over_three(world), over_three(world));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let target = at_a.register_with(vec![0; LEN], Access::ALL).unwrap();
        let source = at_b.register_with(vec![3; LEN], Access::ALL).unwrap();
        let words = at_b.alloc(SLOTS * 128).unwrap();
        let to_b = a.connect(&b.address().unwrap()).unwrap();
        let ba = b.connect(&a.address().unwrap()).unwrap();
        let key = ba.import_key(&target.remote_key().unwrap()).unwrap();
        let met = pending(ba.flush_messages());
        while b.test(&met).is_none() || key.is_settling() {
            let _ = a.progress() + b.progress();
        }
        drop((met, ba));
        let _contexts = [at_a, at_b];
        let asked = Asked { to_b, _key: key, a, b, target, source, words, _contexts, world };
        // The keys are known once `a` has helped.
        while asked.a.counters().assisted_chunks == 0 {
            asked.ask(WHOLE);
            asked.settle(20);
        }
        asked.settle(200);
        assert_eq!(asked.a.counters().malformed, 0);
        asked
    }

    fn settle(&self, turns: usize) {
        for _ in 0..turns {
            let _ = self.a.progress() + self.b.progress();
        }
    }

    /// Returns a word of a slot: at 0 the claims, at 8 the number of chunks that the helper has copied, at 16 whether the helper
    /// failed.
    fn word(&self, slot: u16, at: usize) -> &std::sync::atomic::AtomicU64 {
        self.words.atomic_u64(usize::from(slot) * 128 + at).unwrap()
    }

    fn ask(&self, plan: Plan) {
        self.word(plan.slot, 0).store(1 << 48, Ordering::SeqCst);
        self.word(plan.slot, 8).store(0, Ordering::SeqCst);
        let record = self.target.remote_key().unwrap();
        let head = [
            &[u8::from(plan.put), 1, 0][..],
            &plan.slot.to_le_bytes(),
            &plan.len.to_le_bytes(),
            &plan.at.to_le_bytes(),
            // The number and generation of the region follow the head and the context's number.
            &record[HEAD + 16..HEAD + 32],
            &plan.offset.to_le_bytes(),
        ];
        let blob = |region: &Region| {
            let key = region.remote_key().unwrap();
            [&(key.len() as u16).to_le_bytes()[..], &key].concat()
        };
        let asks = [head.concat(), blob(&self.words), blob(&self.source)].concat();
        let (at, from) = (self.world.interface(0, "wire"), self.world.interface(1, "wire"));
        self.world.forge(from, at, ASSIST, 0, &asks);
    }
}

/// Makes so many calls that a wrong result would have appeared.
fn some_progress(a: &Worker) {
    for _ in 0..1_000 {
        let _ = a.progress();
    }
}

fn two_contexts() -> (&'static World, [Context; 2]) {
    let world = World::new(1, over_wire());
    (world, [over_three(world), over_three(world)])
}

/// Makes an endpoint from `a` to `b` whose lanes are connected, and a key of memory at `b`.
fn met(a: &Worker, b: &Worker, far: &Region) -> (Endpoint, RemoteKey) {
    let ab = a.connect(&b.address().unwrap()).unwrap();
    let key = ab.import_key(&far.remote_key().unwrap()).unwrap();
    let met = pending(ab.flush_messages());
    while a.test(&met).is_none() || key.is_settling() {
        let _ = a.progress() + b.progress();
    }
    assert_eq!(&*key.path(), "other:copy/copy");
    (ab, key)
}

cases! {
    fn flush_waits_for_copies_of_helper() {
        while_the_helper_stands_still(|Standing { a, ab, put, .. }| {
            let flush = pending(ab.flush());
            some_progress(a);
            assert!(a.test(put).is_none());
            assert!(a.test(&flush).is_none(), "the flush did not wait for the put");
            Ok(0)
        });
    }

    fn atomic_behind_fence_waits_for_copies_of_helper() {
        while_the_helper_stands_still(|Standing { a, ab, put, word: (word_key, word), .. }| {
            ab.fence().unwrap();
            let atomic = ab.fetch_add(word_key, 8, 5);
            some_progress(a);
            assert!(a.test(put).is_none());
            let now = word.atomic_u64(8).unwrap().load(Ordering::SeqCst);
            assert_eq!(now, 0, "the atomic overtook the put: {atomic:?}");
            Ok(0)
        });
    }

    /// During the transfer the kernel starts to refuse copies that it has allowed before, or the lane declines.
    fn refused_copy_takes_another_route_while_helper_copies() {
        for why in [Status::Unreachable, Status::Declined] {
            let refused = Rule::every(Slot::Put, Act::Refuse(why));
            while_it_stands_still_and(Some(refused), |Standing { a, ab, put, word, .. }| {
                ab.fence().unwrap();
                drop(ab.fetch_add(word.0, 8, 5).unwrap());
                some_progress(a);
                assert!(a.test(put).is_none(), "the helper still copies");
                Ok(0)
            });
        }
    }

    fn a_worker_is_not_idle_while_a_helper_copies() {
        while_the_helper_stands_still(|Standing { a, .. }| {
            some_progress(a);
            assert_eq!(a.pending(), 1);
            Ok(0)
        });
    }

    fn transfer_that_ended_early_leaves_slot_and_memory_to_helper() {
        const PATIENCE: Duration = Duration::from_secs(60);
        while_the_helper_stands_still(|standing| {
            let Standing { world, at_a, a, put, local, there, .. } = standing;
            let (b, at) = (world.interface(0, "wire"), world.interface(1, "wire"));
            world.break_endpoints(at, b, Status::TimedOut, "the cable is cut");
            some_progress(a);
            let ended = a.test(put).expect("its endpoint failed").unwrap_err();
            assert_eq!(ended.status(), Status::TimedOut);
            let not = local.close().expect_err("the helper reads it");
            assert_eq!(not.error.status(), Status::Busy);
            // The same transfer is posted again, and the helper does not respond to it.
            let again = a.connect(there.0).unwrap();
            let key = again.import_key(there.1).unwrap();
            assert_eq!(&*key.path(), "other:copy/copy");
            let other = at_a.register_with(bytes(FROM + LEN), Access::ALL).unwrap();
            let put = again.put(&other, FROM..FROM + LEN, &key, TO as u64);
            assert!(matches!(put, Ok(Outcome::Done(0))), "{put:?}");
            let asked = world.on_the_way(ASSIST).expect("it asked for help");
            assert_ne!(asked[3..5], [0, 0], "the first slot is the one that the helper counts in");
            world.go_on();
            let closed = a.close_region(not.region, PATIENCE);
            closed.map_err(|not| not.error).expect("the helper is through");
            Err(Status::TimedOut)
        });
    }

    fn disconnected_helper_keeps_slot_until_its_process_is_gone() {
        for says in [Status::PeerFailed, Status::Declined, Status::Unreachable] {
            while_the_helper_stands_still(|standing| {
                let Standing { world, a, put, local, there, .. } = standing;
                let (b, at) = (world.interface(0, "wire"), world.interface(1, "wire"));
                world.break_endpoints(at, b, Status::PeerFailed, "it said no goodbye");
                some_progress(a);
                let ended = a.test(put).expect("its endpoint failed").unwrap_err();
                assert_eq!(ended.status(), Status::PeerFailed);
                let again = a.connect(there.0).unwrap();
                let key = again.import_key(there.1).unwrap();
                let first_slot_is_free = || {
                    let put = again.put(&local, FROM..FROM + LEN, &key, TO as u64);
                    assert!(matches!(put, Ok(Outcome::Done(0))), "{put:?}");
                    world.on_the_way(ASSIST).expect("it asked for help")[3..5] == [0, 0]
                };
                let free = first_slot_is_free();
                world.rule(Rule::next(Slot::Put, Act::Refuse(says)).on("copy"));
                some_progress(a);
                let freed = first_slot_is_free();
                // The helper is alive and copies its part.
                world.go_on();
                for _ in 0..2 {
                    assert_eq!(a.finish(again.flush_messages().unwrap()), Ok(0));
                }
                assert_eq!((free, freed), (false, true), "{says}");
                Err(Status::PeerFailed)
            });
        }
    }

    /// The word with the claims of both sides is in memory that the peer can write.
    fn peer_that_resets_claims_is_detected() {
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
        // The request for help states the location of the word.
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
                // The peer resets the claims to zero in a transfer of the same number.
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

    /// A request for help contains two keys, and is longer than the messages of some modules.
    fn peer_with_short_messages_only_is_not_asked_for_help() {
        let wire = Lane { max_packed: 64, max_short: 64, ..Lane::messages("wire") };
        let world = World::new(1, vec![wire, copying().on_other_provider()]);
        let (at_a, at_b) = (over_three(world), over_three(world));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let target = at_b.register_with(vec![0; LEN], Access::ALL).unwrap();
        let moved = bytes(LEN);
        let local = at_a.register_with(moved.clone(), Access::ALL).unwrap();
        let ab = a.connect(&b.address().unwrap()).unwrap();
        let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
        while key.is_settling() {
            let _ = a.progress() + b.progress();
        }
        assert_eq!(&*key.path(), "other:copy/copy");
        let put = ab.put(&local, 0..LEN, &key, 0);
        assert!(matches!(put, Ok(Outcome::Done(0))), "{put:?}");
        assert_eq!(world.on_the_way(ASSIST), None);
        assert!(target.to_vec(0..LEN).unwrap() == moved);
        assert_eq!(&*key.path(), "other:copy/copy", "nothing is wrong with it");
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    fn unreachable_helper_uses_up_no_request_number() {
        let world = World::new(1, over_wire());
        let (at_a, at_b) = (over_three(world), over_three(world));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let target = at_b.register_with(vec![0; LEN], Access::ALL).unwrap();
        let moved = bytes(LEN);
        let local = at_a.register_with(moved.clone(), Access::ALL).unwrap();
        let ab = a.connect(&b.address().unwrap()).unwrap();
        let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
        while key.is_settling() {
            let _ = a.progress() + b.progress();
        }
        let met = ab.flush_messages().unwrap();
        while a.pending() > 0 {
            let _ = a.progress() + b.progress();
        }
        assert_eq!(a.finish(met), Ok(0));
        let asks = || {
            let put = ab.put(&local, 0..LEN, &key, 0);
            assert!(matches!(put, Ok(Outcome::Done(0))), "nobody helps: {put:?}");
            let asked = world.on_the_way(ASSIST)?;
            Some(u16::from_le_bytes([asked[1], asked[2]]))
        };
        let first = asks().expect("it asks");
        for slot in [Slot::Short, Slot::Packed] {
            world.rule(Rule::every(slot, Act::Refuse(Status::Again)).id(ASSIST));
        }
        for _ in 0..3 {
            assert_eq!(asks(), Some(first));
        }
        assert!(target.to_vec(0..LEN).unwrap() == moved, "this side copied all of it");
        world.forget_rules();
        assert_eq!(asks(), Some(first + 1));
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    fn progress_call_copies_bounded_part_of_help_requests() {
        // The maximum number of pieces in progress, times the maximum number of chunks in a piece.
        const BOUND: u64 = 8 * 16;
        let asked = Asked::new();
        for slot in 0..SLOTS as u16 {
            asked.ask(Plan { slot, ..WHOLE });
        }
        let chunks = || asked.a.counters().assisted_chunks;
        let (mut before, mut most) = (chunks(), 0);
        let begin = before;
        for _ in 0..1_000 {
            let _ = asked.a.progress();
            most = most.max(chunks() - before);
            before = chunks();
        }
        let all = SLOTS as u64 * (LEN / CHUNK) as u64;
        assert_eq!(before - begin, all, "all of it in the end");
        assert!(most <= BOUND, "{most} chunks in one call");
        assert_eq!(asked.world.faults(), Vec::<String>::new());
    }

    /// Keys that were imported for helping are cached, and are not keys of the application.
    fn an_endpoint_to_a_peer_that_was_helped_is_closed_when_it_is_dropped() {
        let asked = Asked::new();
        let wire = asked.world.interface(0, "wire");
        let closed = |world: &World| {
            let calls = world.calls(Slot::CloseEndpoint);
            calls.iter().filter(|call| call.interface == wire).count()
        };
        let Asked { to_b, _key, a, b, target, source, words, _contexts, world } = asked;
        assert_eq!(a.finish(to_b.send(5, 0, b"").unwrap()), Ok(0));
        let before = closed(world);
        drop(to_b);
        assert_eq!(closed(world), before + 1);
        // The helper still serves a later request.
        let to_b = a.connect(&b.address().unwrap()).unwrap();
        let asked = Asked { to_b, _key, a, b, target, source, words, _contexts, world };
        let chunks = asked.a.counters().assisted_chunks;
        asked.ask(WHOLE);
        asked.settle(200);
        assert_eq!(asked.a.counters().assisted_chunks, chunks + (LEN / CHUNK) as u64);
        assert_eq!(asked.world.faults(), Vec::<String>::new());
    }

    /// The peer states the place to which the helper copies, and the sum of these numbers may overflow.
    fn help_request_beyond_end_of_memory_is_ignored() {
        let asked = Asked::new();
        asked.target.write(0, &vec![5; LEN]).unwrap();
        // The first claim is at the end of the transfer, and would be at offset 0 if the sum overflowed.
        let first = (LEN - 16 * CHUNK) as u64;
        let around = 0u64.wrapping_sub(first);
        let chunks = asked.a.counters().assisted_chunks;
        for put in [true, false] {
            for (at, offset) in [(around, 0), (0, around), (u64::MAX, 0), (0, u64::MAX), (1, 0), (0, 1)] {
                asked.word(0, 16).store(0, Ordering::SeqCst);
                asked.ask(Plan { put, at, offset, ..WHOLE });
                asked.settle(20);
                let words = [8, 16].map(|at| asked.word(0, at).load(Ordering::SeqCst));
                assert_eq!(words, [0, 1], "put {put} at {at:#x} and {offset:#x}: it did not give up");
            }
        }
        assert_eq!(asked.a.counters().assisted_chunks, chunks);
        // The lengths exceed the number of chunks that a word of claims can count.
        for len in [u64::MAX, (1 << 24) * CHUNK as u64] {
            let malformed = asked.a.counters().malformed;
            asked.ask(Plan { len, ..WHOLE });
            asked.settle(20);
            assert_eq!(asked.a.counters().malformed, malformed + 1, "{len:#x}");
        }
        for (region, byte) in [(&asked.target, 5), (&asked.source, 3)] {
            assert!(region.to_vec(0..LEN).unwrap().iter().all(|there| *there == byte));
        }
        assert_eq!(asked.world.faults(), Vec::<String>::new());
    }
}
