//! Tests of jobs whose processes are started by hand, on several hosts.

use std::time::Duration;
use tieline_processes::node::milliseconds;
use tieline_processes::{Hosts, Node, Random, Test, Verdict, named, or_skip, sys};

pub(crate) const TESTS: &[Test] = named![
    sixty_four_processes_that_start_in_any_order_over_ten_seconds_meet,
    a_process_that_never_starts_is_named_to_the_others,
    a_rank_0_that_never_starts_is_named_to_the_others,
    a_process_that_dies_before_the_others_have_come_is_named,
];

/// Starts a process of a job whose bootstrap listener is rank 0, on the first host.
fn member(hosts: &Hosts, rank: usize, size: usize, patience: &str) -> Node {
    let host = &hosts[rank % hosts.iter().count()];
    let launch = host
        .launch(&format!("rank{rank}"))
        .env("TIELINE_BOOTSTRAP", format!("{}:29400", hosts[0].address(0, false)))
        .env("TIELINE_RANK", rank)
        .env("TIELINE_SIZE", size)
        .env("TIELINE_SECRET", "of this job alone")
        .env("TIELINE_BOOTSTRAP_TIMEOUT", patience)
        .env("TIELINE_PROVIDERS", "^shm-cma");
    Node::bare(launch)
}

fn sixty_four_processes_that_start_in_any_order_over_ten_seconds_meet() -> Verdict {
    const SIZE: usize = 64;
    let mut random = Random::for_this_run();
    let hosts = or_skip!(Hosts::many(4));
    let mut order: Vec<usize> = (0..SIZE).collect();
    random.shuffle(&mut order);
    println!("    rank 0 is number {:?} to start", order.iter().position(|rank| *rank == 0));
    let started = sys::now_ns();
    let mut nodes = Vec::new();
    for (number, rank) in order.into_iter().enumerate() {
        // The test checks the time between two starts.
        let due = started + 10_000_000_000 / SIZE as u64 * number as u64;
        std::thread::sleep(Duration::from_nanos(due.saturating_sub(sys::now_ns())));
        let mut node = member(&hosts, rank, SIZE, "60s");
        node.peer.tell("join");
        nodes.push((rank, node));
    }
    for (rank, node) in &mut nodes {
        match node.answer() {
            Ok(place) => {
                assert_eq!(place.text, format!("{rank} {SIZE} {} {}", *rank / 4, SIZE / 4))
            }
            Err(failed) => panic!("rank {rank}: {failed:?}"),
        }
    }
    for (_, node) in &mut nodes {
        node.peer.tell("open");
        node.peer.tell("meet 5");
    }
    for (rank, node) in &mut nodes {
        for _ in ["open", "meet"] {
            if let Err(failed) = node.answer() {
                panic!("rank {rank}: {failed:?}");
            }
        }
        node.nothing_was_wrong();
    }
    for (_, node) in nodes {
        node.end();
    }
    Verdict::Passed
}

/// Starts all ranks except one. Returns the errors of the ranks.
fn told_without(missing: usize) -> Result<Vec<String>, String> {
    const SIZE: usize = 8;
    let hosts = Hosts::two()?;
    let present: Vec<usize> = (0..SIZE).filter(|rank| *rank != missing).collect();
    let mut nodes: Vec<Node> =
        present.iter().map(|rank| member(&hosts, *rank, SIZE, "2s")).collect();
    let asked = sys::now_ns();
    for node in &mut nodes {
        node.peer.tell("join");
    }
    let mut told = Vec::new();
    for node in &mut nodes {
        let failed = node.answer().expect_err("one is missing");
        let took = milliseconds(asked, failed.at);
        let text = format!("{} {}", failed.status, failed.text);
        println!("    {} after {took:.0} ms (stated: 2000): {text}", node.peer.name);
        assert!(took < tieline_processes::BOUND_MS);
        told.push(text);
    }
    for node in nodes {
        node.end();
    }
    Ok(told)
}

fn a_process_that_never_starts_is_named_to_the_others() -> Verdict {
    for text in or_skip!(told_without(5)) {
        assert!(text.starts_with("TimedOut"), "{text}");
        assert!(text.contains("rank 5"), "{text}");
    }
    Verdict::Passed
}

fn a_rank_0_that_never_starts_is_named_to_the_others() -> Verdict {
    for text in or_skip!(told_without(0)) {
        assert!(text.contains("rank 0") && text.contains("10.50.0.1:29400"), "{text}");
    }
    Verdict::Passed
}

fn a_process_that_dies_before_the_others_have_come_is_named() -> Verdict {
    const SIZE: usize = 4;
    let hosts = or_skip!(Hosts::two());
    let mut nodes: Vec<Node> =
        (0..SIZE - 1).map(|rank| member(&hosts, rank, SIZE, "30s")).collect();
    for node in &mut nodes {
        node.peer.tell("join");
    }
    // This rank joins and is then killed: the other ranks must not wait until its deadline.
    let mut doomed = nodes.pop().expect("three are there");
    let early = doomed.peer.hear_within(Duration::from_millis(300));
    assert_eq!(early, None, "one is missing");
    let killed = doomed.kill();
    for node in &mut nodes {
        let failed = node.answer().expect_err("one has died");
        let took = milliseconds(killed, failed.at);
        println!("    {} after {took:.0} ms: {} {}", node.peer.name, failed.status, failed.text);
        assert_eq!(failed.status, "PeerFailed");
        assert!(failed.text.contains("rank 2"), "{}", failed.text);
        assert!(took < 20_000.0);
    }
    for node in nodes {
        node.end();
    }
    Verdict::Passed
}
