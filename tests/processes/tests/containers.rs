//! Tests of processes in separate namespaces, and of processes whose resources are limited.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use tieline_processes::{Launch, Node, Test, Verdict, leftovers, named};

pub(crate) const TESTS: &[Test] = named![
    messages_and_memory_cross_a_pid_namespace,
    a_private_empty_or_full_dev_shm_does_not_matter,
    messages_and_memory_cross_a_network_namespace,
    messages_and_memory_cross_a_mount_namespace_without_a_common_directory,
    peer_without_shared_files_or_pids_learns_what_is_missing,
    messages_and_memory_cross_a_user_namespace,
    everything_at_once_as_in_a_container,
    a_socket_directory_is_empty_again_when_a_process_in_it_was_killed,
    next_process_of_same_user_removes_leftovers_of_killed_ones,
    a_directory_that_does_not_exist_is_an_error_and_is_not_made,
    a_process_that_does_not_know_its_kernel_reaches_its_peers,
    an_exhausted_address_space_is_an_error_of_the_call_that_needs_it,
    an_exhausted_descriptor_table_is_an_error_that_says_so,
    peer_refused_for_lack_of_descriptors_learns_reason,
    owner_without_descriptors_disconnects_and_answers_later,
];

const LEN: usize = 50_000;

fn can(arguments: &[&str]) -> Result<(), String> {
    let outcome = Command::new("unshare").args(arguments).arg("true").output();
    match outcome {
        Err(error) => Err(format!("unshare (util-linux): {error}")),
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Err(format!("unshare {}: {said}", arguments.join(" ")))
        }
        Ok(_) => Ok(()),
    }
}

/// Tests messages, memory of both kinds and atomics in both directions; returns the two paths to ordinary memory.
fn everything_works_between(a: &mut Node, b: &mut Node) -> [String; 2] {
    a.connect(b);
    b.connect(a);
    let paths = [one_way(a, b), one_way(b, a)];
    let _ = a.must(&format!("stream {} 3000 100", b.peer.name));
    let _ = b.must(&format!("stream {} 3000 3000", a.peer.name));
    let _ = a.must(&format!("ping {}", b.peer.name));
    let _ = b.must(&format!("ping {}", a.peer.name));
    for node in [a, b] {
        node.nothing_was_wrong();
        assert_eq!(node.must("counted"), "3000");
    }
    paths
}

fn one_way(from: &mut Node, to: &mut Node) -> String {
    let name = to.peer.name.clone();
    let _ = from.must(&format!("register out {LEN}"));
    let _ = from.must("fill out 7");
    let _ = from.must(&format!("register back {LEN}"));
    let _ = to.must(&format!("register plain {LEN}"));
    let _ = to.must(&format!("alloc shared {LEN}"));
    let path = from.import(to, "plain");
    assert_eq!(from.import(to, "shared"), "shm/ring");
    for region in ["plain", "shared"] {
        let _ = from.must("fill back 0");
        let _ = from.must(&format!("put {name}.{region} out 0 {LEN} 0"));
        assert_eq!(to.must(&format!("check {region} 0 {LEN} 7 0")), "same");
        let _ = from.must(&format!("get {name}.{region} back 0 {LEN} 0"));
        assert_eq!(from.must(&format!("check back 0 {LEN} 7 0")), "same");
        let _ = from.must(&format!("put-bytes {name}.{region} 8 0 0"));
        assert_eq!(from.must(&format!("atomic {name}.{region} 0 41")), "0");
        assert_eq!(from.must(&format!("atomic {name}.{region} 0 1")), "41");
    }
    path
}

fn report(node: &mut Node, other: &Node) -> String {
    let report = node.must(&format!("report {}", other.peer.name));
    println!("    {}: {report}", node.peer.name);
    report
}

fn end(nodes: [Node; 2]) -> Verdict {
    for node in nodes {
        node.end();
    }
    Verdict::Passed
}

fn messages_and_memory_cross_a_pid_namespace() -> Verdict {
    let own = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    if let Err(why) = can(&own) {
        return Verdict::Skipped(why);
    }
    let mut outside = Node::start("outside");
    let mut inside = Node::open(Launch::new("inside", "node").through(&wrapped(&own)), &[]);
    let paths = everything_works_between(&mut outside, &mut inside);
    // A process number has no meaning in the other namespace: single copy falls back, and the report contains the reason.
    assert_eq!(paths, ["emulated over shm/ring", "emulated over shm/ring"]);
    assert!(report(&mut outside, &inside).contains("PID namespace"));
    assert!(report(&mut inside, &outside).contains("PID namespace"));
    end([outside, inside])
}

fn wrapped<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["unshare"];
    words.extend(arguments);
    words
}

/// Returns a launch of a shell that changes /dev/shm in a separate mount namespace, and then becomes the peer.
fn with_dev_shm(script: &str) -> Launch {
    let script = format!("{script} && exec \"$0\"");
    Launch::new("inside", "node").through(&["unshare", "--mount", "sh", "-c", &script])
}

fn a_private_empty_or_full_dev_shm_does_not_matter() -> Verdict {
    if let Err(why) = can(&["--mount"]) {
        return Verdict::Skipped(why);
    }
    for script in [
        "mount -t tmpfs -o size=1m none /dev/shm",
        "mount -t tmpfs -o size=16k none /dev/shm && head -c 16384 /dev/zero > /dev/shm/full",
        "mount -t tmpfs -o ro none /dev/shm",
    ] {
        let mut outside = Node::start("outside");
        let mut inside = Node::open(with_dev_shm(script), &[]);
        let paths = everything_works_between(&mut outside, &mut inside);
        assert_eq!(paths, ["shm-cma/copy", "shm-cma/copy"], "{script}");
        let _ = end([outside, inside]);
    }
    Verdict::Passed
}

fn socket_directory() -> String {
    let directory = leftovers::current().1.join("sockets");
    std::fs::create_dir_all(&directory).expect("a directory");
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&directory, private).expect("a private directory");
    format!("TIELINE_SHM_DIR={}", directory.display())
}

fn messages_and_memory_cross_a_network_namespace() -> Verdict {
    if let Err(why) = can(&["--net"]) {
        return Verdict::Skipped(why);
    }
    let mut outside = Node::start("outside");
    let launch = Launch::new("inside", "node").through(&["unshare", "--net"]);
    let mut inside = Node::open(launch, &[]);
    let paths = everything_works_between(&mut outside, &mut inside);
    assert_eq!(paths, ["shm-cma/copy", "shm-cma/copy"]);
    end([outside, inside])
}

/// Returns a launch that hides the test's directory: files in it are not visible to the process.
fn with_a_folder_of_its_own(own: &[&str]) -> Launch {
    let folder = leftovers::current().1;
    let mount = format!("mount -t tmpfs none {}", folder.display());
    let make = format!("mkdir -m 700 {}/run {}/tmp", folder.display(), folder.display());
    let script = format!("{mount} && {make} && exec \"$0\"");
    let mut words = wrapped(own);
    words.extend(["sh", "-c", &script]);
    Launch::new("inside", "node").through(&words)
}

fn messages_and_memory_cross_a_mount_namespace_without_a_common_directory() -> Verdict {
    let own = ["--mount", "--net"];
    if let Err(why) = can(&own) {
        return Verdict::Skipped(why);
    }
    let mut outside = Node::start("outside");
    let mut inside = Node::open(with_a_folder_of_its_own(&own), &[]);
    let paths = everything_works_between(&mut outside, &mut inside);
    assert_eq!(paths, ["shm-cma/copy", "shm-cma/copy"]);
    end([outside, inside])
}

fn peer_without_shared_files_or_pids_learns_what_is_missing() -> Verdict {
    let own = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if let Err(why) = can(&own) {
        return Verdict::Skipped(why);
    }
    let mut outside = Node::with("outside", &["TIELINE_PROVIDERS=shm"]);
    let mut inside = Node::open(with_a_folder_of_its_own(&own), &["TIELINE_PROVIDERS=shm"]);
    let address = inside.must("address");
    let failed = outside.ask(&format!("connect inside {address}")).expect_err("nothing in common");
    println!("    {}", failed.text);
    assert_eq!(failed.status, "Unreachable");
    assert!(failed.text.contains("mount namespace"), "{}", failed.text);
    assert!(failed.text.contains("TIELINE_SHM_DIR"), "{}", failed.text);
    end([outside, inside])
}

fn messages_and_memory_cross_a_user_namespace() -> Verdict {
    let own = ["--user", "--map-root-user"];
    if let Err(why) = can(&own) {
        return Verdict::Skipped(why);
    }
    let mut outside = Node::start("outside");
    let mut inside = Node::open(Launch::new("inside", "node").through(&wrapped(&own)), &[]);
    let paths = everything_works_between(&mut outside, &mut inside);
    // The more privileged process may copy; the fallback of each direction is independent.
    println!("    out to in by {}, in to out by {}", paths[0], paths[1]);
    for (path, (node, other)) in
        paths.iter().zip([(&mut outside, "inside"), (&mut inside, "outside")])
    {
        let report = node.must(&format!("report {other}"));
        println!("    {}: {report}", node.peer.name);
        assert_eq!(path.contains("emulated"), report.contains("user namespace"), "{report}");
    }
    end([outside, inside])
}

fn everything_at_once_as_in_a_container() -> Verdict {
    let own = ["--pid", "--fork", "--kill-child", "--mount", "--net", "--ipc", "--uts", "--cgroup"];
    if let Err(why) = can(&own) {
        return Verdict::Skipped(why);
    }
    let script =
        "mount -t proc proc /proc && mount -t tmpfs -o size=64k none /dev/shm && exec \"$0\"";
    let launch = |name: &str| {
        let mut words = wrapped(&own);
        words.extend(["sh", "-c", script]);
        Launch::new(name, "node").through(&words)
    };
    let directory = socket_directory();
    let mut one = Node::open(launch("one"), &[&directory]);
    let mut two = Node::open(launch("two"), &[&directory]);
    let paths = everything_works_between(&mut one, &mut two);
    assert_eq!(paths, ["emulated over shm/ring", "emulated over shm/ring"]);
    // The processes outside are notified of a death in the container.
    one.peer.tell("failures 1");
    let killed = two.kill();
    let noticed = one.answer().expect("on_peer_failure is called");
    let took = tieline_processes::node::milliseconds(killed, noticed.at);
    println!("    a death in another container is noticed after {took:.1} ms (promised: 1000)");
    assert!(took < tieline_processes::BOUND_MS);
    assert_eq!(one.ask("send two 1 0 8").expect_err("it is gone").status, "PeerFailed");
    // The wrapper was killed, and the process in the container dies with it. Two processes remain: process one and its wrapper.
    while leftovers::count() > 2 {
        std::thread::yield_now();
    }
    one.end();
    // The listener may have closed after the connection that reported the process's end. The next process then removes the
    // listener's socket.
    Node::with("next", &[&directory]).end();
    Verdict::Passed
}

fn a_socket_directory_is_empty_again_when_a_process_in_it_was_killed() -> Verdict {
    let directory = socket_directory();
    let mut survivor = Node::with("survivor", &[&directory]);
    let mut victim = Node::with("victim", &[&directory]);
    survivor.connect(&mut victim);
    victim.connect(&mut survivor);
    let _ = survivor.must("ping victim");
    let _ = victim.must("ping survivor");
    survivor.peer.tell("failures 1");
    let _ = victim.kill();
    let _ = survivor.answer().expect("on_peer_failure is called");
    assert!(survivor.must("await-error victim").starts_with("PeerFailed"));
    // The next process also removes the socket of a process without peers.
    let mut lonely = Node::with("lonely", &[&directory]);
    let _ = lonely.kill();
    let next = Node::with("next", &[&directory]);
    next.end();
    // The survivor removes its own socket. The check after every test finds any file that remains.
    survivor.end();
    Verdict::Passed
}

/// Returns the number of sockets in the default directory, which is used without TIELINE_SHM_DIR.
fn sockets() -> usize {
    let directory = leftovers::current().1.join("run").join("tieline");
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

fn next_process_of_same_user_removes_leftovers_of_killed_ones() -> Verdict {
    let mut living = Node::start("living");
    let mut killed: Vec<Node> = (0..5).map(|n| Node::start(&format!("killed-{n}"))).collect();
    assert_eq!(sockets(), 6);
    for node in &mut killed {
        let _ = node.kill();
    }
    assert_eq!(sockets(), 6, "nobody was there to remove them");
    // A stopped process is alive, and is not treated as dead.
    tieline_processes::sys::signal(living.peer.pid(), tieline_processes::sys::Signal::Stop);
    let mut next = Node::start("next");
    assert_eq!(sockets(), 2);
    tieline_processes::sys::signal(living.peer.pid(), tieline_processes::sys::Signal::Continue);
    next.connect(&mut living);
    let _ = next.must("ping living");
    end([living, next])
}

fn a_directory_that_does_not_exist_is_an_error_and_is_not_made() -> Verdict {
    let missing = leftovers::current().1.join("misspelt");
    let mut node = Node::bare(Launch::new("node", "node"));
    let failed = node
        .ask(&format!("open TIELINE_PROVIDERS=shm TIELINE_SHM_DIR={}", missing.display()))
        .expect_err("there is no such directory");
    println!("    {}", failed.text);
    assert!(failed.text.contains("TIELINE_SHM_DIR"), "{}", failed.text);
    assert!(failed.text.contains("does not exist"), "{}", failed.text);
    assert!(!missing.exists());
    node.end();
    Verdict::Passed
}

fn a_process_that_does_not_know_its_kernel_reaches_its_peers() -> Verdict {
    if let Err(why) = can(&["--mount"]) {
        return Verdict::Skipped(why);
    }
    // The mount hides the usual contents of /proc.
    let script = "mount -t tmpfs none /proc/sys/kernel/random && exec \"$0\"";
    let launch = Launch::new("inside", "node").through(&["unshare", "--mount", "sh", "-c", script]);
    let mut outside = Node::with("outside", &["TIELINE_PROVIDERS=shm"]);
    let mut inside = Node::open(launch, &["TIELINE_PROVIDERS=shm"]);
    outside.connect(&mut inside);
    inside.connect(&mut outside);
    let _ = outside.must("ping inside");
    let _ = inside.must("ping outside");
    end([outside, inside])
}

fn an_exhausted_address_space_is_an_error_of_the_call_that_needs_it() -> Verdict {
    let (mut poor, mut rich) = (Node::start("poor"), Node::start("rich"));
    let _ = everything_works_between(&mut poor, &mut rich);
    let _ = rich.must(&format!("alloc large {}", 256 << 20));
    let mapped: u64 = poor.must("mapped").parse().expect("KiB");
    let _ = poor.must(&format!("limit address-space {}", (mapped + 32 * 1024) * 1024));

    let failed = poor.ask(&format!("alloc mine {}", 256 << 20)).expect_err("there is no room");
    println!("    alloc: {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "NoMemory", "{failed:?}");
    // The limit is checked before an attempt, because an attempt would use up the pages before it fails.
    assert!(failed.text.contains("ulimit -v"), "{failed:?}");
    // A peer's region that does not fit is reached by messages, or refused.
    let key = rich.must("key large");
    match poor.ask(&format!("import rich large {key}")) {
        Ok(path) => {
            println!("    a region of 256 MiB that cannot be mapped: {path}");
            let _ = poor.must("put-bytes rich.large 8 1 1000");
        }
        Err(failed) => {
            println!("    a region of 256 MiB that cannot be mapped: {failed:?}");
            assert_eq!(failed.status, "NoMemory");
        }
    }
    // The loop ends when no more regions fit.
    let mut count = 0;
    let failed = loop {
        match poor.ask(&format!("alloc small{count} {}", 1 << 20)) {
            Ok(_) => count += 1,
            Err(failed) => break failed,
        }
        assert!(count <= 40, "the limit does not hold");
    };
    println!("    {count} regions of 1 MiB fit; then: {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "NoMemory", "{failed:?}");
    // Existing mappings still work.
    let _ = poor.must("put rich.plain out 0 50000 0");
    assert_eq!(rich.must(&format!("check plain 0 {LEN} 7 0")), "same");
    let _ = poor.must("ping rich");
    let _ = poor.must("free small0");
    let _ = poor.must(&format!("alloc again {}", 256 << 10));
    assert_eq!(poor.must("error rich"), "alive");
    end([poor, rich])
}

fn an_exhausted_descriptor_table_is_an_error_that_says_so() -> Verdict {
    let mut rich = Node::start("rich");
    let address = rich.must("address");
    let mut last = String::new();
    let mut complete = false;
    for room in 0..64 {
        let mut poor = Node::bare(Launch::new("poor", "node"));
        let open: u64 = poor.must("descriptors").parse().expect("a number");
        // The descriptor that counted the open descriptors is closed again.
        let _ = poor.must(&format!("limit descriptors {}", open - 1 + room));
        let mut step = |order: &str| poor.ask(order);
        let outcome = step("open")
            .and_then(|_| step(&format!("connect rich {address}")))
            .and_then(|_| step("send rich 1 0 8"))
            .and_then(|_| step("alloc mine 4096"));
        // When the limit is raised, the same process can continue.
        let _ = step("limit descriptors 1000");
        let _ = step("close").expect("closing");
        for order in ["open", &format!("connect rich {address}"), "ping rich", "alloc mine 4096"] {
            if let Err(failed) = step(order) {
                panic!("`{order}` with room again: {failed:?}");
            }
        }
        match outcome {
            Ok(_) => complete = true,
            Err(failed) => {
                assert!(!complete, "{room} descriptors do not suffice, and fewer did: {failed:?}");
                let said = format!("{} {}", failed.status, failed.text);
                assert!(
                    said.contains("descriptor") || said.contains("Too many open files"),
                    "with room for {room}: {said}"
                );
                if said != last {
                    println!("    room for {room}: {said}");
                    last = said;
                }
            }
        }
        poor.end();
        if complete {
            println!("    room for {room}: everything works");
            break;
        }
    }
    assert!(complete);
    // Other processes are not affected.
    let mut other = Node::start("other");
    other.connect(&mut rich);
    let _ = other.must("ping rich");
    rich.nothing_was_wrong();
    end([rich, other])
}

fn peer_refused_for_lack_of_descriptors_learns_reason() -> Verdict {
    // This setting is the time limit for the route back.
    let settings = ["TIELINE_PROVIDERS=shm", "TIELINE_CONNECT_TIMEOUT=200ms"];
    let mut rich = Node::with("rich", &settings);
    let mut last = String::new();
    for room in 0..64 {
        let mut poor = Node::bare(Launch::new("poor", "node"));
        let open: u64 = poor.must("descriptors").parse().expect("a number");
        // The descriptor that counted the open descriptors is closed again.
        let _ = poor.must(&format!("limit descriptors {}", open - 1 + room));
        let opened = poor.ask(&format!("open {}", settings.join(" ")));
        let taken_in = opened.is_ok();
        let outcome = opened.and_then(|_| {
            rich.connect(&mut poor);
            rich.ask("ping poor")
        });
        poor.end();
        let Err(failed) = outcome else {
            println!("    room for {room}: everything works");
            rich.end();
            return Verdict::Passed;
        };
        let said = format!("{} {}", failed.status, failed.text);
        if said != last {
            println!("    room for {room}: {said}");
        }
        // The connection is accepted if there is a descriptor for it, and then closed because there is no route back.
        let words = match taken_in {
            true => ["ulimit -n", "the peer disconnected"],
            false => ["Too many open files"; 2],
        };
        let told = words.iter().any(|words| said.contains(words));
        assert!(said.starts_with("NoMemory") && told, "room for {room}: {said}");
        last = said;
    }
    panic!("64 descriptors do not suffice");
}

fn owner_without_descriptors_disconnects_and_answers_later() -> Verdict {
    // Requests are sent as messages, and the timeout is that of the route back.
    let settings = ["TIELINE_PROVIDERS=^shm-cma", "TIELINE_CONNECT_TIMEOUT=500ms"];
    let (mut asker, mut owner) = (Node::with("asker", &settings), Node::with("owner", &settings));
    let _ = owner.must("register memory 64");
    let _ = asker.must("register here 64");
    for question in ["get owner.memory here 0 8 0", "atomic owner.memory 0 1", "ping owner"] {
        asker.connect(&mut owner);
        assert_eq!(asker.import(&mut owner, "memory"), "emulated over shm/ring");
        // The incoming connection is established and needs no further descriptor.
        let _ = asker.must("send owner 1 0 8");
        let _ = owner.must("reach counted 1");
        let open: u64 = owner.must("descriptors").parse().expect("a number");
        let _ = owner.must(&format!("limit descriptors {}", open - 1));
        let failed = asker.ask(question).expect_err("nobody can answer it");
        println!("    {question}: {} {}", failed.status, failed.text);
        assert_eq!(failed.status, "NoMemory", "{failed:?}");
        assert!(failed.text.contains("disconnected"), "{failed:?}");
        assert!(asker.must("error owner").starts_with("NoMemory"));
        // When the limit is raised, a new connection is answered.
        let _ = owner.must("limit descriptors 1000");
        asker.connect(&mut owner);
        let _ = asker.import(&mut owner, "memory");
        let _ = asker.must(question);
        // The new worker has no route back, so the next request needs a route again.
        let _ = owner.must("fresh-worker");
        let _ = asker.must("fresh-worker");
    }
    end([asker, owner])
}
