//! Tests of the times at which a region can be closed, and of the error when it cannot.

mod sys;

use super::*;
use crate::sys::ends_in_forked_child;
use crate::{Context, Outcome};
use std::time::Duration;
use tieline_host::abi::objects::tests::{Answers, registered};

const LONG: usize = 8 << 20;
/// A time longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a context whose transfers use messages, so that a long transfer is in progress for a while.
fn by_messages() -> Context {
    Context::builder().set("TIELINE_PROVIDERS", "^shm-cma").open().unwrap()
}

fn not_closed(region: Region) -> NotClosed {
    region.close().expect_err("it is still in use")
}

#[test]
fn a_region_that_nobody_uses_closes_at_once_whatever_its_memory_is() {
    let context = Context::open().unwrap();
    for region in [context.alloc(5000), context.register(vec![1; 5000]), context.alloc(0)] {
        let region = region.unwrap();
        let _ = region.remote_key().unwrap();
        region.close().unwrap();
    }
    let mut memory = vec![3u8; 4096];
    let region = sys::register_for_tests(&context, &mut memory);
    region.write(5, b"five").unwrap();
    region.close().unwrap();
    assert_eq!(&memory[4..10], b"\x03five\x03");
}

#[test]
fn another_handle_keeps_a_region_open() {
    let context = Context::open().unwrap();
    let region = context.alloc(100).unwrap();
    let (first, second) = (region.clone(), region.clone());
    let not = not_closed(region);
    assert_eq!(not.error.status(), Status::Busy);
    assert_eq!(not.error.why(), "2 other handles");
    drop(first);
    let not = not_closed(not.region);
    assert_eq!(not.error.why(), "1 other handle");
    drop(second);
    not.region.close().unwrap();
}

#[test]
fn a_pending_operation_keeps_a_region_open_until_it_is_done() {
    let context = by_messages();
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let target = context.register(vec![0u8; LONG]).unwrap();
    let local = context.register(vec![7u8; LONG]).unwrap();
    let key = me.import_key(&target.remote_key().unwrap()).unwrap();
    let put = me.put(&local, 0..LONG, &key, 0).unwrap();
    assert!(matches!(put, Outcome::Pending(_)), "{put:?}");
    let not = not_closed(local);
    assert_eq!(not.error.status(), Status::Busy);
    assert!(not.error.why().contains("pending on a worker"), "{}", not.error);
    assert!(!not.error.why().contains("handle"), "{}", not.error);
    assert!(not.error.fix().contains("make progress"), "{}", not.error);
    let clone = not.region.clone();
    let not = not_closed(not.region);
    assert!(not.error.why().starts_with("1 other handle and "), "{}", not.error);
    drop(clone);
    // The application may drop the request; the operation continues.
    drop(put);
    worker.close_region(not.region, PATIENCE).unwrap();
    worker.flush().unwrap();
    let clone = target.clone();
    let not = worker.close_region(clone, Duration::ZERO).unwrap_err();
    assert_eq!(not.error.why(), "1 other handle");
    assert!(target.to_vec(0..LONG).unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn messages_that_wait_in_a_queue_keep_their_regions_open() {
    let context = by_messages();
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let region = context.register(vec![1u8; 4096]).unwrap();
    let mut pending = Vec::new();
    while pending.len() < 2 {
        let sent = me.send_regions(9, 0, &[(&region, 0..4096)]).unwrap();
        pending.extend((!sent.is_done()).then_some(sent));
    }
    let not = not_closed(region);
    assert_eq!(not.error.why(), "2 operations pending on a worker");
    for sent in pending {
        let _ = worker.finish(sent).unwrap();
    }
    not.region.close().unwrap();
}

#[test]
fn after_the_first_attempt_peers_are_refused_and_no_new_key_is_given_out() {
    let context = by_messages();
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let target = context.register(vec![0u8; 100]).unwrap();
    let key = me.import_key(&target.remote_key().unwrap()).unwrap();
    let put = |bytes: &[u8]| worker.finish(me.put_bytes(bytes, &key, 0).unwrap()).map(drop);
    put(b"before").unwrap();
    let clone = target.clone();
    let not = not_closed(target);
    assert_eq!(put(b"behind").unwrap_err().status(), Status::KeyRejected);
    assert_eq!(clone.to_vec(0..6).unwrap(), b"before");
    assert_eq!(clone.remote_key().unwrap_err().status(), Status::Closed);
    drop(clone);
    not.region.close().unwrap();
}

/// Without the refusal, the put would write memory whose owner has reclaimed it.
#[test]
fn direct_access_by_peers_is_refused_after_first_close_attempt() {
    let (owner, peer) = (Context::open().unwrap(), Context::open().unwrap());
    let (worker, other) = (owner.worker().unwrap(), peer.worker().unwrap());
    let there = other.connect(&worker.address().unwrap()).unwrap();
    let regions =
        [("shm/ring", owner.alloc(100)), ("shm-cma/copy", owner.register(vec![0u8; 100]))];
    for (native, target) in regions {
        let target = target.unwrap();
        let key = there.import_key(&target.remote_key().unwrap()).unwrap();
        while key.is_settling() {
            let _ = (worker.progress(), other.progress());
        }
        if key.path() != native {
            println!("skipped: {native} does not reach this memory here, {} does", key.path());
            continue;
        }
        let put = |bytes: &[u8]| there.put_bytes(bytes, &key, 0).map(|put| assert!(put.is_done()));
        put(b"before").unwrap();
        let operation = target.hold();
        let not = not_closed(target);
        assert_eq!(not.error.why(), "1 operation pending on a worker");
        assert_eq!(put(b"behind").unwrap_err().status(), Status::KeyRejected, "{native}");
        assert_eq!(operation.to_vec(0..6).unwrap(), b"before");
        drop(operation);
        not.region.close().unwrap();
    }
}

/// Makes a region that is also registered with this test's domain. The region is large, so that an access after its release ends
/// the process.
fn known_to(context: &Context, answers: &'static Answers) -> Region {
    also_known_to(context.register(vec![0u8; 64 << 20]).unwrap(), answers)
}

/// Makes a region of memory that a domain of the library allocates, and that the end of its registration frees.
fn given_and_known_to(context: &Context, answers: &'static Answers) -> Region {
    let region = context.alloc(64 << 20).unwrap();
    assert!(region.is_shared(), "memory that peers map");
    also_known_to(region, answers)
}

fn also_known_to(mut region: Region, answers: &'static Answers) -> Region {
    let memory = registered(region.inner.span, answers);
    let inner = Arc::get_mut(&mut region.inner).unwrap();
    inner.registrations.push(Registration { domain: 0, memory, gives: false });
    region
}

#[test]
fn a_peer_that_is_inside_keeps_a_region_open_until_it_is_out() {
    static ANSWERS: Answers = Answers::new(Status::Again as i32);
    let context = Context::open().unwrap();
    let mut region = known_to(&context, &ANSWERS);
    for attempt in 1..4 {
        let not = not_closed(region);
        assert_eq!(not.error.status(), Status::Busy);
        assert!(not.error.why().contains("a peer is in the middle of a copy"), "{}", not.error);
        assert_eq!(ANSWERS.asked(), attempt);
        region = not.region;
    }
    ANSWERS.set(0);
    region.close().unwrap();
    assert_eq!(ANSWERS.asked(), 4);
}

#[test]
fn memory_of_a_dropped_region_is_kept_until_the_peer_is_out() {
    static ANSWERS: Answers = Answers::new(Status::Again as i32);
    let context = Context::open().unwrap();
    drop(known_to(&context, &ANSWERS));
    let kept = |context: &Context| context.alloc(8).map(|_| ANSWERS.ended()).unwrap();
    assert!(!kept(&context));
    let asked = ANSWERS.asked();
    ANSWERS.set(0);
    assert!(kept(&context), "it is let go with the next call that looks");
    assert_eq!(ANSWERS.asked(), asked + 1);
}

#[test]
fn a_context_ends_while_a_peer_is_inside_and_leaves_it_the_memory() {
    static ANSWERS: Answers = Answers::new(Status::Again as i32);
    let context = Context::open().unwrap();
    let region = known_to(&context, &ANSWERS);
    let memory = region.inner.span;
    drop((region, context));
    // The memory was not reused: its contents are unchanged.
    assert_eq!(memory.write(0, b"the peer"), Ok(()));
    assert!(!ANSWERS.ended());
}

#[test]
fn memory_of_dropped_region_in_unknown_state_is_leaked() {
    for last in [Status::Again, Status::Io] {
        let answers: &Answers = Box::leak(Box::new(Answers::new(last as i32)));
        let context = Context::open().unwrap();
        let region = known_to(&context, answers);
        let memory = region.inner.span;
        drop(region);
        answers.set(Status::Io as i32);
        let asked = answers.asked();
        drop(context.alloc(8).unwrap());
        assert_eq!(answers.asked() - asked, u32::from(last == Status::Again));
        drop(context);
        // The memory was not reused: its contents are unchanged.
        assert_eq!(memory.write(0, b"the peer"), Ok(()));
    }
}

#[test]
fn a_provider_that_does_not_know_leaves_the_memory_in_doubt_for_good() {
    static ANSWERS: Answers = Answers::new(Status::Io as i32);
    let context = Context::open().unwrap();
    let mut region = known_to(&context, &ANSWERS);
    for _ in 0..3 {
        let not = not_closed(region);
        assert_eq!(not.error.status(), Status::Io);
        region = not.region;
    }
    assert_eq!(ANSWERS.asked(), 1, "the handle is gone after any answer but AGAIN");
}

#[test]
fn domain_memory_is_kept_while_peer_uses_another_domain() {
    static ANSWERS: Answers = Answers::new(Status::Again as i32);
    let context = Context::open().unwrap();
    let not = not_closed(given_and_known_to(&context, &ANSWERS));
    assert_eq!(not.error.status(), Status::Busy);
    not.region.write(0, b"here").unwrap();
    let memory = not.region.inner.span;
    drop(not);
    assert_eq!(memory.write(0, b"the peer"), Ok(()));
    drop(context.alloc(8).unwrap());
    assert_eq!(memory.write(0, b"the peer"), Ok(()), "also behind a call that looks");
    ANSWERS.set(0);
    drop(context.alloc(8).unwrap());
    assert!(ANSWERS.ended());
    assert_eq!(context.core().memory.parked(), 0, "and is given back behind it");
}

#[test]
fn domain_memory_is_leaked_if_another_domain_is_in_unknown_state() {
    for last in [Status::Again, Status::Io] {
        let answers: &Answers = Box::leak(Box::new(Answers::new(last as i32)));
        let context = Context::open().unwrap();
        let not = not_closed(given_and_known_to(&context, answers));
        let not = not_closed(not.region);
        not.region.write(0, b"here").unwrap();
        let memory = not.region.inner.span;
        drop(not);
        answers.set(Status::Io as i32);
        drop(context.alloc(8).unwrap());
        drop(context.alloc(8).unwrap());
        drop(context);
        assert_eq!(memory.write(0, b"the peer"), Ok(()));
    }
}

/// Makes a part for peers that one peer is accessing. The part is large, so that an access after its release ends the process.
fn part_known_to(context: &Context, whole: &Region, answers: &'static Answers) -> Region {
    let memory = &context.core().memory;
    also_known_to(
        memory.part_for_peers(whole, 0..32 << 20, Access::READ, |_| true).unwrap(),
        answers,
    )
}

#[test]
fn memory_of_part_in_use_by_peer_survives_context() {
    let regions: [fn(&Context) -> Region; 2] =
        [|c| c.alloc(64 << 20).unwrap(), |c| c.register(vec![0; 64 << 20]).unwrap()];
    for region in regions {
        let answers: &Answers = Box::leak(Box::new(Answers::new(Status::Again as i32)));
        let context = Context::open().unwrap();
        let whole = region(&context);
        let memory = whole.inner.span;
        let of_context = Arc::downgrade(&context.core().memory);
        drop(part_known_to(&context, &whole, answers));
        drop((whole, context));
        assert!(of_context.upgrade().is_none(), "what is parked keeps the context");
        assert_eq!(memory.write(0, b"the peer"), Ok(()));
        assert!(!answers.ended());
    }
}

#[test]
fn no_peer_gets_a_part_of_a_region_that_is_being_closed() {
    let context = Context::open().unwrap();
    let memory = &context.core().memory;
    for region in [context.register(vec![1; 64]), context.register_transient(vec![1; 64])] {
        let region = region.unwrap();
        drop(memory.part_for_peers(&region, 0..8, Access::READ, |_| true).unwrap());
        drop(memory.part_for_copy(&region, 0..8, Access::READ, ("shm", "cma")).unwrap());
        let other = region.clone();
        let not = not_closed(region);
        let parts = [
            memory.part_for_peers(&other, 0..8, Access::READ, |_| true),
            memory.part_for_copy(&other, 0..8, Access::READ, ("shm", "cma")),
        ];
        for part in parts {
            assert_eq!(part.expect_err("it is being closed").status(), Status::Busy);
        }
        drop(other);
        not.region.close().unwrap();
    }
}

#[test]
fn a_region_ends_when_the_last_peer_is_out_of_its_parts() {
    for dropped in [false, true] {
        let answers: &Answers = Box::leak(Box::new(Answers::new(Status::Again as i32)));
        let context = Context::open().unwrap();
        let whole = context.alloc(64 << 20).unwrap();
        let memory = whole.inner.span;
        drop(part_known_to(&context, &whole, answers));
        let not = not_closed(whole);
        assert_eq!(not.error.status(), Status::Busy);
        assert!(not.error.why().contains("a peer is in the middle of a copy"), "{}", not.error);
        not.region.write(0, b"here").unwrap();
        let region = (!dropped).then_some(not.region);
        drop(context.alloc(8).unwrap());
        assert_eq!(memory.write(0, b"the peer"), Ok(()));
        answers.set(0);
        drop(context.alloc(8).unwrap());
        assert!(answers.ended());
        assert_eq!(context.core().memory.parked(), 0);
        region.map_or(Ok(()), Region::close).unwrap();
    }
}

#[test]
fn leaked_copy_stops_counting_against_endpoint() {
    for last in [Status::Again, Status::Io] {
        let answers: &Answers = Box::leak(Box::new(Answers::new(last as i32)));
        let context = Context::open().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let copy = Counted::new(vec![0; 64 << 20].into(), &count);
        let region = also_known_to(context.core().memory.readable_copy(copy).unwrap(), answers);
        let memory = region.inner.span;
        assert_eq!(count.load(Ordering::Relaxed), 64 << 20);
        drop(region);
        answers.set(Status::Io as i32);
        drop(context.alloc(8).unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(memory.write(0, b"the peer"), Ok(()));
    }
}

#[test]
fn into_buffer_without_buffer_leaves_region_unchanged() {
    let tcp = tieline_testing::built::folder(&tieline_testing::built::TCP);
    if let Err(reason) = &tcp {
        println!("skipped: ordinary memory: {reason}");
    }
    let ordinary = tcp.ok().map(|folder| {
        let builder = Context::builder().set("TIELINE_PROVIDERS", "tcp,tcp-connect");
        builder.set("TIELINE_PROVIDER_PATH", folder.to_str().unwrap()).open().unwrap()
    });
    let mut own = vec![0u8; LONG];
    for (context, shared) in [(Context::open().ok(), true), (ordinary, false)] {
        let Some(context) = context else { continue };
        let given = context.alloc(LONG).unwrap();
        assert_eq!(given.is_shared(), shared);
        for region in [given, sys::register_for_tests(&context, &mut own)] {
            let clone = region.clone();
            let not = region.into_buffer().unwrap_err();
            assert_eq!(not.error.status(), Status::Invalid);
            drop(clone);
            let not = not.region.into_buffer().unwrap_err();
            assert_eq!(not.error.status(), Status::Invalid);
            not.region.write(LONG - 9, b"as it was").unwrap();
            assert_eq!(not.region.to_vec(LONG - 9..LONG).unwrap(), b"as it was");
            let _ = not.region.remote_key().unwrap();
            not.region.close().unwrap();
        }
        own.fill(0);
    }
}

#[test]
fn forked_child_drops_regions_in_any_state_of_parents_threads() {
    let context = Context::open().unwrap();
    let regions = [context.alloc(100).unwrap(), context.register(vec![1u8; 100]).unwrap()];
    let twin = context.clone();
    let (entered, inside) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        twin.core().memory.regions.locked(|| {
            entered.send(()).unwrap();
            let _ = left.recv();
        });
    });
    inside.recv().unwrap();
    // Only the child drops the regions and the context, while the table is locked.
    let mut all = Some((regions, context));
    let ended = ends_in_forked_child(|| {
        let Some((regions, context)) = all.take() else { return };
        let [shared, own] = regions;
        assert_eq!(shared.read(0, &mut [0]).unwrap_err().status(), Status::Invalid);
        assert_eq!(own.to_vec(0..2).unwrap(), [1, 1]);
        assert_eq!(own.remote_key().unwrap_err().status(), Status::Invalid);
        assert_eq!(own.clone().close().unwrap_err().error.status(), Status::Invalid);
        drop((shared, own, context));
    });
    drop(leave);
    holder.join().unwrap();
    assert!(ended, "the child hangs, or died");
}

#[test]
fn local_memory_of_another_context_is_refused_where_it_would_be_kept() {
    let (here, there) = (by_messages(), by_messages());
    let worker = here.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let target = here.register(vec![0u8; LONG]).unwrap();
    let key = me.import_key(&target.remote_key().unwrap()).unwrap();
    let foreign = there.register(vec![1u8; LONG]).unwrap();
    let outcomes = [
        me.put(&foreign, 0..LONG, &key, 0),
        me.get(&foreign, 0..LONG, &key, 0),
        me.send_regions(1, 0, &[(&foreign, 0..8)]),
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_eq!(error.status(), Status::Invalid, "{error}");
        assert!(error.what().contains("another context"), "{error}");
    }
    foreign.close().unwrap();
}

#[test]
fn memory_of_any_size_is_given_or_refused_in_words() {
    // One case has memory that peers can map, and in the other no provider offers such memory.
    for (providers, shared) in [("shm", true), ("tcp,tcp-connect", false)] {
        let mut builder = Context::builder().set("TIELINE_PROVIDERS", providers);
        if !shared {
            match tieline_testing::built::folder(&tieline_testing::built::TCP) {
                Ok(folder) => {
                    builder = builder.set("TIELINE_PROVIDER_PATH", folder.to_str().unwrap());
                }
                Err(reason) => return println!("skipped: ordinary memory: {reason}"),
            }
        }
        let context = builder.open().unwrap();
        let none = context.alloc(0).unwrap();
        assert!(none.is_empty() && !none.is_shared(), "{providers}");
        none.read(0, &mut []).unwrap();
        assert_eq!(none.read(0, &mut [0]).unwrap_err().status(), Status::OutOfRange);
        let _ = none.remote_key().unwrap();
        none.close().unwrap();
        for len in [1 << 46, isize::MAX as usize, isize::MAX as usize + 1, usize::MAX] {
            let error = context.alloc(len).expect_err("no machine has that much");
            assert_eq!(error.status(), Status::NoMemory, "{error}");
            assert!(error.why().contains("room for"), "{error}");
        }
        let some = context.alloc(1 << 20).unwrap();
        assert_eq!(some.is_shared(), shared, "{providers}");
        assert_eq!(some.to_vec(0..1 << 20).unwrap(), vec![0; 1 << 20]);
        some.close().unwrap();
    }
}
