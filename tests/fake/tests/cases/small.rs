//! Small puts and gets to a target that has promised to poll often. The core emulates them by messages up to the length for which
//! it estimates that messages are faster than the target's memory lane.

use crate::cases;
use crate::notify::with_minor;
use crate::stage::{Stage, pending, posts_until_again};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Completion, Endpoint, Outcome, PostError, Region, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::abi::EndpointLimits;
use tieline_plugin_api::caps::PASSIVE_TARGET;

const PROMISE: (&str, &str) = ("TIELINE_POLLS_OFTEN", "on");
/// A stated cost of the memory lane, with which messages are faster up to `UP_TO` bytes.
const SLOW_NS: f64 = 550.0;
const UP_TO: usize = 64;
const BY_BOTH: &str = "fake:rma/rma, up to 64 bytes emulated over fake:am/am";
const FEW: usize = 16;

fn slow() -> Lane {
    Lane { slow_ns: SLOW_NS, ..Lane::memory("rma").synchronous() }
}

/// Makes a stage whose target has promised to poll often; the other side has made no promise.
fn promised() -> Stage {
    with(slow())
}

fn with(memory: Lane) -> Stage {
    Stage::with_each(vec![Lane::messages("am"), memory], &[], &[PROMISE])
}

/// Makes another endpoint to the target, which has sent nothing, and a key for it.
fn another(stage: &Stage, target: &Region) -> (Endpoint, RemoteKey) {
    let ab = stage.a.connect(&stage.b.address().unwrap()).unwrap();
    let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
    (ab, key)
}

fn is_pending(posted: &Result<Outcome, PostError>) -> bool {
    matches!(posted, Ok(Outcome::Pending(_)))
}

fn no_room(stage: &Stage) {
    for slot in [Slot::Short, Slot::Packed] {
        stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)).on("am"));
    }
}

/// The notifications that the target's handler received, each with the contents of the target's memory at that time.
type Told = Rc<RefCell<Vec<(u32, Vec<u8>)>>>;

fn told_at_b(stage: &Stage, target: &Region) -> Told {
    let told = Told::default();
    let (log, memory) = (told.clone(), target.clone());
    let note = move |_, word| {
        let bytes = memory.to_vec(0..memory.len()).unwrap();
        log.borrow_mut().push((word, bytes));
    };
    stage.b.on_notification(note).unwrap();
    told
}

fn lens(stage: &Stage, slot: Slot) -> Vec<usize> {
    stage.world.calls(slot).iter().map(|call| call.len).collect()
}

fn messages(stage: &Stage) -> usize {
    stage.world.calls(Slot::Short).len() + stage.world.calls(Slot::Packed).len()
}

cases! {
    fn small_puts_and_gets_go_by_messages_and_longer_ones_by_the_module() {
        let stage = promised();
        let (target, key) = stage.target((0..200).collect());
        assert_eq!(key.path(), BY_BOTH);
        assert!(!key.reaches_passive_target());
        let local = stage.local((50..250).collect());
        for len in [1, UP_TO, UP_TO + 1, 150] {
            assert_eq!(stage.ended(stage.ab.put(&local, 0..len, &key, 3)), Ok(0));
            assert_eq!(target.to_vec(3..3 + len).unwrap(), local.to_vec(0..len).unwrap());
            let back = stage.local(vec![0; 200]);
            assert_eq!(stage.ended(stage.ab.get(&back, 7..7 + len, &key, 3)), Ok(0));
            assert_eq!(back.to_vec(7..7 + len).unwrap(), local.to_vec(0..len).unwrap());
            let bytes = vec![len as u8; len];
            assert_eq!(stage.ended(stage.ab.put_bytes(&bytes, &key, 9)), Ok(0));
            assert_eq!(target.to_vec(9..9 + len).unwrap(), bytes);
            let (half, rest) = (len / 2, len - len / 2);
            let pieces = [(&local, 20..20 + half), (&local, 0..rest)];
            assert_eq!(stage.ended(stage.ab.put_pieces(&pieces, &key, 11)), Ok(0));
            let both = [local.to_vec(20..20 + half).unwrap(), local.to_vec(0..rest).unwrap()];
            assert_eq!(target.to_vec(11..11 + len).unwrap(), both.concat());
            let back = [(&local, 120..120 + rest), (&local, 0..half)];
            assert_eq!(stage.ended(stage.ab.get_pieces(&back, &key, 11)), Ok(0));
            let got = [local.to_vec(120..120 + rest).unwrap(), local.to_vec(0..half).unwrap()];
            assert_eq!(got.concat(), both.concat());
        }
        assert_eq!(lens(&stage, Slot::Put), [65, 65, 65, 150, 150, 150]);
        assert_eq!(lens(&stage, Slot::Get), [65, 65, 150, 150]);
        assert_eq!((stage.b.counters().emulated, stage.ab.counters().emulated), (10, 10));
        stage.assert_no_faults();
    }

    fn a_module_that_ends_later_keeps_what_is_small() {
        let stage = with(Lane { slow_ns: 1e9, ..Lane::memory("rma").late(3) });
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(key.path(), "fake:rma/rma");
        assert!(key.reaches_passive_target());
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
        assert_eq!(target.to_vec(0..9).unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!((lens(&stage, Slot::Put), stage.b.counters().emulated), (vec![8], 0));
        stage.assert_no_faults();
    }

    fn the_stated_costs_say_up_to_how_many_bytes_go_by_messages() {
        for (slow_ns, up_to) in [(520.0, 0), (531.0, 8), (550.0, 64), (615.0, 256), (1e9, 2048 - 32)] {
            let memory = Lane { slow_ns, ..slow() };
            let stage = Stage::with(vec![Lane::messages("am"), memory], &[PROMISE]);
            let (_target, key) = stage.target(vec![0; 64]);
            let both = format!("fake:rma/rma, up to {up_to} bytes emulated over fake:am/am");
            assert_eq!(key.path(), if up_to > 0 { both } else { "fake:rma/rma".into() });
        }
    }

    fn report_names_promise_of_peer_and_deciding_costs() {
        let stage = promised();
        let told = stage.ab.report().iter().map(|r| r.verdict.to_string()).collect::<Vec<_>>();
        let why = "used for RMA of up to 64 bytes: the peer polls often; 8 bytes in 486 ns, by fake:rma/rma in 668 ns";
        assert!(told.iter().any(|line| line == why), "{told:?}");
        // The worker `a` has made no promise to `b`.
        let told = stage.ba.report().iter().map(|r| r.verdict.to_string()).collect::<Vec<_>>();
        assert!(!told.iter().any(|line| line.contains("polls often")), "{told:?}");
        let order = stage.at_a.report().why();
        assert!(order.contains("RMA of up to 64 bytes goes by messages"), "{order}");
    }

    fn a_target_that_promised_nothing_is_never_made_to_answer() {
        for memory in [slow(), Lane { slow_ns: SLOW_NS, ..Lane::memory("rma").late(3) }] {
            for of_a in [&[][..], &[PROMISE]] {
                let lanes = vec![Lane::messages("am"), memory.clone()];
                let stage = Stage::with_each(lanes, of_a, &[]);
                let (target, key) = stage.target(vec![0; 200]);
                assert_eq!(key.path(), "fake:rma/rma");
                assert!(key.reaches_passive_target());
                let (local, before) = (stage.local((0..200).collect()), messages(&stage));
                for len in [1, 8, UP_TO, 150] {
                    // The target makes no progress.
                    let alone = |outcome| match outcome {
                        Outcome::Done(_) => true,
                        Outcome::Pending(request) => (0..100).any(|_| {
                            let _ = stage.a.progress();
                            stage.a.test(&request) == Some(Ok(0))
                        }),
                    };
                    let waits = format!("{len} bytes waited for the target");
                    assert!(alone(stage.ab.put(&local, 0..len, &key, 0).unwrap()), "{waits}");
                    assert!(alone(stage.ab.get(&local, 0..len, &key, 0).unwrap()), "{waits}");
                    let bytes = vec![5; len];
                    assert!(alone(stage.ab.put_bytes(&bytes, &key, 0).unwrap()), "{waits}");
                    assert!(alone(stage.ab.flush().unwrap()), "{waits}");
                    assert_eq!(target.to_vec(0..len).unwrap(), vec![5; len]);
                }
                assert_eq!(messages(&stage), before, "the target was sent something");
                assert_eq!(stage.b.counters().emulated, 0);
                stage.assert_no_faults();
            }
        }
    }

    fn a_promise_is_not_given_where_a_thread_serves_or_waits_do_not_spin() {
        for (other, why) in [
            (("TIELINE_PROGRESS_THREAD", "on"), "the progress thread serves peers"),
            (("TIELINE_SPIN", "0us"), "waits do not spin here"),
        ] {
            let stage = Stage::with_each(vec![Lane::messages("am"), slow()], &[], &[PROMISE, other]);
            let (_target, key) = stage.target(vec![0; 64]);
            assert_eq!(key.path(), "fake:rma/rma");
            let warnings = stage.at_b.report().warnings;
            let told = warnings.iter().any(|line| line.contains("TIELINE_POLLS_OFTEN is on") && line.contains(why));
            assert!(told, "{warnings:?}");
            assert!(!stage.at_a.report().warnings.iter().any(|line| line.contains("POLLS_OFTEN")));
        }
    }

    /// `Done` has the same meaning as over the module: the bytes are in the target's memory.
    fn a_small_put_by_messages_is_done_when_the_target_has_it() {
        let stage = promised();
        let (target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0));
        let local = stage.local(vec![2; 8]);
        let sent = stage.ab.put_with(&local, 0..8, &key, 8, Completion::Local).unwrap();
        assert!(matches!(sent, Outcome::Done(_)), "its bytes are sent");
        let flush = pending(stage.ab.flush());
        for _ in 0..100 {
            let _ = stage.a.progress();
        }
        assert_eq!([stage.a.test(&put), stage.a.test(&flush)], [None, None]);
        assert_eq!(target.to_vec(0..16).unwrap(), [0; 16]);
        assert_eq!(stage.end_of(&flush), Some(Ok(0)));
        assert_eq!(target.to_vec(0..16).unwrap(), [[1; 8], [2; 8]].concat());
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        stage.assert_no_faults();
    }

    fn a_fence_keeps_what_is_small_and_what_is_not_in_order() {
        for (first, second) in [(8, 100), (100, 8), (8, 8)] {
            let stage = promised();
            let (target, key) = stage.target(vec![0; 100]);
            let post = |byte, len| stage.ab.put(&stage.local(vec![byte; 100]), 0..len, &key, 0);
            let before = post(1, first).unwrap();
            assert_eq!(before.is_done(), first > UP_TO, "{first} bytes");
            stage.ab.fence().unwrap();
            let behind = post(2, second).unwrap();
            if !before.is_done() {
                // The target makes no progress.
                for _ in 0..100 {
                    let _ = stage.a.progress();
                }
                assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "the second overtook the first");
            }
            for outcome in [before, behind] {
                assert_eq!(stage.finish(outcome), Ok(0));
            }
            assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
            stage.assert_no_faults();
        }
    }

    fn small_notifying_put_is_one_message_and_waits_for_other_routes() {
        let lanes = vec![Lane::messages("am"), Lane { priority: 9, ..slow() }, Lane::memory("late")];
        let stage = Stage::with_each(lanes, &[], &[PROMISE]);
        let (target, key) = stage.target(vec![0; 100]);
        stage.world.rule(Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected)).on("rma"));
        let by_late = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
        assert_eq!((key.path().as_str(), by_late.path().as_str()), (BY_BOTH, "fake:late/late"));
        let told = told_at_b(&stage, &target);
        let local = stage.local(vec![1; 100]);
        let before = messages(&stage);
        let put = stage.ab.put_notify(&local, 0..8, &key, 0, 7).unwrap();
        assert_eq!(messages(&stage), before + 1);
        assert_eq!(stage.finish(put), Ok(0));
        assert_eq!(told.take(), [(7, [vec![1; 8], vec![0; 92]].concat())]);
        stage.world.rule(Rule::every(Slot::Put, Act::Hold).on("late"));
        let long = stage.ab.put(&stage.local(vec![2; 100]), 0..100, &by_late, 0).unwrap();
        let small = stage.ab.put_notify(&local, 0..8, &key, 0, 8).unwrap();
        stage.settle();
        assert!(told.borrow().is_empty(), "it was told too early");
        stage.world.forget_rules();
        stage.world.release_held();
        assert_eq!((stage.finish(long), stage.finish(small)), (Ok(0), Ok(0)));
        assert!(stage.until(|| !told.borrow().is_empty()));
        let (word, memory) = told.take().remove(0);
        assert_eq!((word, &memory[8..]), (8, &[2; 92][..]), "it was told before the long put was there");
        stage.assert_no_faults();
    }

    fn small_notifying_puts_wait_for_no_answers() {
        const MANY: usize = 40;
        let stage = promised();
        let (target, key) = stage.target(vec![0; 8 * MANY]);
        let told = told_at_b(&stage, &target);
        let local = stage.local(vec![1; 8 * MANY]);
        assert!(stage.ab.put(&stage.local(vec![9; 100]), 0..100, &key, 0).unwrap().is_done());
        let before = messages(&stage);
        let put = |nth: usize| stage.ab.put_notify(&local, 0..8, &key, 8 * nth as u64, nth as u32);
        let puts: Vec<_> = (0..MANY).map(|nth| put(nth).unwrap()).collect();
        assert_eq!(messages(&stage), before + MANY, "one waits for another");
        assert_eq!(puts.iter().filter(|put| !put.is_done()).count(), FEW);
        for put in puts {
            assert_eq!(stage.finish(put), Ok(0));
        }
        assert!(stage.until(|| told.borrow().len() == MANY), "{}", told.borrow().len());
        for (nth, (word, memory)) in told.take().into_iter().enumerate() {
            assert_eq!(word as usize, nth);
            assert!(memory[..8 * (nth + 1)].iter().all(|byte| *byte == 1), "{nth} was told too early");
        }
        stage.assert_no_faults();
    }

    fn pausing_target_delays_few_small_operations_only() {
        let stage = promised();
        let (target, key) = stage.target(vec![0; 200]);
        let (local, back) = (stage.local(vec![1; 200]), stage.local(vec![0; 200]));
        let (second, its_key) = another(&stage, &target);
        let put = || stage.ab.put(&local, 0..8, &key, 0);
        let get = || stage.ab.get(&back, 0..8, &key, 0);
        let posted: Vec<_> = (0..50).flat_map(|_| [put(), get()]).collect();
        assert_eq!(posted.iter().filter(|posted| is_pending(posted)).count(), FEW);
        assert!(posted[..FEW].iter().all(is_pending));
        // The limit applies to all endpoints to the target.
        assert!(second.put(&local, 0..8, &its_key, 8).unwrap().is_done());
        assert!(stage.ab.put(&local, 0..200, &key, 0).unwrap().is_done());
        assert!(stage.ab.get(&back, 0..200, &key, 0).unwrap().is_done());
        assert_eq!(back.to_vec(0..200).unwrap(), [1; 200]);
        let one = u64::from_ne_bytes([1; 8]);
        let added = stage.ab.fetch_add(&key, 64, 1).unwrap();
        assert!(matches!(added, Outcome::Done(value) if value == one), "{added:?}");
        for posted in posted {
            assert_eq!(stage.ended(posted), Ok(0));
        }
        assert_eq!(stage.b.counters().emulated, FEW as u64);
        assert!(is_pending(&second.put(&local, 0..8, &its_key, 8)), "there is room again");
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
        stage.assert_no_faults();
    }

    fn small_operation_without_message_room_goes_by_module() {
        let stage = promised();
        let (target, key) = stage.target(vec![0; 200]);
        let told = told_at_b(&stage, &target);
        let (local, back) = (stage.local(vec![1; 200]), stage.local(vec![0; 200]));
        no_room(&stage);
        let pieces = [(&local, 0..4), (&local, 4..8)];
        for posted in [
            stage.ab.put(&local, 0..8, &key, 0),
            stage.ab.put_with(&local, 0..8, &key, 8, Completion::Local),
            stage.ab.put_bytes(&[1; 8], &key, 16),
            stage.ab.put_pieces(&pieces, &key, 24),
            stage.ab.get(&back, 0..8, &key, 0),
            stage.ab.put(&local, 0..150, &key, 32),
            stage.ab.fetch_add(&key, 184, 1),
            stage.ab.flush(),
        ] {
            assert!(posted.unwrap().is_done());
        }
        assert_eq!(back.to_vec(0..8).unwrap(), [1; 8]);
        assert_eq!(target.to_vec(0..182).unwrap(), [1; 182]);
        assert_eq!((stage.a.pending(), stage.b.counters().emulated), (0, 0));
        // The notification is a message, and is queued while the lane returns `Again`.
        let put = stage.ab.put_notify(&local, 0..8, &key, 0, 3).unwrap();
        stage.settle();
        assert!(!put.is_done() && told.borrow().is_empty());
        stage.world.forget_rules();
        assert_eq!(stage.finish(put), Ok(0));
        assert!(stage.until(|| told.borrow().len() == 1));
        assert!(is_pending(&stage.ab.put(&local, 0..8, &key, 0)), "there is room again");
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
        stage.assert_no_faults();
    }

    fn small_operations_beyond_bound_go_by_module() {
        let of_a = [("TIELINE_QUEUE_BYTES", "1k")];
        let lanes = vec![Lane::messages("am"), slow()];
        let stage = Stage::with_each(lanes, &of_a, &[PROMISE]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let pings: Vec<_> = (0..12).map(|_| pending(stage.ab.flush_messages())).collect();
        let puts: Vec<_> = (0..8).map(|_| stage.ab.put(&local, 0..8, &key, 0)).collect();
        assert_eq!(puts.iter().filter(|put| is_pending(put)).count(), 1024 / 64 - 12);
        let before = messages(&stage);
        let sent = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
        assert!(sent.is_done() && messages(&stage) == before, "there was no room for its answer");
        assert_eq!(stage.ab.counters().refused, 0, "none of these was answered Again");
        assert_eq!(posts_until_again(1, || stage.ab.flush_messages()).0, Some(0));
        assert_eq!(stage.ab.counters().refused, 1);
        for put in puts {
            assert_eq!(stage.ended(put), Ok(0));
        }
        assert!(pings.iter().all(|ping| stage.end_of(ping) == Some(Ok(0))));
        assert_eq!(stage.ended(stage.ab.put(&local, 0..8, &key, 0)), Ok(0));
        stage.assert_no_faults();
    }

    fn unopenable_message_lane_leaves_small_operations_to_module() {
        let lanes = vec![Lane { priority: 9, ..Lane::messages("am") }, Lane::messages("wire"), slow()];
        let stage = Stage::with_each(lanes, &[], &[PROMISE]);
        let (target, _) = stage.target(vec![0; 100]);
        let (ab, key) = another(&stage, &target);
        assert_eq!(key.path(), BY_BOTH);
        let tries = || stage.world.calls(Slot::Connect).iter().filter(|call| call.refused).count();
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::NoMemory)).on("am"));
        for _ in 0..3 {
            assert!(ab.put_bytes(&[1; 8], &key, 0).unwrap().is_done());
            assert_eq!((tries(), key.path().as_str()), (1, "fake:rma/rma"));
        }
        assert!(key.reaches_passive_target());
        let notes = stage.at_a.report().warnings;
        assert!(notes.iter().any(|note| note.contains("do not use messages")), "{notes:?}");
        // The rule that caused the failure is removed.
        stage.world.forget_rules();
        assert_eq!(stage.ended(ab.send(5, 0, &[1; 8])), Ok(0));
        assert_eq!((ab.message_path().as_str(), key.path().as_str()), ("fake:am/am", BY_BOTH));
        assert!(is_pending(&ab.put_bytes(&[1; 8], &key, 0)));
        assert_eq!(stage.ended(ab.flush()), Ok(0));
        stage.assert_no_faults();
    }

    fn small_operations_do_not_wait_for_message_connection() {
        let stage = promised();
        let (target, _) = stage.target(vec![0; 100]);
        let (ab, key) = another(&stage, &target);
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::Again)).on("am"));
        assert!(ab.put_bytes(&[1; 8], &key, 0).unwrap().is_done());
        assert_eq!(key.path(), BY_BOTH);
        stage.world.forget_rules();
        assert!(is_pending(&ab.put_bytes(&[1; 8], &key, 0)));
        assert_eq!(stage.ended(ab.flush()), Ok(0));
        stage.assert_no_faults();
    }

    fn a_message_lane_that_takes_anothers_place_carries_nothing_small() {
        let lanes = vec![Lane { priority: 9, ..Lane::messages("am") }, Lane::messages("wire"), slow()];
        let stage = Stage::with_each(lanes, &[], &[PROMISE]);
        let (target, _) = stage.target(vec![0; 100]);
        let (ab, key) = another(&stage, &target);
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::NoMemory)).on("am"));
        assert_eq!(stage.ended(ab.send(5, 0, &[1; 8])), Ok(0));
        assert_eq!((ab.message_path().as_str(), key.path().as_str()), ("fake:wire/wire", "fake:rma/rma"));
        assert!(key.reaches_passive_target());
        assert!(ab.put_bytes(&[1; 8], &key, 0).unwrap().is_done());
        assert_eq!(stage.b.counters().emulated, 0);
        stage.assert_no_faults();
    }

    fn small_operations_fit_limit_of_opened_message_lane() {
        let limits = EndpointLimits { max_packed: 80, ..EndpointLimits::empty() };
        let lanes = vec![Lane { limits, ..Lane::messages("am") }, slow()];
        let stage = Stage::with_each(lanes, &[], &[PROMISE]);
        let (target, key) = stage.target(vec![0; 100]);
        // The bytes follow a head of 32 bytes.
        let path = "fake:rma/rma, up to 48 bytes emulated over fake:am/am";
        assert_eq!(key.path(), path);
        let (ab, its_key) = another(&stage, &target);
        assert_eq!(its_key.path(), BY_BOTH, "it is not open");
        for (ab, key) in [(&stage.ab, &key), (&ab, &its_key)] {
            assert!(ab.put_bytes(&[1; 49], key, 0).unwrap().is_done());
            assert_eq!(key.path(), path);
            assert!(is_pending(&ab.put_bytes(&[1; 48], key, 0)));
        }
        let local = stage.local(vec![2; 100]);
        assert_eq!(stage.ended(stage.ab.put_notify(&local, 0..48, &key, 0, 1)), Ok(0));
        stage.assert_no_faults();
    }

    /// The core uses two facts about the peer: the address states that the peer polls often, and the protocol version determines
    /// which messages the peer understands.
    fn older_peer_that_polls_often_is_notified_by_lane_only() {
        for telling in [true, false] {
            let memory = if telling { slow().telling(32) } else { slow() };
            let stage = with(memory);
            let (target, _) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let ab = stage.a.connect(&with_minor(stage.b.address().unwrap(), 0)).unwrap();
            let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
            assert_eq!(key.path(), BY_BOTH);
            assert_eq!(stage.ended(ab.put_bytes(&[1; 8], &key, 8)), Ok(0));
            assert_eq!(stage.b.counters().emulated, 1);
            let put = ab.put_notify(&stage.local(vec![2; 8]), 0..8, &key, 0, 4);
            if telling {
                assert_eq!(stage.ended(put), Ok(0));
                assert!(stage.until(|| told.borrow().len() == 1));
                assert_eq!(stage.world.calls(Slot::PutNotify).len(), 1);
            } else {
                assert_eq!(put.unwrap_err().status(), Status::Unsupported);
            }
            assert_eq!(stage.b.counters().emulated, 1);
            stage.assert_no_faults();
        }
    }

    fn a_key_that_was_revoked_is_refused_by_messages_too() {
        let stage = promised();
        let (target, key) = stage.target(vec![0; 64]);
        drop(target);
        for len in [8, UP_TO + 1] {
            let local = stage.local(vec![1; 100]);
            let error = match stage.ab.put(&local, 0..len.min(64), &key, 0) {
                Ok(outcome) => stage.finish(outcome).map_err(|error| error.status()),
                Err(error) => Err(error.status()),
            };
            assert_eq!(error, Err(Status::KeyRejected), "{len} bytes");
        }
    }

    fn a_module_that_is_quick_does_what_is_small_too() {
        let quick = vec![Lane::messages("am"), Lane::memory("rma").synchronous()];
        let stage = Stage::with(quick, &[PROMISE]);
        let (_target, key) = stage.target(vec![0; 64]);
        assert_eq!(key.path(), "fake:rma/rma");
        assert!(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap().is_done());
    }

    fn a_lane_that_ends_leaves_what_is_small_to_messages_and_to_the_next_lane() {
        let memory = |name, priority| Lane { priority, name, module: name, ..slow() };
        let lanes = vec![Lane::messages("am"), memory("a", 9), Lane { slow_ns: 0.0, ..memory("b", 1) }];
        let stage = Stage::with(lanes, &[PROMISE]);
        let (target, key) = stage.target(vec![0; 100]);
        assert_eq!(key.path(), "fake:a/a, up to 64 bytes emulated over fake:am/am");
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Unreachable)).on("a"));
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 100], &key, 0)), Ok(0));
        // The next lane is faster than messages.
        assert_eq!(key.path(), "fake:b/b");
        assert_eq!(stage.ended(stage.ab.put_bytes(&[2; 8], &key, 0)), Ok(0));
        assert_eq!(stage.b.counters().emulated, 0);
        assert_eq!(target.to_vec(0..9).unwrap(), [[2; 8].as_slice(), &[1]].concat());
        stage.assert_no_faults();
    }

    fn a_lane_that_needs_the_targets_progress_itself_is_compared_like_others() {
        let stage = with(Lane { caps: slow().caps & !PASSIVE_TARGET, ..slow() });
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(key.path(), BY_BOTH);
        assert_eq!(stage.ended(stage.ab.put_bytes(&[3; 8], &key, 0)), Ok(0));
        assert_eq!(target.to_vec(0..8).unwrap(), [3; 8]);
        stage.assert_no_faults();
    }
}
