//! Tests of connections between hosts: made at the same time, late, never, in large numbers, and to wrong peers.

use std::sync::atomic::{AtomicBool, Ordering};
use tieline_processes::hosts::NETWORK;
use tieline_processes::node::{milliseconds, milliseconds_since};
use tieline_processes::random::spin;
use tieline_processes::{BOUND_MS, Hosts, Node, Random, Test, Verdict, named, or_skip, sys};

pub(crate) const TESTS: &[Test] = named![
    crossing_connects_form_one_connection_two_hundred_times,
    a_thousand_connections_between_two_processes_come_about_at_once,
    sixty_four_processes_on_four_hosts_connect_all_to_all_at_once,
    connections_come_about_while_links_flap,
    a_peer_that_makes_progress_late_is_waited_for,
    a_peer_that_never_makes_progress_is_an_error_that_names_it,
    unreachable_peer_is_error_that_names_it,
    a_wrong_secret_is_refused_and_a_right_one_is_not,
    restarted_peer_at_same_port_is_recognized_as_new,
    connecting_and_closing_may_cross,
];

fn crossing_connects_form_one_connection_two_hundred_times() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = (hosts[0].node("a", &[NETWORK]), hosts[1].node("b", &[NETWORK]));
    let mut early = Vec::new();
    for round in 0..200 {
        for node in [&mut a, &mut b] {
            let _ = node.must("fresh-worker");
        }
        a.connect(&mut b);
        b.connect(&mut a);
        a.peer.tell("exact b 3 8 2000");
        b.peer.tell("exact a 3 8 2000");
        for node in [&mut a, &mut b] {
            if let Err(failed) = node.answer() {
                panic!("round {round}, {}: {failed:?}", node.peer.name);
            }
        }
        for node in [&mut a, &mut b] {
            assert_eq!(node.must("reach exact 3"), "3", "round {round}");
            node.nothing_was_wrong();
        }
        let open = [a.must("descriptors"), b.must("descriptors")];
        let open = open.map(|n| n.parse::<u64>().expect("a number"));
        early = if round == 20 { open.to_vec() } else { early };
        if round == 199 {
            println!("    descriptors after 20 rounds {early:?}, after 200 {open:?}");
            assert!(open.iter().zip(&early).all(|(late, early)| *late <= early + 4));
        }
    }
    a.end();
    b.end();
    Verdict::Passed
}

fn a_thousand_connections_between_two_processes_come_about_at_once() -> Verdict {
    const COUNT: usize = 1000;
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = (hosts[0].node("a", &[NETWORK]), hosts[1].node("b", &[NETWORK]));
    let started = sys::now_ns();
    let addresses = [a.must("address"), b.must("address")];
    for node in [&mut a, &mut b] {
        let _ = node.must("limit descriptors 100000");
    }
    // The connections of both sides cross: one connection serves both sides.
    a.peer.tell(&format!("many b {} {COUNT}", addresses[1]));
    b.peer.tell(&format!("many a {} {COUNT}", addresses[0]));
    for node in [&mut a, &mut b] {
        if let Err(failed) = node.answer() {
            panic!("{}: {failed:?}", node.peer.name);
        }
    }
    println!("    {COUNT} connections after {:.0} ms", milliseconds_since(started));
    for node in [&mut a, &mut b] {
        assert_eq!(node.must(&format!("reach counted {COUNT}")), COUNT.to_string());
        node.nothing_was_wrong();
        let descriptors = node.must("descriptors");
        println!("    {}: {descriptors} descriptors", node.peer.name);
    }
    a.end();
    b.end();
    Verdict::Passed
}

fn everybody(hosts: &Hosts, count: usize, settings: &[&str]) -> (Vec<Node>, String) {
    let machines = hosts.iter().count();
    let mut nodes: Vec<Node> =
        (0..count).map(|i| hosts[i % machines].node(&format!("n{i}"), settings)).collect();
    let mut addresses = String::new();
    for node in &mut nodes {
        addresses += " ";
        addresses += &node.must("address");
    }
    (nodes, addresses)
}

fn all_to_all(nodes: &mut [Node], addresses: &str, messages: usize) {
    for (rank, node) in nodes.iter_mut().enumerate() {
        node.peer.tell(&format!("all-to-all {rank} {messages}{addresses}"));
    }
    for node in nodes.iter_mut() {
        if let Err(failed) = node.answer() {
            panic!("{}: {failed:?}", node.peer.name);
        }
    }
    for node in nodes {
        node.nothing_was_wrong();
    }
}

fn sixty_four_processes_on_four_hosts_connect_all_to_all_at_once() -> Verdict {
    let hosts = or_skip!(Hosts::many(4));
    let started = sys::now_ns();
    let (mut nodes, addresses) = everybody(&hosts, 64, &["TIELINE_PROVIDERS=^shm-cma"]);
    println!("    64 processes are there after {:.0} ms", milliseconds_since(started));
    all_to_all(&mut nodes, &addresses, 20);
    println!("    all to all is complete after {:.0} ms", milliseconds_since(started));
    for node in nodes {
        node.end();
    }
    println!("    and everybody has left after {:.0} ms", milliseconds_since(started));
    Verdict::Passed
}

fn connections_come_about_while_links_flap() -> Verdict {
    let mut random = Random::for_this_run();
    let hosts = or_skip!(Hosts::many(4));
    for _ in 0..3 {
        let (mut nodes, addresses) = everybody(&hosts, 12, &[NETWORK]);
        let links: Vec<_> = hosts.iter().map(|host| host.link(0).clone()).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let link = &links[random.below(4) as usize];
                    link.cut();
                    spin(random.below(60_000));
                    link.restore();
                    spin(random.below(60_000));
                }
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                all_to_all(&mut nodes, &addresses, 50);
            }));
            over.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        for node in nodes {
            node.end();
        }
    }
    Verdict::Passed
}

fn a_peer_that_makes_progress_late_is_waited_for() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = (hosts[0].node("a", &[NETWORK]), hosts[1].node("b", &[NETWORK]));
    a.connect(&mut b);
    let _ = b.must("passive");
    a.peer.tell("ping b");
    let early = a.peer.hear_within(std::time::Duration::from_secs(1));
    assert_eq!(early, None, "nobody could have answered");
    let _ = b.must("active");
    let _ = a.answer().expect("it is there now");
    a.end();
    b.end();
    Verdict::Passed
}

fn a_peer_that_never_makes_progress_is_an_error_that_names_it() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = hosts[0].node("a", &[NETWORK, "TIELINE_CONNECT_TIMEOUT=2s"]);
    let mut b = hosts[1].node("b", &[NETWORK]);
    a.connect(&mut b);
    let _ = b.must("passive");
    let asked = sys::now_ns();
    let failed = a.try_ask("ping b").expect_err("nobody answers");
    let took = milliseconds(asked, failed.at);
    println!("    after {took:.0} ms: {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "TimedOut");
    assert!(failed.text.contains(&format!("process {}", b.peer.pid())), "{}", failed.text);
    assert!(failed.text.contains("TIELINE_CONNECT_TIMEOUT"), "{}", failed.text);
    assert!(took < BOUND_MS);
    assert_ne!(a.ask("send b 1 0 8").expect_err("it has failed").status, "Again");
    assert_eq!(a.must("pending"), "0");
    // The failure is not permanent: when the peer makes progress, another endpoint reaches it.
    let _ = b.must("active");
    let _ = a.must("disconnect b");
    a.connect(&mut b);
    let _ = a.must("ping b");
    a.end();
    b.end();
    Verdict::Passed
}

fn unreachable_peer_is_error_that_names_it() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = hosts[0].node("a", &[NETWORK, "TIELINE_CONNECT_TIMEOUT=2s"]);
    let mut b = hosts[1].node("b", &[NETWORK]);
    a.connect(&mut b);
    hosts[1].link(0).cut();
    let asked = sys::now_ns();
    let failed = a.try_ask("ping b").expect_err("there is no way");
    let took = milliseconds(asked, failed.at);
    println!("    after {took:.0} ms: {} {}", failed.status, failed.text);
    assert!(["TimedOut", "Unreachable"].contains(&failed.status.as_str()), "{failed:?}");
    assert!(failed.text.contains(&format!("process {}", b.peer.pid())), "{}", failed.text);
    assert!(took < BOUND_MS);
    a.end();
    b.end();
    Verdict::Passed
}

fn a_wrong_secret_is_refused_and_a_right_one_is_not() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let with = |secret: &str| format!("TIELINE_SECRET={secret}");
    for (mine, theirs, good) in [("one", "one", true), ("one", "two", false), ("", "two", false)] {
        let mut a = hosts[0].node("a", &[NETWORK, &with(mine), "TIELINE_CONNECT_TIMEOUT=5s"]);
        let mut b = hosts[1].node("b", &[NETWORK, &with(theirs), "TIELINE_CONNECT_TIMEOUT=5s"]);
        a.connect(&mut b);
        b.connect(&mut a);
        for (node, other) in [(&mut a, "b"), (&mut b, "a")] {
            match (node.ask(&format!("ping {other}")), good) {
                (Ok(_), true) => {}
                (Err(failed), false) => {
                    println!("    `{mine}` and `{theirs}`: {} {}", failed.status, failed.text);
                    assert_eq!(failed.status, "Permission");
                    assert!(failed.text.contains("secret"), "{}", failed.text);
                    assert!(failed.text.contains("process "), "{}", failed.text);
                    assert!(!failed.text.contains("two"), "a secret is not told");
                }
                (other, _) => panic!("`{mine}` and `{theirs}`: {other:?}"),
            }
        }
        a.end();
        b.end();
    }
    Verdict::Passed
}

fn restarted_peer_at_same_port_is_recognized_as_new() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    // There is only one port per listener of the providers: the new process reuses the ports of the old process.
    let settings = &[NETWORK, "TIELINE_TCP_PORTS=20000-20001", "TIELINE_CONNECT_TIMEOUT=5s"];
    let mut a = hosts[0].node("a", &[NETWORK, "TIELINE_CONNECT_TIMEOUT=5s"]);
    let mut late = hosts[0].node("late", &[NETWORK, "TIELINE_CONNECT_TIMEOUT=5s"]);
    let mut b = hosts[1].node("b", settings);
    a.connect(&mut b);
    late.connect(&mut b);
    let _ = a.must("ping b");
    let ports = hosts[1].listening();
    a.peer.tell("failures 1");
    let _ = b.kill();
    assert!(a.answer().expect("on_peer_failure is called").text.ends_with("PeerFailed"));
    let mut again = hosts[1].node("again", settings);
    assert_eq!(hosts[1].listening(), ports, "it listens where the old one did");
    // A process that knew the old process, and a process that only had its address, are notified that the new process is a
    // different one.
    assert_eq!(a.ask("send b 1 0 8").expect_err("it is gone").status, "PeerFailed");
    let failed = late.ask("ping b").expect_err("it is another process");
    println!("    {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "PeerFailed");
    assert!(failed.text.contains("replaced"), "{}", failed.text);
    for node in [&mut a, &mut late] {
        node.connect(&mut again);
        let _ = node.must("ping again");
    }
    assert_eq!(again.must("counted"), "0");
    for node in [a, late, again] {
        node.end();
    }
    Verdict::Passed
}

fn connecting_and_closing_may_cross() -> Verdict {
    let mut random = Random::for_this_run();
    let hosts = or_skip!(Hosts::two());
    let settings = [NETWORK, "TIELINE_CONNECT_TIMEOUT=5s"];
    let (mut a, mut b) = (hosts[0].node("a", &settings), hosts[1].node("b", &settings));
    // Endpoints are opened and dropped while the other side posts requests: everything sent arrives.
    for round in 0..100 {
        a.connect(&mut b);
        b.connect(&mut a);
        a.peer.tell("ping b");
        spin(random.below(2000));
        b.peer.tell("send a 1 0 8");
        b.peer.tell("disconnect a");
        for node in [&mut a, &mut b] {
            if let Err(failed) = node.answer() {
                panic!("round {round}, {}: {failed:?}", node.peer.name);
            }
        }
        let _ = b.answer().expect("disconnecting");
        let _ = a.must("disconnect b");
    }
    assert_eq!(a.must("reach counted 100"), "100");
    // Workers close while the other side connects: the other side gets an answer or a reason.
    for round in 0..100 {
        a.connect(&mut b);
        a.peer.tell("ping b");
        spin(random.below(3000));
        let _ = b.must("fresh-worker");
        match a.answer() {
            Ok(_) => {}
            Err(failed) => {
                let reasons = ["PeerFailed", "Closed"];
                assert!(reasons.contains(&failed.status.as_str()), "round {round}: {failed:?}");
            }
        }
        let _ = a.must("disconnect b");
    }
    a.end();
    b.end();
    Verdict::Passed
}
