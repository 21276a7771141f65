//! Hosts that talk over libfabric: its software providers `tcp;ofi_rxm` and `sockets`, which tell of no death themselves.

use std::time::Duration;
use tieline_processes::interpreter::MIXED_REGION;
use tieline_processes::node::{milliseconds, nothing_leaks};
use tieline_processes::random::spin;
use tieline_processes::{
    BOUND_MS, Host, Hosts, Launch, Node, Random, Test, Verdict, named, or_skip, plugins,
};

pub(crate) const TESTS: &[Test] = named![
    a_process_that_uses_libfabric_has_the_signals_of_one_that_does_not,
    everything_crosses_between_two_hosts_over_libfabric,
    atomics_that_the_owner_leaves_to_libfabric_are_done_there_between_two_hosts,
    killed_processes_leave_two_survivors_at_work_over_libfabric,
    a_peer_over_libfabric_that_computes_for_longer_than_the_stated_time_is_not_given_up,
    a_host_that_vanishes_is_given_up_within_the_stated_time_over_libfabric,
];

/// Its providers, as they are asked for.
const PROVIDERS: [&str; 2] = ["TIELINE_OFI_PROVIDERS=tcp", "TIELINE_OFI_PROVIDERS=sockets"];
const STATED: Duration = Duration::from_secs(2);
const STATED_SETTING: &str = "TIELINE_FAILURE_TIMEOUT=2s";
/// Where the dead are neither leaks nor slow to be told.
const KILLS: usize = 10;

fn node(host: &Host, name: &str, settings: &[&str]) -> Node {
    let folder = plugins::libfabric().expect("the test looks first");
    let launch = host.launch(name).env("TIELINE_PROVIDER_PATH", folder.display());
    let settings: Vec<&str> = ["TIELINE_PROVIDERS=ofi"].iter().chain(settings).copied().collect();
    Node::open(launch, &settings)
}

/// Two processes on two hosts that reach each other's memory.
fn pair(hosts: &Hosts, settings: &[&str]) -> (Node, Node) {
    let (mut a, mut b) = (node(&hosts[0], "a", settings), node(&hosts[1], "b", settings));
    for node in [&mut a, &mut b] {
        let _ = node.must(&format!("register here {MIXED_REGION}"));
        let _ = node.must(&format!("register theirs {MIXED_REGION}"));
    }
    a.connect(&mut b);
    b.connect(&mut a);
    for path in [a.import(&mut b, "theirs"), b.import(&mut a, "theirs")] {
        assert!(path.contains("ofi:"), "{path}");
    }
    (a, b)
}

/// Puts, gets, atomics and pings.
fn one_way(from: &mut Node, to: &mut Node) {
    let name = to.peer.name.clone();
    let _ = from.must(&format!("register out {MIXED_REGION}"));
    let _ = from.must("fill out 7");
    let _ = from.must(&format!("register back {MIXED_REGION}"));
    for (at, len, offset) in [(0, MIXED_REGION, 0), (0, 1, 7), (77, 4096, 100_001), (5, 0, 0)] {
        let _ = from.must(&format!("put {name}.theirs out {at} {len} {offset}"));
        assert_eq!(to.must(&format!("check theirs {offset} {len} 7 {at}")), "same");
        let _ = from.must("fill back 0");
        let _ = from.must(&format!("get {name}.theirs back {at} {len} {offset}"));
        assert_eq!(from.must(&format!("check back {at} {len} 7 {at}")), "same");
    }
    let _ = from.must(&format!("put-bytes {name}.theirs 8 0 0"));
    assert_eq!(from.must(&format!("atomic {name}.theirs 0 41")), "0");
    assert_eq!(to.must("word theirs 0"), "41");
    let _ = from.must(&format!("ping {name}"));
}

/// Debian's library takes six signals as it is loaded; others as an endpoint opens.
fn a_process_that_uses_libfabric_has_the_signals_of_one_that_does_not() -> Verdict {
    let folder = or_skip!(plugins::libfabric());
    let process = |name: &str, settings: &[&str]| {
        let launch = Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder.display());
        Node::open(launch, settings)
    };
    let file = |node: &Node, name: &str| {
        let path = format!("/proc/{}/{name}", node.peer.pid());
        std::fs::read_to_string(path).expect("it lives")
    };
    let signals = |node: &Node| {
        let status = file(node, "status");
        // The C library has two of its own, where there are threads: `sockets` starts some.
        const OF_THREADS: u64 = 3 << 31;
        let masks = status.lines().filter_map(|line| {
            let (name, mask) = line.split_once(":\t").filter(|line| line.0.starts_with("Sig"))?;
            Some((name.to_owned(), u64::from_str_radix(mask, 16).ok()? & !OF_THREADS))
        });
        masks.collect::<Vec<_>>()
    };
    let without = process("without", &["TIELINE_PROVIDERS=shm"]);
    assert!(signals(&without).len() >= 3, "blocked, ignored and caught");
    for provider in PROVIDERS {
        let settings = ["TIELINE_PROVIDERS=shm,ofi", "TIELINE_OFI_INTERFACES=lo", provider];
        let with = process("with", &settings);
        let is_there = |node: &Node| file(node, "maps").contains("/libfabric.so");
        assert!(is_there(&with) && !is_there(&without), "{provider}");
        assert_eq!(signals(&with), signals(&without), "{provider}");
        with.end();
    }
    without.end();
    Verdict::Passed
}

fn everything_crosses_between_two_hosts_over_libfabric() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    for provider in PROVIDERS {
        let hosts = or_skip!(Hosts::two());
        let (mut a, mut b) = pair(&hosts, &[provider]);
        one_way(&mut a, &mut b);
        one_way(&mut b, &mut a);
        // Both at once, small and large.
        a.peer.tell("exact b 500 8 100 8000 0");
        b.peer.tell("exact a 500 8000 8 1");
        for node in [&mut a, &mut b] {
            assert_eq!(node.answer().expect("nothing fails").text, "500");
        }
        for node in [&mut a, &mut b] {
            assert_eq!(node.must("reach exact 500"), "500");
            assert_eq!(node.must("pending"), "0");
            node.nothing_was_wrong();
        }
        println!("    {provider}: {}", a.must("report b"));
        a.end();
        b.end();
    }
    Verdict::Passed
}

/// `sockets` has atomics of its own, which the owner of the memory asks for; `tcp;ofi_rxm` has none that are one executor's.
fn atomics_that_the_owner_leaves_to_libfabric_are_done_there_between_two_hosts() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    let hosts = or_skip!(Hosts::two());
    let (mut a, mut b) = pair(&hosts, &["TIELINE_OFI_PROVIDERS=sockets", "TIELINE_ATOMICS=device"]);
    one_way(&mut a, &mut b);
    one_way(&mut b, &mut a);
    for node in [&mut a, &mut b] {
        assert_eq!(node.must("pending"), "0");
        node.nothing_was_wrong();
    }
    let report = a.must("report b");
    assert!(report.contains("used for message, RMA, atomic"), "{report}");
    a.end();
    b.end();
    Verdict::Passed
}

fn killed_processes_leave_two_survivors_at_work_over_libfabric() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    let mut random = Random::for_this_run();
    for provider in PROVIDERS {
        let hosts = or_skip!(Hosts::many(3));
        let mut survivors =
            [node(&hosts[0], "left", &[provider]), node(&hosts[1], "right", &[provider])];
        let [left, right] = &mut survivors;
        left.connect(right);
        let _ = left.must("chat right");
        for node in &mut survivors {
            let _ = node.must(&format!("register here {MIXED_REGION}"));
        }
        let (mut slowest, mut pongs, mut early): (f64, u64, Vec<(u64, u64)>) = (0.0, 0, Vec::new());
        for round in 0..KILLS {
            let name = format!("victim{round}");
            let mut victim = node(&hosts[2], &name, &[provider]);
            for node in &mut survivors {
                let own = node.peer.name.clone();
                let _ = victim.must(&format!("register {own} {MIXED_REGION}"));
                node.connect(&mut victim);
                let _ = node.import(&mut victim, &own);
                victim.connect(node);
                let _ = node.must(&format!("ping {name}"));
            }
            // One is in the middle of something, or both are, or nobody says anything.
            let busy = random.below(3);
            for node in survivors.iter_mut().take(busy as usize) {
                let len = if random.below(2) == 0 { 8 } else { 8000 };
                node.peer.tell(&format!("exact {name} 1000000000 {len}"));
            }
            spin(random.below(20_000));
            let killed = victim.kill();
            for (number, node) in survivors.iter_mut().enumerate() {
                let at = if number < busy as usize {
                    let failed = node.answer().expect_err("the victim was killed");
                    assert_eq!(failed.status, "PeerFailed", "round {round}: {failed:?}");
                    failed.at
                } else {
                    // Who only waits hears of it as well.
                    let told = node.try_ask(&format!("await-error {name}")).expect("an answer");
                    assert!(told.text.starts_with("PeerFailed"), "round {round}: {}", told.text);
                    told.at
                };
                slowest = slowest.max(milliseconds(killed, at));
                let refused = node.ask(&format!("send {name} 1 0 8")).expect_err("it is gone");
                assert_eq!(refused.status, "PeerFailed", "round {round}: {refused:?}");
                let _ = node.must(&format!("disconnect {name}"));
                node.nothing_was_wrong();
            }
            // The survivors' own traffic went on.
            let before = pongs;
            while pongs <= before {
                pongs = survivors[0].must("pongs").parse().expect("a number");
            }
            if round == KILLS / 2 {
                early = Node::footprints(&mut survivors);
            }
        }
        let late = Node::footprints(&mut survivors);
        println!("    {provider}: slowest failure {slowest:.1} ms after the kill");
        println!("    descriptors and KiB: {early:?}, later {late:?}");
        assert!(slowest < BOUND_MS);
        nothing_leaks(&early, &late);
        survivors.into_iter().for_each(Node::end);
    }
    Verdict::Passed
}

fn a_peer_over_libfabric_that_computes_for_longer_than_the_stated_time_is_not_given_up() -> Verdict
{
    let _ = or_skip!(plugins::libfabric());
    for provider in PROVIDERS {
        let hosts = or_skip!(Hosts::two());
        let (mut a, mut b) = pair(&hosts, &[provider, "TIELINE_FAILURE_TIMEOUT=1s"]);
        let _ = a.must("ping b");
        let _ = b.must("passive");
        // More than all buffers hold.
        a.peer.tell("exact b 2000 8000");
        a.streams();
        let still = a.peer.hear_within(2 * STATED);
        assert_eq!(still, None, "a peer that computes was given up");
        let _ = b.must("active");
        assert_eq!(a.answer().expect("the peer is back").text, "2000");
        assert_eq!(b.must("reach exact 2000"), "2000");
        b.nothing_was_wrong();
        a.end();
        b.end();
    }
    Verdict::Passed
}

fn a_host_that_vanishes_is_given_up_within_the_stated_time_over_libfabric() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    for provider in PROVIDERS {
        let hosts = or_skip!(Hosts::two());
        let (mut a, b) = pair(&hosts, &[provider, STATED_SETTING]);
        a.peer.tell("exact b 1000000000 5000");
        a.streams();
        let gone = hosts[1].vanish();
        let failed = a.answer().expect_err("nobody is there");
        let took = milliseconds(gone, failed.at);
        println!(
            "    {provider}: after {took:.0} ms (stated: {STATED:?}): {} {}",
            failed.status, failed.text
        );
        assert!(took < BOUND_MS, "{took} ms");
        let refused = a.ask("send b 1 0 8").expect_err("it is gone");
        assert_ne!(refused.status, "Again", "{refused:?}");
        drop(b);
        a.end();
    }
    Verdict::Passed
}
