//! Memory: when its owner may have it back, and where it comes from when the system gives little.

use tieline_processes::sys::{self, Signal};
use tieline_processes::{Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    memory_that_was_closed_is_unmapped_although_a_long_put_of_it_was_queued,
    closing_ends_what_peers_may_do,
    a_peer_in_the_middle_of_a_copy_keeps_memory_open_until_it_is_through,
    memory_that_peers_cannot_map_is_given_where_memory_files_are_forbidden,
    a_limit_on_the_size_of_files_ends_nobody,
];

const LONG: usize = 8 << 20;

fn memory_that_was_closed_is_unmapped_although_a_long_put_of_it_was_queued() -> Verdict {
    let settings = ["TIELINE_PROVIDERS=^shm-cma"];
    let (mut caller, mut target) =
        (Node::with("caller", &settings), Node::with("target", &settings));
    caller.connect(&mut target);
    let _ = target.must(&format!("register memory {LONG}"));
    assert_eq!(caller.import(&mut target, "memory"), "emulated over shm/ring");
    for seed in 1..4 {
        // Nobody takes what is sent until it has been tried to close the memory.
        sys::signal(target.peer.pid(), Signal::Stop);
        caller.peer.tell(&format!("put-and-unmap target.memory {LONG} {seed}"));
        let said = caller.peer.expect("closing");
        println!("    {said}");
        assert!(said.starts_with("Busy ") && said.contains("1 operation pending"), "{said}");
        sys::signal(target.peer.pid(), Signal::Continue);
        if let Err(failed) = caller.answer() {
            panic!("{failed:?}");
        }
        assert_eq!(target.must(&format!("check memory 0 {LONG} {seed} 0")), "same");
    }
    caller.end();
    target.end();
    Verdict::Passed
}

fn closing_ends_what_peers_may_do() -> Verdict {
    for (settings, make) in [
        (&[][..], "alloc"),
        (&[][..], "register"),
        (&["TIELINE_PROVIDERS=^shm-cma"][..], "register"),
    ] {
        let (mut caller, mut target) =
            (Node::with("caller", settings), Node::with("target", settings));
        caller.connect(&mut target);
        let _ = target.must(&format!("{make} memory 4096"));
        let path = caller.import(&mut target, "memory");
        let _ = caller.must("put-bytes target.memory 8 1 0");
        let _ = target.must("close memory");
        let failed = caller.ask("put-bytes target.memory 8 2 0").expect_err("it is closed");
        assert_eq!(failed.status, "KeyRejected", "{path}: {failed:?}");
        assert_eq!(caller.must("error target"), "alive");
        caller.end();
        target.end();
    }
    Verdict::Passed
}

fn a_peer_in_the_middle_of_a_copy_keeps_memory_open_until_it_is_through() -> Verdict {
    const LEN: usize = 64 << 20;
    // One process copies, in one call of the kernel's.
    let settings = ["TIELINE_ASSIST_SIZE=1g"];
    let (mut caller, mut target) =
        (Node::with("caller", &settings), Node::with("target", &settings));
    caller.connect(&mut target);
    let _ = caller.must(&format!("register here {LEN}"));
    for _ in 0..30 {
        let _ = target.must(&format!("register memory {LEN}"));
        let path = caller.import(&mut target, "memory");
        if path != "shm-cma/copy" {
            return Verdict::Skipped(format!("memory is reached by {path}"));
        }
        caller.peer.tell(&format!("put target.memory here 0 {LEN} 0"));
        let _ = caller.peer.expect("begins");
        sys::signal(caller.peer.pid(), Signal::Stop);
        let first = target.ask("close memory");
        let second = first.is_err().then(|| target.ask("close memory"));
        sys::signal(caller.peer.pid(), Signal::Continue);
        let put = caller.answer();
        let Err(failed) = first else {
            // It was stopped before it had begun, or after it was through.
            println!("    closed at once; the put: {put:?}");
            continue;
        };
        println!("    {} {}", failed.status, failed.text);
        assert_eq!(failed.status, "Busy");
        assert!(failed.text.contains("a peer is in the middle of a copy"), "{}", failed.text);
        // Also if the copy itself ended meanwhile: it is stopped before it could say so.
        println!("    then: {second:?}; the put: {put:?}");
        assert!(put.is_ok(), "it had passed its check: {put:?}");
        let _ = target.must("close memory");
        caller.end();
        target.end();
        return Verdict::Passed;
    }
    panic!("no put was stopped in the middle");
}

fn memory_that_peers_cannot_map_is_given_where_memory_files_are_forbidden() -> Verdict {
    for (call, shared) in [("memfd_create", "false"), ("fallocate", "true")] {
        let (mut poor, mut rich) = (Node::start("poor"), Node::start("rich"));
        poor.connect(&mut rich);
        rich.connect(&mut poor);
        let _ = (poor.must("ping rich"), rich.must("ping poor"));
        if poor.must(&format!("forbid {call}")) != "true" {
            return Verdict::Skipped("no seccomp filters here".into());
        }
        let _ = poor.must("alloc memory 50000");
        assert_eq!(poor.must("shared memory"), shared, "{call}");
        let warnings = poor.must("warnings");
        println!("    without {call}: {warnings}");
        let said = warnings.contains("memfd_create") && warnings.contains("ordinary memory");
        assert_eq!(said, call == "memfd_create", "{warnings}");
        let _ = rich.import(&mut poor, "memory");
        let _ = rich.must("put-bytes poor.memory 8 7 100");
        assert_eq!(rich.must("atomic poor.memory 0 5"), "0");
        assert_eq!(poor.must("word memory 0"), "5");
        let _ = poor.must("close memory");
        poor.end();
        rich.end();
    }
    Verdict::Passed
}

fn a_limit_on_the_size_of_files_ends_nobody() -> Verdict {
    let mut node = Node::start("node");
    let _ = node.must("alloc before 4096");
    let _ = node.must(&format!("limit file-size {}", 1 << 20));
    // Beyond it a memory file would end the process by a signal.
    let _ = node.must(&format!("alloc large {}", 2 << 20));
    assert_eq!(node.must("shared large"), "false");
    assert!(node.must("warnings").contains("ulimit -f"));
    let _ = node.must("alloc small 4096");
    assert_eq!(node.must("shared small"), "true");
    node.end();
    Verdict::Passed
}
