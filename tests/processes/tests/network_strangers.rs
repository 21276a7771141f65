//! Tests of foreign clients on the network: scanners, senders of garbage, slow senders.

use tieline_processes::hosts::NETWORK;
use tieline_processes::{Host, Hosts, Node, Test, Verdict, named, or_skip};

pub(crate) const TESTS: &[Test] =
    named![garbage_on_every_port_has_no_effect, slow_clients_have_no_effect_and_are_disconnected,];

fn talking(hosts: &Hosts) -> (Node, Node) {
    let (mut a, mut b) = (hosts[0].node("a", &[NETWORK]), hosts[1].node("b", &[NETWORK]));
    a.connect(&mut b);
    a.peer.tell("exact b until-told 8 5000");
    a.streams();
    (a, b)
}

fn undisturbed(hosts: &Hosts, a: &mut Node, b: &mut Node) {
    let sent = a.stop().expect("a stream").text;
    assert_eq!(b.must(&format!("reach exact {sent}")), sent);
    let mut late = hosts[0].node("late", &[NETWORK]);
    late.connect(b);
    let _ = late.must("exact b 10 8");
    late.end();
    b.connect(a);
    let _ = b.must("exact a 100 8 5000");
    assert_eq!(a.must("reach exact 100"), "100");
    a.nothing_was_wrong();
    b.nothing_was_wrong();
}

/// Returns the address at which a port answers: a listener has one version of IP.
fn answering(host: &Host, port: u16, stranger: &mut Node) -> String {
    let places = [host.address(0, false), format!("[{}]", host.address(0, true))];
    let mut places = places.map(|address| format!("{address}:{port}")).into_iter();
    let place = places.find(|place| stranger.ask(&format!("call {place}")).is_ok());
    place.expect("somebody listens there")
}

fn garbage_on_every_port_has_no_effect() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = talking(&hosts);
    let before: u64 = b.must("descriptors").parse().expect("a number");
    let mut stranger = hosts[0].stranger();
    let ports = hosts[1].listening();
    assert!(!ports.is_empty());
    let places: Vec<String> =
        ports.iter().map(|port| answering(&hosts[1], *port, &mut stranger)).collect();
    for round in 0..20 {
        for place in &places {
            let len = [0, 1, 16, 1_000_000][round % 4];
            let took = stranger.ask(&format!("garbage {place} {len}"));
            if let (3, Ok(took)) = (round, took) {
                println!("    of 1000000 bytes {place} took {took}");
            }
            assert_eq!(stranger.must(&format!("call {place}")), "reached");
        }
    }
    stranger.end();
    undisturbed(&hosts, &mut a, &mut b);
    let after: u64 = b.must("descriptors").parse().expect("a number");
    assert!(after <= before + 4, "{before} descriptors became {after}");
    a.end();
    b.end();
    Verdict::Passed
}

fn slow_clients_have_no_effect_and_are_disconnected() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = talking(&hosts);
    let mut stranger = hosts[0].stranger();
    for port in hosts[1].listening() {
        let place = answering(&hosts[1], port, &mut stranger);
        let before: usize = stranger.must("drip").parse().expect("a number");
        let held: usize = stranger.must(&format!("slow {place} 300")).parse().expect("a number");
        println!("    {} connections to {place} were made", held - before);
        assert!(held > before);
    }
    undisturbed(&hosts, &mut a, &mut b);
    println!("    {} are open after a while", stranger.must("drip"));
    // A connection is closed after the time limit of a handshake.
    let _ = stranger.must("await-closed");
    stranger.end();
    a.end();
    b.end();
    Verdict::Passed
}
