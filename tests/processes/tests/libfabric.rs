//! Tests of hosts that communicate over libfabric's software providers.

use std::time::Duration;
use tieline_processes::interpreter::MIXED_REGION;
use tieline_processes::matrix::{Over, every_kind_is_right};
use tieline_processes::node::{milliseconds, nothing_leaks};
use tieline_processes::random::spin;
use tieline_processes::{
    BOUND_MS, Host, Hosts, Launch, Node, Random, Test, Verdict, named, or_skip, plugins,
};
use tieline_testing::{is_whole, libfabric};

pub(crate) const TESTS: &[Test] = named![
    a_process_that_uses_libfabric_has_the_signals_of_one_that_does_not,
    everything_crosses_between_two_hosts_over_libfabric,
    memory_of_every_kind_is_right_over_libfabric,
    device_atomics_are_executed_by_libfabric_between_two_hosts,
    killed_processes_leave_two_survivors_at_work_over_libfabric,
    libfabric_peer_computing_beyond_timeout_is_not_declared_dead,
    vanished_host_is_reported_within_timeout_over_libfabric,
    all_operations_and_death_reports_work_over_libfabric_2_5,
    different_libraries_interoperate_or_report_protocol_mismatch,
    large_puts_are_shared_by_two_devices_of_libfabric,
    without_shm_tcp_takes_over_and_without_tcp_libfabric_does_in_one_job,
];

const PROVIDERS: [&str; 2] = ["TIELINE_OFI_PROVIDERS=tcp", "TIELINE_OFI_PROVIDERS=sockets"];
const STATED: Duration = Duration::from_secs(2);
const STATED_SETTING: &str = "TIELINE_FAILURE_TIMEOUT=2s";
const KILLS: usize = 10;

fn node(host: &Host, name: &str, settings: &[&str]) -> Node {
    let folder = plugins::libfabric().expect("the test looks first");
    let launch = host.launch(name).env("TIELINE_PROVIDER_PATH", folder.display());
    let settings: Vec<&str> = ["TIELINE_PROVIDERS=ofi"].iter().chain(settings).copied().collect();
    Node::open(launch, &settings)
}

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

/// Debian's library installs signal handlers when it is loaded; other builds may do so when an endpoint opens.
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
        // The signals that the C library uses in a threaded process: `sockets` starts threads.
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
        // Both sides send at the same time, small and large messages.
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

fn memory_of_every_kind_is_right_over_libfabric() -> Verdict {
    let folder = or_skip!(plugins::libfabric());
    let launch =
        |name: &str| Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder.display());
    if !is_whole() {
        return Verdict::Skipped("it takes a quarter of a minute: `--all` runs it".into());
    }
    for provider in PROVIDERS {
        every_kind_is_right(&Over {
            launch: &launch,
            settings: &["TIELINE_PROVIDERS=ofi", "TIELINE_OFI_INTERFACES=lo", provider],
            path: "ofi:",
            or_messages: &[],
            dies_with_owner: false,
        });
    }
    Verdict::Passed
}

/// `sockets` has its own atomics, which the owner of the memory requests. `tcp;ofi_rxm` has no atomics that a single executor
/// carries out.
fn device_atomics_are_executed_by_libfabric_between_two_hosts() -> Verdict {
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
            // Operations are in flight on one side, on both sides, or on neither.
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
                    // A process that only waits is also notified of the death.
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
            // The survivors' own traffic continued.
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

fn libfabric_peer_computing_beyond_timeout_is_not_declared_dead() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    for provider in PROVIDERS {
        let hosts = or_skip!(Hosts::two());
        let (mut a, mut b) = pair(&hosts, &[provider, "TIELINE_FAILURE_TIMEOUT=1s"]);
        let _ = a.must("ping b");
        let _ = b.must("passive");
        // The number of messages exceeds the capacity of all buffers.
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

fn one_round(hosts: &Hosts, here: &[&str], there: &[&str]) -> String {
    let (mut a, mut b) = (node(&hosts[0], "a", here), node(&hosts[1], "b", there));
    for node in [&mut a, &mut b] {
        let _ = node.must(&format!("register here {MIXED_REGION}"));
        let _ = node.must(&format!("register theirs {MIXED_REGION}"));
    }
    a.connect(&mut b);
    b.connect(&mut a);
    let path = a.import(&mut b, "theirs");
    let _ = b.import(&mut a, "theirs");
    one_way(&mut a, &mut b);
    one_way(&mut b, &mut a);
    a.peer.tell("exact b 300 8 100 8000 0");
    b.peer.tell("exact a 300 8000 8 1");
    for node in [&mut a, &mut b] {
        assert_eq!(node.answer().expect("nothing fails").text, "300");
    }
    for node in [&mut a, &mut b] {
        assert_eq!(node.must("reach exact 300"), "300");
        node.nothing_was_wrong();
    }
    let _ = b.kill();
    let told = a.try_ask("await-error b").expect("an answer");
    assert!(told.text.starts_with("PeerFailed"), "{}", told.text);
    let refused = a.ask("send b 1 0 8").expect_err("it is gone");
    assert_eq!(refused.status, "PeerFailed", "{refused:?}");
    a.end();
    path
}

fn library(file: &std::path::Path) -> String {
    format!("TIELINE_OFI_LIBRARY={}", file.display())
}

fn all_operations_and_death_reports_work_over_libfabric_2_5() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    let newer = library(&or_skip!(libfabric::newer()));
    let hosts = or_skip!(Hosts::two());
    for provider in ["tcp", "tcp;ofi_rxm", "sockets"] {
        let provider = format!("TIELINE_OFI_PROVIDERS={provider}");
        let path = one_round(&hosts, &[&provider, &newer], &[&provider, &newer]);
        println!("    {provider}: {path}");
    }
    // The test uses the interface of 2.x and that of 1.17.
    let settings = ["TIELINE_OFI_PROVIDERS=tcp", "TIELINE_OFI_API=2.0", newer.as_str()];
    let _ = one_round(&hosts, &settings, &settings);
    Verdict::Passed
}

fn different_libraries_interoperate_or_report_protocol_mismatch() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    let newer = library(&or_skip!(libfabric::newer()));
    let hosts = or_skip!(Hosts::two());
    // `tcp` of 1.17 is a layer over connections, the `tcp` of 2.5 is not.
    let mut old = node(&hosts[0], "old", &["TIELINE_OFI_PROVIDERS=tcp"]);
    let mut new = node(&hosts[1], "new", &["TIELINE_OFI_PROVIDERS=tcp", &newer]);
    let (ours, theirs) = (old.must("address"), new.must("address"));
    for (node, address, words) in [
        (&mut old, theirs, "the provider of libfabric is tcp;ofi_rxm here and tcp there"),
        (&mut new, ours, "the provider of libfabric is tcp here and tcp;ofi_rxm there"),
    ] {
        let failed = node.ask(&format!("connect peer {address}")).expect_err("they do not fit");
        assert_eq!(failed.status, "Unreachable", "{}", failed.text);
        assert!(failed.text.contains(words), "{}", failed.text);
    }
    old.end();
    new.end();
    // The layer has the same protocol in both versions.
    let layer = "TIELINE_OFI_PROVIDERS=tcp;ofi_rxm";
    let _ = one_round(&hosts, &[layer], &[layer, &newer]);
    let _ = one_round(&hosts, &[layer, &newer], &[layer]);
    Verdict::Passed
}

/// Returns the number of bytes that each device of a host has sent.
fn sent(host: &Host) -> Vec<u64> {
    let listed = host.run(&["ip", "-o", "-s", "link"]).expect("it lists its devices");
    // The output has the form `... TX: bytes packets ...\ 1234 5 ...`.
    let bytes = listed.lines().filter_map(|line| {
        let (_, behind) = line.split_once("TX:")?;
        behind.split('\\').nth(1)?.split_whitespace().next()?.parse().ok()
    });
    bytes.collect()
}

fn large_puts_are_shared_by_two_devices_of_libfabric() -> Verdict {
    let _ = or_skip!(plugins::libfabric());
    for provider in PROVIDERS {
        let hosts = or_skip!(Hosts::with_rails(2));
        const LEN: usize = 4 << 20;
        let (mut a, mut b) = (node(&hosts[0], "a", &[provider]), node(&hosts[1], "b", &[provider]));
        let _ = a.must(&format!("register out {LEN}"));
        let _ = a.must("fill out 7");
        let _ = b.must(&format!("register theirs {LEN}"));
        a.connect(&mut b);
        let _ = a.import(&mut b, "theirs");
        let before = sent(&hosts[0]);
        let _ = a.must(&format!("put b.theirs out 0 {LEN} 0"));
        assert_eq!(b.must(&format!("check theirs 0 {LEN} 7 0")), "same");
        let after = sent(&hosts[0]);
        let shares = after.iter().zip(&before).map(|(after, before)| after - before);
        let large = shares.filter(|bytes| *bytes >= LEN as u64 / 3).count();
        assert_eq!(large, 2, "{provider}: {before:?}, then {after:?}");
        let report = a.must("report b");
        let used = report.split(" | ").filter(|line| line.contains("ofi:") && line.contains("RMA"));
        assert_eq!(used.count(), 2, "{report}");
        a.end();
        b.end();
    }
    Verdict::Passed
}

fn without_shm_tcp_takes_over_and_without_tcp_libfabric_does_in_one_job() -> Verdict {
    let folder = or_skip!(plugins::libfabric_and_network());
    for (left_out, message, memory) in [
        ("", "shm/ring", "shm"),
        ("shm,shm-cma", "tcp/stream", "tcp/stream"),
        ("tcp,tcp-connect", "shm/ring", "shm"),
        ("ofi", "shm/ring", "shm"),
        ("shm,shm-cma,ofi", "tcp/stream", "tcp/stream"),
        ("shm,shm-cma,tcp,tcp-connect", "ofi:tcp:lo", "ofi:tcp:lo"),
    ] {
        let all = ["shm", "shm-cma", "tcp", "tcp-connect", "ofi"];
        let left = |name: &&&str| !left_out.split(',').any(|out| out == **name);
        let kept: Vec<&str> = all.iter().filter(left).copied().collect();
        let settings = [
            format!("TIELINE_PROVIDERS={}", kept.join(",")),
            "TIELINE_OFI_PROVIDERS=tcp".into(),
            "TIELINE_OFI_INTERFACES=lo".into(),
            "TIELINE_TCP_INTERFACES=lo".into(),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let process = |name: &str| {
            let launch = Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder.display());
            Node::open(launch, &settings)
        };
        let (mut a, mut b) = (process("a"), process("b"));
        for node in [&mut a, &mut b] {
            let _ = node.must(&format!("register theirs {MIXED_REGION}"));
        }
        a.connect(&mut b);
        b.connect(&mut a);
        let path = a.import(&mut b, "theirs");
        let _ = b.import(&mut a, "theirs");
        assert!(path.contains(memory), "without {left_out:?}: {path}");
        one_way(&mut a, &mut b);
        one_way(&mut b, &mut a);
        let report = a.must("report b");
        let carries = |line: &str| line.contains(message) && line.contains("used for message");
        assert!(report.split(" | ").any(carries), "without {left_out:?}: {report}");
        for node in [a, b] {
            node.end();
        }
    }
    Verdict::Passed
}

fn vanished_host_is_reported_within_timeout_over_libfabric() -> Verdict {
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
