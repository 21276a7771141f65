//! Tests of peers that use the wire format of shm and violate its rules.

use std::process::Command;
use tieline_processes::node::milliseconds_since;
use tieline_processes::{BOUND_MS, Launch, Node, Test, Verdict, named, sys};

pub(crate) const TESTS: &[Test] = named![
    four_hundred_peers_that_greet_between_two_polls_all_arrive,
    silent_connections_do_not_keep_an_honest_peer_out,
    disconnected_peers_that_keep_writing_are_reaped,
    impostor_cannot_end_endpoints_of_another_peer,
    floods_of_records_and_messages_do_not_stop_a_conversation,
    unusual_descriptors_do_not_stop_a_conversation,
    messages_in_huge_pages_are_refused,
    a_process_that_claims_the_domain_of_another_gets_nothing_of_it,
    another_user_stops_nobody_where_there_is_no_directory_for_sockets,
];

const LOCAL: &str = "TIELINE_PROVIDERS=shm,shm-cma";

/// The record that only asks the receiver to poll.
const WAKE: &str = "04";
const NOBODY: u32 = 65534;

fn victim_and_friend() -> (Node, Node) {
    let (mut victim, mut friend) = (Node::with("victim", &[LOCAL]), Node::with("friend", &[LOCAL]));
    friend.connect(&mut victim);
    let _ = friend.must("chat victim");
    (victim, friend)
}

fn undisturbed(victim: &mut Node, friend: &mut Node) {
    let pongs = |node: &mut Node| node.must("pongs").parse::<u64>().expect("a number");
    let (before, started) = (pongs(friend), sys::now_ns());
    while pongs(friend) < before + 100 {
        assert!(milliseconds_since(started) < BOUND_MS, "the conversation stands still");
    }
    friend.nothing_was_wrong();
    victim.nothing_was_wrong();
}

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

fn four_hundred_peers_that_greet_between_two_polls_all_arrive() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    // The victim does not poll while the messages arrive.
    let _ = victim.must("passive");
    let _ = hostile.must("greet 400");
    let _ = victim.must("active");
    undisturbed(&mut victim, &mut friend);
    assert_eq!(hostile.must("open"), "400");
    end([hostile, friend, victim])
}

fn silent_connections_do_not_keep_an_honest_peer_out() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    let _ = hostile.must("silent 300");
    let mut newcomer = Node::with("newcomer", &[LOCAL]);
    newcomer.connect(&mut victim);
    let _ = newcomer.must("ping victim");
    undisturbed(&mut victim, &mut friend);
    newcomer.end();
    end([hostile, friend, victim])
}

fn disconnected_peers_that_keep_writing_are_reaped() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    let _ = hostile.must("greet 30");
    assert_eq!(hostile.must("switch"), "30");
    hostile.peer.tell("haunt");
    hostile.streams();
    undisturbed(&mut victim, &mut friend);
    let written = hostile.stop().expect("writing").text;
    println!("    {written} messages from 30 who had hung up");
    // All attackers are reported as gone, and their rings are not read after that.
    victim.peer.tell("failures 30");
    let _ = victim.answer().expect("on_peer_failure is called");
    hostile.peer.tell("write");
    hostile.streams();
    undisturbed(&mut victim, &mut friend);
    // The slots that were read last can be written again.
    let more: u64 = hostile.stop().expect("writing").text.parse().expect("a number");
    assert!(more <= 30 * 64, "{more} messages were read after the end");
    end([hostile, friend, victim])
}

fn impostor_cannot_end_endpoints_of_another_peer() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    victim.connect(&mut friend);
    let _ = victim.must("send friend 1 0 8");
    let mut hostile = attacker(&mut victim);
    let _ = hostile.must(&format!("greet-as {}", friend.must("address")));
    // The end of this later connection implies that the earlier greeting was processed.
    let _ = hostile.must("greet 1");
    undisturbed(&mut victim, &mut friend);
    let _ = hostile.must("hang-up");
    victim.peer.tell("failures 1");
    let _ = victim.answer().expect("on_peer_failure is called");
    undisturbed(&mut victim, &mut friend);
    assert_eq!(victim.must("error friend"), "alive");
    let _ = victim.must("send friend 1 0 8");
    end([hostile, friend, victim])
}

fn floods_of_records_and_messages_do_not_stop_a_conversation() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    let _ = hostile.must("greet 300");
    for flood in [&format!("flood {WAKE}"), "write"] {
        hostile.peer.tell(flood);
        hostile.streams();
        undisturbed(&mut victim, &mut friend);
        println!("    {flood}: {}", hostile.stop().expect("flooding").text);
    }
    end([hostile, friend, victim])
}

fn unusual_descriptors_do_not_stop_a_conversation() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    let open = |victim: &mut Node| victim.must("descriptors").parse::<u64>().expect("a number");
    let before = open(&mut victim);
    let _ = hostile.must("odd");
    undisturbed(&mut victim, &mut friend);
    // Only the last close of a socket blocks. The last close is the victim's, since the victim does not poll before the other side
    // has closed.
    let _ = victim.must("passive");
    let _ = hostile.must("linger 3");
    let _ = hostile.must("closed");
    let _ = victim.must("active");
    undisturbed(&mut victim, &mut friend);
    let _ = hostile.must("odd");
    undisturbed(&mut victim, &mut friend);
    // All received descriptors are closed, but the last greeting may still be pending. One more descriptor may be a timer of the
    // victim, made when it is first needed; a leak would be at least two descriptors.
    let started = sys::now_ns();
    while open(&mut victim) > before + 1 {
        assert!(milliseconds_since(started) < BOUND_MS, "descriptors of others stay open");
    }
    end([hostile, friend, victim])
}

fn messages_in_huge_pages_are_refused() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut hostile = attacker(&mut victim);
    assert_eq!(hostile.must("greet 1"), "1");
    if let Err(failed) = hostile.ask("huge") {
        let _ = end([hostile, friend, victim]);
        return Verdict::Skipped(format!("no huge pages (vm.nr_hugepages): {}", failed.text));
    }
    undisturbed(&mut victim, &mut friend);
    // The victim must not read from a file whose pages can be removed.
    victim.peer.tell("failures 1");
    let _ = victim.answer().expect("on_peer_failure is called");
    assert_eq!(hostile.must("open"), "0");
    assert_eq!(victim.must("counted"), "0");
    end([hostile, friend, victim])
}

fn a_process_that_claims_the_domain_of_another_gets_nothing_of_it() -> Verdict {
    for imports in [["impostor", "owner"], ["owner", "impostor"]] {
        let settings = ["TIELINE_PROVIDERS=shm"];
        let (mut victim, mut owner) =
            (Node::with("victim", &settings), Node::with("owner", &settings));
        let mut hostile = Node::bare(Launch::new("hostile", "hostile"));
        let _ = owner.must("alloc safe 4096");
        let (address, key) = (owner.must("address"), owner.must("key safe"));
        // The number, length and rights of a region are easy to find out for an attacker.
        let forged = hostile.must(&format!("impersonate {address} {key}"));
        hostile.peer.tell("play");
        hostile.streams();
        let _ = victim.must(&format!("connect owner {address}"));
        let _ = victim.must(&format!("connect impostor {forged}"));
        for name in imports {
            let path = victim.must(&format!("import {name} safe {key}"));
            assert!(path.starts_with("shm/ring"), "{name}: {path}");
        }
        let _ = victim.must("put-bytes owner.safe 8 1 0");
        let _ = victim.must("put-bytes impostor.safe 8 2 8");
        assert_eq!(hostile.stop().expect("playing").text, "1", "it was asked for its memory");
        let word = |byte: u8| u64::from_ne_bytes([byte; 8]).to_string();
        let at_the_owner = [owner.must("word safe 0"), owner.must("word safe 8")];
        assert_eq!(at_the_owner, [word(1), word(0)], "{imports:?}");
        let at_the_impostor = [hostile.must("got 0"), hostile.must("got 8")];
        assert_eq!(at_the_impostor, [word(0), word(2)], "{imports:?}");
        let _ = end([hostile, owner, victim]);
    }
    Verdict::Passed
}

/// A script that hides all directories for sockets. The program runs from a copy, since its file may be below one of these
/// directories.
const NOWHERE: &str = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/node || exit; \
                       for place in /tmp /run/user; do test ! -d $place || mount -t tmpfs -o ro none $place || exit; \
                       done; exec /mnt/node";

fn another_user_stops_nobody_where_there_is_no_directory_for_sockets() -> Verdict {
    let own = ["--mount", "true"];
    if !sys::is_root() || !Command::new("unshare").args(own).status().is_ok_and(|s| s.success()) {
        return Verdict::Skipped("a mount namespace and another user need root".into());
    }
    let launch =
        Launch::new("victim", "node").through(&["unshare", "--mount", "sh", "-c", NOWHERE]);
    let mut victim = Node::open(launch, &[LOCAL]);
    let mut friend = Node::with("friend", &[LOCAL]);
    let report = victim.must("context-report");
    assert!(report.contains("every user of this host can connect"), "{report}");
    friend.connect(&mut victim);
    let _ = friend.must("chat victim");
    let mut hostile = Node::bare(Launch::new("hostile", "hostile"));
    let aimed = hostile.must(&format!("aim {}", victim.must("address")));
    assert_eq!(aimed, "abstract");
    assert_eq!(hostile.must(&format!("become {NOBODY}")), "true");
    for order in ["linger 5", "odd", "silent 300"] {
        let _ = hostile.must(order);
        undisturbed(&mut victim, &mut friend);
    }
    let _ = hostile.must("hang-up");
    undisturbed(&mut victim, &mut friend);
    end([hostile, friend, victim])
}
