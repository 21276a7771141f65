//! Tests of several hosts: processes communicate over TCP between hosts, and over shared memory within a host.

use tieline_processes::hosts::NETWORK;
use tieline_processes::{Hosts, Node, Test, Verdict, named, or_skip};

pub(crate) const TESTS: &[Test] = named![
    hosts_reach_each_other_until_their_link_is_cut_and_leave_nothing,
    calls_are_discarded_in_one_direction_only,
    messages_memory_and_atomics_cross_between_two_hosts_over_ipv4,
    messages_memory_and_atomics_cross_between_two_hosts_over_ipv6,
    memory_that_came_with_the_context_is_reached_from_another_host,
    four_processes_on_two_hosts_use_shared_memory_and_tcp_in_one_job,
];

/// This case tests the harness itself, without Tieline.
fn hosts_reach_each_other_until_their_link_is_cut_and_leave_nothing() -> Verdict {
    let hosts = or_skip!(Hosts::with_rails(2));
    let (mut one, mut two) = (hosts[0].stranger(), hosts[1].stranger());
    let bound = one.must("listen [::]:0");
    let port = bound.rsplit_once(':').expect("ADDRESS:PORT").1.to_string();
    assert_eq!(hosts[0].listening(), [port.parse::<u16>().expect("a port")]);
    assert!(hosts[1].listening().is_empty());
    let at = |rail, v6| {
        let address = hosts[0].address(rail, v6);
        if v6 { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
    };
    let all = [at(0, false), at(0, true), at(1, false), at(1, true)];
    for place in &all {
        assert_eq!(two.must(&format!("call {place}")), "reached");
    }
    // Only one rail is cut, and the other stays up.
    hosts[1].link(0).cut();
    let _ = two.ask(&format!("try {}", all[0])).expect_err("cut");
    let _ = two.ask(&format!("try {}", all[1])).expect_err("cut");
    assert_eq!(two.must(&format!("call {}", all[2])), "reached");
    assert_eq!(two.must(&format!("call {}", all[3])), "reached");
    hosts[1].link(0).restore();
    hosts[0].link(1).down();
    assert_eq!(two.must(&format!("call {}", all[0])), "reached");
    assert_eq!(two.must(&format!("call {}", all[1])), "reached");
    let _ = two.ask(&format!("try {}", all[2])).expect_err("down");
    hosts[0].link(1).up();
    for place in &all {
        assert_eq!(two.must(&format!("call {place}")), "reached");
    }
    assert_eq!(hosts[0].processes(), [one.peer.pid()]);
    let _ = hosts[0].vanish();
    let _ = two.ask(&format!("try {}", all[0])).expect_err("gone");
    assert!(one.peer.hear_or_end().is_none());
    two.end();
    Verdict::Passed
}

fn calls_are_discarded_in_one_direction_only() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    or_skip!(hosts[1].drop_outgoing_calls());
    let (mut one, mut two) = (hosts[0].stranger(), hosts[1].stranger());
    let [to_one, to_two] = [(&mut one, 0), (&mut two, 1)].map(|(stranger, host)| {
        let bound = stranger.must("listen [::]:0");
        let port = bound.rsplit_once(':').expect("ADDRESS:PORT").1.to_string();
        let v6 = format!("[{}]:{port}", hosts[host].address(0, true));
        [format!("{}:{port}", hosts[host].address(0, false)), v6]
    });
    for place in &to_one {
        let _ = two.ask(&format!("try {place}")).expect_err("dropped");
    }
    for place in &to_two {
        assert_eq!(one.must(&format!("call {place}")), "reached");
    }
    hosts[1].stop_dropping();
    for place in &to_one {
        assert_eq!(two.must(&format!("call {place}")), "reached");
    }
    one.end();
    two.end();
    Verdict::Passed
}

const LEN: usize = 300_000;

fn one_way(from: &mut Node, to: &mut Node, kind: &str) {
    let name = to.peer.name.clone();
    let _ = from.must(&format!("register out {LEN}"));
    let _ = from.must("fill out 7");
    let _ = from.must(&format!("register back {LEN}"));
    let _ = to.must(&format!("{kind} theirs {LEN}"));
    let path = from.import(to, "theirs");
    println!("    {} reaches what {name} {kind}s by {path}", from.peer.name);
    assert!(path.contains("tcp"), "{path}");
    for (at, len, offset) in [(0, LEN, 0), (0, 1, LEN - 1), (77, 4096, 100_001), (5, 0, 0)] {
        let _ = from.must(&format!("put {name}.theirs out {at} {len} {offset}"));
        assert_eq!(to.must(&format!("check theirs {offset} {len} 7 {at}")), "same");
        let _ = from.must("fill back 0");
        let _ = from.must(&format!("get {name}.theirs back {at} {len} {offset}"));
        assert_eq!(from.must(&format!("check back {at} {len} 7 {at}")), "same");
    }
    let _ = from.must(&format!("put-bytes {name}.theirs 8 0 0"));
    assert_eq!(from.must(&format!("atomic {name}.theirs 0 41")), "0");
    assert_eq!(from.must(&format!("atomic {name}.theirs 0 1")), "41");
    assert_eq!(to.must("word theirs 0"), "42");
    let outside = from.ask(&format!("put {name}.theirs out 0 2 {}", LEN - 1));
    let _ = outside.expect_err("that is not theirs");
    let _ = from.must(&format!("ping {name}"));
}

fn everything_crosses(settings: &[&str], kind: &str) -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = (hosts[0].node("a", settings), hosts[1].node("b", settings));
    a.connect(&mut b);
    b.connect(&mut a);
    one_way(&mut a, &mut b, kind);
    one_way(&mut b, &mut a, kind);
    // Both sides send at the same time, small and large messages.
    a.peer.tell("exact b 3000 8 100 3000 0 20000");
    b.peer.tell("exact a 3000 20000 8 1");
    for node in [&mut a, &mut b] {
        assert_eq!(node.answer().expect("a stream").text, "3000");
    }
    for node in [&mut a, &mut b] {
        assert_eq!(node.must("reach exact 3000"), "3000");
        node.nothing_was_wrong();
        assert_eq!(node.must("pending"), "0");
    }
    println!("    a to b: {}", a.must("report b"));
    a.end();
    b.end();
    Verdict::Passed
}

fn messages_memory_and_atomics_cross_between_two_hosts_over_ipv4() -> Verdict {
    everything_crosses(&[NETWORK, "TIELINE_TCP_INTERFACES=10.0.0.0/8"], "register")
}

fn messages_memory_and_atomics_cross_between_two_hosts_over_ipv6() -> Verdict {
    everything_crosses(&[NETWORK, "TIELINE_TCP_INTERFACES=fd00::/8"], "register")
}

fn memory_that_came_with_the_context_is_reached_from_another_host() -> Verdict {
    everything_crosses(&["TIELINE_PROVIDERS=^shm-cma"], "alloc")
}

fn four_processes_on_two_hosts_use_shared_memory_and_tcp_in_one_job() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let settings = &["TIELINE_PROVIDERS=^shm-cma"];
    let mut nodes: Vec<Node> =
        (0..4).map(|i| hosts[i / 2].node(&format!("n{i}"), settings)).collect();
    let mut addresses = String::new();
    for node in &mut nodes {
        addresses += " ";
        addresses += &node.must("address");
    }
    for (rank, node) in nodes.iter_mut().enumerate() {
        node.peer.tell(&format!("all-to-all {rank} 500{addresses}"));
    }
    for node in &mut nodes {
        if let Err(failed) = node.answer() {
            panic!("{}: {failed:?}", node.peer.name);
        }
    }
    for (rank, node) in nodes.iter_mut().enumerate() {
        node.nothing_was_wrong();
        for other in (0..4).filter(|other| *other != rank) {
            let report = node.must(&format!("report n{other}"));
            println!("    n{rank} to n{other}: {report}");
            let chosen = |module: &str| {
                let mut lines = report.split(" | ");
                lines.any(|l| l.starts_with(module) && l.contains("used for message"))
            };
            if rank / 2 == other / 2 {
                assert!(chosen("shm"), "{report}");
            } else {
                assert!(chosen("tcp"), "{report}");
                // The report also contains the reason why shared memory is not used.
                let shm = report.split(" | ").find(|l| l.starts_with("shm"));
                assert!(shm.is_some_and(|l| l.contains("unreachable")), "{report}");
            }
        }
    }
    for node in nodes {
        node.end();
    }
    Verdict::Passed
}
