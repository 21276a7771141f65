//! Tests of the effects of a lane's properties on order, completion and sizes.

use crate::cases;
use crate::stage::{Stage, context, pending};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{AtomicOp, Completion, Outcome, PeerId, Status, Width};
use tieline_fake::{Act, Lane, Rule, Slot, World};
use tieline_plugin_api::caps;
use tieline_plugin_api::op_flags::{MORE, REMOTE_COMPLETION};

cases! {
    fn a_message_arrives_and_a_put_that_ends_late_is_there_when_it_is_done() {
        let stage = Stage::new(vec![Lane::messages("am").late(3), Lane::memory("rma").late(9)]);
        let log = stage.log_at_b(5);
        let (target, key) = stage.target(vec![0; 100]);
        let local = stage.local((0..100).collect());
        let _ = stage.finish(stage.ab.send(5, 42, b"payload").unwrap()).unwrap();
        let request = pending(stage.ab.put(&local, 10..60, &key, 20));
        assert_eq!(target.to_vec(20..70).unwrap(), [0; 50]);
        let _ = stage.end_of(&request).expect("an end").unwrap();
        assert_eq!(target.to_vec(20..70).unwrap(), (10..60).collect::<Vec<u8>>());
        assert!(stage.until(|| !log.borrow().is_empty()));
        assert_eq!(*log.borrow(), [42]);
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    fn a_piece_carries_its_region_to_a_module_that_wants_to_know() {
        for takes in [true, false] {
            let mut memory = Lane::memory("rma").late(2);
            if !takes {
                memory.caps &= !caps::TAKES_REGIONS;
            }
            let stage = Stage::new(vec![Lane::messages("am"), memory]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 64]);
            let put = pending(stage.ab.put(&local, 8..16, &key, 0));
            let back = stage.local(vec![0; 64]);
            let get = pending(stage.ab.get(&back, 0..64, &key, 0));
            // These bytes lie in no region.
            let bytes = pending(stage.ab.put_bytes(&[2; 8], &key, 8));
            for request in [put, get, bytes] {
                assert_eq!(stage.end_of(&request), Some(Ok(0)));
            }
            assert_eq!(stage.world.named(), if takes { 2 } else { 0 });
            stage.assert_no_faults();
        }
    }

    fn error_of_failed_operation_has_providers_text() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").late(2)]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::KeyRejected)));
        let put = pending(stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0));
        let error = stage.end_of(&put).expect("an end").unwrap_err();
        assert_eq!(error.status(), Status::KeyRejected);
        let told = error.to_string();
        assert!(told.contains(tieline_fake::FAILED_WORDS), "{told}");
        assert!(told.contains(&format!("{:#x}", tieline_fake::FAILED_CODE)), "{told}");
        stage.assert_no_faults();
    }

    /// The put uses a lane and the atomic uses messages: the order within each lane does not order these two operations.
    fn an_atomic_behind_a_fence_waits_for_a_put_on_another_lane() {
        let lanes = vec![Lane::messages("am"), Lane::memory("rma").without_atomics()];
        let stage = Stage::new(lanes);
        stage.world.hold(Slot::Put);
        let (target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0));
        stage.ab.fence().unwrap();
        let atomic = pending(stage.ab.fetch_add(&key, 8, 5));
        stage.settle();
        assert_eq!(target.to_vec(8..16).unwrap(), [0; 8], "the atomic overtook the put");
        stage.world.forget_rules();
        stage.world.release_held();
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        assert_eq!(stage.end_of(&atomic), Some(Ok(0)));
        assert_eq!(target.to_vec(0..16).unwrap(), [[1; 8], [5, 0, 0, 0, 0, 0, 0, 0]].concat());
        stage.assert_no_faults();
    }

    fn a_put_behind_a_fence_waits_for_an_emulated_atomic() {
        let lanes = vec![Lane::messages("am").late(20), Lane::memory("rma").without_atomics()];
        let stage = Stage::new(lanes);
        let (target, key) = stage.target(vec![0; 64]);
        let atomic = pending(stage.ab.fetch_add(&key, 8, 5));
        stage.ab.fence().unwrap();
        let put = stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0).unwrap();
        let early = || target.to_vec(0..8).unwrap() != [0; 8] && target.to_vec(8..9).unwrap() == [0];
        assert!(stage.until(|| {
            assert!(!early(), "the put overtook the atomic");
            target.to_vec(0..8).unwrap() != [0; 8]
        }));
        let _ = stage.finish(put).unwrap();
        assert_eq!(stage.end_of(&atomic), Some(Ok(0)));
        stage.assert_no_faults();
    }

    fn on_one_lane_a_fence_is_the_lanes_own() {
        let stage = Stage::new(vec![Lane::whole("all").late(30)]);
        let (target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0));
        stage.ab.fence().unwrap();
        let atomic = pending(stage.ab.fetch_add(&key, 8, 5));
        assert_eq!(stage.world.calls(Slot::Atomic).len(), 1, "the atomic waits in the core");
        assert!(stage.until(|| {
            let (put, atomic) = (target.to_vec(0..1).unwrap(), target.to_vec(8..9).unwrap());
            assert!(put == [1] || atomic == [0], "the atomic overtook the put");
            atomic == [5]
        }));
        assert_eq!((stage.end_of(&put), stage.end_of(&atomic)), (Some(Ok(0)), Some(Ok(0))));
    }

    fn a_fence_swallows_no_failure() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        drop(target);
        let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
        let _ = stage.finish(put).unwrap();
        stage.settle();
        stage.ab.fence().unwrap();
        let flushed = stage.ended(stage.ab.flush());
        assert_eq!(flushed.expect_err("a put was refused").status(), Status::KeyRejected);
        // The failure is reported once.
        assert_eq!(stage.finish(stage.ab.flush().unwrap()), Ok(0));
    }

    fn transfer_longer_than_module_limit_is_split() {
        let lane = Lane { max_put: 100, max_get: 70, ..Lane::whole("all").late(5) };
        let stage = Stage::new(vec![lane]);
        let (target, key) = stage.target(vec![0; 1000]);
        let bytes: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        let local = stage.local(bytes.clone());
        let put = stage.ab.put(&local, 0..1000, &key, 0).expect("a put of any size");
        let _ = stage.finish(put).expect("a put of any size");
        assert_eq!(target.to_vec(0..1000).unwrap(), bytes);
        let put = stage.ab.put_bytes(&[9; 333], &key, 500).expect("a put of any size");
        let _ = stage.finish(put).expect("a put of any size");
        assert_eq!(target.to_vec(499..834).unwrap(), [&bytes[499..500], &[9; 333], &bytes[833..834]].concat());
        let back = stage.local(vec![0; 1000]);
        let get = stage.ab.get(&back, 0..1000, &key, 0).expect("a get of any size");
        let _ = stage.finish(get).expect("a get of any size");
        assert_eq!(back.to_vec(0..1000).unwrap(), target.to_vec(0..1000).unwrap());
        stage.assert_no_faults();
    }

    fn all_but_the_last_piece_of_a_cut_transfer_say_that_more_follows() {
        for (len, many) in [(10, 1), (100, 1), (101, 2), (1000, 10), (6_600, 66)] {
            for slot in [Slot::Put, Slot::Get] {
                let lane = Lane { max_put: 100, max_get: 100, ..Lane::whole("all").late(5) };
                let stage = Stage::new(vec![lane]);
                let (target, key) = stage.target((0..6_600).map(|i| (i % 251) as u8).collect());
                let local = stage.local(vec![1; 6_600]);
                let moved = match slot {
                    Slot::Put => stage.ab.put(&local, 0..len, &key, 0),
                    _ => stage.ab.get(&local, 0..len, &key, 0),
                };
                assert_eq!(stage.ended(moved), Ok(0));
                assert_eq!(target.to_vec(0..len).unwrap(), local.to_vec(0..len).unwrap());
                let calls = stage.world.calls(slot);
                let said: Vec<bool> = calls.iter().map(|call| call.flags & MORE != 0).collect();
                // After the 64th piece, the other pieces wait until some pieces have completed.
                let follows = |n: usize| n + 1 != many && n != 63;
                assert_eq!(said[..many.min(64)], (0..many.min(64)).map(follows).collect::<Vec<_>>());
                assert_eq!((said.len(), said.last()), (many, Some(&false)));
                stage.assert_no_faults();
            }
        }
    }

    fn a_cut_transfer_ends_when_its_last_piece_has() {
        let lane = Lane { max_put: 100, ..Lane::whole("all").late(5) };
        let stage = Stage::new(vec![lane]);
        let (_target, key) = stage.target(vec![0; 1000]);
        let local = stage.local(vec![1; 1000]);
        let mut fails = Rule::next(Slot::Put, Act::FailLater(Status::KeyRejected));
        fails.skip = 3;
        stage.world.rule(fails);
        let put = stage.ab.put(&local, 0..1000, &key, 0).expect("a put of any size");
        let ended = stage.finish(put).expect_err("a piece failed");
        assert_eq!(ended.status(), Status::KeyRejected);
        drop(local);
        stage.assert_no_faults();
    }

    fn a_put_that_may_end_locally_asks_for_no_more() {
        let stage = Stage::new(vec![Lane::whole("all").late(5)]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        for (completion, remote) in [(Completion::Local, 0), (Completion::Remote, REMOTE_COMPLETION)] {
            let put = stage.ab.put_with(&local, 0..8, &key, 0, completion).unwrap();
            let call = *stage.world.calls(Slot::Put).last().expect("a put");
            assert_eq!(call.flags & REMOTE_COMPLETION, remote, "{completion:?}");
            let _ = stage.finish(put).unwrap();
        }
    }

    fn failure_of_locally_completed_native_put_is_reported_by_flush() {
        let stage = Stage::new(vec![Lane::whole("all").late(5)]);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        drop(target);
        let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
        assert_eq!(stage.finish(put), Ok(0), "its bytes were read");
        let flushed = stage.ended(stage.ab.flush());
        assert_eq!(flushed.expect_err("a put was refused").status(), Status::KeyRejected);
    }

    fn a_failed_completion_says_why() {
        let stage = Stage::new(vec![Lane::whole("all").late(2)]);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        drop(target);
        let error = stage.end_of(&put).expect("an end").expect_err("there is no such region");
        assert_eq!(error.status(), Status::KeyRejected);
        assert!(!error.why().is_empty(), "{error}");
        // The failure belongs to that operation, not to the endpoint.
        assert!(stage.ab.error().is_none());
    }

    fn a_lane_without_room_delays_and_loses_nothing() {
        let lane = Lane { again: 700, ..Lane::whole("all").late(3) };
        let stage = Stage::new(vec![lane]);
        let log = stage.log_at_b(5);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local((0..64).collect());
        let mut last = Vec::new();
        for i in 0..50 {
            last.push(stage.ab.send(5, i, &vec![1; 10 * i as usize]).unwrap());
            last.push(stage.ab.fetch_add(&key, 8, 1).unwrap());
            last.push(stage.ab.put(&local, 0..8, &key, 0).unwrap());
        }
        for outcome in last {
            let _ = stage.finish(outcome).unwrap();
        }
        let _ = stage.finish(stage.ab.flush_messages().unwrap()).unwrap();
        assert_eq!(*log.borrow(), (0..50).collect::<Vec<_>>());
        assert_eq!(target.to_vec(0..9).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 50]);
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    fn memory_of_a_failed_endpoint_stays_until_the_provider_has_closed_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Get);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        let get = pending(stage.ab.get(&local, 0..64, &key, 0));
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(a, b, Status::TimedOut, "the cable is cut");
        let error = stage.end_of(&get).expect("an end").expect_err("the endpoint failed");
        assert_eq!((error.status(), error.why()), (Status::TimedOut, "the cable is cut"));
        drop((local, get, key));
        stage.world.release_held();
        stage.settle();
        stage.assert_no_faults();
        assert_eq!(stage.ab.send(1, 0, &[]).unwrap_err().status(), Status::TimedOut);
    }

    fn region_of_failed_endpoint_closes_after_providers_completion() {
        for slot in [Slot::Put, Slot::Get] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").late(3)]);
            stage.world.hold(slot);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 64]);
            let posted = match slot {
                Slot::Put => pending(stage.ab.put(&local, 0..64, &key, 0)),
                _ => pending(stage.ab.get(&local, 0..64, &key, 0)),
            };
            let atomic = pending(stage.ab.fetch_add(&key, 0, 1));
            let (a, b) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
            stage.world.break_endpoints(a, b, Status::TimedOut, "the cable is cut");
            let error = stage.end_of(&posted).expect("an end").expect_err("the endpoint failed");
            assert_eq!(error.status(), Status::TimedOut);
            drop((posted, atomic));
            stage.settle();
            let not = local.close().expect_err("the provider still has the memory");
            assert_eq!((not.error.status(), not.error.why()), (Status::Busy, "1 operation pending on a worker"));
            stage.world.release_held();
            stage.settle();
            assert_eq!(stage.world.operations(), 0);
            not.region.close().expect("nothing touches the memory any more");
            assert_eq!(stage.a.counters().malformed, 0, "what comes late was asked for");
            stage.assert_no_faults();
        }
    }

    fn a_failed_endpoint_ends_everything_once_and_posts_nothing_more() {
        let stage = Stage::new(vec![Lane::messages("am").late(4), Lane::memory("rma").late(8)]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        stage.world.rule(Rule::every(Slot::Short, Act::Refuse(Status::Again)));
        let outcomes: Vec<Outcome> = vec![
            stage.ab.send(5, 1, b"queued").unwrap(),
            stage.ab.put(&local, 0..64, &key, 0).unwrap(),
            stage.ab.get(&local, 0..64, &key, 0).unwrap(),
            stage.ab.fetch_add(&key, 0, 1).unwrap(),
            stage.ab.flush().unwrap(),
        ];
        let (a, b) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
        stage.world.break_endpoints(a, b, Status::PeerFailed, "it died");
        for outcome in outcomes {
            let error = stage.finish(outcome).expect_err("the peer is gone");
            assert_eq!((error.status(), error.why()), (Status::PeerFailed, "it died"));
        }
        stage.world.forget_rules();
        let before = stage.world.calls(Slot::Put).len();
        assert_eq!(stage.ab.put_bytes(&[1], &key, 0).unwrap_err().status(), Status::PeerFailed);
        stage.settle();
        assert_eq!(stage.world.calls(Slot::Put).len(), before);
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    fn an_atomic_without_a_result_brings_none() {
        for lane in [Lane::whole("all").late(2), Lane::whole("all").synchronous(), Lane::messages("all")] {
            let stage = Stage::new(vec![lane]);
            let (_target, key) = stage.target(vec![7; 64]);
            let atomic = stage.ab.atomic(AtomicOp::Add, Width::Bits64, &key, 0, 1).unwrap();
            assert_eq!(stage.finish(atomic), Ok(0));
        }
    }

    fn two_that_wait_at_fences_answer_each_other() {
        let stage = Stage::new(vec![Lane::messages("am").late(2)]);
        let (target, key) = stage.target(vec![0; 64]);
        let own = stage.at_a.register(vec![0; 64]).unwrap();
        let back = stage.ba.import_key(&own.remote_key().unwrap()).unwrap();
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for i in 0..5 {
            mine.push(pending(stage.ab.put_bytes(&[1; 8], &key, 8 * i)));
            theirs.push(pending(stage.ba.put_bytes(&[2; 8], &back, 8 * i)));
            stage.ab.fence().unwrap();
            stage.ba.fence().unwrap();
        }
        for request in &mine {
            assert_eq!(stage.end_of(request), Some(Ok(0)), "each waits for the other");
        }
        assert!(stage.until(|| theirs.iter().all(|request| stage.b.test(request) == Some(Ok(0)))));
        assert_eq!(target.to_vec(0..40).unwrap(), [1; 40]);
        assert_eq!(own.to_vec(0..40).unwrap(), [2; 40]);
    }

    fn operations_use_better_lane_once_provider_has_it() {
        let lane = |name, priority| Lane { priority, ..Lane::memory(name).synchronous() };
        let stage = Stage::new(vec![Lane::messages("am"), lane("good", 9), lane("plain", 1)]);
        let wait = Rule::every(Slot::ImportKey, Act::Refuse(Status::Again)).on("good");
        stage.world.rule(Rule { times: 3, ..wait });
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(&*key.path(), "fake:plain/plain");
        let local = stage.local(vec![1; 8]);
        let good = stage.world.interface(0, "good");
        let by_good = || stage.world.calls(Slot::Put).last().is_some_and(|put| put.interface == good);
        for _ in 0..10_000 {
            let put = stage.ab.put(&local, 0..8, &key, 0).unwrap();
            let _ = stage.finish(put).unwrap();
            if by_good() {
                break;
            }
        }
        assert!(by_good(), "the first way that was there was taken for the best");
        assert_eq!(target.to_vec(0..8).unwrap(), [1; 8]);
        stage.assert_no_faults();
    }

    fn a_module_that_does_not_do_what_it_claims_is_left_out_by_the_self_test() {
        let tried = |rule: Option<Rule>| {
            let world = World::new(1, vec![Lane::messages("am"), Lane::memory("rma").late(3)]);
            rule.into_iter().for_each(|rule| world.rule(rule.on("rma")));
            let why = context(world, &[("TIELINE_SELFTEST", "on")]).report().why();
            assert_eq!(world.faults(), Vec::<String>::new());
            why
        };
        let good = tried(None);
        assert!(!good.contains("selftest"), "{good}");
        let dead_key = Rule { skip: 1, ..Rule::every(Slot::Put, Act::Lie) };
        for (rule, words) in [
            (Rule::every(Slot::Put, Act::Refuse(Status::Io)), "put to itself failed"),
            (Rule::every(Slot::Put, Act::Lie), "put of 1000 bytes to itself differs"),
            (Rule::every(Slot::Get, Act::FailLater(Status::Io)), "get to itself failed"),
            (Rule::every(Slot::Get, Act::Lie), "get of 1000 bytes to itself differs"),
            (Rule::every(Slot::Atomic, Act::Lie), "fetch-add of 5"),
            (Rule::every(Slot::ImportKey, Act::Refuse(Status::KeyRejected)), "its own key"),
            (dead_key, "the key of a deregistered region was executed"),
        ] {
            let why = tried(Some(rule));
            assert!(why.contains(words), "{words}: {why}");
        }
    }

    fn lane_that_became_unreachable_is_abandoned_and_not_retried() {
        let lane = |name, priority| Lane { priority, ..Lane::memory(name).synchronous() };
        for slot in [Slot::Put, Slot::Get] {
            let stage = Stage::new(vec![Lane::messages("am"), lane("good", 9), lane("plain", 1)]);
            let (target, key) = stage.target(vec![7; 64]);
            let local = stage.local(vec![1; 8]);
            assert_eq!(&*key.path(), "fake:good/good");
            stage.world.rule(Rule::every(slot, Act::Refuse(Status::Unreachable)).on("good"));
            let put = || stage.finish(stage.ab.put(&local, 0..8, &key, 0).unwrap());
            let get = || stage.finish(stage.ab.get(&local, 0..8, &key, 8).unwrap());
            assert_eq!(if slot == Slot::Put { put() } else { get() }, Ok(0));
            let good = stage.world.interface(0, "good");
            let tried = || {
                let calls = [stage.world.calls(Slot::Put), stage.world.calls(Slot::Get)].concat();
                calls.iter().filter(|call| call.interface == good).count()
            };
            let before = tried();
            for _ in 0..3 {
                assert_eq!((put(), get()), (Ok(0), Ok(0)));
            }
            assert_eq!(tried(), before, "{slot:?}: it was tried again");
            assert_eq!(&*key.path(), "fake:plain/plain");
            assert_eq!(target.to_vec(0..8).unwrap(), [7; 8]);
            stage.assert_no_faults();
        }
    }

    fn operation_that_waits_for_room_stays_on_its_lane() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").late(2)]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        for slot in [Slot::Put, Slot::Get, Slot::Atomic] {
            stage.world.rule(Rule { times: 20, ..Rule::every(slot, Act::Refuse(Status::Again)) });
        }
        let waiting = [
            stage.ab.put(&local, 0..8, &key, 0).unwrap(),
            stage.ab.get(&local, 0..8, &key, 8).unwrap(),
            stage.ab.fetch_add(&key, 16, 1).unwrap(),
        ];
        for outcome in waiting {
            assert_eq!(stage.finish(outcome), Ok(0));
        }
        let sent = [stage.world.calls(Slot::Short), stage.world.calls(Slot::Packed)].concat();
        let emulated: Vec<u32> = sent.iter().map(|call| call.id).filter(|id| (0xf000..0xf004).contains(id)).collect();
        assert_eq!(emulated, Vec::<u32>::new());
        stage.assert_no_faults();
    }

    fn operations_fail_with_text_of_endpoint_failure() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let other = pending(stage.ab.put_bytes(&[1; 8], &key, 8));
        let cookies: Vec<u64> = stage.world.calls(Slot::Put).iter().map(|call| call.cookie).collect();
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.complete(a, cookies[0], Err(Status::TimedOut));
        stage.world.complete(a, cookies[1], Err(Status::KeyRejected));
        stage.world.break_endpoints(a, b, Status::TimedOut, "the cable is cut");
        let end = |request| stage.end_of(request).expect("an end").unwrap_err();
        assert_eq!((end(&put).status(), end(&put).why()), (Status::TimedOut, "the cable is cut"));
        assert_eq!(end(&other).status(), Status::KeyRejected, "it had a reason of its own");
    }

    /// A provider may choose any peer numbers, for instance queue pair numbers or memory positions.
    fn numbers_of_peers_may_be_any() {
        let far = Lane { apart: 1 << 40, ..Lane::messages("all") };
        // Each side has answered the other, so both know each other's peer number.
        let stage = Stage::new(vec![far]);
        let (_target, key) = stage.target(vec![0; 64]);
        assert_eq!(stage.finish(stage.ab.fetch_add(&key, 0, 5).unwrap()), Ok(0));
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let cb = c.connect(&stage.b.address().unwrap()).unwrap();
        let heard: Rc<RefCell<Vec<PeerId>>> = Rc::default();
        let peers = heard.clone();
        stage.b.on_message(3, move |m| peers.borrow_mut().push(m.peer())).unwrap();
        drop((stage.ab.send(3, 0, b"from a").unwrap(), cb.send(3, 0, b"from c").unwrap()));
        assert!(stage.until(|| { let _ = c.progress(); heard.borrow().len() == 2 }));
        assert_ne!(heard.borrow()[0], heard.borrow()[1]);
        for peer in heard.borrow().iter() {
            let back = stage.b.endpoint_to(*peer).unwrap();
            let met = pending(back.flush_messages());
            let ended = || { let _ = c.progress(); stage.b.test(&met) == Some(Ok(0)) };
            assert!(stage.until(ended), "no way back to {peer}");
        }
        stage.assert_no_faults();
    }

    fn memory_is_registered_with_the_domains_that_can_and_no_others() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma"), Lane::memory("too")]);
        let registered = || stage.world.calls(Slot::Register).len();
        for (len, times) in [(8, 2), (0, 0)] {
            let before = registered();
            let region = stage.at_a.register(vec![0; len]).unwrap();
            assert_eq!(registered() - before, times, "{len} bytes");
            drop(region);
        }
        stage.assert_no_faults();
    }

    fn a_key_says_whether_its_operations_wait_for_progress_of_the_target() {
        let memory = Lane::memory("rma");
        let waiting = Lane { caps: memory.caps & !caps::PASSIVE_TARGET, ..memory.clone() };
        for (lanes, passive) in [
            (vec![Lane::messages("am"), memory], true),
            (vec![Lane::messages("am"), waiting], false),
            (vec![Lane::messages("am")], false),
        ] {
            let stage = Stage::new(lanes);
            let (_target, key) = stage.target(vec![0; 64]);
            while key.is_settling() {
                let _ = stage.turn();
            }
            assert_eq!(key.reaches_passive_target(), passive, "{}", key.path());
        }
    }
}
