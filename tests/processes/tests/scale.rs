//! Tests of many processes on one machine.

use tieline_processes::node::milliseconds_since;
use tieline_processes::{Node, Test, Verdict, named, sys};
use tieline_testing::is_whole;

pub(crate) const TESTS: &[Test] = named![
    an_idle_context_and_a_silent_peer_stay_inside_their_memory,
    processes_exchange_messages_all_to_all_inside_their_memory,
];

const PEERS: usize = 200;

fn processes() -> usize {
    if is_whole() { 200 } else { 100 }
}
/// The number of messages: more than a fast box requires, so that the largest channels are measured.
const MESSAGES: usize = 20;

/// The memory budget of a context, in KiB. In this profile, 660 of them are relocations of eight provider files; the budget of the
/// release profile is 1024 (docs/benchmarks.md).
const CONTEXT_KIB: u64 = 1152;
const SILENT_PEER_KIB: u64 = 16;
const TALKING_PEER_KIB: u64 = 64;

fn number(node: &mut Node, order: &str) -> u64 {
    node.must(order).parse().expect("a number")
}

/// Returns the memory of shm: (peers, bytes for all of them, bytes that do not depend on them, bytes of message buffers).
fn memory(node: &mut Node) -> (u64, u64, u64, u64) {
    let text = node.must("memory");
    let line = text.split(';').find(|l| l.starts_with("shm/")).expect("shm reports its memory");
    let numbers: Vec<u64> = line.split(' ').skip(1).map(|n| n.parse().expect("bytes")).collect();
    (numbers[1], numbers[2], numbers[0], numbers[3])
}

fn an_idle_context_and_a_silent_peer_stay_inside_their_memory() -> Verdict {
    let mut node = Node::bare(tieline_processes::Launch::new("one", "node"));
    let before = number(&mut node, "resident");
    let _ = node.must("open");
    let context = number(&mut node, "resident") - before;
    println!("    an idle context with its worker: {context} KiB (budget {CONTEXT_KIB})");
    assert!(context <= CONTEXT_KIB);

    // The peer is known, but no message was sent to it.
    let mut other = Node::start("other");
    let address = other.must("address");
    let before = number(&mut node, "resident");
    for peer in 0..PEERS {
        let _ = node.must(&format!("connect peer{peer} {address}"));
    }
    let grown = number(&mut node, "resident") - before;
    println!("    {PEERS} peers that were never written to: {grown} KiB together");
    assert!(grown <= SILENT_PEER_KIB * PEERS as u64);

    // One message was sent to the peer, which is far below the threshold of a fast box.
    let (peers, bytes, _, _) = memory(&mut node);
    assert_eq!((peers, bytes), (0, 0));
    let before = number(&mut node, "resident");
    for peer in 0..PEERS {
        let _ = node.must(&format!("send peer{peer} 1 0 8"));
        let _ = node.must(&format!("flush peer{peer}"));
    }
    let grown = number(&mut node, "resident") - before;
    let (peers, bytes, _, _) = memory(&mut node);
    println!(
        "    {peers} peers that were written to once: {grown} KiB resident, {} bytes each as reported",
        bytes / peers
    );
    assert_eq!(peers, PEERS as u64);
    assert!(grown <= SILENT_PEER_KIB * PEERS as u64);
    assert!(bytes / peers <= SILENT_PEER_KIB * 1024);
    node.end();
    other.end();
    Verdict::Passed
}

fn processes_exchange_messages_all_to_all_inside_their_memory() -> Verdict {
    let started = sys::now_ns();
    // This process holds two pipes for each peer. A peer holds up to three descriptors for every other peer.
    let processes = processes();
    let wanted = 8 * processes as u64;
    // The limit also applies to all later tests, so it is never lowered.
    let before = sys::limit(sys::Limit::Descriptors, wanted);
    if before > wanted {
        let _ = sys::limit(sys::Limit::Descriptors, before);
    }
    let mut nodes: Vec<Node> = (0..processes).map(|i| Node::start(&format!("n{i}"))).collect();
    let before: Vec<u64> = nodes.iter_mut().map(|node| number(node, "resident")).collect();
    let mut addresses = String::new();
    for node in &mut nodes {
        addresses += " ";
        addresses += &node.must("address");
    }
    println!("    {processes} processes are there after {:.0} ms", milliseconds_since(started));
    // All processes send at the same time.
    for (rank, node) in nodes.iter_mut().enumerate() {
        node.peer.tell(&format!("all-to-all {rank} {MESSAGES}{addresses}"));
    }
    for node in &mut nodes {
        if let Err(failed) = node.answer() {
            panic!("{}: {failed:?}", node.peer.name);
        }
    }
    println!("    all to all is complete after {:.0} ms", milliseconds_since(started));
    let (mut most_reported, mut most_resident, mut most_descriptors) = (0, 0, 0);
    for (node, before) in nodes.iter_mut().zip(before) {
        node.nothing_was_wrong();
        let (peers, bytes, base, buffers) = memory(node);
        assert_eq!(peers, processes as u64 - 1, "at {}", node.peer.name);
        most_reported = most_reported.max((bytes + base + buffers) / peers);
        most_resident = most_resident.max((number(node, "resident") - before) / peers);
        most_descriptors = most_descriptors.max(number(node, "descriptors"));
    }
    println!(
        "    per peer that talks, at most {most_reported} bytes as reported, {most_resident} KiB resident \
         (budget {TALKING_PEER_KIB}); {most_descriptors} descriptors in a process"
    );
    assert!(most_reported <= TALKING_PEER_KIB * 1024);
    assert!(most_resident <= TALKING_PEER_KIB);
    for node in nodes {
        node.end();
    }
    println!("    and everybody has left after {:.0} ms", milliseconds_since(started));
    Verdict::Passed
}
