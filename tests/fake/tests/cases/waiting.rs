//! Tests of messages in an endpoint's queue: how they leave the queue, and how their completion is reported.

use crate::cases;
use crate::stage::{Stage, pending, posts_until_again};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Close, Endpoint, Outcome, Request, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

const FULL: Act = Act::Refuse(Status::Again);

/// The number of entries: more than any bound of 16 KiB allows.
const MANY: usize = 4_000;

fn stage() -> Stage {
    let stage = Stage::with(vec![Lane::whole("all")], &[("TIELINE_QUEUE_BYTES", "16k")]);
    stage.settle();
    stage
}

fn rule_for_sends(stage: &Stage, act: Act) -> Rule {
    Rule::every(Slot::Short, act).at(stage.world.interface(0, "all")).id(5)
}

fn room(stage: &Stage) -> usize {
    stage.world.rule(rule_for_sends(stage, FULL));
    let (taken, requests) = posts_until_again(MANY, || stage.ab.send(5, 0, b""));
    requests.iter().for_each(|request| stage.a.cancel(request).unwrap());
    stage.world.forget_rules();
    taken.expect("a bound")
}

/// Returns the number of a request, which is also the cookie that the provider receives.
fn number(request: &Request) -> u64 {
    let words = format!("{request:?}");
    let digits = words.trim_start_matches("Request(0x").trim_end_matches(')');
    u64::from_str_radix(digits, 16).expect("a number")
}

/// The messages of one round by the form of their completion, each with its position in the queue.
struct Line {
    asked: Vec<(u64, Request)>,
    tracked: Vec<u64>,
    counted: Vec<u64>,
    dropped: Vec<u64>,
    flush: Request,
}

/// Posts 25 messages into an empty queue. Every fifth message is cancelled, and a flush follows the first 15.
fn line(stage: &Stage, counter: &tieline::CompletionCounter, first: u64) -> Line {
    let (mut asked, mut flush) = (Vec::new(), None);
    let (mut tracked, mut counted, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    for n in first..first + 25 {
        let sent = stage.ab.send(5, n, &n.to_le_bytes()).unwrap();
        assert!(!sent.is_done(), "there is room");
        match n % 5 {
            0 => asked.push((n, pending(Ok(sent)))),
            1 => {
                stage.a.track(&sent, n).unwrap();
                tracked.push(n);
            }
            2 => {
                stage.a.count(&sent, counter).unwrap();
                counted.push(n);
            }
            3 => dropped.push(n),
            _ => {
                let unwanted = pending(Ok(sent));
                stage.a.cancel(&unwanted).unwrap();
                assert_eq!(stage.a.test(&unwanted).map(|end| end.is_err()), Some(true));
            }
        }
        if n == first + 14 {
            flush = Some(pending(stage.ab.flush()));
        }
    }
    Line { asked, tracked, counted, dropped, flush: flush.unwrap() }
}

fn told(stage: &Stage) -> Vec<(u64, Result<u64, Status>)> {
    let mut told = Vec::new();
    let _ = stage.a.take_completed(MANY, |word, end| {
        told.push((word, end.map_err(|error| tieline::Error::from(error).status())));
    });
    told
}

cases! {
    fn messages_that_waited_end_once_each_as_was_wanted_and_make_room_again() {
        let stage = stage();
        let (log, counter) = (stage.log_at_b(5), stage.a.completion_counter().unwrap());
        let bound = room(&stage);
        for round in 0..40 {
            stage.world.rule(rule_for_sends(&stage, FULL));
            let line = line(&stage, &counter, round * 100);
            assert!(stage.a.test(&line.flush).is_none());
            stage.world.forget_rules();
            stage.settle();
            for (n, request) in &line.asked {
                assert_eq!(stage.a.test(request), Some(Ok(0)), "{n}");
            }
            assert_eq!(stage.a.test(&line.flush), Some(Ok(0)));
            let expected: Vec<_> = line.tracked.iter().map(|n| (*n, Ok(0))).collect();
            assert_eq!((told(&stage), counter.pending(), counter.failed()), (expected, 0, 0));
            assert_eq!(counter.done(), (round + 1) * line.counted.len() as u64);
            let arrive = (round * 100..round * 100 + 25).filter(|n| n % 5 != 4);
            assert_eq!(log.take(), arrive.collect::<Vec<_>>(), "{:?} nobody asks for", line.dropped);
            assert_eq!(stage.a.pending(), 0);
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
        }
        assert_eq!(room(&stage), bound);
        stage.assert_no_faults();
    }

    fn queued_message_refused_by_lane_fails_alone_and_is_reported_once() {
        for skip in 0..20 {
            let stage = stage();
            let (log, counter) = (stage.log_at_b(5), stage.a.completion_counter().unwrap());
            let bound = room(&stage);
            stage.world.rule(rule_for_sends(&stage, FULL));
            let line = line(&stage, &counter, 0);
            stage.world.forget_rules();
            let refused = Rule { skip, times: 1, ..rule_for_sends(&stage, Act::Refuse(Status::NoMemory)) };
            stage.world.rule(refused);
            stage.settle();
            let sent: Vec<u64> = (0..25).filter(|n| n % 5 != 4).collect();
            let bad = sent[skip as usize];
            let end = |n: u64| if n == bad { Err(Status::NoMemory) } else { Ok(0) };
            let status = |request| {
                let ended = stage.a.test(request).expect("an end");
                ended.map_err(|error| tieline::Error::from(error).status())
            };
            for (n, request) in &line.asked {
                assert_eq!(status(request), end(*n), "{n}");
            }
            // The flush covers the first fifteen messages.
            assert_eq!(status(&line.flush), if bad < 15 { end(bad) } else { Ok(0) });
            assert_eq!(told(&stage), line.tracked.iter().map(|n| (*n, end(*n))).collect::<Vec<_>>());
            let failed = u64::from(line.counted.contains(&bad));
            assert_eq!((counter.done(), counter.failed(), counter.pending()), (5 - failed, failed, 0));
            let arrived: Vec<u64> = sent.iter().copied().filter(|n| *n != bad).collect();
            assert_eq!(log.take(), arrived);
            let unheard = bad >= 15 && line.dropped.contains(&bad);
            let next = stage.ended(stage.ab.flush()).map_err(|error| error.status());
            assert_eq!(next, if unheard { end(bad) } else { Ok(0) }, "{bad}");
            assert_eq!((stage.ended(stage.ab.flush()), stage.a.pending()), (Ok(0), 0));
            drop(line);
            assert_eq!(room(&stage), bound);
            stage.assert_no_faults();
        }
    }

    fn messages_behind_fatal_one_end_with_endpoint_and_earlier_succeed() {
        for skip in 0..20 {
            let stage = stage();
            let (log, counter) = (stage.log_at_b(5), stage.a.completion_counter().unwrap());
            stage.world.rule(rule_for_sends(&stage, FULL));
            let line = line(&stage, &counter, 0);
            stage.world.forget_rules();
            let refused = Rule { skip, times: 1, ..rule_for_sends(&stage, Act::Refuse(Status::Io)) };
            stage.world.rule(refused);
            stage.settle();
            let sent: Vec<u64> = (0..25).filter(|n| n % 5 != 4).collect();
            let bad = sent[skip as usize];
            let end = |n: u64| if n >= bad { Err(Status::Io) } else { Ok(0) };
            let status = |request| {
                let ended = stage.a.test(request).expect("an end");
                ended.map_err(|error| tieline::Error::from(error).status())
            };
            for (n, request) in &line.asked {
                assert_eq!(status(request), end(*n), "{n}");
            }
            // The flush asks the lanes after earlier messages have left the queue; the endpoint may have failed before.
            let flushed = status(&line.flush);
            assert!(flushed == Err(Status::Io) || flushed == Ok(0) && bad >= 15, "{bad}: {flushed:?}");
            let mut told = told(&stage);
            told.sort_by_key(|(word, _)| *word);
            assert_eq!(told, line.tracked.iter().map(|n| (*n, end(*n))).collect::<Vec<_>>());
            let failed = line.counted.iter().filter(|n| **n >= bad).count() as u64;
            assert_eq!((counter.done(), counter.failed(), counter.pending()), (5 - failed, failed, 0));
            assert_eq!(log.take(), sent[..skip as usize]);
            assert_eq!((stage.a.pending(), stage.a.flush()), (0, Ok(())));
            stage.assert_no_faults();
        }
    }

    /// The provider does not have the operation: it is still queued, or it was sent and its slot has been reused.
    fn forged_completion_of_queued_or_sent_message_is_ignored() {
        let stage = stage();
        let at = stage.world.interface(0, "all");
        let log = stage.log_at_b(5);
        stage.world.rule(rule_for_sends(&stage, FULL));
        let left = pending(stage.ab.send(5, 0, b"left"));
        let taken_back = pending(stage.ab.send(5, 1, b"taken back"));
        stage.a.cancel(&taken_back).unwrap();
        stage.world.forget_rules();
        let before = number(&left);
        assert_eq!((stage.end_of(&left), number(&taken_back) > before), (Some(Ok(0)), true));
        stage.world.rule(rule_for_sends(&stage, FULL));
        let [waits, tracked] = [2, 3].map(|n| pending(stage.ab.send(5, n, b"waits")));
        stage.a.track(&Outcome::Pending(tracked), 17).unwrap();
        let flush = pending(stage.ab.flush());
        let ends = [Ok(7), Err(Status::Io), Err(Status::Canceled), Err(Status::KeyRejected), Err(Status::OutcomeUnknown)];
        let (mut forged, malformed) = (0, stage.a.counters().malformed);
        for id in [before, number(&taken_back), number(&waits), number(&waits) + (1 << 24), number(&flush)] {
            for end in ends {
                stage.world.complete(at, id, end);
                forged += 1;
            }
        }
        stage.settle();
        assert_eq!(stage.a.counters().malformed - malformed, forged);
        assert!(stage.a.test(&waits).is_none() && stage.a.test(&flush).is_none());
        assert_eq!(told(&stage), []);
        stage.world.forget_rules();
        assert_eq!((stage.end_of(&waits), stage.end_of(&flush)), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(told(&stage), [(17, Ok(0))]);
        assert!(stage.until(|| *log.borrow() == [0, 2, 3]));
        assert_eq!((stage.a.pending(), stage.ab.error().is_none()), (0, true));
        stage.assert_no_faults();
    }

    fn endpoint_removed_in_handler_sends_or_ends_its_queue() {
        for closes in [false, true] {
            let stage = stage();
            let log = stage.log_at_b(5);
            stage.world.rule(rule_for_sends(&stage, FULL));
            let goes = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let mut sent: Vec<Request> = (0..20).map(|n| pending(goes.send(5, n, b""))).collect();
            let flush = pending(goes.flush());
            let last = pending(goes.send(5, 20, b""));
            drop(sent.remove(3));
            let goes: Rc<RefCell<Option<Endpoint>>> = Rc::new(RefCell::new(Some(goes)));
            let held = goes.clone();
            stage.a.on_message(6, move |_| {
                let Some(gone) = held.borrow_mut().take() else { return };
                let _ = gone.send(5, 21, b"in the handler").unwrap();
                if closes {
                    assert!(gone.close(Close::Cancel).is_ok_and(|outcome| outcome.is_done()));
                }
            }).unwrap();
            let _ = stage.ba.send(6, 0, b"").unwrap();
            assert!(stage.until(|| goes.borrow().is_none()));
            if !closes {
                stage.settle();
                assert!(sent.iter().all(|request| stage.a.test(request).is_none()), "there is no room");
            }
            stage.world.forget_rules();
            stage.settle();
            let well = |request: &Request| stage.a.test(request).map(|end| end.is_ok());
            let ends: Vec<_> = sent.iter().chain([&last]).map(well).collect();
            assert_eq!(ends, vec![Some(!closes); 20], "closes: {closes}, {:?}", log.borrow());
            assert!(stage.a.test(&flush).is_some(), "it may end with the endpoint");
            let arrived: Vec<u64> = if closes { Vec::new() } else { (0..22).collect() };
            assert_eq!((log.take(), stage.a.pending()), (arrived, 0));
            let next = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let _ = next.send(5, 30, b"").unwrap();
            assert!(stage.until(|| *log.borrow() == [30]));
            stage.assert_no_faults();
        }
    }

    fn flush_waits_for_queued_messages_and_puts_in_any_order() {
        for first in ["message", "put"] {
            let stage = stage();
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![7; 64]);
            let log = stage.log_at_b(5);
            let at = stage.world.interface(0, "all");
            let held = || stage.world.rule(Rule::every(Slot::Put, Act::Hold).at(at));
            stage.world.rule(rule_for_sends(&stage, FULL));
            held();
            let before = pending(stage.ab.send(5, 0, b""));
            let put = stage.ab.put(&local, 0..8, &key, 0).unwrap();
            let between = pending(stage.ab.send(5, 1, b""));
            let also = stage.ab.put_bytes(&[9; 8], &key, 8).unwrap();
            let flush = pending(stage.ab.flush());
            let behind = pending(stage.ab.send(5, 2, b""));
            drop(between);
            stage.world.forget_rules();
            match first {
                "message" => held(),
                _ => {
                    stage.world.rule(rule_for_sends(&stage, FULL));
                    stage.world.release_held();
                }
            }
            stage.settle();
            assert!(stage.a.test(&flush).is_none(), "{first} first");
            assert_eq!(stage.a.test(&behind).is_some(), first == "message");
            stage.world.forget_rules();
            stage.world.release_held();
            assert_eq!(stage.end_of(&flush), Some(Ok(0)));
            assert_eq!(target.to_vec(0..16).unwrap(), [[7; 8], [9; 8]].concat());
            assert!(stage.until(|| *log.borrow() == [0, 1, 2]));
            for outcome in [put, also, Outcome::Pending(before), Outcome::Pending(behind)] {
                assert_eq!(stage.finish(outcome), Ok(0));
            }
            assert_eq!(stage.a.pending(), 0);
            stage.assert_no_faults();
        }
    }

    fn queued_messages_at_worker_close_are_counted_in_every_form() {
        let stage = stage();
        let counter = stage.a.completion_counter().unwrap();
        stage.world.rule(rule_for_sends(&stage, FULL));
        let line = line(&stage, &counter, 0);
        let undelivered = stage.a.close(std::time::Duration::ZERO).unwrap_err();
        let operations: usize = undelivered.losses.iter().map(|loss| loss.operations).sum();
        assert_eq!(operations, 20 + 1, "{undelivered}");
        assert!(line.asked.iter().all(|(_, request)| stage.a.test(request).is_some_and(|end| end.is_err())));
        assert_eq!((told(&stage).len(), counter.failed(), counter.pending()), (5, 5, 0));
        stage.assert_no_faults();
    }
}
