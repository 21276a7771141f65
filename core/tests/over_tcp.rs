//! Two workers of one process that reach each other over TCP alone, as two hosts would.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tieline::{
    AtomicOp, Completion, Context, ContextBuilder, Outcome, ServiceAnswer, Status, Width,
};
use tieline::{Endpoint, Worker};
use tieline_testing::{Wait, built};

const LOOPBACK: &str = "127.0.0.0/8";

/// Where the provider files are, or why there is no test.
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

/// Waits for an operation of the first worker while all of them make progress.
#[track_caller]
fn finish(workers: &[&Worker], outcome: Outcome) -> Result<u64, tieline::Error> {
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
fn retried<T>(workers: &[&Worker], mut post: impl FnMut() -> Result<T, tieline::Error>) -> T {
    let wait = Wait::new("room for one more operation");
    loop {
        wait.goes_on();
        match post() {
            Err(error) if error.status() == Status::Again => {
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
fn both_sides_at_once_make_one_connection_and_two_endpoints_to_one_peer_make_two() {
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

fn memory_operations(
    a: &Worker,
    others: &[&Worker],
    here: &Context,
    there: &Context,
    to: &Endpoint,
) {
    let mut all = vec![a];
    all.extend(others);
    let target = there.register(vec![0u8; 300_000]).unwrap();
    let local = here.register((0..300_000).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
    let landing = here.register(vec![0u8; 300_000]).unwrap();
    let key = to.import_key(&target.remote_key().unwrap()).unwrap();
    let run = |outcome: Outcome| finish(&all, outcome).unwrap();
    for _ in 0..3 {
        let _ = run(to.put(&local, 0..300_000, &key, 0).unwrap());
        assert_eq!(target.to_vec(0..300_000).unwrap(), local.to_vec(0..300_000).unwrap());
        let _ = run(to.get(&landing, 100..250_000, &key, 100).unwrap());
        assert_eq!(landing.to_vec(100..250_000).unwrap(), local.to_vec(100..250_000).unwrap());
        let _ = run(to.put_bytes(&5u64.to_le_bytes(), &key, 64).unwrap());
        assert_eq!(run(to.fetch_add(&key, 64, 10).unwrap()), 5);
        let _ = run(to.atomic(AtomicOp::Xor, Width::Bits64, &key, 64, 1).unwrap());
        let _ = run(to.flush().unwrap());
        assert_eq!(run(to.compare_swap(Width::Bits64, &key, 64, 14, 3).unwrap()), 14);
        landing.write(100, &[0; 1000]).unwrap();
    }
    // A flush covers what still waits for room, and a fence holds back what comes after.
    local.write(0, &[7u8; 300_000]).unwrap();
    for _ in 0..40 {
        let _ = to.put_with(&local, 0..300_000, &key, 0, Completion::Local).unwrap();
    }
    let _ = run(to.flush().unwrap());
    assert_eq!(target.to_vec(0..300_000).unwrap(), [7u8; 300_000]);
    local.write(0, &[9u8; 300_000]).unwrap();
    for _ in 0..40 {
        let _ = to.put(&local, 8..300_000, &key, 8).unwrap();
    }
    to.fence().unwrap();
    let last = to.put_bytes(&[1], &key, 0).unwrap();
    until(&all, || target.to_vec(0..1).unwrap() == [1]);
    assert_eq!(target.to_vec(8..300_000).unwrap(), vec![9u8; 299_992]);
    let _ = run(last);
    drop(target);
    let gone = to.put_bytes(b"late", &key, 0).and_then(|o| finish(&all, o)).unwrap_err();
    assert_eq!(gone.status(), Status::KeyRejected, "{gone}");
    assert!(to.error().is_none());
}

#[test]
fn bytes_that_lie_anywhere_are_put_by_the_module_and_are_free_at_once() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    let target = there.register(vec![0u8; 200_000]).unwrap();
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    // The way to the peer's memory has to be there first, else the first put goes by messages.
    until(&[&a, &b], || !key.is_settling());
    for len in [1, 8, 5000, 200_000] {
        let mut bytes = vec![len as u8 + 1; len];
        let put = to_b.put_bytes(&bytes, &key, 0).unwrap();
        bytes.fill(0);
        let _ = finish(&[&a, &b], put).unwrap();
        assert_eq!(target.to_vec(0..len).unwrap(), vec![len as u8 + 1; len]);
    }
    assert_eq!(b.counters().emulated, 0);
    let _ = finish(&[&a, &b], to_b.fetch_add(&key, 0, 1).unwrap()).unwrap();
    assert_eq!(b.counters().emulated, 1);
}

#[test]
fn a_put_that_completes_locally_needs_nothing_of_the_peer_and_a_flush_still_covers_it() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    let target = there.register(vec![0u8; 100_000]).unwrap();
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    until(&[&a, &b], || !key.is_settling());
    let first = to_b.put_bytes(&[0], &key, 0).unwrap();
    let _ = finish(&[&a, &b], first).unwrap();
    for len in [8, 8000, 60_000] {
        let local = here.register(vec![len as u8 + 1; len]).unwrap();
        // The peer does not poll.
        let put = to_b.put_with(&local, 0..len, &key, 0, Completion::Local).unwrap();
        assert_eq!(finish(&[&a], put), Ok(0));
        local.write(0, &vec![0; len]).unwrap();
        let flush = to_b.flush().unwrap();
        assert!(!flush.is_done(), "the peer has not seen it");
        let _ = finish(&[&a, &b], flush).unwrap();
        assert_eq!(target.to_vec(0..len).unwrap(), vec![len as u8 + 1; len]);
    }
    let local = here.register(vec![7; 8]).unwrap();
    drop(target);
    let put = to_b.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
    assert_eq!(finish(&[&a], put), Ok(0));
    // Whether the refusal has come already or not: the next flush tells it.
    let mark = to_b.flush_messages().unwrap();
    let _ = finish(&[&a, &b], mark).unwrap();
    let refused = to_b.flush().and_then(|flush| finish(&[&a, &b], flush)).unwrap_err();
    assert_eq!(refused.status(), Status::KeyRejected);
    let _ = finish(&[&a, &b], to_b.flush().unwrap()).unwrap();
    assert!(to_b.error().is_none());
}

#[test]
fn transfers_posted_before_the_connection_stands_wait_for_it_and_are_not_emulated() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let target = there.register((0..40_000).map(|i| (i % 7) as u8).collect::<Vec<_>>()).unwrap();
    let local = here.register(vec![9u8; 30_000]).unwrap();
    let landing = here.register(vec![0u8; 1000]).unwrap();
    let to_b = connected(&a, &b);
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    let put = to_b.put(&local, 0..30_000, &key, 0).unwrap();
    let bytes = to_b.put_bytes(&[8; 100], &key, 30_000).unwrap();
    let get = to_b.get(&landing, 0..1000, &key, 39_000).unwrap();
    assert_eq!(a.counters().connections, 0, "all were posted before it stands");
    for outcome in [put, bytes, get] {
        let _ = finish(&[&a, &b], outcome).unwrap();
    }
    assert_eq!(target.to_vec(0..30_100).unwrap(), [vec![9; 30_000], vec![8; 100]].concat());
    assert_eq!(landing.to_vec(0..1000).unwrap(), target.to_vec(39_000..40_000).unwrap());
    assert_eq!(b.counters().emulated, 0);
}

#[test]
fn a_transfer_that_waits_for_a_connection_ends_with_it_when_it_does_not_come_about() {
    let Some(folder) = providers() else { return };
    let here = over_tcp(&folder).set("TIELINE_CONNECT_TIMEOUT", "300ms").open().unwrap();
    let there = open(&folder);
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let target = there.alloc(64).unwrap();
    let local = here.alloc(64).unwrap();
    let to_b = connected(&a, &b);
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    let put = to_b.put(&local, 0..64, &key, 0).unwrap();
    // The target makes no progress.
    let error = a.finish(put).unwrap_err();
    assert_eq!(error.status(), Status::TimedOut, "{error}");
    assert!(to_b.error().is_some());
}

#[test]
fn put_get_atomics_flush_and_fence() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    memory_operations(&a, &[&b], &here, &there, &to_b);
    assert_eq!(a.pending(), 0);
}

#[test]
fn a_progress_thread_serves_put_get_and_atomics_while_the_target_computes() {
    let Some(folder) = providers() else { return };
    let here = open(&folder);
    let there = over_tcp(&folder).progress_thread(true).open().unwrap();
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    // Nobody calls anything of `b` from here on.
    memory_operations(&a, &[], &here, &there, &to_b);
    assert_eq!(a.pending(), 0);
}

#[test]
fn peers_that_fence_at_once_do_not_wait_for_each_other() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let (at_a, at_b) =
        (here.register(vec![0u8; 64]).unwrap(), there.register(vec![0u8; 64]).unwrap());
    let (to_b, to_a) = (connected(&a, &b), connected(&b, &a));
    let key_b = to_b.import_key(&at_b.remote_key().unwrap()).unwrap();
    let key_a = to_a.import_key(&at_a.remote_key().unwrap()).unwrap();
    for i in 1..=100u64 {
        for (to, key) in [(&to_b, &key_b), (&to_a, &key_a)] {
            let _ = to.put_bytes(&i.to_le_bytes(), key, 0).unwrap();
            to.fence().unwrap();
            let _ = to.put_bytes(&i.to_le_bytes(), key, 8).unwrap();
        }
    }
    let last = 100u64.to_le_bytes();
    let arrived = || [&at_a, &at_b].iter().all(|at| at.to_vec(8..16).unwrap() == last);
    until(&[&a, &b], arrived);
}

#[test]
fn a_worker_sleeps_while_a_connection_forms() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    // `b` makes no progress: nothing comes but the times at which `a` asks again.
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
fn gets_in_flight_outlive_their_endpoint_and_their_memory() {
    let Some(folder) = providers() else { return };
    let here = open(&folder);
    for passive in [false, true] {
        let there = over_tcp(&folder).progress_thread(passive).open().unwrap();
        let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
        let target = there.register(vec![3u8; 4 << 20]).unwrap();
        let others: &[&Worker] = if passive { &[&a] } else { &[&a, &b] };
        for _ in 0..3 {
            let landing = here.register(vec![0u8; 4 << 20]).unwrap();
            let to_b = connected(&a, &b);
            let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
            while key.is_settling() {
                for worker in others {
                    let _ = worker.progress();
                }
            }
            let get = to_b.get(&landing, 0..4 << 20, &key, 0).unwrap();
            drop((to_b, key));
            drop(landing);
            // It was given up with its endpoint, or the connection that stays has brought it.
            if let Err(error) = finish(others, get) {
                assert_eq!(error.status(), Status::Canceled, "{error}");
            }
        }
        assert_eq!(a.pending(), 0);
    }
}

#[test]
fn what_is_posted_ends_when_the_peer_goes() {
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
fn a_worker_writes_to_itself_and_the_next_endpoint_takes_over_the_connection() {
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
        connections.push(memory.iter().find(|m| m.path.starts_with("tcp/")).map(|m| m.peers));
        if round == 0 {
            memory_operations(&worker, &[], &context, &context, &me);
        }
    }
    assert!(seen.borrow().iter().copied().eq(0..40));
    // One that answers went through may stay; it does not become more.
    assert_eq!(connections[1], connections[3]);
}

#[test]
fn an_endpoint_that_is_dropped_leaves_its_connection_to_the_next_one() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let seen = heard(&b, 1);
    for i in 0..50 {
        // Dropped with its message on the way.
        let _ = connected(&a, &b).send(1, i, b"one of many").unwrap();
        until(&[&a, &b], || seen.borrow().len() as u64 == i + 1);
    }
    assert!(seen.borrow().iter().copied().eq(0..50));
    assert_eq!(a.counters().connections, 1);
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
    // Whoever comes next is served.
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
        memory.iter().find(|m| m.path.starts_with("tcp/")).map_or(0, |m| m.peers)
    };
    for _ in 0..20 {
        let client = here.worker().unwrap();
        let to_server = connected(&client, &server);
        // The answer goes through an endpoint of the server's own.
        let asked = to_server.flush_messages().unwrap();
        let _ = finish(&[&client, &server], asked).unwrap();
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
    for (worker, name) in [(&a, 0u8), (&b, 1)] {
        let (post, lost) = (mail.clone(), lost.clone());
        let send = move |to: &[u8], datagram: &[u8]| {
            // The first ones are lost.
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

/// The kinds of the wire-up's messages that bring the address of an endpoint, and how far from their end it ends.
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
                    // The last byte of an address of tcp's says one of two things.
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
