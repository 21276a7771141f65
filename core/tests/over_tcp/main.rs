//! Tests of two workers of one process that reach each other only over TCP, like two hosts.

mod memory;
mod ports;

use memory::memory_operations;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tieline::{
    CompletionError, Context, ContextBuilder, Endpoint, Outcome, PostError, ServiceAnswer, Status,
    Worker,
};
use tieline_testing::{Wait, built};

const LOOPBACK: &str = "127.0.0.0/8";

/// Returns the folder of the provider files, or `None` with a printed reason to skip the test.
fn providers() -> Option<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOLDER.get_or_init(|| built::folder(&built::TCP)) {
        Ok(folder) => Some(folder.clone()),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn over_tcp(folder: &std::path::Path) -> ContextBuilder {
    Context::builder()
        .set("TIELINE_PROVIDER_PATH", folder.to_str().unwrap())
        .set("TIELINE_PROVIDERS", "tcp,tcp-connect")
        .set("TIELINE_TCP_INTERFACES", LOOPBACK)
}

fn open(folder: &std::path::Path) -> Context {
    over_tcp(folder).open().unwrap()
}

#[track_caller]
fn until(workers: &[&Worker], done: impl Fn() -> bool) {
    let wait = Wait::new("what the test waits for");
    while !done() {
        wait.goes_on();
        for worker in workers {
            let _ = worker.progress();
        }
    }
}

/// Waits for an operation of the first worker while all workers make progress.
#[track_caller]
fn finish(workers: &[&Worker], outcome: Outcome) -> Result<u64, CompletionError> {
    let wait = Wait::new("the end of an operation");
    match outcome {
        Outcome::Done(value) => Ok(value),
        Outcome::Pending(request) => loop {
            wait.goes_on();
            if let Some(result) = workers[0].test(&request) {
                return result;
            }
            for worker in workers {
                let _ = worker.progress();
            }
        },
    }
}

#[track_caller]
fn retried<T>(workers: &[&Worker], mut post: impl FnMut() -> Result<T, PostError>) -> T {
    let wait = Wait::new("room for one more operation");
    loop {
        wait.goes_on();
        match post() {
            Err(PostError::Retry(_)) => {
                for worker in workers {
                    let _ = worker.progress();
                }
            }
            result => return result.unwrap(),
        }
    }
}

fn connected(from: &Worker, to: &Worker) -> Endpoint {
    from.connect(&to.address().unwrap()).unwrap()
}

fn heard(worker: &Worker, id: u16) -> Rc<RefCell<Vec<u64>>> {
    let heard: Rc<RefCell<Vec<u64>>> = Rc::default();
    let log = heard.clone();
    worker.on_message(id, move |m| log.borrow_mut().push(m.header())).unwrap();
    heard
}

#[test]
fn messages_posted_before_the_connection_stands_arrive_first_and_in_order() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let seen = heard(&b, 1);
    let to_b = connected(&a, &b);
    for i in 0..100 {
        let _ = to_b.send(1, i, &[i as u8; 100]).unwrap();
    }
    for i in 100..20_000 {
        let _ = retried(&[&a, &b], || to_b.send(1, i, &i.to_le_bytes()));
    }
    until(&[&a, &b], || seen.borrow().len() == 20_000);
    assert!(seen.borrow().iter().copied().eq(0..20_000));
    assert_eq!(a.counters().connections, 1);
}

#[test]
fn simultaneous_connects_share_connection_two_endpoints_make_two() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let (at_a, at_b) = (heard(&a, 1), heard(&b, 1));
    let (to_b, to_a) = (connected(&a, &b), connected(&b, &a));
    let _ = (to_b.send(1, 1, &[]).unwrap(), to_a.send(1, 2, &[]).unwrap());
    until(&[&a, &b], || !at_a.borrow().is_empty() && !at_b.borrow().is_empty());
    assert_eq!((a.counters().connections, b.counters().connections), (1, 1));
    let second = connected(&a, &b);
    let _ = second.send(1, 3, &[]).unwrap();
    until(&[&a, &b], || at_b.borrow().len() == 2);
    assert_eq!((a.counters().connections, b.counters().connections), (2, 2));
}

#[test]
fn a_worker_sleeps_while_a_connection_forms() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    // Worker `b` makes no progress, so the only events are the timeouts for retransmissions by `a`.
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    let _ = to_b.send(1, 0, b"queued").unwrap();
    let slept = (0..500).any(|_| {
        let before = Instant::now();
        let _ = a.wait(Some(Duration::from_secs(1))).unwrap();
        before.elapsed() >= Duration::from_millis(30)
    });
    assert!(slept);
    let seen = heard(&b, 1);
    until(&[&a, &b], || *seen.borrow() == [0]);
}

#[test]
fn posted_operations_end_when_peer_goes() {
    let Some(folder) = providers() else { return };
    for passive in [false, true] {
        let here = open(&folder);
        let there = over_tcp(&folder).progress_thread(passive).open().unwrap();
        let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
        let to_b = connected(&a, &b);
        let target = there.register(vec![3u8; 1 << 20]).unwrap();
        let local = here.register(vec![0u8; 1 << 20]).unwrap();
        let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
        let put = to_b.put_bytes(b"first", &key, 0).unwrap();
        let _ = finish(&[&a, &b], put).unwrap();
        let message = to_b.send(1, 0, b"a message").unwrap();
        let _ = finish(&[&a, &b], message).unwrap();
        let mut posted = Vec::new();
        for i in 0..20 {
            posted.push(to_b.put(&local, 0..1 << 20, &key, 0).unwrap());
            posted.push(to_b.get(&local, 0..1 << 20, &key, 0).unwrap());
            posted.push(to_b.fetch_add(&key, 8 * i, 1).unwrap());
            posted.push(to_b.flush().unwrap());
            to_b.fence().unwrap();
        }
        posted.push(to_b.flush_messages().unwrap());
        drop((b, target, there));
        drop(local);
        for outcome in posted {
            let _ = finish(&[&a], outcome);
        }
        until(&[&a], || to_b.error().is_some());
        assert!(to_b.flush().is_err() && to_b.send(1, 0, &[]).is_err());
        assert_eq!(a.pending(), 0);
    }
}

#[test]
fn worker_writes_to_itself_and_next_endpoint_reuses_connection() {
    let Some(folder) = providers() else { return };
    let context = open(&folder);
    let worker = context.worker().unwrap();
    let seen = heard(&worker, 1);
    let mut connections = Vec::new();
    for round in 0..4u64 {
        let me = connected(&worker, &worker);
        for i in 0..10 {
            let _ = me.send(1, 10 * round + i, b"to myself").unwrap();
        }
        until(&[&worker], || seen.borrow().len() as u64 == 10 * (round + 1));
        let memory = worker.memory();
        let tcp = memory.iter().find(|m| m.path.starts_with("tcp/"));
        connections.push(tcp.expect("the transport is tcp").peers);
        if round == 0 {
            memory_operations(&worker, &[], &context, &context, &me);
        }
    }
    assert!(seen.borrow().iter().copied().eq(0..40));
    // A connection that carried answers may stay; the number of such connections does not grow.
    assert_eq!(connections[1], connections[3]);
}

#[test]
fn an_endpoint_that_is_dropped_leaves_its_connection_to_the_next_one() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let seen = heard(&b, 1);
    for i in 0..50 {
        // The endpoint is dropped while its message is in flight.
        let _ = connected(&a, &b).send(1, i, b"one of many").unwrap();
        until(&[&a, &b], || seen.borrow().len() as u64 == i + 1);
    }
    assert!(seen.borrow().iter().copied().eq(0..50));
    assert_eq!(a.counters().connections, 1);
}

/// The connections of a leaving peer end one after the other.
#[test]
fn leaving_of_peer_with_two_endpoints_is_no_failure_of_either() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let (left, failed) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    let (one_left, one_failed) = (left.clone(), failed.clone());
    a.on_peer_left(move |_| one_left.set(one_left.get() + 1));
    a.on_endpoint_failure(move |_, error| one_failed.borrow_mut().push(error.to_string()));
    let seen = heard(&b, 1);
    let (first, second) = (connected(&a, &b), connected(&a, &b));
    let _ = first.send(1, 0, b"").unwrap();
    let _ = second.send(1, 1, b"").unwrap();
    until(&[&a, &b], || seen.borrow().len() == 2);
    assert_eq!(a.counters().connections, 2, "each endpoint has a connection");
    drop(b);
    until(&[&a], || left.get() == 1);
    for endpoint in [&first, &second] {
        assert_eq!(endpoint.error().expect("the peer has left").status(), Status::Closed);
    }
    let _ = a.wait_until(|| false, Some(Duration::from_millis(20))).unwrap();
    assert_eq!((left.get(), failed.take()), (1, Vec::<String>::new()));
}

#[test]
fn a_worker_dropped_while_connections_form_ends_what_was_queued() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let endpoints: Vec<Endpoint> = (0..8).map(|_| connected(&a, &b)).collect();
    for endpoint in &endpoints {
        let _ = endpoint.send(1, 0, b"never").unwrap();
    }
    let _ = (a.progress(), b.progress());
    drop(a);
    for endpoint in &endpoints {
        assert_eq!(endpoint.error().unwrap().status(), Status::Closed);
    }
    drop(endpoints);
    // The server answers a new worker.
    let again = here.worker().unwrap();
    let seen = heard(&b, 1);
    let _ = connected(&again, &b).send(1, 5, b"").unwrap();
    until(&[&again, &b], || *seen.borrow() == [5]);
}

#[test]
fn clients_come_and_go_and_the_server_keeps_no_connection_of_theirs() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let server = there.worker().unwrap();
    let peers = || {
        let memory = server.memory();
        memory.iter().find(|m| m.path.starts_with("tcp/")).expect("the transport is tcp").peers
    };
    for _ in 0..20 {
        let client = here.worker().unwrap();
        let to_server = connected(&client, &server);
        // The server sends the answer over an endpoint of its own.
        let asked = to_server.flush_messages().unwrap();
        let _ = finish(&[&client, &server], asked).unwrap();
        assert!(peers() >= 1, "the client that is there is counted");
        drop((to_server, client));
        until(&[&server], || peers() == 0);
    }
}

#[test]
fn a_service_answers_over_tcp_and_its_calls_end_with_the_server() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (client, server) = (here.worker().unwrap(), there.worker().unwrap());
    let kept = Rc::new(RefCell::new(None));
    let keep = kept.clone();
    server
        .listen("store", 4, move |request| {
            if request.private() == b"now" {
                let _ = request.accept(b"yes").unwrap();
            } else {
                *keep.borrow_mut() = Some(request);
            }
        })
        .unwrap();
    let address = server.address().unwrap();
    let call = client.connect_to_service(&address, "store", b"now").unwrap();
    until(&[&client, &server], || call.test().is_some());
    let answer = call.test().unwrap().unwrap();
    assert_eq!(answer, ServiceAnswer::Accepted(b"yes".to_vec()));
    let call = client.connect_to_service(&address, "store", b"later").unwrap();
    until(&[&client, &server], || kept.borrow().is_some());
    drop(server);
    until(&[&client], || call.test().is_some());
    assert!(call.test().unwrap().is_err());
    drop(kept);
}

type Mail = Rc<RefCell<VecDeque<(u8, Vec<u8>)>>>;

#[test]
fn the_application_carries_the_datagrams_that_form_a_connection() {
    let Some(folder) = providers() else { return };
    let by_hand = || {
        let builder = over_tcp(&folder).set("TIELINE_CONNECT", "oob");
        builder.out_of_band(true).open().unwrap()
    };
    let (here, there) = (by_hand(), by_hand());
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let mail: Mail = Rc::default();
    let lost = Rc::new(Cell::new(0));
    // A longer name would be truncated in the connection request, and could not be answered.
    let long = a.set_out_of_band(&[0; 4097], |_, _| true).unwrap_err();
    assert_eq!(long.status(), Status::TooLarge);
    assert!(long.why().contains("4097") && !long.fix().is_empty(), "{long}");
    a.set_out_of_band(&[0; 4096], |_, _| true).unwrap();
    assert!(a.address().is_ok());
    for (worker, name) in [(&a, 0u8), (&b, 1)] {
        let (post, lost) = (mail.clone(), lost.clone());
        let send = move |to: &[u8], datagram: &[u8]| {
            // The first two datagrams are lost.
            if lost.replace(lost.get() + 1) >= 2 {
                post.borrow_mut().push_back((to[0], datagram.to_vec()));
            }
            true
        };
        worker.set_out_of_band(&[name], send).unwrap();
    }
    let seen = heard(&b, 1);
    let to_b = connected(&a, &b);
    for i in 0..10 {
        let _ = to_b.send(1, i, b"").unwrap();
    }
    while seen.borrow().len() < 10 {
        let next = mail.borrow_mut().pop_front();
        if let Some((to, datagram)) = next {
            [&a, &b][usize::from(to)].deliver_out_of_band(&datagram).unwrap();
        }
        let _ = (a.progress(), b.progress());
    }
    assert!(seen.borrow().iter().copied().eq(0..10));
    assert!(a.counters().wireup_retransmissions > 0);
    assert_eq!(a.deliver_out_of_band(b"noise").unwrap_err().status(), Status::BadData);
    memory_operations(&a, &[&b], &here, &there, &to_b);
}

/// The kinds of wire-up messages that carry the address of an endpoint, each with the distance of that address from the message's
/// end.
const REQUEST: (u8, usize) = (1, 0);
const REPLY: (u8, usize) = (2, 8);

#[test]
fn an_endpoint_that_a_module_does_not_connect_to_ends_what_waits_for_it() {
    let Some(folder) = providers() else { return };
    for (kind, behind) in [REQUEST, REPLY] {
        let by_hand = || {
            let builder = over_tcp(&folder).set("TIELINE_CONNECT", "oob");
            builder.out_of_band(true).open().unwrap()
        };
        let (here, there) = (by_hand(), by_hand());
        let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
        let mail: Mail = Rc::default();
        for (worker, name) in [(&a, 0u8), (&b, 1)] {
            let post = mail.clone();
            let send = move |to: &[u8], datagram: &[u8]| {
                let mut datagram = datagram.to_vec();
                if datagram[3] == kind {
                    // The last byte of a tcp address has one of two values.
                    let last = datagram.len() - behind - 1;
                    assert!(datagram[last] <= 1);
                    datagram[last] = 9;
                }
                post.borrow_mut().push_back((to[0], datagram));
                true
            };
            worker.set_out_of_band(&[name], send).unwrap();
        }
        let to_b = connected(&a, &b);
        let Outcome::Pending(sent) = to_b.send(1, 0, b"").unwrap() else { panic!("no connection") };
        let wait = Wait::new("the end of a message over a connection that cannot be");
        let ended = loop {
            if let Some(result) = a.test(&sent) {
                break result;
            }
            wait.goes_on();
            let next = mail.borrow_mut().pop_front();
            if let Some((to, datagram)) = next {
                [&a, &b][usize::from(to)].deliver_out_of_band(&datagram).unwrap();
            }
            let _ = (a.progress(), b.progress());
        };
        let error = ended.expect_err("nobody is connected");
        assert!(!error.why().is_empty());
        assert_eq!((a.counters().connections, b.counters().connections), (0, 0), "{error}");
    }
}
