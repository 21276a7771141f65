//! Tests of memory: the time at which its owner gets it back, and its source if the system provides little memory.

use tieline_processes::matrix::{Over, every_kind_is_right};
use tieline_processes::sys::{self, Signal};
use tieline_processes::{Launch, Node, Test, Verdict, named};
use tieline_testing::{Wait, built};

pub(crate) const TESTS: &[Test] = named![
    closed_memory_is_unmapped_although_long_put_was_queued,
    memory_of_every_kind_is_right_whatever_forks_beside_it,
    closing_ends_what_peers_may_do,
    two_processes_take_turns_by_loads_and_stores,
    a_pointer_outlives_key_endpoint_region_and_owner,
    memory_without_mapping_module_has_no_pointer,
    a_peer_in_the_middle_of_a_copy_keeps_memory_open_until_it_is_through,
    memory_that_peers_cannot_map_is_given_where_memory_files_are_forbidden,
    file_size_limit_ends_no_process,
    keys_come_by_their_handles_between_processes,
    key_request_to_computing_or_dead_owner_ends,
];

const LONG: usize = 8 << 20;

fn closed_memory_is_unmapped_although_long_put_was_queued() -> Verdict {
    let settings = ["TIELINE_PROVIDERS=^shm-cma"];
    let (mut caller, mut target) =
        (Node::with("caller", &settings), Node::with("target", &settings));
    caller.connect(&mut target);
    let _ = target.must(&format!("register memory {LONG}"));
    assert_eq!(caller.import(&mut target, "memory"), "emulated over shm/ring");
    for seed in 1..4 {
        // The target is stopped until the first attempt to close the memory.
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

fn memory_of_every_kind_is_right_whatever_forks_beside_it() -> Verdict {
    let launch = |name: &str| Launch::new(name, "node");
    for (providers, path) in [
        ("TIELINE_PROVIDERS=shm,shm-cma", "shm-cma/copy"),
        ("TIELINE_PROVIDERS=shm", "emulated over shm/ring"),
    ] {
        every_kind_is_right(&Over {
            launch: &launch,
            settings: &[providers],
            path,
            or_messages: &[],
            dies_with_owner: false,
        });
    }
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

fn two_processes_take_turns_by_loads_and_stores() -> Verdict {
    let (mut caller, mut owner) = (Node::start("caller"), Node::start("owner"));
    caller.connect(&mut owner);
    let _ = owner.must("alloc memory 4096");
    let _ = caller.import(&mut owner, "memory");
    let _ = caller.must("point there owner.memory");
    caller.peer.tell("rally there 1000 first");
    let _ = owner.must("rally-own memory 1000 second");
    if let Err(failed) = caller.answer() {
        panic!("{failed:?}");
    }
    assert_eq!([caller.must("load there 0"), owner.must("word memory 0")], ["2000", "2000"]);
    let _ = caller.must("store there 4088 7");
    assert_eq!(owner.must("word memory 4088"), "7");
    caller.end();
    owner.end();
    Verdict::Passed
}

fn a_pointer_outlives_key_endpoint_region_and_owner() -> Verdict {
    let (mut caller, mut owner) = (Node::start("caller"), Node::start("owner"));
    caller.connect(&mut owner);
    for name in ["first", "second"] {
        let _ = owner.must(&format!("alloc {name} 8192"));
        let _ = caller.import(&mut owner, name);
        let _ = caller.must(&format!("point {name} owner.{name}"));
        let _ = caller.must(&format!("store {name} 8184 {}", name.len()));
    }
    let _ = owner.must("close first");
    let failed = caller.ask("put-bytes owner.first 8 1 0").expect_err("it is closed");
    assert_eq!(failed.status, "KeyRejected");
    assert_eq!(
        caller.ask("point again owner.first").expect_err("it is closed").status,
        "KeyRejected"
    );
    let _ = caller.must("store first 0 9");
    assert_eq!(caller.must("load first 0"), "9", "nobody's memory, and mapped");
    let _ = caller.must("forget-key owner.second");
    let _ = caller.must("disconnect owner");
    let _ = caller.must("store second 0 11");
    assert_eq!(owner.must("word second 0"), "11");
    let _ = owner.kill();
    for (name, value) in [("first", "9"), ("second", "11")] {
        assert_eq!(caller.must(&format!("load {name} 0")), value);
        assert_eq!(caller.must(&format!("load {name} 8184")), name.len().to_string());
        let _ = caller.must(&format!("forget-pointer {name}"));
    }
    caller.end();
    Verdict::Passed
}

fn memory_without_mapping_module_has_no_pointer() -> Verdict {
    for (settings, make) in [
        (&[][..], "register"),
        (&["TIELINE_PROVIDERS=^shm-cma"][..], "register"),
        (&["TIELINE_PROVIDERS=tcp,tcp-connect"][..], "alloc"),
    ] {
        let (mut caller, mut owner) =
            (Node::with("caller", settings), Node::with("owner", settings));
        caller.connect(&mut owner);
        let _ = owner.must(&format!("{make} memory 4096"));
        let path = caller.import(&mut owner, "memory");
        let failed = caller.ask("point there owner.memory").expect_err("nothing is mapped");
        assert_eq!(failed.status, "Unsupported", "{failed:?}");
        assert!(failed.text.contains(&path), "{failed:?} does not name {path}");
        caller.end();
        owner.end();
    }
    Verdict::Passed
}

fn a_peer_in_the_middle_of_a_copy_keeps_memory_open_until_it_is_through() -> Verdict {
    const LEN: usize = 64 << 20;
    // One process copies alone, with a single call of the kernel.
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
        let before = sys::resident_pages(target.peer.pid());
        caller.peer.tell(&format!("put target.memory here 0 {LEN} 0"));
        let _ = caller.peer.expect("begins");
        // The copy writes target memory whose pages do not exist yet.
        let waits = Wait::new("the beginning of the copy");
        while sys::resident_pages(target.peer.pid()) < before + 256 {
            waits.goes_on();
        }
        sys::signal(caller.peer.pid(), Signal::Stop);
        let first = target.ask("close memory");
        let second = first.is_err().then(|| target.ask("close memory"));
        sys::signal(caller.peer.pid(), Signal::Continue);
        let put = caller.answer();
        let Err(failed) = first else {
            // The process was stopped before the copy had begun, or after its end.
            println!("    closed at once; the put: {put:?}");
            continue;
        };
        println!("    {} {}", failed.status, failed.text);
        assert_eq!(failed.status, "Busy");
        assert!(failed.text.contains("a peer is in the middle of a copy"), "{}", failed.text);
        // The copy may also have ended in between: the process was stopped before it could record the end.
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

fn file_size_limit_ends_no_process() -> Verdict {
    let mut node = Node::start("node");
    let _ = node.must("alloc before 4096");
    let _ = node.must(&format!("limit file-size {}", 1 << 20));
    // Beyond the limit of the memory file, a write would end the process by a signal.
    let _ = node.must(&format!("alloc large {}", 2 << 20));
    assert_eq!(node.must("shared large"), "false");
    assert!(node.must("warnings").contains("ulimit -f"));
    let _ = node.must("alloc small 4096");
    assert_eq!(node.must("shared small"), "true");
    node.end();
    Verdict::Passed
}

/// The test covers these routes to the memory: mapped, copied by the kernel, over messages, and over TCP if it is built.
fn keys_come_by_their_handles_between_processes() -> Verdict {
    let tcp = built::folder(&built::TCP);
    if let Err(reason) = &tcp {
        println!("    skipped: over tcp: {reason}");
    }
    let by_tcp = ["TIELINE_PROVIDERS=tcp,tcp-connect", "TIELINE_TCP_INTERFACES=127.0.0.0/8"];
    for (settings, make) in [
        (&[][..], "alloc"),
        (&[][..], "register"),
        (&["TIELINE_PROVIDERS=^shm-cma"][..], "register"),
        (&by_tcp[..], "register"),
    ] {
        let node = |name: &str| {
            let mut launch = Launch::new(name, "node");
            if let Ok(folder) = &tcp {
                launch = launch.env("TIELINE_PROVIDER_PATH", folder.display());
            }
            Node::open(launch, settings)
        };
        if settings == by_tcp && tcp.is_err() {
            continue;
        }
        let (mut caller, mut target) = (node("caller"), node("target"));
        caller.connect(&mut target);
        let mut handles = Vec::new();
        for (name, byte) in [("first", 1), ("second", 2)] {
            let _ = target.must(&format!("{make} {name} 4096"));
            let handle = target.must(&format!("handle {name}"));
            assert_eq!(handle.len(), 16, "eight bytes");
            let path = caller.must(&format!("import-handle target {name} {handle}"));
            println!("    {make}: {path}");
            let _ = caller.must(&format!("put-bytes target.{name} 8 {byte} 0"));
            let word = u64::from_le_bytes([byte; 8]).to_string();
            assert_eq!(target.must(&format!("word {name} 0")), word);
            handles.push(handle);
        }
        let _ = target.must("close first");
        let failed = caller.ask("put-bytes target.first 8 3 0").expect_err("it is closed");
        assert_eq!(failed.status, "KeyRejected", "{failed:?}");
        let again = format!("import-handle target first {}", handles[0]);
        let failed = caller.ask(&again).expect_err("it stands for nothing any more");
        assert_eq!(failed.status, "KeyRejected", "{failed:?}");
        let _ = caller.must(&format!("import-handle target second {}", handles[1]));
        let _ = caller.must("put-bytes target.second 8 4 8");
        assert_eq!(caller.must("error target"), "alive");
        caller.end();
        target.end();
    }
    Verdict::Passed
}

fn key_request_to_computing_or_dead_owner_ends() -> Verdict {
    for thread in ["on", "off"] {
        let settings = ["TIELINE_PROVIDERS=shm", &format!("TIELINE_PROGRESS_THREAD={thread}")];
        let (mut caller, mut target) = (Node::start("caller"), Node::with("target", &settings));
        caller.connect(&mut target);
        let _ = caller.must("ping target");
        let _ = target.must("register memory 4096");
        let handle = target.must("handle memory");
        // After this order the target blocks in a read of its pipe.
        let _ = target.must("passive");
        let order = format!("import-handle target memory {handle}");
        if thread == "on" {
            let _ = caller.must(&order);
            let _ = caller.must("put-bytes target.memory 8 7 0");
            assert_eq!(target.must("word memory 0"), u64::from_le_bytes([7; 8]).to_string());
        } else {
            caller.peer.tell(&order);
            let _ = caller.peer.expect("begins");
            let _ = target.kill();
            let failed = caller.answer().expect_err("nobody is left to answer");
            assert_eq!(failed.status, "PeerFailed", "{failed:?}");
            assert_eq!(caller.must("pending"), "0");
        }
        caller.end();
    }
    Verdict::Passed
}
