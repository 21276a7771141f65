//! Tests of targets that make no calls, of processes that share a processor, and of copies by both ends.

use std::fs;
use tieline_processes::{Launch, Node, Test, Verdict, named, sys};
use tieline_testing::is_whole;

pub(crate) const TESTS: &[Test] = named![
    puts_and_gets_by_single_copy_complete_while_the_target_calls_nothing,
    small_operations_use_messages_only_to_peer_that_promised_to_poll,
    silent_target_serves_emulated_operations_by_progress_thread_only,
    two_processes_on_one_processor_make_progress_when_they_wait,
    peers_wake_each_other_where_one_or_both_may_not_ask_for_barriers,
    a_large_transfer_is_copied_by_both_ends_when_both_make_progress,
    a_large_transfer_needs_no_help,
    transfer_fails_when_helper_dies_with_claimed_piece,
    processes_with_and_without_single_copy_agree,
];

const LEN: usize = 100_000;

fn there_and_back(caller: &mut Node, target: &mut Node, region: &str) {
    let name = target.peer.name.clone();
    let _ = caller.must(&format!("register out {LEN}"));
    let _ = caller.must("fill out 7");
    let _ = caller.must(&format!("register back {LEN}"));
    let _ = caller.must(&format!("put {name}.{region} out 0 {LEN} 0"));
    let _ = caller.must(&format!("get {name}.{region} back 100 {} 100", LEN - 100));
    assert_eq!(caller.must(&format!("check back 100 {} 7 100", LEN - 100)), "same");
    let _ = caller.must(&format!("put-bytes {name}.{region} 8 0 0"));
    assert_eq!(caller.must(&format!("atomic {name}.{region} 0 41")), "0");
    assert_eq!(caller.must(&format!("atomic {name}.{region} 0 1")), "41");
}

fn puts_and_gets_by_single_copy_complete_while_the_target_calls_nothing() -> Verdict {
    let (mut caller, mut target) = (Node::start("caller"), Node::start("target"));
    caller.connect(&mut target);
    let _ = target.must(&format!("register plain {LEN}"));
    let _ = target.must(&format!("alloc shared {LEN}"));
    assert_eq!(caller.import(&mut target, "plain"), "shm-cma/copy");
    assert_eq!(caller.import(&mut target, "shared"), "shm/ring");
    for key in ["plain", "shared"] {
        assert_eq!(caller.must(&format!("reaches-passive target.{key}")), "true");
    }
    // After this order the target blocks in a read of its pipe.
    let _ = target.must("passive");
    let _ = caller.must(&format!("register out {LEN}"));
    let _ = caller.must("fill out 7");
    let _ = caller.must(&format!("register back {LEN}"));
    for key in ["plain", "shared"] {
        let _ = caller.must(&format!("put target.{key} out 0 {LEN} 0"));
        let _ = caller.must(&format!("get target.{key} back 0 {LEN} 0"));
        assert_eq!(caller.must(&format!("check back 0 {LEN} 7 0")), "same");
        let _ = caller.must("fill back 0");
    }
    let _ = caller.must("put-bytes target.shared 8 0 0");
    assert_eq!(caller.must("atomic target.shared 0 41"), "0");
    assert_eq!(caller.must("atomic target.shared 0 1"), "41");
    assert_eq!(target.must(&format!("check plain 0 {LEN} 7 0")), "same");
    caller.end();
    target.end();
    Verdict::Passed
}

/// Returns the number of operations that a process has carried out for other processes.
fn emulated(node: &mut Node) -> u64 {
    counter(node, "emulated: ")
}

fn small_operations_use_messages_only_to_peer_that_promised_to_poll() -> Verdict {
    const UP_TO: usize = 2048;
    let mut caller = Node::start("caller");
    let mut polls = Node::with("polls", &["TIELINE_POLLS_OFTEN=on"]);
    let mut computes = Node::start("computes");
    for target in [&mut polls, &mut computes] {
        caller.connect(target);
        let _ = target.must(&format!("register plain {LEN}"));
        let _ = target.must(&format!("alloc shared {LEN}"));
        assert_eq!(caller.import(target, "shared"), "shm/ring");
    }
    let by_both = format!("shm-cma/copy, up to {UP_TO} bytes emulated over shm/ring");
    assert_eq!(caller.import(&mut polls, "plain"), by_both);
    assert_eq!(caller.import(&mut computes, "plain"), "shm-cma/copy");
    assert_eq!(caller.must("reaches-passive polls.plain"), "false");
    assert_eq!(caller.must("reaches-passive computes.plain"), "true");
    assert!(caller.must("report polls").contains("the peer polls often"));
    assert!(!caller.must("report computes").contains("the peer polls often"));
    for region in ["out", "back"] {
        let _ = caller.must(&format!("register {region} {LEN}"));
    }
    let _ = computes.must("passive");
    for (seed, len) in [(1, 1), (2, 8), (3, UP_TO), (4, UP_TO + 1), (5, LEN - 11)] {
        let _ = caller.must(&format!("fill out {seed}"));
        for key in ["polls.plain", "polls.shared", "computes.plain", "computes.shared"] {
            let _ = caller.must("fill back 0");
            let _ = caller.must(&format!("put {key} out 0 {len} 11"));
            let _ = caller.must(&format!("get {key} back 3 {len} 11"));
            assert_eq!(caller.must(&format!("check back 3 {len} {seed} 0")), "same", "{key}");
        }
    }
    // The three small operations in each direction are counted; the other process has carried out none.
    assert_eq!((emulated(&mut polls), emulated(&mut computes)), (6, 0));
    // A target that breaks the promise delays only small operations.
    let _ = polls.must("passive");
    let _ = caller.must("fill out 6");
    let _ = caller.must(&format!("put polls.plain out 0 {LEN} 0"));
    assert_eq!(polls.must(&format!("check plain 0 {LEN} 6 0")), "same");
    caller.peer.tell("put-bytes polls.plain 8 9 0");
    let _ = polls.must("active");
    let _ = caller.answer().expect("a put that the target looks for again");
    let _ = caller.must("get polls.plain back 0 8 0");
    // The death of a target fails the small operations.
    let _ = polls.must("passive");
    caller.peer.tell("put polls.plain out 0 8 0");
    let _ = caller.peer.expect("begins");
    let _ = polls.kill();
    let failed = caller.answer().expect_err("the target is gone");
    assert_eq!(failed.status, "PeerFailed", "{failed:?}");
    assert_eq!(caller.must("pending"), "0");
    caller.end();
    computes.end();
    Verdict::Passed
}

fn silent_target_serves_emulated_operations_by_progress_thread_only() -> Verdict {
    let without = "TIELINE_PROVIDERS=^shm-cma";
    let mut caller = Node::with("caller", &[without]);
    let mut lazy = Node::with("lazy", &[without]);
    let mut served = Node::with("served", &[without, "TIELINE_PROGRESS_THREAD=on"]);
    for target in [&mut lazy, &mut served] {
        caller.connect(target);
        let _ = target.must(&format!("register plain {LEN}"));
        assert_eq!(caller.import(target, "plain"), "emulated over shm/ring");
    }
    assert_eq!(caller.must("reaches-passive lazy.plain"), "false");
    assert_eq!(caller.must("reaches-passive served.plain"), "true");
    let _ = served.must("passive");
    there_and_back(&mut caller, &mut served, "plain");
    assert!(every_thread_sleeps(served.peer.pid()), "an idle progress thread runs");
    // The thread also serves a process that connects later, and sleeps again.
    let mut late = Node::with("late", &[without]);
    let _ = served.must("active");
    late.connect(&mut served);
    let _ = late.import(&mut served, "plain");
    let _ = served.must("passive");
    there_and_back(&mut late, &mut served, "plain");
    assert!(every_thread_sleeps(served.peer.pid()), "an idle progress thread runs");
    for node in [caller, lazy, served, late] {
        node.end();
    }
    Verdict::Passed
}

/// Checks whether all threads of a process become idle: every thread must be found asleep a hundred times in a row.
fn every_thread_sleeps(process: u32) -> bool {
    let mut in_a_row = 0;
    for _ in 0..1_000_000 {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let sleeping = threads.map(|t| fs::read_to_string(t.path().join("stat"))).all(|stat| {
            stat.is_ok_and(|s| s.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" S")))
        });
        in_a_row = if sleeping { in_a_row + 1 } else { 0 };
        if in_a_row == 100 {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

fn two_processes_on_one_processor_make_progress_when_they_wait() -> Verdict {
    let (mut asks, mut answers) = (Node::start("asks"), Node::start("answers"));
    let processor = sys::first_processor();
    for node in [&mut asks, &mut answers] {
        assert_eq!(node.must(&format!("pin {processor}")), "true");
        // In each round, a spinning process keeps the processor for a tick of the kernel, which is some milliseconds.
        let _ = node.must("limit processor-time 8");
    }
    asks.connect(&mut answers);
    for how in ["wait", "wait-until", "finish", "epoll"] {
        let before = sys::now_ns();
        let done = asks.try_ask(&format!("rounds answers 10000 {how}")).expect("the rounds");
        println!(
            "    10000 rounds with {how}: {:.0} ms",
            tieline_processes::node::milliseconds(before, done.at)
        );
        asks.nothing_was_wrong();
        answers.nothing_was_wrong();
    }
    asks.end();
    answers.end();
    Verdict::Passed
}

fn peers_wake_each_other_where_one_or_both_may_not_ask_for_barriers() -> Verdict {
    for poor in [[true, false], [false, true], [true, true]] {
        let mut nodes = ["asks", "answers"].map(|name| Node::bare(Launch::new(name, "node")));
        for (node, poor) in nodes.iter_mut().zip(poor) {
            // The call is forbidden before any code of the library runs, because the library checks the kernel's features once.
            if poor && node.must("forbid membarrier") != "true" {
                return Verdict::Skipped("no seccomp filters here".into());
            }
            let _ = node.must("open");
        }
        let [mut asks, mut answers] = nodes;
        asks.connect(&mut answers);
        // The processes exchange a ping while both make progress, with a sleep between any two steps.
        let _ = asks.must("ping answers");
        for how in ["wait", "epoll"] {
            let _ = asks.must(&format!("rounds answers 10000 {how}"));
        }
        for node in [&mut asks, &mut answers] {
            node.nothing_was_wrong();
        }
        asks.end();
        answers.end();
    }
    Verdict::Passed
}

const LARGE: usize = 64 << 20;

/// Starts a caller and a target with large regions, and a flag at the target by which the caller reports that it is done.
fn large_pair() -> (Node, Node) {
    let (mut caller, mut target) = (Node::start("caller"), Node::start("target"));
    caller.connect(&mut target);
    for node in [&mut caller, &mut target] {
        let _ = node.must(&format!("register large {LARGE}"));
    }
    let _ = target.must("alloc flag 64");
    assert_eq!(caller.import(&mut target, "large"), "shm-cma/copy");
    let _ = caller.import(&mut target, "flag");
    // The first transfer resolves the memory keys of a helper.
    (caller, target)
}

fn assisted(node: &mut Node) -> u64 {
    counter(node, "assisted_chunks: ")
}

fn counter(node: &mut Node, name: &str) -> u64 {
    let counters = node.must("counters");
    let (_, rest) = counters.split_once(name).expect("the counter");
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number")
}

fn a_large_transfer_is_copied_by_both_ends_when_both_make_progress() -> Verdict {
    let (mut caller, mut target) = large_pair();
    for operation in ["put", "get"] {
        let (from, to) = if operation == "put" { (0, 1) } else { (1, 0) };
        let before = assisted(&mut target);
        let mut tries = 0;
        // The kernel schedules the processes: help is only certain after many transfers.
        while assisted(&mut target) == before {
            tries += 1;
            assert!(tries <= 50, "the peer never copied a piece of a {operation}");
            let seed = 10 * tries + from;
            let nodes = [&mut caller, &mut target];
            let _ = nodes.map(|node| node.must("fill large 250"));
            let _ = [&mut caller, &mut target][from].must(&format!("fill large {seed}"));
            target.peer.tell("watch flag 0 progress");
            let _ = target.peer.expect("watching");
            let _ = caller.must(&format!("{operation} target.large large 0 {LARGE} 0"));
            let _ = caller.must("atomic target.flag 0 1");
            let _ = target.answer().expect("the flag changes");
            let arrived = format!("check large 0 {LARGE} {seed} 0");
            assert_eq!([&mut caller, &mut target][to].must(&arrived), "same");
        }
        println!(
            "    {operation}: the peer copied {} of {} pieces, in try {tries}",
            assisted(&mut target) - before,
            LARGE >> 16
        );
    }
    caller.end();
    target.end();
    Verdict::Passed
}

fn a_large_transfer_needs_no_help() -> Verdict {
    let (mut caller, mut target) = large_pair();
    let _ = target.must("fill large 1");
    let _ = target.must("passive");
    let _ = caller.must(&format!("get target.large large 0 {LARGE} 0"));
    assert_eq!(caller.must(&format!("check large 0 {LARGE} 1 0")), "same");
    let _ = caller.must("fill large 2");
    let _ = caller.must(&format!("put target.large large 0 {LARGE} 0"));
    assert_eq!(target.must(&format!("check large 0 {LARGE} 2 0")), "same");
    // Requests for help that the peer reads after the transfer are harmless.
    let _ = caller.must("fill large 3");
    let _ = target.must("active");
    let _ = caller.must("ping target");
    assert_eq!(assisted(&mut target), 0);
    assert_eq!(target.must(&format!("check large 0 {LARGE} 2 0")), "same");
    caller.end();
    target.end();
    Verdict::Passed
}

fn transfer_fails_when_helper_dies_with_claimed_piece() -> Verdict {
    let rounds = if is_whole() { 20 } else { 8 };
    for round in 0..rounds {
        let (mut caller, mut target) = large_pair();
        target.peer.tell("watch large 0 progress");
        let _ = target.peer.expect("watching");
        let _ = caller.must("fill large 3");
        caller.peer.tell(&format!("put target.large large 0 {LARGE} 0"));
        let _ = caller.peer.expect("begins");
        // The process is stopped at different moments: before, during or after its copy.
        let until = sys::now_ns() + round * 4_000_000 / rounds;
        while sys::now_ns() < until {
            std::thread::yield_now();
        }
        sys::signal(target.peer.pid(), sys::Signal::Stop);
        let killed = target.kill();
        match caller.answer() {
            Ok(_) => {}
            Err(failed) => {
                assert_eq!(failed.status, "PeerFailed", "{failed:?}");
                let took = tieline_processes::node::milliseconds(killed, failed.at);
                assert!(took < tieline_processes::BOUND_MS, "{took} ms");
            }
        }
        assert!(caller.must("await-error target").starts_with("PeerFailed"));
        assert_eq!(caller.must("pending"), "0");
        caller.end();
    }
    Verdict::Passed
}

fn processes_with_and_without_single_copy_agree() -> Verdict {
    let mut with = Node::start("with");
    let mut without = Node::with("without", &["TIELINE_PROVIDERS=^shm-cma"]);
    with.connect(&mut without);
    without.connect(&mut with);
    for node in [&mut with, &mut without] {
        let _ = node.must(&format!("register plain {LEN}"));
        let _ = node.must(&format!("alloc shared {LEN}"));
    }
    assert_eq!(with.import(&mut without, "plain"), "emulated over shm/ring");
    assert_eq!(without.import(&mut with, "plain"), "emulated over shm/ring");
    assert_eq!(with.import(&mut without, "shared"), "shm/ring");
    assert_eq!(without.import(&mut with, "shared"), "shm/ring");
    let report = with.must("report without");
    println!("    {report}");
    assert!(report.contains("shm-cma") && report.contains("the peer offers no copy"), "{report}");
    for region in ["plain", "shared"] {
        there_and_back(&mut with, &mut without, region);
        there_and_back(&mut without, &mut with, region);
    }
    let _ = with.must("stream without 5000 100");
    let _ = without.must("stream with 5000 3000");
    with.nothing_was_wrong();
    without.nothing_was_wrong();
    with.end();
    without.end();
    Verdict::Passed
}
