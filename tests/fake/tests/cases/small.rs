//! Small puts and gets to a target that has promised to make progress all the time: by messages, where those are quicker than the
//! module that reaches its memory; and never to a target that has promised nothing.

use crate::cases;
use crate::stage::{Stage, pending, posts_until_again};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Completion, Outcome, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps::{PASSIVE_TARGET, SYNCHRONOUS};

const PROMISE: (&str, &str) = ("TIELINE_POLLS_OFTEN", "on");
/// What the lane states then makes messages the quicker way up to so many bytes.
const SLOW_NS: f64 = 550.0;
const UP_TO: usize = 64;

const CHARACTERS: [fn(Lane) -> Lane; 2] = [Lane::synchronous, |lane| lane.late(3)];

fn lanes(character: fn(Lane) -> Lane) -> Vec<Lane> {
    let memory = Lane { slow_ns: SLOW_NS, ..Lane::memory("rma") };
    vec![Lane::messages("am"), character(memory)]
}

/// A target that has promised it; the other side has promised nothing.
fn promised(character: fn(Lane) -> Lane) -> Stage {
    Stage::with_each(lanes(character), &[], &[PROMISE])
}

fn is_synchronous(character: fn(Lane) -> Lane) -> bool {
    character(Lane::memory("rma")).caps & SYNCHRONOUS != 0
}

fn lens(stage: &Stage, slot: Slot) -> Vec<usize> {
    stage.world.calls(slot).iter().map(|call| call.len).collect()
}

/// Messages that anybody has sent.
fn messages(stage: &Stage) -> usize {
    stage.world.calls(Slot::Short).len() + stage.world.calls(Slot::Packed).len()
}

cases! {
    fn small_puts_and_gets_go_by_messages_and_longer_ones_by_the_module() {
        for character in CHARACTERS {
            let stage = promised(character);
            let (target, key) = stage.target((0..200).collect());
            assert_eq!(key.path(), "fake:rma/rma, up to 64 bytes emulated over fake:am/am");
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
            }
            assert_eq!(lens(&stage, Slot::Put), [65, 65, 65, 150, 150, 150]);
            assert_eq!(lens(&stage, Slot::Get), [65, 150]);
            assert_eq!(stage.b.counters().emulated, 8);
            stage.assert_no_faults();
        }
    }

    fn the_stated_costs_say_up_to_how_many_bytes_go_by_messages() {
        for (slow_ns, up_to) in [(520.0, 0), (531.0, 8), (550.0, 64), (615.0, 256), (1e9, 2048 - 32)] {
            let memory = Lane { slow_ns, ..Lane::memory("rma") };
            let stage = Stage::with(vec![Lane::messages("am"), memory], &[PROMISE]);
            let (_target, key) = stage.target(vec![0; 64]);
            let both = format!("fake:rma/rma, up to {up_to} bytes emulated over fake:am/am");
            assert_eq!(key.path(), if up_to > 0 { both } else { "fake:rma/rma".into() });
        }
    }

    fn who_promised_is_in_the_report_with_the_costs_that_decide() {
        let stage = promised(Lane::synchronous);
        let told = stage.ab.report().iter().map(|r| r.verdict.to_string()).collect::<Vec<_>>();
        let why = "used for RMA of up to 64 bytes: the peer polls often; 8 bytes in 486 ns, by fake:rma/rma in 668 ns";
        assert!(told.iter().any(|line| line == why), "{told:?}");
        // The other way nothing was promised.
        let told = stage.ba.report().iter().map(|r| r.verdict.to_string()).collect::<Vec<_>>();
        assert!(!told.iter().any(|line| line.contains("polls often")), "{told:?}");
        let order = stage.at_a.report().why();
        assert!(order.contains("RMA of up to 64 bytes goes by messages"), "{order}");
    }

    fn a_target_that_promised_nothing_is_never_made_to_answer() {
        for character in CHARACTERS {
            for of_a in [&[][..], &[PROMISE]] {
                let stage = Stage::with_each(lanes(character), of_a, &[]);
                let (target, key) = stage.target(vec![0; 200]);
                assert_eq!(key.path(), "fake:rma/rma");
                assert!(key.reaches_passive_target());
                let (local, before) = (stage.local((0..200).collect()), messages(&stage));
                for len in [1, 8, UP_TO, 150] {
                    // The target does not look.
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
            let stage = Stage::with_each(lanes(Lane::synchronous), &[], &[PROMISE, other]);
            let (_target, key) = stage.target(vec![0; 64]);
            assert_eq!(key.path(), "fake:rma/rma");
            let warnings = stage.at_b.report().warnings;
            let told = warnings.iter().any(|line| line.contains("TIELINE_POLLS_OFTEN is on") && line.contains(why));
            assert!(told, "{warnings:?}");
            assert!(!stage.at_a.report().warnings.iter().any(|line| line.contains("POLLS_OFTEN")));
        }
    }

    /// Done means what it means by the module: the bytes are there.
    fn a_small_put_by_messages_is_done_when_the_target_has_it() {
        let stage = promised(Lane::synchronous);
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
        for character in CHARACTERS {
            for small_first in [true, false] {
                let stage = promised(character);
                let (target, key) = stage.target(vec![0; 100]);
                let post = |byte, len| stage.ab.put(&stage.local(vec![byte; 100]), 0..len, &key, 0);
                let (first, second) = if small_first { (8, 100) } else { (100, 8) };
                // What is through when the call returns nobody has to wait for.
                if !small_first && !is_synchronous(character) {
                    stage.world.hold(Slot::Put);
                }
                let before = post(1, first).unwrap();
                let held = matches!(before, Outcome::Pending(_));
                stage.ab.fence().unwrap();
                let behind = post(2, second).unwrap();
                if held {
                    // Whoever has the first of them has not carried it out.
                    for _ in 0..100 {
                        let _ = stage.a.progress();
                        let _ = if small_first { 0 } else { stage.b.progress() };
                    }
                    assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "the second overtook the first");
                }
                stage.world.forget_rules();
                stage.world.release_held();
                for outcome in [before, behind] {
                    assert_eq!(stage.finish(outcome), Ok(0));
                }
                assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
                stage.assert_no_faults();
            }
        }
    }

    /// Its word comes with the bytes, in one message, unless something before it goes another way.
    fn a_small_put_that_notifies_is_one_message_and_waits_for_what_goes_another_way() {
        for character in CHARACTERS {
            let stage = promised(character);
            let (target, key) = stage.target(vec![0; 100]);
            let told = Rc::new(RefCell::new(Vec::new()));
            let (log, memory) = (told.clone(), target.clone());
            stage.b.on_notification(move |_, word| {
                log.borrow_mut().push((word, memory.to_vec(0..100).unwrap()));
            }).unwrap();
            let local = stage.local(vec![1; 100]);
            let before = messages(&stage);
            let put = stage.ab.put_notify(&local, 0..8, &key, 0, 7).unwrap();
            assert_eq!(messages(&stage), before + 1);
            assert_eq!(stage.finish(put), Ok(0));
            assert_eq!(told.take(), [(7, [vec![1; 8], vec![0; 92]].concat())]);
            if !is_synchronous(character) {
                stage.world.hold(Slot::Put);
            }
            let long = stage.ab.put(&stage.local(vec![2; 100]), 0..100, &key, 0).unwrap();
            let held = matches!(long, Outcome::Pending(_));
            let small = stage.ab.put_notify(&local, 0..8, &key, 0, 8).unwrap();
            stage.settle();
            assert_eq!(told.borrow().is_empty(), held, "it was told too early, or not");
            stage.world.forget_rules();
            stage.world.release_held();
            assert_eq!((stage.finish(long), stage.finish(small)), (Ok(0), Ok(0)));
            assert!(stage.until(|| !told.borrow().is_empty()));
            let (word, memory) = told.take().remove(0);
            assert_eq!((word, &memory[8..]), (8, &[2; 92][..]), "it was told before the long put was there");
            stage.assert_no_faults();
        }
    }

    fn as_many_small_ones_are_open_as_others() {
        let of_a = [("TIELINE_QUEUE_BYTES", "1k")];
        let stage = Stage::with_each(lanes(Lane::synchronous), &of_a, &[PROMISE]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let (taken, requests) = posts_until_again(100, || stage.ab.put(&local, 0..8, &key, 0));
        assert_eq!((taken, requests.len()), (Some(1024 / 64), 1024 / 64));
        for request in &requests {
            assert_eq!(stage.end_of(request), Some(Ok(0)));
        }
        assert_eq!(stage.ended(stage.ab.put(&local, 0..8, &key, 0)), Ok(0));
        stage.assert_no_faults();
    }

    fn a_key_that_was_revoked_is_refused_by_messages_too() {
        let stage = promised(Lane::synchronous);
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

    /// Mapped memory, and what states that it is as quick, is reached as before.
    fn a_module_that_is_quick_does_what_is_small_too() {
        let quick = vec![Lane::messages("am"), Lane::memory("rma").synchronous()];
        let stage = Stage::with(quick, &[PROMISE]);
        let (_target, key) = stage.target(vec![0; 64]);
        assert_eq!(key.path(), "fake:rma/rma");
        assert!(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap().is_done());
    }

    /// What is small goes by the module again, where that has no message lane whose costs were compared.
    fn a_lane_that_ends_leaves_what_is_small_to_messages_and_to_the_next_lane() {
        let memory = |name, priority| Lane { priority, slow_ns: SLOW_NS, ..Lane::memory(name) };
        let lanes = vec![Lane::messages("am"), memory("a", 9), Lane { slow_ns: 0.0, ..memory("b", 1) }];
        let stage = Stage::with(lanes, &[PROMISE]);
        let (target, key) = stage.target(vec![0; 100]);
        assert_eq!(key.path(), "fake:a/a, up to 64 bytes emulated over fake:am/am");
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::TimedOut)).on("a"));
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 100], &key, 0)), Ok(0));
        // The next lane is quick.
        assert_eq!(key.path(), "fake:b/b");
        assert_eq!(stage.ended(stage.ab.put_bytes(&[2; 8], &key, 0)), Ok(0));
        assert_eq!(stage.b.counters().emulated, 0);
        assert_eq!(target.to_vec(0..9).unwrap(), [[2; 8].as_slice(), &[1]].concat());
        stage.assert_no_faults();
    }

    /// Bytes that have left, and arrive when the target looks, are no reason to wait for it twice.
    fn a_lane_that_needs_the_targets_progress_itself_is_compared_like_others() {
        let stage = promised(|lane| Lane { caps: lane.caps & !PASSIVE_TARGET, ..lane });
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(key.path(), "fake:rma/rma, up to 64 bytes emulated over fake:am/am");
        assert_eq!(stage.ended(stage.ab.put_bytes(&[3; 8], &key, 0)), Ok(0));
        assert_eq!(target.to_vec(0..8).unwrap(), [3; 8]);
        stage.assert_no_faults();
    }
}
