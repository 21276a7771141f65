//! Tests of worker names (aliases of 48 bytes) between processes.

use tieline_processes::hosts::NETWORK;
use tieline_processes::{Hosts, Launch, Node, Test, Verdict, named, or_skip};
use tieline_testing::built;

pub(crate) const TESTS: &[Test] = named![
    a_name_of_48_bytes_leads_to_a_process_whatever_carries_the_data,
    named_worker_is_reached_while_it_computes,
    peer_with_other_secret_cannot_resolve_name,
    name_resolves_over_ipv4_ipv6_and_around_cut_link,
];

const LOOPBACK: &str = "TIELINE_TCP_INTERFACES=127.0.0.0/8";
const SHM: &str = "TIELINE_PROVIDERS=shm,shm-cma";
const TCP: &str = "TIELINE_PROVIDERS=tcp,tcp-connect";

fn a_name_of_48_bytes_leads_to_a_process_whatever_carries_the_data() -> Verdict {
    let tcp = built::folder(&built::TCP);
    if let Err(reason) = &tcp {
        println!("    skipped: over tcp: {reason}");
    }
    for providers in [SHM, TCP].into_iter().take(if tcp.is_ok() { 2 } else { 1 }) {
        let node = |name: &str| {
            let mut launch = Launch::new(name, "node");
            if let Ok(folder) = &tcp {
                launch = launch.env("TIELINE_PROVIDER_PATH", folder.display());
            }
            Node::open(launch, &[providers, LOOPBACK])
        };
        let (mut caller, mut target) = (node("caller"), node("target"));
        let name = target.must("name");
        println!(
            "    {} bytes, where an address has {}",
            name.len() / 2,
            target.must("address").len() / 2
        );
        assert!(name.len() <= 2 * 48, "{name}");
        assert_eq!(target.must("name"), name);
        let _ = caller.must(&format!("connect-by-name target {name}"));
        let _ = caller.must("ping target");
        let _ = target.must("register memory 4096");
        let _ = caller.import(&mut target, "memory");
        let _ = caller.must("put-bytes target.memory 8 7 0");
        assert_eq!(target.must("word memory 0"), u64::from_le_bytes([7; 8]).to_string());
        let _ = target.kill();
        let failed = caller.ask(&format!("connect-by-name again {name}")).expect_err("it is gone");
        assert_eq!(failed.status, "PeerFailed", "{failed:?}");
        assert!(failed.text.contains("127.0.0.1"), "{failed:?}");
        caller.end();
    }
    Verdict::Passed
}

fn named_worker_is_reached_while_it_computes() -> Verdict {
    // Without single copy, the target's process has to carry out the caller's memory operations.
    const SHM: &str = "TIELINE_PROVIDERS=shm";
    let thread = [SHM, LOOPBACK, "TIELINE_PROGRESS_THREAD=on"];
    let (mut caller, mut target) =
        (Node::with("caller", &[SHM, LOOPBACK]), Node::with("target", &thread));
    let name = target.must("name");
    let _ = target.must("register memory 4096");
    let key = target.must("key memory");
    // After this order the target blocks in a read of its pipe.
    let _ = target.must("passive");
    let _ = caller.must(&format!("connect-by-name target {name}"));
    let _ = caller.must(&format!("import target memory {key}"));
    let _ = caller.must("put-bytes target.memory 8 7 0");
    assert_eq!(target.must("word memory 0"), u64::from_le_bytes([7; 8]).to_string());
    caller.end();
    target.end();
    Verdict::Passed
}

fn peer_with_other_secret_cannot_resolve_name() -> Verdict {
    let (mut caller, mut target) = (
        Node::with("caller", &[SHM, LOOPBACK, "TIELINE_SECRET=one"]),
        Node::with("target", &[SHM, LOOPBACK, "TIELINE_SECRET=two"]),
    );
    let name = target.must("name");
    let failed = caller.ask(&format!("connect-by-name target {name}")).expect_err("it may not");
    assert_eq!(failed.status, "Permission", "{failed:?}");
    caller.end();
    target.end();
    Verdict::Passed
}

fn name_resolves_over_ipv4_ipv6_and_around_cut_link() -> Verdict {
    for interfaces in ["10.0.0.0/8", "fd00::/8"] {
        let hosts = or_skip!(Hosts::with_rails(2));
        let only = format!("TIELINE_TCP_INTERFACES={interfaces}");
        let settings = &[NETWORK, only.as_str()];
        let (mut caller, mut target) =
            (hosts[0].node("caller", settings), hosts[1].node("target", settings));
        let name = target.must("name");
        println!("    {interfaces}: {} bytes", name.len() / 2);
        let _ = caller.must(&format!("connect-by-name target {name}"));
        let _ = caller.must("ping target");
        // A name has space for the IPv4 addresses on both links.
        if interfaces.starts_with("10") {
            hosts[1].link(0).cut();
            let _ = caller.must(&format!("connect-by-name again {name}"));
        }
        caller.end();
        target.end();
    }
    Verdict::Passed
}
