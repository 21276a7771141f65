//! Tests of links that are cut, and of hosts that are lost, during traffic.

use std::time::Duration;
use tieline_processes::hosts::NETWORK;
use tieline_processes::interpreter::MIXED_REGION;
use tieline_processes::node::milliseconds;
use tieline_processes::{BOUND_MS, Failed, Host, Hosts, Node, Test, Verdict, named, or_skip};
use tieline_testing::Wait;

pub(crate) const TESTS: &[Test] = named![
    silently_cut_link_restored_in_time_loses_and_duplicates_nothing,
    a_link_that_goes_down_and_comes_up_in_time_loses_and_doubles_nothing,
    a_link_that_stays_cut_ends_every_operation_within_the_stated_time,
    link_cut_while_idle_is_noticed_by_next_operation,
    a_host_whose_processes_are_killed_is_noticed_at_once,
    vanished_host_is_reported_within_timeout,
    peer_computing_beyond_timeout_is_not_declared_dead,
    connections_work_if_one_direction_is_blocked,
    one_way_connectable_peer_is_answered_over_its_own_connection,
    peer_without_connection_in_either_direction_times_out,
    one_of_two_rails_is_lost_and_the_other_one_carries_on,
];

/// The failure timeout of these tests, as the processes are configured.
const STATED: Duration = Duration::from_secs(2);
const STATED_SETTING: &str = "TIELINE_FAILURE_TIMEOUT=2s";

fn pair(hosts: &Hosts, settings: &[&str]) -> (Node, Node) {
    let settings: Vec<&str> = [NETWORK].iter().chain(settings).copied().collect();
    let (mut a, mut b) = (hosts[0].node("a", &settings), hosts[1].node("b", &settings));
    for node in [&mut a, &mut b] {
        let _ = node.must(&format!("register here {MIXED_REGION}"));
        let _ = node.must(&format!("register theirs {MIXED_REGION}"));
    }
    a.connect(&mut b);
    b.connect(&mut a);
    let _ = a.import(&mut b, "theirs");
    let _ = b.import(&mut a, "theirs");
    (a, b)
}

/// Runs mixed operations on both sides against each other, until they are stopped.
fn talk(a: &mut Node, b: &mut Node) {
    a.peer.tell("mixed b theirs until-told");
    b.peer.tell("mixed a theirs until-told");
    a.streams();
    b.streams();
}

fn stop(a: &mut Node, b: &mut Node) {
    let sent: Vec<String> = [&mut *a, &mut *b]
        .map(|node| match node.stop() {
            Ok(done) => done.text,
            Err(failed) => panic!("{}: {failed:?}", node.peer.name),
        })
        .into();
    whole(a, b, &sent[1]);
    whole(b, a, &sent[0]);
}

/// Checks that `node` received this number of messages in order, and that its counter has the value that `other` reports.
fn whole(node: &mut Node, other: &mut Node, sent: &str) {
    assert_eq!(node.must(&format!("reach exact {sent}")), sent, "at {}", node.peer.name);
    let word: u64 = node.must("word theirs 0").parse().expect("a number");
    let atomics = other.must("atomics");
    let (confirmed, unknown) = atomics.split_once(' ').expect("two numbers");
    let number = |word: &str| word.parse::<u64>().expect("a number");
    println!("    {} got {sent} messages and {word} atomics", node.peer.name);
    assert!(word >= number(confirmed) && word <= number(confirmed) + number(unknown), "{atomics}");
    node.nothing_was_wrong();
}

/// Waits until the kernel of a host has retransmitted without an answer.
fn retried_in_vain(hosts: &Hosts) {
    let wait = Wait::new("a second try to send on the link that was cut");
    let tries = |host: &Host| host.run(&["ss", "-Hti"]).unwrap_or_default().contains("backoff:");
    while !hosts.iter().any(tries) {
        wait.goes_on();
    }
}

fn restored_in_time(hosts: &Hosts, cut: impl Fn(), restore: impl Fn()) {
    let (mut a, mut b) = pair(hosts, &[]);
    talk(&mut a, &mut b);
    cut();
    retried_in_vain(hosts);
    restore();
    stop(&mut a, &mut b);
    for (from, to) in [(&mut a, "b"), (&mut b, "a")] {
        let _ = from.must(&format!("ping {to}"));
        assert_eq!(from.must(&format!("error {to}")), "alive");
        assert_eq!(from.must("failures"), "");
    }
    a.end();
    b.end();
}

fn silently_cut_link_restored_in_time_loses_and_duplicates_nothing() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    for host in [0, 1] {
        let link = hosts[host].link(0);
        restored_in_time(&hosts, || link.cut(), || link.restore());
    }
    Verdict::Passed
}

fn a_link_that_goes_down_and_comes_up_in_time_loses_and_doubles_nothing() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let link = hosts[1].link(0);
    restored_in_time(&hosts, || link.down(), || link.up());
    Verdict::Passed
}

/// Checks the reason of an operation that failed because of its link.
fn given_up(who: &str, failed: &Failed, cut: u64) {
    let took = milliseconds(cut, failed.at);
    println!(
        "    {who} after {took:.0} ms (stated: {STATED:?}): {} {}",
        failed.status, failed.text
    );
    assert!(["TimedOut", "Unreachable", "PeerFailed", "Io"].contains(&failed.status.as_str()));
    assert!(failed.text.contains("process "), "the peer is named");
    assert!(took < BOUND_MS, "{took} ms");
}

/// Checks that every post to a peer that was declared dead is refused permanently.
fn refused(node: &mut Node, other: &str) {
    let statuses = node.must(&format!("post-all {other} {other}.theirs here"));
    for posted in statuses.split(',') {
        let status = posted.split_once('=').expect("WHAT=STATUS").1;
        assert!(!["Done", "Pending", "Again"].contains(&status), "{statuses}");
    }
    assert_eq!(node.must("pending"), "0");
    assert_ne!(node.must(&format!("error {other}")), "alive");
    node.nothing_was_wrong();
}

fn a_link_that_stays_cut_ends_every_operation_within_the_stated_time() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let link = hosts[1].link(0);
    // The operations are requests and answers, and streams of small and large messages that fill every buffer.
    for (order, silent) in [
        ("mixed {} theirs until-told", true),
        ("exact {} 1000000000 8", true),
        ("exact {} 1000000000 30000", false),
    ] {
        let (mut a, mut b) = pair(&hosts, &[STATED_SETTING]);
        a.peer.tell(&order.replace("{}", "b"));
        b.peer.tell(&order.replace("{}", "a"));
        a.streams();
        b.streams();
        if silent {
            link.cut();
        } else {
            link.down();
        }
        let cut = tieline_processes::sys::now_ns();
        for (node, other) in [(&mut a, "b"), (&mut b, "a")] {
            let failed = node.answer().expect_err("there is no way");
            given_up(&format!("{} ends `{order}`", node.peer.name), &failed, cut);
            refused(node, other);
        }
        a.end();
        b.end();
        if silent {
            link.restore();
        } else {
            link.up();
        }
    }
    Verdict::Passed
}

fn link_cut_while_idle_is_noticed_by_next_operation() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = pair(&hosts, &[STATED_SETTING]);
    let _ = a.must("ping b");
    hosts[1].link(0).cut();
    let cut = tieline_processes::sys::now_ns();
    a.peer.tell("ping b");
    b.peer.tell("put a.theirs here 0 100000 0");
    for (node, other) in [(&mut a, "b"), (&mut b, "a")] {
        let failed = node.answer().expect_err("there is no way");
        given_up(&node.peer.name.clone(), &failed, cut);
        refused(node, other);
    }
    a.end();
    b.end();
    Verdict::Passed
}

fn a_host_whose_processes_are_killed_is_noticed_at_once() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, b) = pair(&hosts, &[]);
    a.peer.tell("exact b 1000000000 5000");
    a.streams();
    let killed = tieline_processes::sys::now_ns();
    hosts[1].lose_processes();
    let failed = a.answer().expect_err("nobody is there");
    // The remote kernel closes the connection: no timeout is needed.
    let took = milliseconds(killed, failed.at);
    println!("    after {took:.1} ms: {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "PeerFailed");
    assert!(took < BOUND_MS);
    refused(&mut a, "b");
    assert!(a.must("failures 1").ends_with("PeerFailed"));
    drop(b);
    a.end();
    Verdict::Passed
}

fn vanished_host_is_reported_within_timeout() -> Verdict {
    for order in ["mixed b theirs until-told", "exact b 1000000000 5000"] {
        let hosts = or_skip!(Hosts::two());
        let (mut a, b) = pair(&hosts, &[STATED_SETTING]);
        a.peer.tell(order);
        a.streams();
        let gone = hosts[1].vanish();
        let failed = a.answer().expect_err("nobody is there");
        given_up("a", &failed, gone);
        refused(&mut a, "b");
        drop(b);
        a.end();
    }
    Verdict::Passed
}

fn peer_computing_beyond_timeout_is_not_declared_dead() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = pair(&hosts, &["TIELINE_FAILURE_TIMEOUT=500ms"]);
    let _ = a.must("ping b");
    let _ = b.must("passive");
    // The number of messages exceeds the capacity of all buffers.
    a.peer.tell("exact b 2000 30000");
    a.streams();
    let still = a.peer.hear_within(Duration::from_secs(2));
    assert_eq!(still, None, "a peer that computes was given up");
    let _ = b.must("active");
    assert_eq!(a.answer().expect("the peer is back").text, "2000");
    assert_eq!(b.must("reach exact 2000"), "2000");
    b.nothing_was_wrong();
    a.end();
    b.end();
    Verdict::Passed
}

fn connections_work_if_one_direction_is_blocked() -> Verdict {
    for deaf in [0, 1] {
        let hosts = or_skip!(Hosts::two());
        or_skip!(hosts[deaf].drop_incoming_calls());
        let [mut a, mut b] = ["a", "b"].map(|name| {
            let host = if name == "a" { &hosts[0] } else { &hosts[1] };
            host.node(name, &[NETWORK])
        });
        a.connect(&mut b);
        b.connect(&mut a);
        // Both sides want to send. Only one side can make the connection, which serves both.
        a.peer.tell("exact b 100 8 3000");
        b.peer.tell("exact a 100 8 3000");
        for node in [&mut a, &mut b] {
            if let Err(failed) = node.answer() {
                panic!("host {deaf} cannot be called, {}: {failed:?}", node.peer.name);
            }
        }
        for node in [&mut a, &mut b] {
            assert_eq!(node.must("reach exact 100"), "100");
            node.nothing_was_wrong();
        }
        a.end();
        b.end();
    }
    Verdict::Passed
}

fn one_way_connectable_peer_is_answered_over_its_own_connection() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    or_skip!(hosts[0].drop_incoming_calls());
    let (mut a, mut b) = (hosts[0].node("a", &[NETWORK]), hosts[1].node("b", &[NETWORK]));
    let _ = a.must(&format!("register here {MIXED_REGION}"));
    let _ = b.must(&format!("register theirs {MIXED_REGION}"));
    a.connect(&mut b);
    let _ = a.import(&mut b, "theirs");
    // The other side answers gets, atomics and flushes.
    let _ = a.must("mixed b theirs 20");
    assert_eq!(b.must("reach exact 20"), "20");
    // From this line on, the other side can also send.
    b.connect(&mut a);
    let _ = b.must("exact a 20 8 3000");
    for node in [&mut a, &mut b] {
        assert_eq!(node.must("reach exact 20"), "20");
        node.nothing_was_wrong();
    }
    a.end();
    b.end();
    Verdict::Passed
}

fn peer_without_connection_in_either_direction_times_out() -> Verdict {
    for refuses in [false, true] {
        let hosts = or_skip!(Hosts::two());
        or_skip!(match refuses {
            true => hosts[1].refuse_incoming_calls(),
            false => hosts[1].drop_incoming_calls(),
        });
        let mut a = hosts[0].node("a", &[NETWORK, "TIELINE_CONNECT_TIMEOUT=2s"]);
        let mut b = hosts[1].node("b", &[NETWORK]);
        a.connect(&mut b);
        let asked = tieline_processes::sys::now_ns();
        let failed = a.try_ask("ping b").expect_err("there is no way");
        let took = milliseconds(asked, failed.at);
        println!("    after {took:.0} ms (stated: 2000): {} {}", failed.status, failed.text);
        assert!(took < BOUND_MS);
        // A refused connection looks the same as a port without a listener.
        assert_eq!(failed.status, if refuses { "PeerFailed" } else { "TimedOut" });
        assert!(failed.text.contains(&format!("process {}", b.peer.pid())), "{}", failed.text);
        a.end();
        b.end();
    }
    Verdict::Passed
}

/// Returns the number of bytes that a host has sent over a rail.
fn sent_over(hosts: &Hosts, host: usize, rail: usize) -> u64 {
    let file = format!("/sys/class/net/rail{rail}/statistics/tx_bytes");
    hosts[host].run(&["cat", &file]).expect("a counter").parse().expect("a number")
}

fn one_of_two_rails_is_lost_and_the_other_one_carries_on() -> Verdict {
    for lost in [0, 1] {
        let hosts = or_skip!(Hosts::with_rails(2));
        let (mut a, mut b) = pair(&hosts, &["TIELINE_TCP_RAILS=all", STATED_SETTING]);
        let sent = a.must("exact b 500 60000 8 30000");
        assert_eq!(b.must(&format!("reach exact {sent}")), sent);
        let before = [0, 1].map(|rail| sent_over(&hosts, 0, rail));
        println!("    bytes over the rails: {before:?}");
        assert!(before.iter().all(|bytes| *bytes > 1_000_000), "both rails carry: {before:?}");
        talk(&mut a, &mut b);
        hosts[1].link(lost).cut();
        // The stream continues after the rail was abandoned.
        stop(&mut a, &mut b);
        talk(&mut a, &mut b);
        stop(&mut a, &mut b);
        for (node, other) in [(&mut a, "b"), (&mut b, "a")] {
            assert_eq!(node.must(&format!("error {other}")), "alive");
        }
        println!("    without rail {lost}: {}", a.must("report b"));
        a.end();
        b.end();
    }
    Verdict::Passed
}
