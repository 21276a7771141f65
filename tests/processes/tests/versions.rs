//! Tests of peers of another version: the error, and compatible versions.
//!
//! The other version is simulated on the wire: addresses and datagrams are rewritten in transit, and a peer sends its own bytes.
//! docs/wire.md states the rules.

use std::path::PathBuf;
use tieline_processes::exchange::{self, Fate};
use tieline_processes::hosts::NETWORK;
use tieline_processes::interpreter::{hex, unhex};
use tieline_processes::{Hosts, Launch, Node, Test, Verdict, forge, leftovers, named, or_skip};
use tieline_testing::built;

pub(crate) const TESTS: &[Test] = named![
    processes_of_other_versions_refuse_each_other_and_both_name_both,
    provider_version_mismatch_is_named_and_other_provider_is_used,
    later_minor_version_is_accepted,
    providers_of_another_release_and_the_same_wire_work_together,
    a_listener_and_a_dialler_of_other_versions_both_name_both,
    wire_up_version_mismatch_is_reported_on_both_sides,
    shm_greeting_of_other_version_is_refused_without_disturbance,
    ranks_of_other_versions_are_named_on_both_sides_of_a_rendezvous,
];

const LOOPBACK: &str = "TIELINE_TCP_INTERFACES=127.0.0.0/8";
const SHM: &str = "TIELINE_PROVIDERS=shm,shm-cma";
const BOTH: &str = "TIELINE_PROVIDERS=shm,tcp,tcp-connect";

/// Starts a process on this host, with the network providers if they are built.
fn node(name: &str, providers: &str) -> Result<Node, String> {
    let mut launch = Launch::new(name, "node");
    if providers != SHM {
        launch = launch.env("TIELINE_PROVIDER_PATH", built::folder(&built::TCP)?.display());
    }
    Ok(Node::open(launch, &[providers, LOOPBACK]))
}

/// The part of an address that is changed, the change, and the expected texts for a version that is one higher.
type Change = (&'static str, fn(&[u8]) -> Vec<u8>, [&'static str; 2]);

const COMMON: [Change; 2] = [
    ("the address", |address| forge::with(address, forge::MAJOR, 2), ["version 2.", "reads 1.x"]),
    (
        "messages",
        |address| forge::with(address, forge::MESSAGES, 2),
        ["speaks version 2.", "this library 1.x"],
    ),
];

/// Returns an address in which the part of a provider has the next version.
fn next_of(address: &[u8], provider: &str) -> (Vec<u8>, [String; 2]) {
    let at = forge::candidate(address, provider.as_bytes()).start;
    let (ours, theirs) = (address[at], address[at] + 1);
    let words = [format!("the peer's {provider} speaks version {theirs}"), format!("one {ours}")];
    (forge::with(address, at, theirs), words)
}

/// Connects to that address, and checks that the error contains all of these words.
fn is_refused(node: &mut Node, address: &[u8], words: &[String]) {
    let failed = node.ask(&format!("connect other {}", hex(address))).expect_err("no way");
    println!("    {} is told: {} {}", node.peer.name, failed.status, failed.text);
    assert!(["Unsupported", "Unreachable"].contains(&&*failed.status), "{failed:?}");
    for word in words {
        assert!(failed.text.contains(word), "`{word}` in {failed:?}");
    }
}

fn processes_of_other_versions_refuse_each_other_and_both_name_both() -> Verdict {
    let mut left_out = None;
    for (providers, provider) in [(SHM, "shm"), (NETWORK, "tcp")] {
        let (mut a, mut b) = match (node("a", providers), node("b", providers)) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(reason), _) | (_, Err(reason)) => {
                left_out = Some(format!("over {provider}: {reason}"));
                continue;
            }
        };
        let addresses = [&mut a, &mut b].map(|node| unhex(&node.must("address")));
        for (node, other) in [(&mut a, &addresses[1]), (&mut b, &addresses[0])] {
            for (what, changed, words) in COMMON {
                println!("    {what}, over {provider}:");
                is_refused(node, &changed(other), &words.map(str::to_owned));
            }
            let (changed, words) = next_of(other, provider);
            is_refused(node, &changed, &words);
        }
        // The mismatch does not affect compatible peers.
        a.connect(&mut b);
        let _ = a.must("ping b");
        for node in [a, b] {
            assert_eq!(node_end(node), "0");
        }
    }
    left_out.map_or(Verdict::Passed, Verdict::Skipped)
}

/// Ends a process. Returns the process's pending operations.
fn node_end(mut node: Node) -> String {
    let pending = node.must("pending");
    node.end();
    pending
}

fn provider_version_mismatch_is_named_and_other_provider_is_used() -> Verdict {
    let (mut a, mut b) = (or_skip!(node("a", BOTH)), or_skip!(node("b", BOTH)));
    let (changed, words) = next_of(&unhex(&b.must("address")), "shm");
    let _ = a.must(&format!("connect b {}", hex(&changed)));
    let _ = a.must("ping b");
    let report = a.must("report b");
    println!("    {report}");
    assert!(words.iter().all(|word| report.contains(word)), "{report}");
    a.end();
    b.end();
    Verdict::Passed
}

fn later_minor_version_is_accepted() -> Verdict {
    for providers in [SHM, NETWORK] {
        let (mut a, mut b) = (or_skip!(node("a", providers)), or_skip!(node("b", providers)));
        let [of_a, of_b] =
            [&mut a, &mut b].map(|node| forge::with_later_minor(&unhex(&node.must("address"))));
        let _ = a.must(&format!("connect b {}", hex(&of_b)));
        let _ = b.must(&format!("connect a {}", hex(&of_a)));
        a.peer.tell("exact b 100 8 5000");
        let _ = b.must("exact a 100 8 5000");
        let _ = a.answer().expect("a's messages");
        for node in [&mut a, &mut b] {
            assert_eq!(node.must("reach exact 100"), "100");
            node.nothing_was_wrong();
        }
        let _ = b.must("register memory 4096");
        let _ = a.import(&mut b, "memory");
        let _ = a.must("put-bytes b.memory 8 7 0");
        let _ = a.must("flush b");
        assert_eq!(b.must("word memory 0"), u64::from_le_bytes([7; 8]).to_string());
        a.end();
        b.end();
    }
    Verdict::Passed
}

/// Makes a directory with the network providers, with another release version in their notes.
fn released_as(version: &str) -> Result<PathBuf, String> {
    const FIELD: usize = 32;
    let from = built::folder(&built::TCP)?;
    let folder = leftovers::current().1.join("tmp").join(version);
    std::fs::create_dir_all(&folder).expect("a folder");
    let field = |text: &str| {
        let mut bytes = [0; FIELD];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    };
    for (name, (_, file)) in ["tcp", "tcp-connect"].into_iter().zip(built::TCP) {
        let mut bytes = std::fs::read(from.join(file)).expect("a provider");
        let note = [field(name), field(env!("CARGO_PKG_VERSION"))].concat();
        let at = bytes.windows(note.len()).position(|window| window == note);
        let at = at.expect("a note has the name and the version behind it") + FIELD;
        bytes[at..at + FIELD].copy_from_slice(&field(version));
        std::fs::write(folder.join(file), bytes).expect("another provider");
    }
    Ok(folder)
}

fn providers_of_another_release_and_the_same_wire_work_together() -> Verdict {
    let (ours, theirs) = (or_skip!(built::folder(&built::TCP)), or_skip!(released_as("7.8.9")));
    let node = |name: &str, folder: &PathBuf| {
        let launch = Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder.display());
        Node::open(launch, &[NETWORK, LOOPBACK])
    };
    let (mut a, mut b) = (node("a", &ours), node("b", &theirs));
    let (of_a, of_b) = (a.must("context-report"), b.must("context-report"));
    assert!(!of_a.contains("7.8.9") && of_b.contains("7.8.9"), "{of_a}\n{of_b}");
    a.connect(&mut b);
    b.connect(&mut a);
    a.peer.tell("exact b 100 8 5000");
    let _ = b.must("exact a 100 8 5000");
    let _ = a.answer().expect("a's messages");
    for node in [&mut a, &mut b] {
        assert_eq!(node.must("reach exact 100"), "100");
        node.nothing_was_wrong();
    }
    a.end();
    b.end();
    std::fs::remove_dir_all(&theirs).expect("a folder of this test");
    Verdict::Passed
}

fn a_listener_and_a_dialler_of_other_versions_both_name_both() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let report = leftovers::current().1.join("tmp/report");
    let mut a = hosts[0].node("a", &[NETWORK]);
    let mut b = hosts[1].node("b", &[NETWORK, &format!("TIELINE_REPORT={}", report.display())]);
    // The dialler has another version: the listener answers with its own version, and its report names both.
    let mut dialler = hosts[0].stranger();
    let ports = hosts[1].listening();
    for port in &ports {
        // A listener has one version of IP.
        let places = [hosts[1].address(0, false), format!("[{}]", hosts[1].address(0, true))];
        let mut places = places.map(|address| format!("{address}:{port}")).into_iter();
        let there = places.find(|place| dialler.ask(&format!("call {place}")).is_ok());
        let there = there.expect("somebody listens there");
        let said = dialler.must(&format!("greet {there} 2"));
        assert_eq!(said[..8], hex(b"TLN\x01"), "{said}");
    }
    // The serving side reports the mismatch; this peer has all facilities that it needs.
    a.connect(&mut b);
    let _ = a.must("ping b");
    let told = std::fs::read_to_string(&report).expect("a report");
    let line = told.lines().find(|line| line.contains("spoke version 2 of the handshake"));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    println!("    {line}");
    assert!(line.contains("where this side speaks version 1"));
    std::fs::remove_file(&report).expect("a file of this test");
    // A listener of another version uses the peer's address.
    let (address, name) = (b.must("address"), b.must("name"));
    // Names have their own listener.
    let ports = hosts[1].listening();
    let _ = b.kill();
    let mut listener = hosts[1].stranger();
    for port in ports {
        let _ = listener.must(&format!("speak [::]:{port} 2"));
    }
    let mut c = hosts[0].node("c", &[NETWORK]);
    let refused = |failed: tieline_processes::Failed| {
        println!("    {} {}", failed.status, failed.text);
        let both = "speaks version 2 of the handshake, this side version 1";
        assert!(failed.text.contains(both), "{failed:?}");
        // The failure must be immediate: after a wait the status would be the same.
        assert_eq!(failed.status, "Unsupported", "{failed:?}");
    };
    let _ = c.must(&format!("connect b {address}"));
    refused(c.ask("ping b").expect_err("it cannot be understood"));
    refused(c.ask(&format!("connect-by-name again {name}")).expect_err("nor asked"));
    assert_eq!(c.must("pending"), "0");
    for node in [dialler, listener, a, c] {
        node.end();
    }
    Verdict::Passed
}

fn wire_up_version_mismatch_is_reported_on_both_sides() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    exchange::set_fate(Fate::OfTheNextVersion);
    let carrying = |at: usize, name: &str| {
        let mut node = Node::bare(hosts[at].launch(name));
        let _ = node.must(&format!("open-carrying {name} {NETWORK} TIELINE_CONNECT=oob"));
        node
    };
    let (mut a, mut b) = (carrying(0, "a"), carrying(1, "b"));
    a.connect(&mut b);
    b.connect(&mut a);
    for (node, other) in [(&mut a, "b"), (&mut b, "a")] {
        let failed = node.ask(&format!("ping {other}")).expect_err("it cannot be understood");
        println!("    {} is told: {} {}", node.peer.name, failed.status, failed.text);
        for words in ["speaks version 2 of the wire-up", "this side version 1"] {
            assert!(failed.text.contains(words), "{failed:?}");
        }
    }
    for node in [a, b] {
        assert_eq!(node_end(node), "0");
    }
    Verdict::Passed
}

fn shm_greeting_of_other_version_is_refused_without_disturbance() -> Verdict {
    let (mut victim, mut friend) = (Node::with("victim", &[SHM]), Node::with("friend", &[SHM]));
    friend.connect(&mut victim);
    let _ = friend.must("ping victim");
    let mut other = Node::bare(Launch::new("other", "hostile"));
    let _ = other.must(&format!("aim {}", victim.must("address")));
    // The answer is the refusal record, with the reason for another version.
    assert_eq!(other.must("greet-in-the-next-version"), "0302");
    let _ = friend.must("ping victim");
    friend.nothing_was_wrong();
    for node in [other, friend, victim] {
        node.end();
    }
    Verdict::Passed
}

fn ranks_of_other_versions_are_named_on_both_sides_of_a_rendezvous() -> Verdict {
    const PORT: u16 = 29400;
    let hosts = or_skip!(Hosts::two());
    let at = format!("{}:{PORT}", hosts[0].address(0, false));
    let member = |rank: usize| {
        let launch = hosts[rank].launch(&format!("rank{rank}"));
        let launch = launch.env("TIELINE_BOOTSTRAP", &at).env("TIELINE_RANK", rank);
        let launch = launch.env("TIELINE_SIZE", 2).env("TIELINE_SECRET", "of this job alone");
        Node::bare(launch.env("TIELINE_BOOTSTRAP_TIMEOUT", "3s"))
    };
    // The listener acts as rank 0 of another version.
    let mut listener = hosts[0].stranger();
    let _ = listener.must(&format!("speak [::]:{PORT} 2"));
    let mut joining = member(1);
    let failed = joining.ask("join").expect_err("it cannot be understood");
    println!("    {} {}", failed.status, failed.text);
    let both = "speaks version 2 of the handshake, this side version 1";
    assert!(failed.text.contains(both), "{failed:?}");
    listener.end();
    // The dialler acts as a rank of another version.
    let mut serving = member(0);
    serving.peer.tell("join");
    while !hosts[0].listening().contains(&PORT) {}
    let mut dialler = hosts[1].stranger();
    let said = dialler.must(&format!("greet {at} 2"));
    assert_eq!(said[..8], hex(b"TLN\x01"), "{said}");
    let failed = serving.answer().expect_err("nobody else comes");
    println!("    {} {}", failed.status, failed.text);
    let both = "speaks version 2 of the handshake, where this side speaks version 1";
    assert!(failed.text.contains(both), "{failed:?}");
    for node in [joining, serving, dialler] {
        node.end();
    }
    Verdict::Passed
}
