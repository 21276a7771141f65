//! Tests of the bounds of queues.

use crate::cases;
use crate::stage::{Stage, pending, posts_until_again};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tieline::{
    Access, Completion, Endpoint, Outcome, PostError, Region, RemoteKey, Request, ServiceRequest,
    Status, Width,
};
use tieline_fake::{Act, Lane, Rule, Slot};

/// The number of entries: more than any bound of 16 KiB allows.
const MANY: usize = 4_000;

/// A function that makes the id and the bytes of a request from its number.
type Question = fn(u64) -> (u32, Vec<u8>);
type Post = fn(&Endpoint, &Region, &RemoteKey) -> Result<Outcome, PostError>;

/// Posts a put whose source buffer is free at local completion, and whose bytes arrive later.
const PUT_LOCALLY: Post = |ab, local, key| ab.put_with(local, 0..8, key, 0, Completion::Local);
const COMPARE_SWAP: Post = |ab, _, key| ab.compare_swap(Width::Bits64, key, 0, 1, 2);

const POSTS: [(&str, Slot, Post); 11] = [
    ("put", Slot::Put, |ab, local, key| ab.put(local, 0..8, key, 0)),
    ("put that ends locally", Slot::Put, PUT_LOCALLY),
    ("put_bytes", Slot::Put, |ab, _, key| ab.put_bytes(&[1; 8], key, 0)),
    ("get", Slot::Get, |ab, local, key| ab.get(local, 0..8, key, 0)),
    ("atomic", Slot::Atomic, |ab, _, key| ab.fetch_add(key, 0, 1)),
    ("compare_swap", Slot::Atomic, COMPARE_SWAP),
    ("send", Slot::Short, |ab, _, _| ab.send(5, 0, b"12345678")),
    ("send_packed", Slot::Packed, |ab, _, _| ab.send_packed(5, 0, 200, |out| out.len())),
    ("send_regions", Slot::Packed, |ab, local, _| ab.send_regions(5, 0, &[(local, 0..8)])),
    ("send_regions, gathered", Slot::Zcopy, |ab, local, _| ab.send_regions(5, 0, &[(local, 0..8)])),
    ("flush", Slot::Flush, |ab, _, _| ab.flush()),
];

/// Posts operations of one kind after another until `Again`, and checks that everything completes once there is room.
fn again_at_the_bound(act: Act) {
    for (name, slot, post) in POSTS {
        if act == Act::Hold && matches!(slot, Slot::Short | Slot::Packed) {
            continue;
        }
        let max_zcopy = if slot == Slot::Zcopy { 64 } else { 0 };
        let lane = Lane { max_zcopy, ..Lane::whole("all") };
        let stage = Stage::with(vec![lane], &[("TIELINE_QUEUE_BYTES", "16k")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        if slot == Slot::Flush {
            // The held put is an operation to wait for.
            stage.world.hold(Slot::Put);
            drop(stage.ab.put(&local, 0..8, &key, 0).unwrap());
        }
        stage.world.rule(Rule::every(slot, act));
        let (taken, requests) = posts_until_again(MANY, || post(&stage.ab, &local, &key));
        assert!(taken.is_some(), "{MANY} times {name} and never Again ({act:?})");
        stage.world.forget_rules();
        stage.world.release_held();
        for request in &requests {
            let ended = stage.end_of(request).expect("an end when there is room");
            assert!(ended.is_ok(), "{name}: {ended:?}");
        }
        drop(requests);
        assert!(
            post(&stage.ab, &local, &key).is_ok(),
            "{name}: no room after everything has ended"
        );
        stage.assert_no_faults();
    }
}

cases! {
    fn operations_that_wait_for_room_are_bounded() {
        again_at_the_bound(Act::Refuse(Status::Again));
    }

    fn operations_in_flight_are_bounded() {
        again_at_the_bound(Act::Hold);
    }

    /// A queued operation counts with its copied bytes and with its bookkeeping.
    fn queued_copies_are_bounded_in_bytes() {
        const LEN: usize = 1000;
        const BOUND: usize = 64 << 10;
        let posts: [(&str, Vec<Lane>, Post); 3] = [
            ("send", vec![Lane::messages("am")], |ab, _, _| ab.send(5, 0, &[1; LEN])),
            ("put_bytes", vec![Lane::whole("all")], |ab, _, key| ab.put_bytes(&[1; LEN], key, 0)),
            ("emulated", vec![Lane::messages("am")], |ab, _, key| ab.put_bytes(&[1; LEN], key, 0)),
        ];
        for (name, lanes, post) in posts {
            let stage = Stage::with(lanes, &[("TIELINE_QUEUE_BYTES", "64k")]);
            let (_target, key) = stage.target(vec![0; LEN]);
            let local = stage.local(vec![1; 8]);
            for slot in [Slot::Short, Slot::Packed, Slot::Put] {
                stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)));
            }
            let (taken, requests) = posts_until_again(MANY, || post(&stage.ab, &local, &key));
            let taken = taken.expect("a bound");
            assert!((BOUND / LEN / 2..=BOUND / LEN).contains(&taken), "{taken} times {name}");
            stage.world.forget_rules();
            for request in &requests {
                assert!(stage.end_of(request).expect("an end when there is room").is_ok());
            }
            let (again, requests) = {
                for slot in [Slot::Short, Slot::Packed, Slot::Put] {
                    stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)));
                }
                posts_until_again(MANY, || post(&stage.ab, &local, &key))
            };
            assert_eq!(again, Some(taken), "{name}: all of its room is free again");
            stage.world.forget_rules();
            for request in &requests {
                assert!(stage.end_of(request).expect("an end when there is room").is_ok());
            }
        }
    }

    fn answers_to_a_peer_that_does_not_take_them_are_bounded() {
        let service = |token: u64| {
            let ask = [b"TS\x01\x01", &token.to_le_bytes()[..], b"\x01x\0\0"].concat();
            (0xf008, ask)
        };
        let atomic = |_| (0xf003, [&[0; 40][..], &[0, 8]].concat());
        let ping = |_| (0xf005, Vec::new());
        let questions: [Question; 3] = [service, atomic, ping];
        for question in questions {
            let stage = Stage::new(vec![Lane::messages("am")]);
            let (a, b) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
            for slot in [Slot::Short, Slot::Packed] {
                stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)).at(a));
            }
            for token in 0..70_000 {
                let (id, ask) = question(token);
                stage.world.forge(b, a, id, token + 1, &ask);
                if token % 16 == 0 {
                    let _ = stage.a.progress();
                }
            }
            let _ = stage.a.progress();
            let error = stage.ab.error().expect("an end with a peer that only asks");
            assert_eq!(error.status(), Status::BadData, "{error}");
        }
    }

    fn requester_is_not_disconnected_when_responder_has_no_room() {
        const MOST: usize = 20_000;
        let posts: [Post; 5] = [
            |ba, local, key| ba.get(local, 0..8, key, 0),
            |ba, local, key| ba.put(local, 0..8, key, 0),
            COMPARE_SWAP,
            PUT_LOCALLY,
            |ba, _, _| ba.flush_messages(),
        ];
        for (nth, post) in posts.into_iter().enumerate() {
            let stage = Stage::new(vec![Lane::messages("am")]);
            let target = stage.at_a.register_with(vec![0; 64], Access::ALL).unwrap();
            let key = stage.ba.import_key(&target.remote_key().unwrap()).unwrap();
            let local = stage.at_b.register(vec![1; 8]).unwrap();
            let a = stage.world.interface(0, "am");
            for slot in [Slot::Short, Slot::Packed] {
                stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)).at(a));
            }
            let (taken, requests) = posts_until_again(MOST, || {
                let posted = post(&stage.ba, &local, &key);
                let _ = stage.turn();
                posted
            });
            assert!(taken.is_some(), "post {nth}: {MOST} times and never Again");
            stage.settle();
            assert!(stage.ab.error().is_none() && stage.ba.error().is_none(), "post {nth}");
            stage.world.forget_rules();
            for request in &requests {
                let ended = stage.until(|| stage.b.test(request).is_some());
                assert!(ended, "post {nth}: an answer is lost");
                assert!(stage.b.test(request).expect("it has ended").is_ok());
            }
            stage.assert_no_faults();
        }
    }

    fn fences_without_anything_between_them_count_once() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").without_atomics()]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        stage.world.hold(Slot::Put);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let atomic = pending(stage.ab.fetch_add(&key, 8, 1));
        for _ in 0..MANY {
            stage.ab.fence().unwrap();
        }
        assert!(stage.a.pending() <= 3, "{} operations for one fence", stage.a.pending());
        let behind = pending(stage.ab.fetch_add(&key, 0, 1));
        stage.settle();
        assert!(stage.a.test(&behind).is_none(), "it overtook the put");
        stage.world.release_held();
        for request in [&put, &atomic] {
            assert_eq!(stage.end_of(request), Some(Ok(0)));
        }
        assert_eq!(stage.end_of(&behind), Some(Ok(0x0101_0101_0101_0101)));
        stage.assert_no_faults();
    }

    fn questions_to_a_peer_that_does_not_answer_are_bounded() {
        let posts: [(&str, Post); 7] = [
            ("put that ends locally", PUT_LOCALLY),
            ("compare_swap", COMPARE_SWAP),
            ("put_bytes", |ab, _, key| ab.put_bytes(&[1; 8], key, 0)),
            ("put", |ab, local, key| ab.put(local, 0..8, key, 0)),
            ("get", |ab, local, key| ab.get(local, 0..8, key, 0)),
            ("atomic", |ab, _, key| ab.fetch_add(key, 0, 1)),
            ("flush_messages", |ab, _, _| ab.flush_messages()),
        ];
        for (name, post) in posts {
            let stage = Stage::with(vec![Lane::messages("am")], &[("TIELINE_QUEUE_BYTES", "16k")]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            let (taken, requests) = posts_until_again(MANY, || post(&stage.ab, &local, &key));
            assert!(taken.is_some(), "{MANY} times {name} and never Again");
            for request in &requests {
                let ended = stage.end_of(request).expect("an end when the peer answers");
                assert!(ended.is_ok(), "{name}: {ended:?}");
            }
        }
    }

    /// A progress call sends only a part of a backlog of this length.
    fn progress_call_sends_bounded_messages_and_answers() {
        const MANY: usize = 200;
        let stage = Stage::new(vec![Lane::messages("am")]);
        let (_target, key) = stage.target(vec![0; 64]);
        for side in [0, 1] {
            let at = stage.world.interface(side, "am");
            stage.world.rule(Rule::every(Slot::Short, Act::Refuse(Status::Again)).at(at));
            // The backlog of `a` consists of messages, and that of `b` of answers.
            let requests: Vec<Request> = (0..MANY)
                .map(|i| match side {
                    0 => pending(stage.ab.send(5, i as u64, b"waits")),
                    _ => pending(stage.ab.fetch_add(&key, 0, 1)),
                })
                .collect();
            stage.settle();
            stage.world.forget_rules();
            let sent = || {
                let calls = stage.world.calls(Slot::Short);
                calls.iter().filter(|call| call.interface == at && !call.refused).count()
            };
            let before = sent();
            let _ = if side == 0 { stage.a.progress() } else { stage.b.progress() };
            let at_once = sent() - before;
            assert!((1..=MANY / 3).contains(&at_once), "side {side}: {at_once} in one call");
            for request in &requests {
                assert!(stage.end_of(request).expect("an end when there is room").is_ok());
            }
        }
        stage.assert_no_faults();
    }

    fn answers_that_cannot_be_given_are_bounded() {
        const BOUND: usize = 65_536;
        // A timeout also limits the time of unanswered requests; the timeout must not interfere in this test.
        let settings = [("TIELINE_CONNECT_TIMEOUT", "1h")];
        let stage = Stage::with(vec![Lane::messages("am")], &settings);
        let target = stage.at_b.register_with(vec![0; 64], Access::ALL).unwrap();
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let cb = c.connect(&stage.b.address().unwrap()).unwrap();
        let (b, at) = (stage.world.interface(1, "am"), stage.world.interface(2, "am"));
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::NoMemory)).at(b));
        let key = cb.import_key(&target.remote_key().unwrap()).unwrap();
        let asked = pending(cb.fetch_add(&key, 0, 1));
        let turn = || c.progress() + stage.b.progress();
        (0..10).for_each(|_| { let _ = turn(); });
        // The peer sends the same request repeatedly.
        let question = [&[0; 40][..], &[0, 8]].concat();
        for _ in 0..BOUND {
            stage.world.forge(at, b, 0xf003, 1 << 40, &question);
        }
        // The number of polls exceeds the number that is needed to deliver all requests.
        (0..BOUND / 8).for_each(|_| { let _ = turn(); });
        let ended = c.test(&asked).expect("nobody waits for an answer that does not come");
        assert_eq!(ended.unwrap_err().status(), Status::Closed);
        stage.assert_no_faults();
    }

    /// The last owed answer is sent inside a handler and exceeds the bound.
    fn peer_failure_inside_handler_is_reported_after_that_handler() {
        const BOUND: u64 = 65_536;
        let settings = [("TIELINE_CONNECT_TIMEOUT", "1h")];
        let stage = Stage::with(vec![Lane::messages("am").over_circuits()], &settings);
        let (a, b) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
        for slot in [Slot::Short, Slot::Packed] {
            stage.world.rule(Rule::every(slot, Act::Refuse(Status::NoMemory)).at(a));
        }
        (1..=BOUND).for_each(|token| stage.world.forge(b, a, 0xf005, token, &[]));
        // The number of calls exceeds the number that is needed to deliver all messages.
        (0..BOUND / 8).for_each(|_| { let _ = stage.a.progress(); });
        let inside = Rc::new(Cell::new(false));
        let told: Rc<RefCell<Vec<bool>>> = Rc::default();
        let (is_inside, was_inside, hears) = (inside.clone(), inside, told.clone());
        stage.a.on_peer_failure(move |_, _| hears.borrow_mut().push(was_inside.get()));
        let refuses = move |request: ServiceRequest| {
            is_inside.set(true);
            let _ = request.reject(b"");
            is_inside.set(false);
        };
        stage.a.listen("store", 4, refuses).unwrap();
        let ask = [&b"TS\x01\x01"[..], &[7; 8], b"\x05store\0\0"].concat();
        stage.world.forge(b, a, 0xf008, 0, &ask);
        (0..10).for_each(|_| { let _ = stage.a.progress(); });
        assert_eq!(*told.borrow(), [false], "inside a handler?");
    }

    fn service_refusals_owed_to_peer_that_reads_nothing_are_bounded() {
        const SERVICE: u32 = 0xf008;
        const BOUND: usize = 65_536;
        let stage = Stage::new(vec![Lane::messages("am")]);
        let (a, b) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
        for slot in [Slot::Short, Slot::Packed] {
            stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)).at(a).id(SERVICE));
        }
        for token in 0..BOUND as u64 + 4096 {
            let ask = [b"TS\x01\x01", &token.to_le_bytes()[..], b"\x07nothing\0\0"].concat();
            stage.world.forge(b, a, SERVICE, 0, &ask);
        }
        // The number of calls exceeds the number that is needed to deliver all requests.
        (0..BOUND / 8).for_each(|_| {
            let _ = stage.a.progress();
        });
        assert_eq!(stage.a.counters().malformed, 0, "these were to be questions");
        stage.world.forget_rules();
        // The number of calls exceeds the number that is needed to send all messages.
        (0..BOUND / 8).for_each(|_| { let _ = stage.a.progress(); });
        let calls = [stage.world.calls(Slot::Short), stage.world.calls(Slot::Packed)].concat();
        let sent = calls.iter().filter(|call| call.id == SERVICE && !call.refused).count();
        assert!((1..BOUND).contains(&sent), "{sent} refusals were kept for one peer");
        stage.assert_no_faults();
    }
}
