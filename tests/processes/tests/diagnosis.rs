//! Tests of the diagnosis that an operator can make from the error text and the report alone.
//!
//! Ten causes of a long search, and their tests:
//!
//! 1. An unmodified program: the first test of this file. A running program: `live.rs`.
//! 2. A value that a provider refuses: the test of a mistyped value in this file.
//! 3. A transport without a module that connects it: the test of disabled connection modules in this file. Facilities of the peer
//!    that this side has refused or lacks: `settings.rs`, and the unit tests of the core's `endpoint/unreachable.rs`.
//! 4. A better route that is refused while another route is used: after `not:` in the first test of this file, and in `tieline
//!    perf` (`tools`).
//! 5. A firewall: the tests of a firewall and of a dead interface in this file.
//! 6. An MTU that is smaller than assumed: the test of dropped large packets in this file.
//! 7. A transport, or a worker, that cannot be opened: the test of an unopenable transport in this file; `tieline check` (`tools`).
//! 8. A missing directory: `a_directory_that_does_not_exist_is_an_error_and_is_not_made` in `containers.rs`. A dangling link, or a
//!    misspelt variable of Tieline: the last test of this file. A provider that another one shadows: unit tests of
//!    `host/src`.
//! 9. Disturbed measurements: `perf/disturbed.rs` and `tests/perf.rs` in `tools`.
//! 10. Messages without a handler: the test of unknown ids in `misuse.rs`, and the core's worker tests.

use std::path::PathBuf;
use tieline_processes::hosts::NETWORK;
use tieline_processes::interpreter::MIXED_REGION;
use tieline_processes::{Hosts, Launch, Node, Test, Verdict, leftovers, named, or_skip};

pub(crate) const TESTS: &[Test] = named![
    unmodified_program_reports_devices_lanes_and_failures,
    firewall_that_drops_packets_is_named_with_address_and_remedy,
    link_dropping_large_packets_is_distinguished_from_dead_link,
    dead_interface_is_named_with_address_used_instead,
    mistyped_provider_value_is_error_that_names_its_source,
    missing_connection_module_of_transport_is_named_first,
    unopenable_transport_is_reported_while_another_serves,
    dangling_link_and_misspelt_variable_are_reported,
];

fn file(name: &str) -> PathBuf {
    leftovers::current().1.join("tmp").join(name)
}

fn lines(path: &PathBuf) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn line_with<'a>(lines: &'a [String], words: &[&str]) -> &'a str {
    let found = lines.iter().find(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line has {words:?}: {lines:#?}"))
}

fn unmodified_program_reports_devices_lanes_and_failures() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let report = file("report-%p");
    let setting = format!("TIELINE_REPORT={}", report.display());
    let mut a = Node::open(hosts[0].launch("a").env("TIELINE_REPORT", report.display()), &[]);
    let mut b = hosts[1].node("b", &[&setting, "TIELINE_PROVIDERS=^shm-cma"]);
    let mut c = hosts[0].node("c", &["TIELINE_PROVIDERS=^shm-cma"]);
    let [of_a, of_b] = [&a, &b].map(|node| file(&format!("report-{}", node.peer.pid())));
    let opened = lines(&of_b);
    let who = format!("tieline[{}@", b.peer.pid());
    assert!(opened.iter().all(|line| line.starts_with(&who)), "{opened:#?}");
    let _ = line_with(&opened, &["Tieline ", "provider ABI"]);
    let _ = line_with(&opened, &["path tcp: {message stream"]);
    let _ = line_with(&opened, &["shm-cma", "left out", "TIELINE_PROVIDERS"]);
    let _ = line_with(&opened, &["set: TIELINE_PROVIDERS=^shm-cma"]);
    // No line mentions a peer before there is one.
    assert!(!opened.iter().any(|line| line.contains("] to process")), "{opened:#?}");
    a.connect(&mut b);
    a.connect(&mut c);
    let _ = a.must("ping b");
    let _ = a.must("ping c");
    let used = lines(&of_a);
    let far = format!("to process {} on ", b.peer.pid());
    let near = format!("to process {}: {{message shm/ring", c.peer.pid());
    // The reasons against better lanes follow the lane in use.
    let told =
        line_with(&used, &[&far, "{message tcp/stream", "; not: ", "shm/ring: ", "another kernel"]);
    let close = line_with(&used, &[&near, "; not: ", "shm-cma/copy: the peer offers no copy"]);
    println!("    {told}\n    {close}");
    let count = used.iter().filter(|line| line.contains("] to process")).count();
    assert_eq!(count, 2, "{used:#?}");
    let gone = b.peer.pid();
    let _ = b.kill();
    let _ = a.ask("ping b").expect_err("nobody is there");
    let failed = lines(&of_a);
    println!("    {}", line_with(&failed[used.len()..], &["is gone"]));
    let _ = line_with(&failed[used.len()..], &[&format!("process {gone}"), "is gone"]);
    [of_a, of_b].iter().for_each(|file| drop(std::fs::remove_file(file)));
    a.end();
    c.end();
    Verdict::Passed
}

fn told(from: &mut Node, to: &mut Node) -> String {
    from.connect(to);
    let failed = from.ask(&format!("ping {}", to.peer.name)).expect_err("there is no way");
    println!("    {} {}", failed.status, failed.text);
    failed.text
}

fn firewall_that_drops_packets_is_named_with_address_and_remedy() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let ports = "TIELINE_TCP_PORTS=20000-20003";
    let mut a = hosts[0].node("a", &[NETWORK, "TIELINE_CONNECT_TIMEOUT=2s"]);
    let mut b = hosts[1].node("b", &[NETWORK, ports]);
    or_skip!(hosts[1].drop_incoming_calls());
    let text = told(&mut a, &mut b);
    let address = format!("{}:2000", hosts[1].address(0, false));
    for word in [&*address, "rail0", "no answer", "firewall", "TIELINE_TCP_PORTS"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("makes progress"), "that is another trouble: {text}");
    a.end();
    b.end();
    Verdict::Passed
}

fn link_dropping_large_packets_is_distinguished_from_dead_link() -> Verdict {
    for large_alone in [true, false] {
        let hosts = or_skip!(Hosts::two());
        let settings = [NETWORK, "TIELINE_FAILURE_TIMEOUT=2s"];
        let (mut a, mut b) = (hosts[0].node("a", &settings), hosts[1].node("b", &settings));
        let _ = a.must(&format!("register here {MIXED_REGION}"));
        a.connect(&mut b);
        let _ = a.must("exact b 20 8");
        if large_alone {
            or_skip!(hosts[1].drop_incoming_longer_than(700));
        } else {
            hosts[1].link(0).cut();
        }
        let failed = a.ask("exact b 20 30000").expect_err("nothing of it arrives");
        println!("    {} {}", failed.status, failed.text);
        let (there, text) = (hosts[1].address(0, false), &failed.text);
        for word in [&*there, "rail0", "not acknowledged"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(text.contains("MTU"), large_alone, "{text}");
        assert_eq!(text.contains("link is down"), !large_alone, "{text}");
        a.end();
        b.end();
    }
    Verdict::Passed
}

fn dead_interface_is_named_with_address_used_instead() -> Verdict {
    let hosts = or_skip!(Hosts::with_rails(2));
    let report = file("report");
    let a = hosts[0].launch("a").env("TIELINE_REPORT", report.display());
    // The timeout is shorter than the default of 30 s.
    let settings = [NETWORK, "TIELINE_CONNECT_TIMEOUT=20s"];
    let (mut a, mut b) = (Node::open(a, &settings), hosts[1].node("b", &[NETWORK]));
    hosts[1].link(0).cut();
    a.connect(&mut b);
    let _ = a.must("ping b");
    let told = lines(&report);
    let [first, second] = [0, 1].map(|rail| hosts[1].address(rail, false));
    let line = line_with(&told, &["no answer in time", "is used instead"]);
    println!("    {line}");
    let (in_vain, used) = line.split_once("; ").expect("what failed, and what is used");
    assert!(in_vain.contains(&first) && in_vain.contains("rail0"), "{line}");
    assert!(used.contains(&second) || used.contains("fd00:51"), "{line}");
    drop(std::fs::remove_file(report));
    a.end();
    b.end();
    Verdict::Passed
}

fn does_not_open(settings: &str) -> String {
    let mut node = Node::bare(Launch::new("node", "node"));
    let failed = node.ask(&format!("open {settings}")).expect_err("that is refused");
    println!("    {} {}", failed.status, failed.text);
    node.end();
    failed.text
}

fn mistyped_provider_value_is_error_that_names_its_source() -> Verdict {
    let text = does_not_open("TIELINE_SHM_FASTBOX_SIZE=5k");
    assert!(text.starts_with("TIELINE_SHM_FASTBOX_SIZE=5k (program) is not valid"), "{text}");
    Verdict::Passed
}

fn missing_connection_module_of_transport_is_named_first() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut node = Node::bare(hosts[0].launch("node"));
    let settings = "open TIELINE_PROVIDERS=tcp TIELINE_CONNECT=^tcp-connect";
    let failed = node.ask(settings).expect_err("nothing connects it");
    println!("    {} {}", failed.status, failed.text);
    let (_, causes) = failed.text.split_once(": ").expect("what, and why");
    assert!(causes.starts_with("tcp"), "{causes}");
    let first = causes.split("; ").next().unwrap_or_default();
    assert!(first.contains("disabled"), "{causes}");
    let left_out = "TIELINE_PROVIDERS=tcp (program) does not name ";
    let (_, others) =
        causes.rsplit_once(left_out).expect("what the list does not name, at the end");
    assert!(others.contains("tcp-connect"), "{causes}");
    node.end();
    Verdict::Passed
}

fn unopenable_transport_is_reported_while_another_serves() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut thief = hosts[0].stranger();
    let _ = thief.must("listen [::]:20000");
    let report = file("report");
    let launch = hosts[0].launch("a").env("TIELINE_REPORT", report.display());
    let mut a = Node::open(launch, &["TIELINE_TCP_PORTS=20000"]);
    let mut b = hosts[0].node("b", &[]);
    a.connect(&mut b);
    let _ = a.must("ping b");
    let told = lines(&report);
    println!("    {}", line_with(&told, &["tcp-connect/stream: ", "20000 is taken"]));
    let _ = line_with(&told, &["to process", "{message shm/ring"]);
    drop(std::fs::remove_file(report));
    a.end();
    b.end();
    thief.end();
    Verdict::Passed
}

fn dangling_link_and_misspelt_variable_are_reported() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let (mine, report) = (file("providers"), file("report"));
    let link = mine.join("libtieline_gone.so");
    std::fs::create_dir(&mine).expect("a folder");
    std::os::unix::fs::symlink(mine.join("was_here.so"), &link).expect("a link");
    let launch = hosts[0].launch("node").env("TIELINE_REPORT", report.display());
    let launch = launch.env("TIELINE_PROVIDER_PATH", mine.display()).env("TIELNE_PROVIDERS", "shm");
    let node = Node::open(launch, &[]);
    let told = lines(&report);
    let gone = line_with(&told, &["gone: refused", &link.display().to_string(), "was_here.so"]);
    assert!(gone.contains("is a symbolic link to") && gone.contains("No such file"), "{gone}");
    let _ = line_with(&told, &["TIELNE_PROVIDERS (environment)", "mean TIELINE_PROVIDERS?"]);
    println!("    {gone}");
    node.end();
    std::fs::remove_dir_all(mine).and(std::fs::remove_file(report)).expect("they are ours");
    Verdict::Passed
}
