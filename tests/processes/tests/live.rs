//! Tests of the live status of running processes, as seen from another process.

use tieline::live::{Doing, Status, WorkerStatus, status_of};
use tieline_processes::{Hosts, Launch, Node, Test, Verdict, named, or_skip, sys};

pub(crate) const TESTS: &[Test] = named![
    status_shows_queue_blocked_by_stopped_peer_and_duration,
    a_worker_that_is_not_called_is_shown_as_that_to_who_waits_for_it,
    an_operation_that_has_ended_is_not_shown_as_one_that_waits,
    status_shows_sender_waiting_for_unreceived_rendezvous_message,
    status_shows_duration_of_endless_wait,
    thread_number_finds_its_process,
    a_process_that_was_killed_shows_nothing_and_leaves_nothing,
    a_forked_child_is_told_from_its_parent,
    status_of_process_without_context_or_with_status_off_says_so,
    another_user_is_refused_in_words,
    the_progress_thread_is_shown_beside_the_application,
    unanswered_connection_is_shown_while_it_is_forming,
    status_is_readable_under_file_size_limit,
];

fn look(node: &Node) -> Status {
    let pid = node.peer.pid();
    let mut shown = status_of(pid).unwrap_or_else(|error| panic!("{}: {error}", node.peer.name));
    assert_eq!(shown.len(), 1);
    shown.remove(0)
}

fn only(status: &Status) -> &WorkerStatus {
    assert_eq!(status.workers.len(), 1, "{status}");
    &status.workers[0]
}

/// Reads the status repeatedly until it matches. Each read takes some time.
fn until(node: &Node, shows: impl Fn(&Status) -> bool) -> Status {
    for _ in 0..240 {
        let status = look(node);
        if shows(&status) {
            return status;
        }
    }
    panic!("it is shown as:\n{}", look(node))
}

fn longest_wait(status: &Status) -> Option<u64> {
    let endpoints = status.workers.iter().flat_map(|worker| &worker.endpoints);
    endpoints.filter_map(|endpoint| Some(endpoint.waits.as_ref()?.ms)).max()
}

fn status_shows_queue_blocked_by_stopped_peer_and_duration() -> Verdict {
    let (mut a, mut b) = (Node::start("a"), Node::start("b"));
    a.connect(&mut b);
    let _ = a.must("ping b");
    sys::signal(b.peer.pid(), sys::Signal::Stop);
    a.peer.tell("stream b 100000 1000");
    let first = until(&a, |status| longest_wait(status).is_some());
    let text = first.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let b_pid = b.peer.pid();
    assert_eq!(lines[1], "WAITS", "{text}");
    assert!(lines[2].contains(&format!("operations to process {b_pid}, for ")), "{text}");
    assert!(
        lines[2].contains("room in shm/ring: the peer has not received earlier data"),
        "{text}"
    );
    assert!(text.contains(&format!("  process {b_pid} (")), "{text}");
    assert!(text.contains(&format!("is stopped: `kill -CONT {b_pid}` lets it go on")), "{text}");
    let waiting = &only(&first).endpoints[0];
    assert!(
        waiting.queued > 0 && waiting.queued_bytes > 0 && waiting.state == "queueing",
        "{text}"
    );
    let waited = longest_wait(&first).unwrap();
    let later = until(&a, |status| longest_wait(status).is_some_and(|ms| ms >= waited + 200));
    assert_eq!(only(&later).endpoints[0].open, waiting.open, "nothing moves");
    assert_eq!(only(&look(&b)).doing, Doing::Stopped);
    // Reading the status stops no process.
    sys::signal(b.peer.pid(), sys::Signal::Continue);
    let _ = a.answer().expect("the stream goes on");
    let _ = until(&a, |status| longest_wait(status).is_none());
    a.end();
    b.end();
    Verdict::Passed
}

fn a_worker_that_is_not_called_is_shown_as_that_to_who_waits_for_it() -> Verdict {
    let mut a = Node::with("a", &["TIELINE_PROVIDERS=^shm-cma"]);
    let mut b = Node::with("b", &["TIELINE_PROVIDERS=^shm-cma"]);
    a.connect(&mut b);
    let _ = b.must("register plain 1000");
    assert_eq!(a.import(&mut b, "plain"), "emulated over shm/ring");
    let _ = a.must("register out 1000");
    let _ = a.must("ping b");
    let _ = b.must("compute");
    a.peer.tell("put b.plain out 0 1000 0");
    let status = until(&a, |status| {
        longest_wait(status).is_some()
            && status.peers.iter().any(|peer| peer.text.contains("seldom"))
    });
    let text = status.to_string();
    let worker = format!("process {} (", b.peer.pid());
    assert!(text.contains("the peer's answer: its worker has to make progress"), "{text}");
    let peer = &status.peers[0];
    assert!(peer.text.starts_with(&worker), "{text}");
    assert_eq!((peer.pid, peer.doing), (b.peer.pid(), Some(Doing::NotCalled)));
    assert!(peer.text.contains("its worker has made no progress for "), "{text}");
    assert_eq!(only(&look(&b)).doing, Doing::NotCalled);
    let _ = b.must("active");
    let _ = a.answer().expect("the put");
    assert_eq!(only(&look(&a)).doing, Doing::Armed, "it sleeps until the next order");
    a.end();
    b.end();
    Verdict::Passed
}

fn an_operation_that_has_ended_is_not_shown_as_one_that_waits() -> Verdict {
    let mut a = Node::with("a", &["TIELINE_PROVIDERS=^shm-cma"]);
    let mut b = Node::with("b", &["TIELINE_PROVIDERS=^shm-cma"]);
    a.connect(&mut b);
    let _ = b.must("register plain 1000");
    assert_eq!(a.import(&mut b, "plain"), "emulated over shm/ring");
    let _ = a.must("register out 1000");
    let _ = a.must("ping b");
    let _ = b.must("compute");
    a.peer.tell("put b.plain out 0 1000 0");
    let _ = until(&a, |status| longest_wait(status).is_some());
    let _ = b.must("active");
    let _ = a.answer().expect("the put");
    // After the put has ended and the program has continued, any later status text must show this state.
    let _ = a.must("compute");
    for _ in 0..3 {
        let status = look(&a);
        assert_eq!((only(&status).pending, longest_wait(&status)), (0, None), "{status}");
    }
    a.end();
    b.end();
    Verdict::Passed
}

fn status_shows_sender_waiting_for_unreceived_rendezvous_message() -> Verdict {
    let (mut a, mut b) = (Node::start("a"), Node::start("b"));
    a.connect(&mut b);
    let _ = a.must("ping b");
    let _ = a.must("long b 1000000 7");
    let status = until(&a, |status| longest_wait(status).is_some());
    let text = status.to_string();
    let line = text.lines().nth(2).unwrap();
    assert!(line.starts_with(&format!("  an operation to process {}", b.peer.pid())), "{text}");
    assert!(line.ends_with("the peer to receive or refuse a rendezvous message"), "{text}");
    let _ = b.must("long-came");
    let _ = b.must("long-take");
    let _ = a.must("long-end");
    let _ = until(&a, |status| longest_wait(status).is_none());
    a.end();
    b.end();
    Verdict::Passed
}

fn status_shows_duration_of_endless_wait() -> Verdict {
    let (mut a, mut b) = (Node::start("a"), Node::start("b"));
    a.connect(&mut b);
    let _ = a.must("ping b");
    b.peer.tell("long-came");
    let status = until(&b, |status| only(status).waiting_ms.is_some_and(|ms| ms > 300));
    let text = status.to_string();
    assert!(text.contains("in a call that has waited for "), "{text}");
    let _ = b.kill();
    a.end();
    Verdict::Passed
}

fn thread_number_finds_its_process() -> Verdict {
    let node = Node::with("node", &["TIELINE_PROGRESS_THREAD=on"]);
    let status = look(&node);
    let thread = status.workers.iter().find(|worker| worker.service).expect("the thread's").thread;
    let by_thread = status_of(thread).unwrap();
    assert_eq!((by_thread.len(), by_thread[0].pid), (1, node.peer.pid()));
    node.end();
    Verdict::Passed
}

fn a_process_that_was_killed_shows_nothing_and_leaves_nothing() -> Verdict {
    let mut node = Node::start("node");
    let pid = node.peer.pid();
    assert_eq!(only(&look(&node)).pending, 0);
    let _ = node.kill();
    let error = status_of(pid).unwrap_err().to_string();
    assert!(error.starts_with(&format!("process {pid} is not there")), "{error}");
    Verdict::Passed
}

fn a_forked_child_is_told_from_its_parent() -> Verdict {
    let mut node = Node::start("node");
    let pid = node.peer.pid();
    let _ = node.must("register r 100");
    let _ = node.must("fill r 3");
    let _ = node.must("fork-aside r 3");
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    if let Some(child) = children.ok().and_then(|all| all.split_whitespace().next()?.parse().ok()) {
        let error = status_of(child).unwrap_err().to_string();
        assert!(error.contains(&format!("it was forked by process {pid}")), "{error}");
        assert!(error.contains(&format!("ask process {pid}")), "{error}");
    } else {
        println!("    the kernel does not name children");
    }
    let _ = look(&node);
    let _ = node.must("fork-joined");
    assert_eq!(only(&look(&node)).doing, Doing::Armed, "the child has changed nothing");
    node.end();
    Verdict::Passed
}

fn status_of_process_without_context_or_with_status_off_says_so() -> Verdict {
    let bare = Node::bare(Launch::new("bare", "node"));
    let silent = Node::with("silent", &["TIELINE_LIVE=off"]);
    for node in [&bare, &silent] {
        let error = status_of(node.peer.pid()).unwrap_err().to_string();
        assert!(error.contains("shows nothing: it has no context of Tieline open"), "{error}");
    }
    bare.end();
    silent.end();
    Verdict::Passed
}

fn another_user_is_refused_in_words() -> Verdict {
    if !sys::is_root() {
        return Verdict::Skipped("only root becomes another user".into());
    }
    let node = Node::start("node");
    let mut other = Node::bare(Launch::new("other", "node"));
    assert_eq!(other.must("become 65534"), "true");
    let failed = other.ask(&format!("look {}", node.peer.pid())).unwrap_err();
    assert_eq!(failed.status, "Permission", "{failed:?}");
    let words = format!(
        "process {} (of user 0) cannot be looked into: it is another user's",
        node.peer.pid()
    );
    assert!(failed.text.starts_with(&words), "{failed:?}");
    other.end();
    node.end();
    Verdict::Passed
}

fn the_progress_thread_is_shown_beside_the_application() -> Verdict {
    let mut node = Node::with("node", &["TIELINE_PROGRESS_THREAD=on"]);
    let _ = node.must("compute");
    let status = look(&node);
    let of = |service: bool| status.workers.iter().find(|worker| worker.service == service);
    let (serves, other) = (of(true).expect("the thread's"), of(false).expect("the application's"));
    assert_eq!((serves.doing, other.doing), (Doing::Sleeps, Doing::NotCalled), "{status}");
    assert_eq!(other.thread, node.peer.pid());
    assert!(serves.thread != other.thread);
    node.end();
    Verdict::Passed
}

fn unanswered_connection_is_shown_while_it_is_forming() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = hosts[0].node("a", &[]);
    let mut b = hosts[1].node("b", &[]);
    a.connect(&mut b);
    hosts[1].link(0).cut();
    a.peer.tell("ping b");
    let status = until(&a, |status| status.workers.iter().any(|worker| !worker.forming.is_empty()));
    let text = status.to_string();
    let forming = &only(&status).forming[0];
    assert_eq!(
        (forming.module.as_str(), forming.by.as_str()),
        ("tcp/stream", "tcp-connect/stream")
    );
    assert!(text.contains("a connection to process "), "{text}");
    assert!(text.contains("over tcp/stream is being formed for "), "{text}");
    Verdict::Passed
}

fn status_is_readable_under_file_size_limit() -> Verdict {
    let mut node = Node::bare(Launch::new("node", "node"));
    // The limit is above the size of the one slot that the process uses, and below the size of a file with all slots.
    let _ = node.must("limit file-size 1000000");
    let _ = node.must("open TIELINE_PROVIDERS=^shm-cma");
    let warnings = node.must("warnings");
    assert_eq!(only(&look(&node)).worker.len(), 8, "{warnings}");
    node.end();
    Verdict::Passed
}
