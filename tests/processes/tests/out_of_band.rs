//! Tests of connections whose datagrams the application carries, over the pipes of the test.

use tieline_processes::exchange::{self, Fate};
use tieline_processes::hosts::NETWORK;
use tieline_processes::{Host, Hosts, Node, Test, Verdict, named, or_skip};

pub(crate) const TESTS: &[Test] = named![
    connections_come_about_through_the_applications_own_callbacks,
    datagrams_that_the_application_loses_and_doubles_are_made_up_for,
    an_application_that_carries_nothing_gets_an_error_in_time,
];

fn carrying(host: &Host, name: &str, settings: &str) -> Node {
    let mut node = Node::bare(host.launch(name));
    let _ = node.must(&format!("open-carrying {name} {NETWORK} TIELINE_CONNECT=oob {settings}"));
    node
}

fn everything_works(hosts: &Hosts) {
    let (mut a, mut b) = (carrying(&hosts[0], "a", ""), carrying(&hosts[1], "b", ""));
    a.connect(&mut b);
    b.connect(&mut a);
    a.peer.tell("exact b 100 8 5000");
    b.peer.tell("exact a 100 8 5000");
    for node in [&mut a, &mut b] {
        if let Err(failed) = node.answer() {
            panic!("{}: {failed:?}", node.peer.name);
        }
    }
    for node in [&mut a, &mut b] {
        assert_eq!(node.must("reach exact 100"), "100");
        node.nothing_was_wrong();
    }
    println!("    {} datagrams; {}", exchange::carried(), a.must("report b"));
    assert!(exchange::carried() >= 3);
    a.end();
    b.end();
}

fn connections_come_about_through_the_applications_own_callbacks() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    everything_works(&hosts);
    Verdict::Passed
}

fn datagrams_that_the_application_loses_and_doubles_are_made_up_for() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    exchange::set_fate(Fate::Unreliable);
    everything_works(&hosts);
    Verdict::Passed
}

fn an_application_that_carries_nothing_gets_an_error_in_time() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    exchange::set_fate(Fate::Lost);
    let settings = "TIELINE_CONNECT_TIMEOUT=1s";
    let (mut a, mut b) = (carrying(&hosts[0], "a", settings), carrying(&hosts[1], "b", settings));
    a.connect(&mut b);
    let failed = a.ask("ping b").expect_err("nothing arrives");
    println!("    {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "TimedOut");
    assert!(failed.text.contains(&format!("process {}", b.peer.pid())), "{}", failed.text);
    assert_eq!(a.must("pending"), "0");
    a.end();
    b.end();
    Verdict::Passed
}
