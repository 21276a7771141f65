//! Peers that speak the wire of shm and keep to none of its rules.

use tieline_processes::{Launch, Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] =
    named![two_hundred_peers_that_greet_between_two_polls_all_arrive,];

/// What is attacked here.
const LOCAL: &str = "TIELINE_PROVIDERS=shm,shm-cma";

/// A victim in the middle of a conversation with a friend.
fn victim_and_friend() -> (Node, Node) {
    let (mut victim, mut friend) = (Node::with("victim", &[LOCAL]), Node::with("friend", &[LOCAL]));
    friend.connect(&mut victim);
    let _ = friend.must("chat victim");
    (victim, friend)
}

/// The conversation goes on.
fn undisturbed(victim: &mut Node, friend: &mut Node) {
    let pongs = |node: &mut Node| node.must("pongs").parse::<u64>().expect("a number");
    let before = pongs(friend);
    while pongs(friend) < before + 100 {}
    friend.nothing_was_wrong();
    victim.nothing_was_wrong();
}

/// A process that attacks the victim.
fn attacker(victim: &mut Node) -> Node {
    let mut hostile = Node::bare(Launch::new("hostile", "hostile"));
    let _ = hostile.must(&format!("aim {}", victim.must("address")));
    hostile
}

fn end(nodes: [Node; 3]) -> Verdict {
    for node in nodes {
        node.end();
    }
    Verdict::Passed
}

fn two_hundred_peers_that_greet_between_two_polls_all_arrive() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    // It does not poll while they come.
    let _ = victim.must("passive");
    let _ = hostile.must("greet 200");
    let _ = victim.must("active");
    undisturbed(&mut victim, &mut friend);
    assert_eq!(hostile.must("open"), "200");
    end([hostile, friend, victim])
}
