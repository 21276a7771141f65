//! Tests of handlers and providers that panic.

use crate::cases;
use crate::stage::{Stage, context, pending, try_context};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{Completion, Outcome, PostError, Region, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

/// A time limit that is longer than any wait of the tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Checks that events after a handler that panicked are dispatched by the next calls.
fn nothing_behind_a_panic_is_lost(lane: Lane) {
    let stage = Stage::new(vec![lane]);
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    stage
        .b
        .on_message(5, move |m| {
            count.set(count.get() + 1);
            if m.header() % 5 == 0 {
                resume_unwind(Box::new("a handler that panics"));
            }
        })
        .unwrap();
    let (_target, key) = stage.target(vec![0; 64]);
    let back = stage.at_a.register(vec![0; 64]).unwrap();
    let back = stage.ba.import_key(&back.remote_key().unwrap()).unwrap();
    let local = stage.at_b.register(vec![1; 64]).unwrap();
    // The batch contains messages to `b` and completions of `b`.
    let mut puts = Vec::new();
    for i in 0..12 {
        let _ = stage.finish(stage.ab.send(5, i, b"1234567890").unwrap()).unwrap();
        puts.push(stage.ba.put(&local, 0..8, &back, 0).unwrap());
    }
    let mut panics = 0;
    for _ in 0..500 {
        let _ = stage.a.progress();
        panics += usize::from(catch_unwind(AssertUnwindSafe(|| stage.b.progress())).is_err());
    }
    assert_eq!(panics, 3);
    assert_eq!(seen.get(), 12, "messages behind the panic are lost");
    for put in puts {
        let tieline::Outcome::Pending(put) = put else { continue };
        assert_eq!(stage.b.test(&put), Some(Ok(0)), "a completion behind the panic is lost");
    }
    assert_eq!(stage.world.left()[4], 0, "lent payloads are lost");
    assert_eq!(stage.b.arm(), Ok(true), "nothing is left that would keep it from sleeping");
    drop(key);
    stage.assert_no_faults();
}

fn two_provider_lanes() -> Vec<Lane> {
    vec![
        Lane { lends: true, ..Lane::messages("am").late(2) },
        Lane::memory("rma").on_other_provider().late(4),
    ]
}

/// Slots of objects that a worker opens later, or that belong to no worker: a rule for these slots names no interface. Rules for
/// the other slots name the interface of `a`. A peer whose provider broke sends nothing more, and an operation that waits for that
/// peer would not end.
const OF_NO_INTERFACE: [Slot; 9] = [
    Slot::Register,
    Slot::Deregister,
    Slot::PackKey,
    Slot::Revoke,
    Slot::EventFd,
    Slot::OpenInterface,
    Slot::CloseInterface,
    Slot::OpenDomain,
    Slot::CloseDomain,
];

/// Makes calls at `a` that reach slots of both lanes. Returns the operations that were started.
fn everything(
    stage: &Stage,
    (target, key): (&Region, &RemoteKey),
    local: &Region,
) -> Vec<Result<Outcome, PostError>> {
    let ab = &stage.ab;
    let mut outcomes = vec![
        ab.send(5, 1, b"short"),
        ab.send(5, 1, &[7; 200]),
        ab.put(local, 0..8, key, 0),
        ab.get(local, 8..16, key, 0),
        ab.fetch_add(key, 8, 1),
        ab.fence().map(|()| Outcome::Done(0)),
        ab.put_bytes(&[1; 8], key, 0),
        ab.put_with(local, 0..8, key, 0, Completion::Local),
        ab.flush(),
        ab.flush_messages(),
    ];
    let _ = stage.turn();
    let _ = stage.a.memory();
    if let Ok(region) = stage.at_a.register(vec![0; 64]) {
        let _ = region.remote_key();
        let _ = region.close();
    }
    if let Ok(Ok(fresh)) = stage.b.address().map(|address| stage.a.connect(&address)) {
        let again = target.remote_key().map(|bytes| fresh.import_key(&bytes));
        if let Ok(Ok(again)) = again {
            outcomes.push(fresh.put_bytes(&[1; 8], &again, 0));
        }
        outcomes.push(fresh.send(5, 1, b"fresh"));
        stage.settle();
    }
    // A worker without work arms for a sleep.
    let _ = stage.a.wait(Some(Duration::ZERO));
    drop(stage.at_a.worker());
    drop(try_context(stage.world, &[]).map(|context| context.worker().is_ok()));
    outcomes
}

/// Makes a provider fail in calls of this slot, on this lane, during a mix of operations. Returns whether the slot was called.
fn breaks_in(mut rule: Rule, lane: &'static str) -> bool {
    let stage = Stage::new(two_provider_lanes());
    let log = stage.log_at_b(5);
    let (target, key) = stage.target(vec![0; 64]);
    let local = stage.local(vec![1; 64]);
    let kept = stage.ab.put(&local, 0..8, &key, 0);
    if !OF_NO_INTERFACE.contains(&rule.slot) {
        rule = rule.at(stage.world.interface(0, lane));
    }
    stage.world.rule(rule);
    let mut outcomes = vec![kept];
    for _ in 0..2 {
        outcomes.extend(everything(&stage, (&target, &key), &local));
    }
    for (nth, outcome) in outcomes.into_iter().enumerate() {
        if let Ok(Outcome::Pending(request)) = outcome {
            let ended = stage.end_of(&request);
            assert!(ended.is_some(), "{rule:?}: operation {nth} never ends");
        }
    }
    drop(log);
    stage.assert_no_faults();
    stage.world.was_refused(rule.slot)
}

/// Slots that each have to be called on one of the two lanes. `poll` is tested separately.
const SLOTS: [Slot; 25] = [
    Slot::Short,
    Slot::Packed,
    Slot::Put,
    Slot::Get,
    Slot::Atomic,
    Slot::Flush,
    Slot::Fence,
    Slot::Connect,
    Slot::ImportKey,
    Slot::Reachable,
    Slot::Address,
    Slot::Register,
    Slot::Deregister,
    Slot::PackKey,
    Slot::Release,
    Slot::Arm,
    Slot::EventFd,
    Slot::Memory,
    Slot::Revoke,
    Slot::DropKey,
    Slot::CloseEndpoint,
    Slot::OpenInterface,
    Slot::CloseInterface,
    Slot::OpenDomain,
    Slot::CloseDomain,
];

fn in_every_slot(times: u64) {
    let acts = [Act::Panic, Act::Refuse(Status::ProviderFailed), Act::Refuse(Status::Io)];
    for slot in [&SLOTS[..], &[Slot::Poll]].concat() {
        for act in acts {
            let breaks = |lane| breaks_in(Rule { times, ..Rule::every(slot, act).on(lane) }, lane);
            let called = [breaks("am"), breaks("rma")];
            assert!(slot == Slot::Poll || called != [false; 2], "{slot:?} was never called");
        }
    }
}

/// Carries datagrams for `a` after this call, and panics at the first datagram that contains `bytes`.
fn panics_at(stage: &Stage, bytes: &'static [u8]) -> impl Fn() -> Option<Vec<u8>> + use<> {
    let mail: Rc<RefCell<VecDeque<Vec<u8>>>> = Rc::default();
    let (post, panics) = (mail.clone(), Cell::new(true));
    let carries = move |_: &[u8], datagram: &[u8]| {
        if datagram.windows(bytes.len()).any(|part| part == bytes) && panics.replace(false) {
            resume_unwind(Box::new("what carries datagrams panics"));
        }
        post.borrow_mut().push_back(datagram.to_vec());
        true
    };
    stage.a.set_out_of_band(&[0], carries).unwrap();
    move || mail.borrow_mut().pop_front()
}

/// Makes progress until `done`. Returns the number of calls that panicked.
fn panics_until(
    stage: &Stage,
    mail: impl Fn() -> Option<Vec<u8>>,
    done: impl Fn() -> bool,
) -> usize {
    let (begun, mut panics) = (Instant::now(), 0);
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "it never ends");
        mail().into_iter().for_each(|datagram| stage.b.deliver_out_of_band(&datagram).unwrap());
        panics += usize::from(catch_unwind(AssertUnwindSafe(|| stage.turn())).is_err());
    }
    panics
}

cases! {
    /// The carrier panics during a post: only the datagram is lost, which the protocol allows.
    fn panic_of_datagram_carrier_propagates_from_progress() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").over_circuits()]);
        let mail = panics_at(&stage, b"rma");
        let (target, key) = stage.target(vec![0; 8]);
        let put = pending(stage.ab.put_bytes(&[7; 8], &key, 0));
        assert_eq!(panics_until(&stage, mail, || stage.a.test(&put).is_some()), 1);
        assert_eq!((stage.a.test(&put), target.to_vec(0..8).unwrap()), (Some(Ok(0)), vec![7; 8]));
        stage.assert_no_faults();
    }

    fn panic_of_datagram_carrier_is_reported_when_worker_closes() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").over_circuits()]);
        let _mail = panics_at(&stage, b"rma");
        let (_target, _key) = stage.target(vec![0; 8]);
        assert!(catch_unwind(AssertUnwindSafe(|| stage.a.close(PATIENCE))).is_err());
        stage.assert_no_faults();
    }

    /// The carrier panics while an endpoint opens its next lane: the endpoint retries.
    fn endpoint_continues_after_panic_of_datagram_carrier() {
        let second = Lane { priority: 0, ..Lane::messages("second") };
        let second = second.on_other_provider().over_circuits();
        let stage = Stage::new(vec![Lane::messages("first").over_circuits(), second]);
        let log = stage.log_at_b(5);
        let mail = panics_at(&stage, b"other|other:second");
        let at = stage.world.interface(0, "first");
        stage.world.rule(Rule::every(Slot::Bind, Act::Refuse(Status::Io)).at(at));
        let late = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        drop(pending(late.send(5, 7, b"")));
        assert_eq!(panics_until(&stage, mail, || *log.borrow() == [7]), 1);
        assert_eq!(&*late.message_path(), "other:second/second");
        stage.assert_no_faults();
    }

    fn panic_in_handler_loses_no_event_of_its_batch() {
        nothing_behind_a_panic_is_lost(Lane::whole("all").sleeping());
    }

    fn a_panic_in_a_handler_loses_no_payload_that_was_lent() {
        nothing_behind_a_panic_is_lost(Lane { lends: true, ..Lane::whole("all").sleeping() });
    }

    /// The operation may have been carried out: it is not posted again, and reports nothing more.
    fn a_provider_that_panics_where_it_ends_operations_at_once_is_asked_once() {
        let by = |stage: &Stage, slot, key: &RemoteKey, local: &Region| match slot {
            Slot::Put => [stage.ab.put(local, 0..8, key, 0), stage.ab.put_bytes(&[1; 8], key, 0)],
            Slot::Get => [(); 2].map(|()| stage.ab.get(local, 0..8, key, 0)),
            _ => [(); 2].map(|()| stage.ab.fetch_add(key, 0, 1)),
        };
        for slot in [Slot::Put, Slot::Get, Slot::Atomic] {
            let stage = Stage::new(vec![
                Lane::messages("am"),
                Lane::memory("rma").synchronous().on_other_provider(),
            ]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            while key.is_settling() {
                let _ = stage.turn();
            }
            stage.world.rule(Rule::next(slot, Act::Panic));
            let calls = stage.world.calls(slot).len();
            let [first, second] = by(&stage, slot, &key, &local);
            let error = first.expect_err("its provider panicked");
            assert_eq!(error.status(), Status::ProviderFailed, "{slot:?}: {error}");
            assert_eq!(stage.world.calls(slot).len(), calls + 1, "{slot:?}");
            let _ = stage.ended(second);
            assert_eq!(stage.world.calls(slot).len(), calls + 1, "{slot:?} of one that broke");
            stage.assert_no_faults();
        }
    }

    fn a_provider_that_panics_is_taken_out_and_no_other() {
        let lanes = vec![Lane::messages("am"), Lane::memory("rma").on_other_provider()];
        let stage = Stage::new(lanes);
        let log = stage.log_at_b(5);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        stage.world.rule(Rule::every(Slot::Put, Act::Panic));
        let put = stage.ended(stage.ab.put(&local, 0..8, &key, 0));
        let error = put.expect_err("its provider panicked");
        assert_eq!(error.status(), Status::ProviderFailed, "{error}");
        assert!(!error.to_string().contains("fake:am"), "the wrong one is blamed: {error}");
        stage.settle();
        // The core does not call the provider again.
        let calls = stage.world.calls(Slot::Put).len();
        let _ = stage.ended(stage.ab.put(&local, 0..8, &key, 0));
        stage.settle();
        assert_eq!(stage.world.calls(Slot::Put).len(), calls, "a provider that broke is called again");
        // The provider of messages continues to serve new endpoints of this worker, and new workers.
        let next = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let _ = next.send(5, 76, b"still here").unwrap();
        assert!(stage.until(|| log.borrow().contains(&76)));
        let _ = stage.a.address().expect("what the others need to reach it");
        let worker = stage.at_a.worker().expect("a worker over the provider that did not break");
        let fresh = worker.connect(&stage.b.address().unwrap()).unwrap();
        let sent = fresh.send(5, 77, b"still here").unwrap();
        assert!(stage.until(|| { let _ = worker.progress(); log.borrow().contains(&77) }), "{sent:?}");
        stage.assert_no_faults();
    }

    fn a_provider_that_panics_in_a_message_ends_its_endpoints() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        stage.world.rule(Rule::next(Slot::Short, Act::Panic));
        let error = stage.ab.send(5, 0, b"").expect_err("its provider panicked");
        assert_eq!(error.status(), Status::ProviderFailed);
        let ended = stage.end_of(&put).expect("what was under way ends").unwrap_err();
        assert_eq!(ended.status(), Status::ProviderFailed);
        assert_eq!(stage.ab.error().expect("the endpoint is finished").status(), Status::ProviderFailed);
        assert_eq!(stage.a.pending(), 0);
        // The other context has its own copy of the provider.
        let _ = context(stage.world, &[]);
    }

    fn a_provider_that_fails_in_poll_is_taken_out_and_no_other() {
        let lanes = vec![Lane::messages("am"), Lane::memory("rma").on_other_provider()];
        let stage = Stage::new(lanes);
        let log = stage.log_at_b(5);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let flush = pending(stage.ab.flush());
        let at = stage.world.interface(0, "rma");
        stage.world.rule(Rule::every(Slot::Poll, Act::Refuse(Status::ProviderFailed)).at(at));
        for posted in [put, flush] {
            let ended = stage.end_of(&posted).expect("what it had ends").unwrap_err();
            assert_eq!(ended.status(), Status::ProviderFailed, "{ended}");
        }
        let worker = stage.at_a.worker().expect("a worker over the provider that did not break");
        let fresh = worker.connect(&stage.b.address().unwrap()).unwrap();
        let _ = fresh.send(5, 77, b"still here").unwrap();
        assert!(stage.until(|| { let _ = worker.progress(); log.borrow().contains(&77) }));
    }

    fn a_provider_that_broke_closes_nothing_of_any_of_its_lanes() {
        for over_circuits in [false, true] {
            let rma = Lane { to_endpoint: over_circuits, ..Lane::memory("rma") };
            let stage = Stage::new(vec![Lane::messages("am"), rma]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            assert_eq!(stage.finish(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
            stage.world.hold(Slot::Get);
            let get = pending(stage.ab.get(&local, 0..8, &key, 0));
            let lanes = ["am", "rma"].map(|lane| stage.world.interface(0, lane));
            stage.world.rule(Rule::next(Slot::Short, Act::Panic).at(lanes[0]));
            assert!(stage.ab.send(5, 0, b"").is_err(), "its provider panicked");
            let ended = stage.end_of(&get).expect("what was under way ends").unwrap_err();
            assert_eq!(ended.status(), Status::ProviderFailed);
            let Stage { ab, ba, a, b, world, .. } = stage;
            let closes = || {
                let all = [Slot::DropKey, Slot::CloseEndpoint].map(|slot| world.calls(slot));
                all.iter().flatten().filter(|call| lanes.contains(&call.interface)).count()
            };
            let before = closes();
            drop((key, ab));
            for _ in 0..200 {
                let _ = a.progress();
            }
            assert_eq!(closes(), before, "a provider that broke is called again");
            assert!(local.close().is_err(), "nobody knows what it touches");
            drop((ba, a, b));
        }
    }

    fn an_interface_that_had_failed_is_not_polled_when_its_provider_broke() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (_target, key) = stage.target(vec![0; 64]);
        assert_eq!(stage.finish(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
        let (am, rma) = (stage.world.interface(0, "am"), stage.world.interface(0, "rma"));
        stage.world.rule(Rule::every(Slot::Poll, Act::Refuse(Status::Io)).at(rma));
        stage.settle();
        stage.world.rule(Rule::next(Slot::Short, Act::Panic).at(am));
        assert!(stage.ab.send(5, 0, b"").is_err(), "its provider panicked");
        let polls = || stage.world.calls_at(rma).len();
        let before = polls();
        assert!(before > 0);
        stage.settle();
        assert_eq!(polls(), before, "a provider that broke is called again");
    }

    fn provider_that_breaks_in_any_slot_causes_no_hang() {
        in_every_slot(1);
    }

    fn provider_that_stays_broken_in_any_slot_causes_no_hang() {
        in_every_slot(u64::MAX);
    }

    fn a_provider_that_has_panicked_in_any_slot_is_taken_out_and_no_other() {
        let mut list = Vec::new();
        for slot in SLOTS {
            for lane in ["am", "rma"] {
                let stage = Stage::new(two_provider_lanes());
                let (target, key) = stage.target(vec![0; 64]);
                let local = stage.local(vec![1; 64]);
                let log = stage.log_at_b(5);
                let at = stage.world.interface(0, lane);
                let mut rule = Rule::next(slot, Act::Panic).on(lane);
                if !OF_NO_INTERFACE.contains(&slot) {
                    rule = rule.at(at);
                }
                // The slots of objects that a worker already has.
                let own = [Slot::CloseInterface, Slot::CloseDomain, Slot::OpenDomain, Slot::Release];
                stage.world.rule(rule);
                drop(everything(&stage, (&target, &key), &local));
                // If a slot cannot report its panic, the next call that can report the panic does so.
                drop(everything(&stage, (&target, &key), &local));
                // A worker checks at intervals whether a provider failed outside of data calls.
                (0..5_000).for_each(|_| { let _ = stage.a.progress(); });
                if !stage.world.was_refused(slot) || own.contains(&slot) {
                    continue;
                }
                let calls = || stage.world.calls_at(at);
                let before = calls();
                drop(everything(&stage, (&target, &key), &local));
                stage.settle();
                let again = &calls()[before.len()..];
                if !again.is_empty() { list.push(format!("{slot:?} of {lane} has panicked, and it is called again: {again:?}")); }
                if lane == "rma" {
                    let fresh = stage.a.connect(&stage.b.address().unwrap()).unwrap();
                    let _ = fresh.send(5, 77, b"still here").unwrap();
                    assert!(stage.until(|| log.borrow().contains(&77)), "{slot:?} took the other one along");
                }
            }
        }
        assert!(list.is_empty(), "{}", list.join("\n"));
    }

    fn memory_of_interfaces_is_reported_without_calling_broken_ones() {
        let stage = Stage::new(two_provider_lanes());
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let held = |at: usize| {
            let before = stage.world.calls_at(at).len();
            let shown = stage.a.status().interfaces;
            let name = ["am", "rma"].into_iter().find(|name| stage.world.interface(0, name) == at);
            let of = shown.iter().find(|one| one.path.ends_with(name.unwrap())).expect("one of the two");
            let asked = stage.world.calls_at(at)[before..].contains(&Slot::Memory);
            (asked, of.bytes, of.peers)
        };
        let (am, rma) = (stage.world.interface(0, "am"), stage.world.interface(0, "rma"));
        assert_eq!([held(am), held(rma)], [(true, 4608, 2); 2]);
        stage.world.rule(Rule::every(Slot::Put, Act::Panic));
        let put = stage.ab.put(&local, 0..8, &key, 0);
        // The values are those before and after the worker's check.
        assert_eq!([held(am), held(rma)], [(true, 4608, 2), (false, 0, 0)]);
        let ended = stage.ended(put).expect_err("its provider panicked");
        assert_eq!(ended.status(), Status::ProviderFailed);
        stage.settle();
        assert_eq!([held(am), held(rma)], [(true, 4608, 2), (false, 0, 0)]);
    }

    fn a_completion_of_nothing_ends_nothing() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let a = stage.world.interface(0, "all");
        let cookie = stage.world.calls(Slot::Put)[0].cookie;
        for wrong in [0, cookie ^ 1, cookie ^ 1 << 32, cookie ^ 1 << 63, u64::MAX] {
            stage.world.complete(a, wrong, Ok(1));
            stage.world.complete(a, wrong, Err(Status::Io));
        }
        stage.settle();
        assert!(stage.a.test(&put).is_none());
        stage.world.release_held();
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        // The provider reports an operation's own cookie a second time.
        stage.world.forget_rules();
        stage.world.hold(Slot::Put);
        drop(put);
        let next = pending(stage.ab.put(&local, 0..8, &key, 0));
        stage.world.complete(a, cookie, Err(Status::Io));
        stage.settle();
        assert!(stage.a.test(&next).is_none(), "an old number ended a new operation");
    }

    fn provider_failure_in_other_thread_is_reported_with_its_text() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.rule(Rule::next(Slot::Register, Act::Refuse(Status::NoMemory)));
        drop(stage.at_a.register(vec![0; 64]));
        let (context, world) = (stage.at_a.clone(), stage.world);
        let breaks = std::thread::spawn(move || {
            let worker = context.worker().unwrap();
            world.rule(Rule::next(Slot::Poll, Act::Panic));
            assert!(worker.progress() > 0);
        });
        breaks.join().unwrap();
        assert!(stage.until(|| stage.ab.send(5, 0, b"").is_err()));
        let error = stage.ab.send(5, 0, b"").unwrap_err();
        assert!(error.to_string().contains("as the test wants it"), "{error}");
    }

    fn payloads_behind_a_panic_go_back_when_the_worker_ends() {
        let stage = Stage::new(vec![Lane { lends: true, ..Lane::whole("all") }]);
        stage.b.on_message(5, |_| resume_unwind(Box::new("a handler that panics"))).unwrap();
        for i in 0..4 {
            let _ = stage.ab.send(5, i, b"1234567890").unwrap();
        }
        assert!(catch_unwind(AssertUnwindSafe(|| stage.b.progress())).is_err());
        assert!(stage.world.left()[4] > 0, "all came in polls of their own");
        let world = stage.world;
        drop(stage);
        assert_eq!(world.left(), [0; 5], "interfaces, endpoints, keys, registrations, lent payloads");
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    fn payload_kept_by_panicked_handler_is_released_with_its_guard() {
        let stage = Stage::new(vec![Lane { lends: true, ..Lane::whole("all") }]);
        let kept: Rc<RefCell<Vec<tieline::KeptMessage>>> = Rc::default();
        let keeps = kept.clone();
        stage.b.on_message(5, move |m| {
            keeps.borrow_mut().push(m.keep());
            resume_unwind(Box::new("a handler that panics"));
        }).unwrap();
        for i in 0..4 {
            let _ = stage.ab.send(5, i, b"1234567890").unwrap();
        }
        let poll = || drop(catch_unwind(AssertUnwindSafe(|| stage.turn())));
        (0..50).for_each(|_| poll());
        assert_eq!((kept.borrow().len(), stage.world.left()[4]), (4, 4));
        assert!(kept.borrow().iter().all(|message| message.payload() == b"1234567890"));
        let _ = kept.borrow_mut().pop();
        assert_eq!(stage.world.left()[4], 3);
        let world = stage.world;
        drop(stage);
        assert!(kept.borrow().iter().all(|message| message.payload() == b"1234567890"));
        drop(kept);
        assert_eq!((world.left(), world.faults()), ([0; 5], Vec::new()));
    }

    fn lent_rts_is_released_once_for_any_handler() {
        let stage = Stage::new(vec![Lane { lends: true, ..Lane::whole("all") }]);
        let kept: Rc<RefCell<Vec<tieline::KeptMessage>>> = Rc::default();
        let keeps = kept.clone();
        stage.b.on_message(5, move |m| {
            assert!(m.is_rendezvous());
            keeps.borrow_mut().push(m.keep());
            if m.header() == 1 {
                resume_unwind(Box::new("a handler that panics"));
            }
        }).unwrap();
        let long = vec![3; stage.ab.max_message().unwrap() + 1];
        let sent = [0, 1, 2].map(|n| pending(stage.ab.send(5, n, &long)));
        for _ in 0..300 {
            drop(catch_unwind(AssertUnwindSafe(|| stage.turn())));
        }
        assert!(sent.iter().all(|sent| stage.a.test(sent).is_some_and(|end| end.is_err())), "refused");
        assert!(kept.borrow().iter().all(|message| message.payload().is_empty()));
        assert_eq!((kept.borrow().len(), stage.world.left()[4]), (3, 0));
        drop(kept);
        stage.assert_no_faults();
    }
}
