//! Tests of peers that leave in an orderly manner, with objects that they still hold.

use tieline_processes::interpreter::{EXITS, KEPT};
use tieline_processes::{Node, Test, Verdict, named, or_skip, plugins};
use tieline_testing::is_whole;

pub(crate) const TESTS: &[Test] = named![
    peer_leaving_over_shared_memory_is_not_reported_dead,
    a_peer_that_leaves_over_tcp_is_no_dead_peer_whatever_it_holds,
    a_peer_that_leaves_over_libfabric_is_no_dead_peer_whatever_it_holds,
    exit_counts_as_leave_only_without_unsent_data,
    a_closed_connection_with_a_copy_in_a_child_wakes_no_worker,
    a_killed_peer_is_reported_in_the_same_words_over_shared_memory_and_tcp,
];

const SHM: &str = "TIELINE_PROVIDERS=shm";
const CMA: &str = "TIELINE_PROVIDERS=shm,shm-cma";
const TCP: &str = "TIELINE_PROVIDERS=tcp,tcp-connect";
const OFI: &str = "TIELINE_PROVIDERS=ofi";

/// The processes that have sent to the other one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrote {
    Leaver,
    Stays,
    Both,
}

/// Starts two processes that hold endpoints, keys, regions and kept messages of each other.
fn acquainted(settings: &[&str], wrote: Wrote) -> (Node, Node) {
    let (mut stays, mut leaver) = (Node::with("stays", settings), Node::with("leaver", settings));
    let writes = |from: &mut Node, to: &mut Node| {
        from.connect(to);
        let (there, back) = (to.peer.name.clone(), from.peer.name.clone());
        for (region, make) in [("shared", "alloc"), ("plain", "register")] {
            let _ = to.must(&format!("{make} {back}-{region} 65536"));
            let _ = from.import(to, &format!("{back}-{region}"));
            let _ = from.must(&format!("{make} own-{there}-{region} 65536"));
            let put = format!("put {there}.{back}-{region} own-{there}-{region} 0 4096 0");
            let _ = from.must(&put);
        }
        let _ = from.must(&format!("send {there} {KEPT} 0 40"));
        let _ = from.must(&format!("send {there} {KEPT} 0 3000"));
        let _ = from.must(&format!("flush {there}"));
    };
    if wrote != Wrote::Stays {
        writes(&mut leaver, &mut stays);
    }
    if wrote != Wrote::Leaver {
        writes(&mut stays, &mut leaver);
    }
    (stays, leaver)
}

const WROTE: [Wrote; 3] = [Wrote::Leaver, Wrote::Stays, Wrote::Both];

fn leaves_in_good_order(settings: &[&str], all: &[Wrote]) {
    let setting = settings[0];
    for &wrote in all {
        for way in ["holding", "dropping", "backwards"] {
            let (mut stays, mut leaver) = acquainted(settings, wrote);
            let _ = leaver.must(&format!("leave {way}"));
            // The other process is alive: the leave does not wait for the end of the objects that it holds.
            let learned = stays.must("farewells 1");
            assert_eq!(learned, "1 left, 0 failed, 0 ended", "{setting}, {wrote:?} wrote, {way}");
            leaver.end();
            let _ = stays.must("rest 20");
            let learned = stays.must("farewells 1");
            assert_eq!(learned, "1 left, 0 failed, 0 ended", "{setting}, {wrote:?} wrote, {way}");
            if wrote != Wrote::Leaver {
                let error = stays.must("error leaver");
                assert!(error.starts_with("Closed "), "{setting}, {wrote:?} wrote, {way}: {error}");
            }
            stays.end();
        }
    }
}

fn peer_leaving_over_shared_memory_is_not_reported_dead() -> Verdict {
    leaves_in_good_order(&[SHM], &WROTE);
    leaves_in_good_order(&[CMA], &WROTE);
    Verdict::Passed
}

fn a_peer_that_leaves_over_tcp_is_no_dead_peer_whatever_it_holds() -> Verdict {
    leaves_in_good_order(&[TCP], &WROTE);
    Verdict::Passed
}

fn a_peer_that_leaves_over_libfabric_is_no_dead_peer_whatever_it_holds() -> Verdict {
    let folder = or_skip!(plugins::libfabric());
    let path = format!("TIELINE_PROVIDER_PATH={}", folder.display());
    let settings = [OFI, "TIELINE_OFI_PROVIDERS=tcp", "TIELINE_OFI_INTERFACES=lo", &path];
    leaves_in_good_order(&settings, if is_whole() { &WROTE } else { &[Wrote::Both] });
    Verdict::Passed
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Exit {
    Idle,
    InHandler,
    WithThread,
    Unsent,
}

fn exit_counts_as_leave_only_without_unsent_data() -> Verdict {
    for setting in [SHM, CMA, TCP] {
        for exit in [Exit::Idle, Exit::InHandler, Exit::WithThread, Exit::Unsent] {
            let thread = if exit == Exit::WithThread { "on" } else { "off" };
            let thread = format!("TIELINE_PROGRESS_THREAD={thread}");
            let (mut stays, mut leaver) = acquainted(&[setting, &thread], Wrote::Both);
            if exit == Exit::Unsent {
                // The rendezvous message was sent (announced) and not received.
                let _ = leaver.must("long stays 1048576 1");
            }
            match exit {
                Exit::InHandler => drop(stays.must(&format!("send leaver {EXITS} 0 0"))),
                _ => leaver.peer.tell("leave exit"),
            }
            leaver.end();
            let expected = match exit {
                Exit::Unsent => "0 left, 1 failed, 1 ended",
                _ => "1 left, 0 failed, 0 ended",
            };
            assert_eq!(stays.must("farewells 1"), expected, "{setting} {exit:?}");
            let _ = stays.must("rest 20");
            assert_eq!(stays.must("farewells 1"), expected, "{setting} {exit:?}");
            if exit == Exit::Unsent {
                let error = stays.must("error leaver");
                let words = "goodbye; its process has called exit with 1 operation unsent";
                assert!(error.contains(words), "{setting}: {error}");
            }
            stays.end();
        }
    }
    Verdict::Passed
}

fn a_killed_peer_is_reported_in_the_same_words_over_shared_memory_and_tcp() -> Verdict {
    for setting in [SHM, TCP] {
        let (mut stays, mut leaver) = acquainted(&[setting], Wrote::Both);
        assert_eq!(stays.must("alone"), "no", "{setting}");
        let _ = leaver.kill();
        assert_eq!(stays.must("farewells 1"), "0 left, 1 failed, 1 ended", "{setting}");
        let error = stays.must("error leaver");
        assert!(error.starts_with("PeerFailed "), "{setting}: {error}");
        let words = "the connection was closed without a goodbye";
        let fix = "start the peer again";
        assert!(error.contains(words) && error.contains(fix), "{setting}: {error}");
        let alone = stays.must("alone");
        assert!(alone.contains(words), "{setting}: {alone}");
        stays.end();
    }
    Verdict::Passed
}

/// The kernel reports events of a closed socket as long as a forked child holds a copy, unless the poller was told before.
fn a_closed_connection_with_a_copy_in_a_child_wakes_no_worker() -> Verdict {
    for setting in [SHM, TCP] {
        for way in ["holding", "exit"] {
            let (mut stays, mut leaver) = acquainted(&[setting], Wrote::Both);
            let _ = stays.must("register held 100");
            let _ = stays.must("fork-aside held 3");
            leaver.peer.tell(&format!("leave {way}"));
            let _ = stays.must("farewells 1");
            let _ = stays.must("rest 20");
            let ends: usize = stays.must("sleeps 200").parse().expect("a number");
            assert!(ends < 20, "{setting}, {way}: the sleep ended {ends} times");
            let _ = stays.must("fork-joined");
            stays.end();
            leaver.end();
        }
    }
    Verdict::Passed
}
