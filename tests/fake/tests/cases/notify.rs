//! Tests of puts that notify the target: by the lane itself, in the message with the last bytes, or in a separate message.

use crate::cases;
use crate::progress_thread::{comes, is_done};
use crate::stage::{Stage, pending};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use tieline::{Completion, PeerId, PostError, Region, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps;

/// The notifications that the target's handler received, each with the contents of the target's memory at that time.
type Told = Rc<RefCell<Vec<(PeerId, u32, Vec<u8>)>>>;

fn told_at_b(stage: &Stage, target: &Region) -> Told {
    let told = Told::default();
    let (log, region) = (told.clone(), target.clone());
    let handler = move |peer, word| {
        let bytes = region.to_vec(0..region.len()).unwrap();
        log.borrow_mut().push((peer, word, bytes));
    };
    stage.b.on_notification(handler).unwrap();
    told
}

fn words(told: &Told) -> Vec<u32> {
    told.borrow().iter().map(|(_, word, _)| *word).collect()
}

pub(crate) fn ways() -> Vec<(&'static str, Vec<Lane>)> {
    let messages = || Lane::messages("am");
    let rail = |name, telling: bool| {
        let lane = Lane { module: "rail", ..Lane::memory(name).late(7) };
        if telling { lane.telling(32) } else { lane }
    };
    let two = |telling| vec![messages(), rail("a", telling), rail("b", telling)];
    vec![
        ("the lane", vec![Lane::whole("all").late(5).telling(32)]),
        ("the lane, at once", vec![Lane::whole("all").synchronous().telling(32)]),
        ("a circuit", vec![Lane::whole("all").telling(32).over_circuits()]),
        ("a lane that tells nobody", vec![messages(), Lane::memory("rma").late(5)]),
        ("the same, at once", vec![messages(), Lane::memory("rma").synchronous()]),
        ("pieces", vec![messages(), Lane { max_put: 100, ..Lane::memory("rma").telling(32) }]),
        ("too few bits", vec![Lane::whole("all").telling(8)]),
        ("rails", two(false)),
        ("rails that tell", two(true)),
        ("messages", vec![Lane { max_packed: 200, ..messages().late(3) }]),
        ("messages of circuits", vec![messages().over_circuits()]),
    ]
}

pub(crate) fn with_minor(mut address: Vec<u8>, minor: u8) -> Vec<u8> {
    let (place, end) = (5 + 16 + 1, address.len() - 4);
    address[place] = minor;
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let checksum = address[..end].iter().fold(0x811c_9dc5, step);
    address[end..].copy_from_slice(&checksum.to_le_bytes());
    address
}

cases! {
    fn notification_arrives_once_and_after_its_bytes_on_every_route() {
        const LEN: usize = 300 << 10;
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; LEN]);
            let told = told_at_b(&stage, &target);
            let local = stage.local(vec![7; LEN]);
            for (word, len) in [(0, 8), (0xdead_beef, 3000), (300, LEN), (301, 0)] {
                let put = stage.ab.put_notify(&local, 0..len, &key, 0, word);
                assert_eq!(stage.ended(put), Ok(0), "{way}");
                assert!(stage.until(|| !told.borrow().is_empty()), "{way}: nobody was told {word}");
                stage.settle();
                let told = told.take();
                assert_eq!(told.len(), 1, "{way}: {word} was told more than once");
                let (peer, heard, bytes) = &told[0];
                assert_eq!(*heard, word, "{way}");
                assert!(bytes[..len].iter().all(|byte| *byte == 7), "{way}: {word} came early");
                assert!(stage.b.endpoint_to(*peer).is_ok(), "{way}: nobody knows who told it");
            }
            stage.assert_no_faults();
        }
    }

    fn bytes_that_lie_anywhere_and_puts_that_complete_locally_tell_as_well() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 512]);
            let told = told_at_b(&stage, &target);
            let local = stage.local(vec![6; 256]);
            let anywhere = stage.ab.put_bytes_notify(&[5; 256], &key, 0, 1);
            assert_eq!(stage.ended(anywhere), Ok(0), "{way}");
            let local = stage.ab.put_notify_with(&local, 0..256, &key, 256, 2, Completion::Local);
            assert_eq!(stage.ended(local), Ok(0), "{way}");
            assert!(stage.until(|| told.borrow().len() == 2), "{way}: {:?}", words(&told));
            let told = told.take();
            assert_eq!((told[0].1, &told[0].2[..256]), (1, &[5; 256][..]), "{way}");
            assert_eq!((told[1].1, &told[1].2[256..]), (2, &[6; 256][..]), "{way}");
            stage.assert_no_faults();
        }
    }

    fn every_put_before_it_is_there() {
        for telling in [true, false] {
            for completion in [Completion::Local, Completion::Remote] {
                let a = Lane { priority: 9, ..Lane::memory("a") };
                let a = if telling { a.telling(32) } else { a };
                let b = Lane::memory("b").late(30);
                let stage = Stage::new(vec![Lane::messages("am"), a, b]);
                let (target, key) = stage.target(vec![0; 64]);
                stage.world.rule(Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected)).on("a"));
                let other = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
                let told = told_at_b(&stage, &target);
                let local = stage.local(vec![3; 64]);
                let before = stage.ab.put_with(&local, 0..8, &other, 0, completion).unwrap();
                let behind = stage.ab.put_notify(&local, 0..8, &key, 8, 1);
                let last = stage.ab.put_notify(&local, 0..8, &key, 16, 2);
                for put in [Ok(before), behind, last] {
                    assert_eq!(stage.ended(put), Ok(0));
                }
                assert!(stage.until(|| told.borrow().len() == 2));
                let told = told.take();
                for (_, word, bytes) in told {
                    // The second notification may precede the first, which used another route.
                    assert_eq!(bytes[..8 + 8 * word as usize], [3; 24][..8 + 8 * word as usize]);
                }
                stage.assert_no_faults();
            }
        }
    }

    fn put_up_to_lane_limit_is_notified_by_lane() {
        let lane = Lane { max_put: 100, ..Lane::memory("rma").telling(32) };
        let stage = Stage::new(vec![Lane::messages("am"), lane]);
        let (target, key) = stage.target(vec![0; 200]);
        let told = told_at_b(&stage, &target);
        let local = stage.local(vec![3; 200]);
        let by_the_lane = || stage.world.calls(Slot::PutNotify).len();
        for (len, count) in [(99, 1), (100, 2)] {
            let put = stage.ab.put_notify(&local, 0..len, &key, 0, 1);
            assert_eq!(stage.ended(put), Ok(0));
            assert!(stage.until(|| words(&told) == [1]), "{len}");
            assert_eq!(by_the_lane(), count, "{len} bytes");
            drop(told.take());
        }
        stage.assert_no_faults();
    }

    fn notifying_put_behind_fence_completes() {
        for telling in [true, false] {
            let a = Lane { priority: 9, ..Lane::memory("a") };
            let b = if telling { Lane::memory("b").telling(32) } else { Lane::memory("b") };
            let stage = Stage::new(vec![Lane::messages("am"), a, b.late(9)]);
            let (target, key) = stage.target(vec![0; 64]);
            stage.world.rule(Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected)).on("a"));
            let other = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
            let told = told_at_b(&stage, &target);
            let local = stage.local(vec![3; 64]);
            let first = pending(stage.ab.put(&local, 0..8, &key, 0));
            stage.ab.fence().unwrap();
            let second = pending(stage.ab.put_notify(&local, 0..8, &other, 8, 1));
            assert_eq!(stage.end_of(&first), Some(Ok(0)));
            assert_eq!(stage.end_of(&second), Some(Ok(0)));
            assert!(stage.until(|| words(&told) == [1]));
            assert_eq!(told.borrow()[0].2[..16], [3; 16]);
            stage.assert_no_faults();
        }
    }

    fn notifying_put_before_fence_waits_for_other_routes() {
        let a = Lane { priority: 9, ..Lane::memory("a").telling(32) };
        let stage = Stage::new(vec![Lane::messages("am"), a, Lane::memory("b")]);
        let (target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected)).on("a"));
        let other = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
        let told = told_at_b(&stage, &target);
        let local = stage.local(vec![3; 64]);
        stage.world.rule(Rule::next(Slot::Put, Act::Hold).on("b"));
        let before = pending(stage.ab.put(&local, 0..8, &other, 0));
        stage.world.rule(Rule::every(Slot::Short, Act::Refuse(Status::Again)));
        let message = pending(stage.ab.send(9, 0, b"waits"));
        let put = pending(stage.ab.put_notify(&local, 0..8, &key, 8, 1));
        stage.ab.fence().unwrap();
        stage.world.forget_rules();
        assert_eq!(stage.end_of(&message), Some(Ok(0)));
        stage.settle();
        assert!(told.borrow().is_empty(), "told before the first was there");
        stage.world.release_held();
        assert_eq!((stage.end_of(&before), stage.end_of(&put)), (Some(Ok(0)), Some(Ok(0))));
        assert!(stage.until(|| words(&told) == [1]));
        assert_eq!(told.borrow()[0].2[..16], [3; 16]);
        stage.assert_no_faults();
    }

    fn notification_in_failing_provider_is_not_resent_on_another_lane() {
        let others = [Lane::messages("am"), Lane::memory("b")].map(Lane::on_other_provider);
        let stage = Stage::new([vec![Lane::memory("a").telling(32)], others.into()].concat());
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        stage.world.rule(Rule::every(Slot::PutNotify, Act::Panic).on("a"));
        let put = stage.ended(stage.ab.put_bytes_notify(&[3; 8], &key, 0, 1));
        assert_eq!(put.unwrap_err().status(), Status::ProviderFailed);
        stage.settle();
        assert!(told.borrow().is_empty(), "{:?}", words(&told));
        assert_eq!(stage.ended(stage.ab.put_bytes_notify(&[4; 8], &key, 0, 2)), Ok(0));
        assert!(stage.until(|| words(&told) == [2]), "the other lane serves from here on");
        stage.assert_no_faults();
    }

    fn notifying_put_longer_than_queue_bound_completes() {
        const LONG: usize = 40_000;
        let lanes = vec![Lane::messages("am"), Lane::memory("rma")];
        let stage = Stage::with(lanes, &[("TIELINE_QUEUE_BYTES", "16k")]);
        let (target, key) = stage.target(vec![0; LONG]);
        let told = told_at_b(&stage, &target);
        assert_eq!(stage.ended(stage.ab.put_bytes_notify(&[3; LONG], &key, 0, 1)), Ok(0));
        assert!(stage.until(|| words(&told) == [1]));
        assert!(told.borrow()[0].2 == [3; LONG]);
        stage.assert_no_faults();
    }

    fn put_of_pieces_notifies_for_any_piece_limit() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let local = stage.local((0..64).collect());
            for (word, count) in [(1, 3), (2, 9), (3, 0)] {
                let pieces: Vec<_> = (0..count).map(|n| (&local, 7 * n..7 * n + 6)).collect();
                let put = stage.ab.put_pieces_notify(&pieces, &key, 0, word);
                assert_eq!(stage.ended(put), Ok(0), "{way}");
                assert!(stage.until(|| !told.borrow().is_empty()), "{way}");
                let (_, heard, bytes) = told.take().remove(0);
                let put: Vec<u8> = (0..64).filter(|byte| byte % 7 != 6).take(6 * count).collect();
                assert_eq!((heard, &bytes[..put.len()]), (word, &*put), "{way}");
            }
            stage.assert_no_faults();
        }
    }

    fn put_of_pieces_notifies_in_one_call_up_to_lane_limit() {
        let rma = Lane { max_iov: 4, ..Lane::memory("rma").telling(32) };
        let stage = Stage::new(vec![Lane::messages("am"), rma]);
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        let local = stage.local((0..64).collect());
        let mut calls = 0;
        for (count, at_once) in [(1, 1), (4, 1), (5, 0), (4, 1)] {
            let pieces: Vec<_> = (0..count).map(|n| (&local, 7 * n..7 * n + 6)).collect();
            let put = stage.ab.put_pieces_notify(&pieces, &key, 0, 1);
            assert_eq!(stage.ended(put), Ok(0));
            assert!(stage.until(|| !told.borrow().is_empty()));
            told.borrow_mut().clear();
            calls += at_once;
            assert_eq!(stage.world.calls(Slot::PutNotify).len(), calls, "{count} pieces");
        }
        stage.assert_no_faults();
    }

    fn notification_of_lost_lane_takes_another_route() {
        let a = Lane { priority: 9, ..Lane::memory("a").telling(32) };
        let stage = Stage::new(vec![Lane::messages("am"), a, Lane::memory("b").late(9)]);
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        let local = stage.local(vec![3; 64]);
        stage.world.rule(Rule::next(Slot::PutNotify, Act::Refuse(Status::Again)).on("a"));
        stage.world.rule(Rule::every(Slot::PutNotify, Act::Refuse(Status::PeerFailed)).on("a"));
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::PeerFailed)).on("a"));
        let first = pending(stage.ab.put_notify(&local, 0..8, &key, 0, 1));
        let second = pending(stage.ab.put_notify(&local, 0..8, &key, 8, 2));
        assert_eq!(stage.end_of(&first), Some(Ok(0)));
        assert_eq!(stage.end_of(&second), Some(Ok(0)));
        assert!(stage.until(|| told.borrow().len() == 2));
        let told = told.take();
        assert_eq!((told[0].1, &told[0].2[..8]), (1, &[3; 8][..]));
        assert_eq!((told[1].1, &told[1].2[..16]), (2, &[3; 16][..]));
        assert_eq!(&*key.path(), "fake:b/b");
        stage.assert_no_faults();
    }

    fn failed_put_does_not_notify() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let local = stage.local(vec![3; 64]);
            for slot in [Slot::Put, Slot::PutNotify] {
                stage.world.rule(Rule::every(slot, Act::FailLater(Status::KeyRejected)));
            }
            // The target refuses the put over messages, because its region has been replaced.
            drop(target);
            stage.b.on_notification({
                let told = told.clone();
                move |peer, word| told.borrow_mut().push((peer, word, Vec::new()))
            }).unwrap();
            let put = stage.ab.put_notify(&local, 0..8, &key, 0, 1);
            assert!(stage.ended(put).is_err(), "{way}");
            stage.settle();
            assert!(told.borrow().is_empty(), "{way}: {:?}", words(&told));
            stage.assert_no_faults();
        }
    }

    fn notification_of_done_put_arrives_although_endpoint_is_dropped() {
        for (way, lanes) in ways() {
            let mut stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let other = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let put = stage.ab.put_bytes_notify(&[4; 8], &key, 0, 1);
            assert_eq!(stage.ended(put), Ok(0), "{way}");
            drop((std::mem::replace(&mut stage.ab, other), key));
            assert!(stage.until(|| words(&told) == [1]), "{way}");
            stage.assert_no_faults();
        }
    }

    fn many_notifications_come_once_each_and_no_byte_is_late() {
        for (way, lanes) in ways() {
            let slow = lanes.into_iter().map(|lane| Lane { again: 400, ..lane }.late(6)).collect();
            let stage = Stage::new(slow);
            let (target, key) = stage.target(vec![0; 256]);
            let told = told_at_b(&stage, &target);
            let mut puts = Vec::new();
            for word in 0..100u32 {
                puts.push(loop {
                    let value = [word as u8 + 1];
                    match stage.ab.put_bytes_notify(&value, &key, u64::from(word), word) {
                        Ok(put) => break put,
                        Err(PostError::Retry(_)) => stage.settle(),
                        Err(error) => panic!("{way}: {error}"),
                    }
                });
            }
            for put in puts {
                assert_eq!(stage.finish(put), Ok(0), "{way}");
            }
            assert!(stage.until(|| told.borrow().len() == 100), "{way}: {:?}", words(&told));
            let mut told = told.take();
            told.sort_by_key(|(_, word, _)| *word);
            for (place, (_, word, bytes)) in told.into_iter().enumerate() {
                assert_eq!(word as usize, place, "{way}");
                assert!((0..=place).all(|at| bytes[at] == at as u8 + 1), "{way}: {word} came early");
            }
            stage.assert_no_faults();
        }
    }

    fn notifications_without_handler_are_dropped_and_counted() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 64]);
            assert_eq!(stage.ended(stage.ab.put_bytes_notify(&[1; 8], &key, 0, 1)), Ok(0), "{way}");
            assert!(stage.until(|| stage.b.counters().unknown_ids == 1), "{way}");
            let told = told_at_b(&stage, &target);
            assert_eq!(stage.ended(stage.ab.put_bytes_notify(&[1; 8], &key, 0, 2)), Ok(0), "{way}");
            assert!(stage.until(|| words(&told) == [2]), "{way}");
            assert_eq!(stage.b.counters().unknown_ids, 1, "{way}");
        }
    }

    /// A notification of an unknown peer is dispatched, like a message of an unknown peer, and cannot be answered.
    fn notification_of_unknown_peer_has_no_peer_and_bad_word_is_dropped() {
        let stage = Stage::new(vec![Lane::whole("all").telling(32)]);
        let (target, _key) = stage.target(vec![0; 8]);
        let told = told_at_b(&stage, &target);
        let at = stage.world.interface(1, "all");
        stage.world.notify_from_nobody(at, 1 << 32);
        stage.world.notify_from_nobody(at, 5);
        assert!(stage.until(|| words(&told) == [5]));
        let peer = told.borrow()[0].0;
        assert!(stage.b.endpoint_to(peer).is_err());
        assert_eq!(stage.b.counters().malformed, 1);
    }

    fn a_handler_that_panics_loses_nothing() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (_target, key) = stage.target(vec![0; 64]);
            let told: Rc<RefCell<Vec<u32>>> = Rc::default();
            let log = told.clone();
            stage.b.on_notification(move |_, word| {
                log.borrow_mut().push(word);
                resume_unwind(Box::new("as the test wants it"));
            }).unwrap();
            let puts: Vec<_> = (0..3)
                .map(|word| pending_or_done(stage.ab.put_bytes_notify(&[1; 8], &key, 0, word)))
                .collect();
            for _ in 0..500 {
                let _ = catch_unwind(AssertUnwindSafe(|| stage.turn()));
            }
            for put in puts.into_iter().flatten() {
                assert_eq!(stage.a.test(&put), Some(Ok(0)), "{way}");
            }
            assert_eq!(*told.borrow(), [0, 1, 2], "{way}");
        }
    }

    fn handler_may_put_and_notify_back() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (_target, key) = stage.target(vec![0; 64]);
            let home = stage.at_a.register_with(vec![0; 64], tieline::Access::ALL).unwrap();
            let back = stage.ba.import_key(&home.remote_key().unwrap()).unwrap();
            let ba = stage.ba.clone();
            stage.b.on_notification(move |_, word| {
                let _ = ba.put_bytes_notify(&[9; 8], &back, 0, word + 1).unwrap();
            }).unwrap();
            let told: Rc<RefCell<Vec<u32>>> = Rc::default();
            let log = told.clone();
            stage.a.on_notification(move |_, word| log.borrow_mut().push(word)).unwrap();
            assert_eq!(stage.ended(stage.ab.put_bytes_notify(&[1; 8], &key, 0, 1)), Ok(0), "{way}");
            assert!(stage.until(|| *told.borrow() == [2]), "{way}");
            assert_eq!(home.to_vec(0..8).unwrap(), [9; 8], "{way}");
            stage.assert_no_faults();
        }
    }

    /// An older peer would drop the unknown message, and the notification would be lost.
    fn older_peer_gets_no_notification_over_messages() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, _key) = stage.target(vec![0; 512]);
            let told = told_at_b(&stage, &target);
            let older = with_minor(stage.b.address().unwrap(), 0);
            let endpoint = stage.a.connect(&older).unwrap();
            let key = endpoint.import_key(&target.remote_key().unwrap()).unwrap();
            let local = stage.local(vec![7; 512]);
            // Over circuits, the first put would only form a circuit, and its lane would not be known.
            assert_eq!(stage.ended(endpoint.put(&local, 0..8, &key, 0)), Ok(0), "{way}");
            let before = stage.world.calls(Slot::PutNotify).len();
            match endpoint.put_notify(&local, 0..512, &key, 0, 300) {
                Err(PostError::Correct(error)) => {
                    assert_eq!(error.status(), Status::Unsupported, "{way}");
                    assert_eq!(stage.world.calls(Slot::PutNotify).len(), before, "{way}");
                    stage.settle();
                    assert!(told.borrow().is_empty(), "{way}: {:?}", words(&told));
                }
                put => {
                    assert_eq!(stage.ended(put), Ok(0), "{way}");
                    assert!(stage.until(|| words(&told) == [300]), "{way}");
                    assert!(stage.world.calls(Slot::PutNotify).len() > before, "{way}");
                }
            }
        }
    }

    fn closing_worker_delivers_notifications_of_done_puts() {
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            assert_eq!(stage.ended(stage.ab.put_bytes_notify(&[4; 8], &key, 0, 1)), Ok(0), "{way}");
            let Stage { ab, ba, a, b, world, .. } = stage;
            drop((ab, key, a));
            for _ in 0..500 {
                let _ = b.progress();
            }
            assert_eq!(words(&told), [1], "{way}");
            assert_eq!(world.faults(), Vec::<String>::new(), "{way}");
            drop(ba);
        }
    }

    fn notifying_put_returns_to_its_lane_when_service_worker_is_idle() {
        let rma = Lane::memory("rma").telling(32).without_atomics();
        let on = [("TIELINE_PROGRESS_THREAD", "on")];
        let stage = Stage::with(vec![Lane::messages("am"), rma], &on);
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        let local = stage.local(vec![3; 64]);
        assert!(is_done(&stage, stage.ab.fetch_add(&key, 8, 5).unwrap()));
        assert_eq!(target.to_vec(8..9).unwrap(), [5]);
        assert!(is_done(&stage, stage.ab.put_notify(&local, 0..8, &key, 0, 7).unwrap()));
        let told_now = || {
            let _ = stage.turn();
            !told.borrow().is_empty()
        };
        assert!(comes(told_now), "nobody was told");
        assert_eq!((words(&told), stage.world.calls(Slot::PutNotify).len()), (vec![7], 1));
        stage.assert_no_faults();
    }

    /// The service worker has a separate lane to memory, whose notifications arrive at that worker.
    fn lane_to_service_worker_delivers_no_notification() {
        let rma = Lane::memory("rma").telling(32);
        let served = Lane { caps: rma.caps & !caps::PASSIVE_TARGET, ..rma };
        for lanes in [vec![Lane::messages("am"), served], vec![Lane::messages("am")]] {
            let on = [("TIELINE_PROGRESS_THREAD", "on")];
            let stage = Stage::with(lanes, &on);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let local = stage.local(vec![3; 64]);
            let mut word = 0;
            for completion in [Completion::Local, Completion::Remote] {
                word += 1;
                let at = u64::from(word) * 8;
                let first = stage.ab.put_with(&local, 0..8, &key, 0, completion);
                let put = stage.ab.put_notify(&local, 0..8, &key, at, word);
                assert!(is_done(&stage, first.unwrap()) && is_done(&stage, put.unwrap()));
                let told_now = || {
                    let _ = stage.turn();
                    told.borrow().len() == word as usize
                };
                assert!(comes(told_now), "nobody was told {word}");
                let (_, heard, bytes) = told.borrow().last().cloned().unwrap();
                assert_eq!((heard, &bytes[..8], bytes[at as usize]), (word, &[3; 8][..], 3));
            }
            assert_eq!(stage.world.calls(Slot::PutNotify).len(), 0);
            stage.assert_no_faults();
        }
    }
}

fn pending_or_done(put: Result<tieline::Outcome, PostError>) -> Option<tieline::Request> {
    match put.unwrap() {
        tieline::Outcome::Done(_) => None,
        tieline::Outcome::Pending(request) => Some(request),
    }
}
