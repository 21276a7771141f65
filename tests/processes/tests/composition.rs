//! Tests of two sides whose settings choose different modules to form their connections, over tcp.

use tieline_processes::exchange::{self, Fate};
use tieline_processes::hosts::NETWORK;
use tieline_processes::{Host, Hosts, Node, Test, Verdict, named, or_skip};

pub(crate) const TESTS: &[Test] = named![
    a_list_for_one_provider_stands_for_the_general_one_on_both_sides,
    sides_without_common_connector_over_tcp_learn_what_each_has,
    a_network_that_nothing_may_connect_is_an_error_that_lists_the_reasons,
];

fn carrying(host: &Host, name: &str, settings: &str) -> Node {
    let mut node = Node::bare(host.launch(name));
    let _ = node.must(&format!("open-carrying {name} {NETWORK} {settings}"));
    node
}

fn a_list_for_one_provider_stands_for_the_general_one_on_both_sides() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    exchange::set_fate(Fate::Arrives);
    // The setting of one side covers all transports, and that of the other side covers tcp alone: the two sides agree.
    let mut a = carrying(&hosts[0], "a", "TIELINE_CONNECT=oob");
    let mut b = carrying(&hosts[1], "b", "TIELINE_CONNECT=tcp-connect TIELINE_CONNECT_TCP=oob");
    a.connect(&mut b);
    b.connect(&mut a);
    let before = exchange::carried();
    let _ = a.must("ping b");
    let _ = b.must("ping a");
    assert!(exchange::carried() > before, "the application carried it");
    for node in [a, b] {
        node.end();
    }
    Verdict::Passed
}

fn sides_without_common_connector_over_tcp_learn_what_each_has() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = carrying(&hosts[0], "a", "TIELINE_CONNECT=oob");
    let mut b = hosts[1].node("b", &[NETWORK]);
    let both = [
        ("here: oob/callbacks; there: tcp-connect/stream", b.must("address")),
        ("here: tcp-connect/stream; there: oob/callbacks", a.must("address")),
    ];
    for (node, (lists, address)) in [&mut a, &mut b].into_iter().zip(both) {
        let failed = node.ask(&format!("connect peer {address}")).expect_err("nothing in common");
        println!("    {} {}", failed.status, failed.text);
        assert_eq!(failed.status, "Unreachable");
        assert!(failed.text.contains(lists), "{}", failed.text);
    }
    for node in [a, b] {
        node.end();
    }
    Verdict::Passed
}

fn a_network_that_nothing_may_connect_is_an_error_that_lists_the_reasons() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut node = Node::bare(hosts[0].launch("alone"));
    let failed = node.ask(&format!("open {NETWORK} TIELINE_CONNECT_TCP=^*")).expect_err("no way");
    println!("    {} {}", failed.status, failed.text);
    assert!(
        failed.text.contains("tcp-connect is left out by TIELINE_CONNECT_TCP=^*"),
        "{}",
        failed.text
    );
    node.end();
    Verdict::Passed
}
