//! Tests of notifications with bytes, which follow other operations.

use crate::cases;
use crate::notify::ways;
use crate::stage::{Stage, pending};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{After, Close, Completion, CompletionCounter, Outcome, PostError, Region, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

const ID: u16 = 7;

/// The notifications that the handler of `b` received: word, payload, and the bytes of the target at that time.
type Told = Rc<RefCell<Vec<(u64, Vec<u8>, Vec<u8>)>>>;

fn told_at_b(stage: &Stage, target: &Region) -> Told {
    let told = Told::default();
    let (log, region) = (told.clone(), target.clone());
    let handler = move |message: &tieline::Message<'_>| {
        let bytes = region.to_vec(0..region.len()).unwrap();
        log.borrow_mut().push((message.header(), message.payload().to_vec(), bytes));
    };
    stage.b.on_message(ID, handler).unwrap();
    told
}

fn words(told: &Told) -> Vec<u64> {
    told.borrow().iter().map(|(word, _, _)| *word).collect()
}

/// The ways in which a notification can follow a put.
const FOLLOWING: [&str; 4] = ["the operation", "its number", "a counter", "everything"];

/// Posts a notification that follows `put`.
fn follow(
    stage: &Stage,
    how: &str,
    put: &Outcome,
    counter: &CompletionCounter,
    word: u64,
) -> Result<Outcome, PostError> {
    let number = match put {
        Outcome::Pending(request) => request.number(),
        Outcome::Done(_) => 0,
    };
    let notify = |after: After<'_>| stage.ab.notify(after, ID, word, b"with bytes");
    match how {
        "the operation" => notify(After::Operations(&[put])),
        "its number" => notify(After::Numbers(&[0, number])),
        "a counter" => {
            stage.a.count(put, counter).unwrap();
            notify(After::Counted(counter))
        }
        _ => notify(After::Everything),
    }
}

cases! {
    fn message_arrives_once_and_after_its_operations_on_every_route() {
        const LEN: usize = 300 << 10;
        for (way, lanes) in ways() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; LEN]);
            let told = told_at_b(&stage, &target);
            let counter = stage.a.completion_counter().unwrap();
            for how in FOLLOWING {
                for completion in [Completion::Remote, Completion::Local] {
                    for (fill, len) in [(1, 8), (2, 3000), (3, LEN)] {
                        let local = stage.local(vec![fill; LEN]);
                        let put = stage.ab.put_with(&local, 0..len, &key, 0, completion).unwrap();
                        let sent = follow(&stage, how, &put, &counter, u64::from(fill));
                        let way = format!("{way}, {how}, {completion:?}, {len} bytes");
                        assert_eq!(stage.ended(sent), Ok(0), "{way}");
                        assert!(stage.until(|| !told.borrow().is_empty()), "{way}");
                        stage.settle();
                        let told = told.take();
                        assert_eq!(told.len(), 1, "{way}");
                        let (word, payload, bytes) = &told[0];
                        assert_eq!((*word, &payload[..]), (u64::from(fill), &b"with bytes"[..]), "{way}");
                        assert!(bytes[..len].iter().all(|byte| *byte == fill), "{way}: it came early");
                    }
                }
            }
            stage.assert_no_faults();
        }
    }

    fn message_after_a_get_comes_when_the_bytes_were_read() {
        for lanes in [vec![Lane::whole("all").late(5)], vec![Lane::messages("am").late(3)]] {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![7; 64]);
            let region = target.clone();
            // The target reuses the memory as soon as it is told.
            let handler = move |_: &tieline::Message<'_>| region.write(0, &[0; 64]).unwrap();
            stage.b.on_message(ID, handler).unwrap();
            let local = stage.local(vec![0; 64]);
            let get = stage.ab.get(&local, 0..64, &key, 0).unwrap();
            let told = stage.ab.notify(After::Operations(&[&get]), ID, 0, b"").unwrap();
            assert!(stage.finish(told).is_ok() && stage.finish(get).is_ok());
            assert!(stage.until(|| target.to_vec(0..1).unwrap() == [0]));
            assert_eq!(local.to_vec(0..64).unwrap(), [7; 64]);
            stage.assert_no_faults();
        }
    }

    fn waiting_notification_holds_nothing_back() {
        for how in FOLLOWING {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let others = stage.log_at_b(8);
            let counter = stage.a.completion_counter().unwrap();
            stage.world.rule(Rule::next(Slot::Put, Act::Hold));
            let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
            let sent = pending(follow(&stage, how, &put, &counter, 1));
            // A message and a put pass it; the second notification follows only the second put.
            let _ = stage.finish(stage.ab.send(8, 5, b"passes").unwrap()).unwrap();
            let second = stage.ab.put_bytes(&[2; 8], &key, 8).unwrap();
            let after = stage.ab.notify(After::Operations(&[&second]), ID, 2, b"").unwrap();
            assert!(stage.finish(second).is_ok() && stage.finish(after).is_ok());
            assert!(stage.until(|| words(&told) == [2]), "{how}");
            assert_eq!((others.take(), stage.a.test(&sent).is_none()), (vec![5], true), "{how}");
            stage.world.release_held();
            assert_eq!(stage.end_of(&sent), Some(Ok(0)), "{how}");
            assert!(stage.until(|| words(&told) == [2, 1]), "{how}");
            stage.assert_no_faults();
        }
    }

    fn fence_and_flush_behind_waiting_notification_end_after_it() {
        for lanes in [vec![Lane::messages("am"), Lane::memory("rma")], vec![Lane::messages("am").late(9)]] {
            for how in FOLLOWING {
                let stage = Stage::new(lanes.clone());
                let (target, key) = stage.target(vec![0; 64]);
                let told = told_at_b(&stage, &target);
                let counter = stage.a.completion_counter().unwrap();
                stage.world.rule(Rule::next(Slot::Put, Act::Hold));
                let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
                let sent = follow(&stage, how, &put, &counter, 1).unwrap();
                stage.ab.fence().unwrap();
                let behind = stage.ab.fetch_add(&key, 8, 1).unwrap();
                let flush = pending(stage.ab.flush());
                stage.settle();
                stage.world.release_held();
                assert!(stage.finish(sent).is_ok() && stage.finish(behind).is_ok(), "{how}");
                assert_eq!(stage.end_of(&flush), Some(Ok(0)), "{how}");
                assert!(stage.until(|| words(&told) == [1]), "{how}");
                stage.assert_no_faults();
            }
        }
    }

    fn message_is_never_sent_after_a_failure_and_the_next_one_is() {
        for how in FOLLOWING {
            for early in [false, true] {
                let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
                let (target, key) = stage.target(vec![0; 64]);
                let told = told_at_b(&stage, &target);
                let counter = stage.a.completion_counter().unwrap();
                stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::OutOfRange)));
                let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
                if early {
                    // The put has failed, and its failure was reported, before the notification is posted.
                    let Outcome::Pending(request) = &put else { panic!() };
                    assert!(stage.end_of(request).is_some_and(|ended| ended.is_err()));
                }
                let sent = follow(&stage, how, &put, &counter, 1);
                assert_eq!(stage.ended(sent).unwrap_err().status(), Status::OutOfRange, "{how}");
                counter.mark();
                let good = stage.ab.put_bytes(&[2; 8], &key, 8).unwrap();
                let sent = follow(&stage, how, &good, &counter, 2);
                assert_eq!(stage.ended(sent), Ok(0), "{how}");
                assert!(stage.until(|| words(&told) == [2]), "{how}");
                assert_eq!(target.to_vec(8..16).unwrap(), [2; 8], "{how}");
                stage.assert_no_faults();
            }
        }
    }

    fn failure_that_nobody_has_asked_for_keeps_the_message_from_being_sent() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        let fails = || stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::OutOfRange)));
        let refused = |sent| stage.ended(sent).unwrap_err().status();
        for kept in [false, true] {
            fails();
            let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
            let put = kept.then_some(put);
            stage.settle();
            let sent = stage.ab.notify(After::Everything, ID, 1, b"");
            assert_eq!(refused(sent), Status::OutOfRange, "the request was kept: {kept}");
            if let Some(put) = &put {
                let sent = stage.ab.notify(After::Operations(&[put]), ID, 1, b"");
                assert_eq!(refused(sent), Status::OutOfRange);
            }
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "the notification has reported it");
        }
        // A flush reports the failure as well, and the next notification starts anew.
        fails();
        drop(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap());
        assert_eq!(refused(stage.ab.flush()), Status::OutOfRange);
        assert_eq!(stage.ended(stage.ab.notify(After::Everything, ID, 2, b"")), Ok(0));
        assert!(stage.until(|| words(&told) == [2]));
        // The failure of a notification without a request is reported by the next flush.
        fails();
        let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
        drop(stage.ab.notify(After::Operations(&[&put]), ID, 1, b"").unwrap());
        assert_eq!(stage.finish(put).unwrap_err().status(), Status::OutOfRange);
        assert_eq!(refused(stage.ab.flush()), Status::OutOfRange);
        assert_eq!(words(&told), [2]);
        stage.assert_no_faults();
    }

    fn canceled_operation_keeps_the_message_from_being_sent() {
        for everything in [false, true] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
            let (target, key) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)));
            let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
            let Outcome::Pending(request) = &put else { panic!("the lane has accepted it") };
            let after = [&put];
            let after = if everything { After::Everything } else { After::Operations(&after) };
            let sent = pending(stage.ab.notify(after, ID, 1, b""));
            let not = stage.a.cancel(&sent).unwrap_err();
            assert_eq!(not.status(), Status::Unsupported);
            stage.a.cancel(request).unwrap();
            let ended = stage.end_of(&sent).unwrap();
            assert_eq!(ended.unwrap_err().status(), Status::Canceled);
            stage.world.forget_rules();
            // The first one behind it that follows everything reports the cancellation once.
            let next = stage.ab.notify(After::Everything, ID, 2, b"");
            assert_eq!(stage.ended(next).is_ok(), everything);
            assert_eq!(stage.ended(stage.ab.notify(After::Everything, ID, 2, b"")), Ok(0));
            assert!(stage.until(|| words(&told).len() == 1 + usize::from(everything)));
            assert!(!words(&told).contains(&1));
            stage.assert_no_faults();
        }
    }

    fn dropped_or_closed_endpoint_still_sends_what_waits() {
        for closes in [false, true] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
            let (target, _) = stage.target(vec![0; 64]);
            let told = told_at_b(&stage, &target);
            let other = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let key = other.import_key(&target.remote_key().unwrap()).unwrap();
            stage.world.rule(Rule::next(Slot::Put, Act::Hold));
            let put = other.put_bytes(&[1; 8], &key, 0).unwrap();
            let sent = pending(other.notify(After::Operations(&[&put]), ID, 1, b""));
            let closed = closes.then(|| pending(other.close(Close::Flush)));
            drop((other, key));
            stage.settle();
            assert!(words(&told).is_empty());
            stage.world.release_held();
            assert_eq!(stage.end_of(&sent), Some(Ok(0)));
            assert!(closed.is_none_or(|closed| stage.end_of(&closed) == Some(Ok(0))));
            assert!(stage.until(|| words(&told) == [1]));
            stage.assert_no_faults();
        }
    }

    fn end_of_endpoint_or_worker_ends_waiting_notification_without_sending() {
        for end in ["cancel", "failure", "worker"] {
            for how in FOLLOWING {
                let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
                let (target, key) = stage.target(vec![0; 64]);
                let told = told_at_b(&stage, &target);
                let counter = stage.a.completion_counter().unwrap();
                stage.world.rule(Rule::next(Slot::Put, Act::Hold));
                let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
                let sent = pending(follow(&stage, how, &put, &counter, 1));
                match end {
                    "cancel" => drop(stage.ab.close(Close::Cancel).unwrap()),
                    "failure" => {
                        let (from, to) = (stage.world.interface(1, "am"), stage.world.interface(0, "am"));
                        stage.world.break_endpoints(to, from, Status::PeerFailed, "it died");
                    }
                    _ => {
                        let undelivered = stage.a.close(Duration::from_millis(10)).unwrap_err();
                        let operations: usize = undelivered.losses.iter().map(|loss| loss.operations).sum();
                        assert_eq!(operations, 2, "a put and a notification");
                    }
                }
                let ended = match end {
                    "worker" => stage.a.test(&sent),
                    _ => stage.end_of(&sent),
                };
                assert!(ended.unwrap().is_err(), "{end}, {how}");
                drop(sent);
                stage.world.release_held();
                stage.settle();
                assert!(words(&told).is_empty(), "{end}, {how}");
                stage.assert_no_faults();
            }
        }
    }

    fn notification_that_cannot_be_posted_is_refused() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let refused = |sent: Result<Outcome, PostError>| sent.unwrap_err().status();
        let most = stage.ab.max_message().unwrap();
        let long = vec![0; most + 1];
        assert_eq!(refused(stage.ab.notify(After::Everything, ID, 0, &long)), Status::TooLarge);
        assert_eq!(refused(stage.ab.notify(After::Everything, 0xf000, 0, b"")), Status::Invalid);
        stage.world.hold(Slot::Put);
        let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
        let others = stage.ba.notify(After::Operations(&[&put]), ID, 0, b"");
        assert_eq!(refused(others), Status::Invalid, "an operation of another worker");
        let Outcome::Pending(request) = &put else { panic!() };
        stage.world.release_held();
        let number = request.number();
        assert_eq!(stage.finish(put), Ok(0));
        let taken = stage.ab.notify(After::Numbers(&[number]), ID, 0, b"");
        assert_eq!(refused(taken), Status::Invalid, "its result was taken");
        // Waiting payloads count as queued bytes.
        stage.world.forget_rules();
        stage.world.hold(Slot::Put);
        let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
        let (full, kept) = crate::stage::posts_until_again(100_000, || {
            stage.ab.notify(After::Operations(&[&put]), ID, 0, &vec![0; most])
        });
        assert!(full.is_some_and(|full| full > 2), "{full:?}");
        stage.world.release_held();
        for request in kept {
            assert_eq!(stage.end_of(&request), Some(Ok(0)));
        }
        assert_eq!(stage.ended(stage.ab.notify(After::Everything, ID, 0, &long[1..])), Ok(0));
        stage.assert_no_faults();
    }

    fn handler_may_post_a_notification() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").late(4)]);
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        let ab = stage.ab.clone();
        let handler = move |_: &tieline::Message<'_>| {
            let put = ab.put_bytes(&[1; 8], &key, 0).unwrap();
            drop(ab.notify(After::Operations(&[&put]), ID, 1, b"").unwrap());
            drop(ab.notify(After::Everything, ID, 2, b"").unwrap());
        };
        stage.a.on_message(9, handler).unwrap();
        let back = pending(stage.ba.flush_messages());
        drop(stage.ba.send(9, 0, b"").unwrap());
        assert!(stage.until(|| told.borrow().len() == 2), "{:?}", words(&told));
        assert!(told.take().iter().all(|(_, _, bytes)| bytes[..8] == [1; 8]));
        drop(back);
        stage.a.on_message(9, |_| ()).unwrap();
        stage.assert_no_faults();
    }

    fn wait_with_a_waiting_notification_sleeps_and_wakes_to_send_it() {
        let lanes = vec![Lane::messages("am").sleeping(), Lane::memory("rma").sleeping()];
        let stage = Stage::new(lanes);
        let (target, key) = stage.target(vec![0; 64]);
        let told = told_at_b(&stage, &target);
        stage.world.hold(Slot::Put);
        let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
        let sent = pending(stage.ab.notify(After::Operations(&[&put]), ID, 1, b""));
        let (begun, long) = (Instant::now(), Duration::from_millis(200));
        while stage.a.wait(Some(long)).unwrap().has_moved() {}
        assert!(begun.elapsed() >= long, "it was woken after {:?}", begun.elapsed());
        stage.world.release_held();
        while stage.a.test(&sent).is_none() {
            let _ = stage.a.wait(Some(Duration::from_secs(10))).unwrap();
        }
        assert!(stage.until(|| words(&told) == [1]));
        stage.assert_no_faults();
    }
}
