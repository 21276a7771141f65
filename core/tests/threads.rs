//! Tests of workers and several threads: moved between them, behind a lock, woken and given tasks by other threads.

#![allow(unsafe_code)] // for `Movable::new`, whose conditions the tests meet

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline::{Context, Endpoint, Movable, Outcome, PostError, Status, WaitSet, Worker};
use tieline_testing::built;

fn context() -> Context {
    Context::open().unwrap()
}

const TCP: [(&str, &str); 2] =
    [("TIELINE_PROVIDERS", "tcp,tcp-connect"), ("TIELINE_TCP_INTERFACES", "127.0.0.0/8")];

/// Returns contexts with one transport each.
fn contexts() -> Vec<Context> {
    let over_files = |what: &str, folder: Result<PathBuf, String>, settings: &[(&str, &str)]| {
        let folder =
            folder.inspect_err(|reason| println!("skipped: over {what}: {reason}")).ok()?;
        let context = Context::builder().set("TIELINE_PROVIDER_PATH", folder.to_str().unwrap());
        let set = settings.iter().fold(context, |context, (name, value)| context.set(name, value));
        Some(set.open().unwrap())
    };
    let ofi = [
        ("TIELINE_PROVIDERS", "ofi"),
        ("TIELINE_OFI_PROVIDERS", "tcp"),
        ("TIELINE_OFI_INTERFACES", "lo"),
    ];
    let shm = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
    let mut contexts = vec![shm];
    contexts.extend(over_files("tcp", built::folder(&built::TCP), &TCP));
    contexts.extend(over_files("libfabric", built::libfabric(), &ofi));
    contexts
}

/// A worker, its endpoint to a peer, and the received messages.
struct State {
    worker: Worker,
    there: Endpoint,
    seen: Rc<RefCell<Vec<u64>>>,
}

/// Makes a worker with an endpoint to a peer, and a log of the received messages.
fn movable(context: &Context, peer: &[u8]) -> Movable<State> {
    let worker = context.worker().unwrap();
    worker.check_movable().unwrap();
    let there = worker.connect(peer).unwrap();
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let log = seen.clone();
    worker.on_message(1, move |m| log.borrow_mut().push(m.header())).unwrap();
    // SAFETY: the value contains the worker's endpoint and the list that its handler uses, and the tests take nothing out.
    unsafe { Movable::new(State { worker, there, seen }) }
}

fn progress(worker: &Worker, times: usize) {
    for _ in 0..times {
        let _ = worker.progress();
    }
}

/// Sends until the endpoint accepts the message; the peer's thread receives meanwhile.
fn send(worker: &Worker, there: &Endpoint, header: u64) {
    loop {
        match there.send(1, header, &header.to_le_bytes()) {
            Ok(_) => return,
            Err(PostError::Retry(_)) => progress(worker, 1),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a peer's thread. The thread sends `count` messages and receives until it has `answers` messages.
fn peer(
    context: &Context,
    count: u64,
    answers: u64,
) -> (Vec<u8>, std::sync::mpsc::Sender<Vec<u8>>, std::thread::JoinHandle<()>) {
    let (told, address) = channel();
    let (give, theirs) = channel::<Vec<u8>>();
    let context = context.clone();
    let thread = std::thread::spawn(move || {
        let worker = context.worker().unwrap();
        told.send(worker.address().unwrap()).unwrap();
        let got = Rc::new(Cell::new(0));
        let note = got.clone();
        worker.on_message(1, move |_| note.set(note.get() + 1)).unwrap();
        let there = worker.connect(&theirs.recv().unwrap()).unwrap();
        for header in 0..count {
            send(&worker, &there, header);
            if header % 64 == 0 {
                let _ = worker.progress();
            }
        }
        assert!(worker.wait_until(|| got.get() >= answers, None).unwrap());
        worker.flush().unwrap();
    });
    (address.recv().unwrap(), give, thread)
}

#[test]
fn worker_moves_between_threads_without_losing_messages() {
    contexts().iter().for_each(handed_round);
}

fn handed_round(context: &Context) {
    const COUNT: u64 = 20_000;
    const HANDS: usize = 4;
    const ANSWERS: u64 = 200;
    let (address, give, sends) = peer(context, COUNT, ANSWERS);
    let state = movable(context, &address);
    give.send(state.worker.address().unwrap()).unwrap();
    // In a ring of threads, each takes the worker, makes progress, and passes the worker on.
    let (mut ways, mut takes) = (Vec::new(), Vec::new());
    for _ in 0..HANDS {
        let (way, take) = channel::<(Movable<State>, u64)>();
        ways.push(way);
        takes.push(take);
    }
    let (done, last) = channel();
    ways[0].send((state, 0)).unwrap();
    let threads: Vec<_> = (0..HANDS)
        .zip(takes)
        .map(|(number, take)| {
            let (next, done) = (ways[(number + 1) % HANDS].clone(), done.clone());
            std::thread::spawn(move || {
                while let Ok((state, turn)) = take.recv() {
                    if turn < ANSWERS {
                        send(&state.worker, &state.there, turn);
                    }
                    // The thread alternately polls once, polls several times, and sleeps.
                    match turn % 3 {
                        0 => progress(&state.worker, 1),
                        1 => progress(&state.worker, 10),
                        _ => drop(state.worker.wait(Some(Duration::from_micros(50))).unwrap()),
                    }
                    let all = state.seen.borrow().len() as u64 == COUNT && turn >= ANSWERS;
                    let refused = match all {
                        true => done.send(state).is_err(),
                        false => next.send((state, turn + 1)).is_err(),
                    };
                    if all || refused {
                        return;
                    }
                }
            })
        })
        .collect();
    drop((ways, done));
    let state = last.recv().unwrap();
    assert!(state.seen.borrow().iter().copied().eq(0..COUNT), "in order, each once");
    let state = state.into_inner();
    state.worker.flush().unwrap();
    sends.join().unwrap();
    drop(state);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn threads_that_share_a_worker_by_a_lock_send_and_receive_through_it() {
    contexts().iter().for_each(shared_by_a_lock);
}

fn shared_by_a_lock(context: &Context) {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let (address, give, peer) = peer(context, THREADS * EACH, THREADS * EACH);
    let state = movable(context, &address);
    give.send(state.worker.address().unwrap()).unwrap();
    let (state, sent) = (Mutex::new(state), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            let _ = threads.spawn(|| {
                for _ in 0..EACH {
                    let state = state.lock().unwrap();
                    let header = sent.fetch_add(1, Ordering::Relaxed);
                    send(&state.worker, &state.there, header);
                    let _ = state.worker.progress();
                }
                loop {
                    let state = state.lock().unwrap();
                    if state.seen.borrow().len() as u64 == THREADS * EACH {
                        return;
                    }
                    let _ = state.worker.progress();
                }
            });
        }
    });
    let state = state.into_inner().unwrap();
    // This worker's progress sends the messages that the transport has not accepted.
    state.worker.flush().unwrap();
    peer.join().unwrap();
    assert!(state.seen.borrow().iter().copied().eq(0..THREADS * EACH));
}

#[test]
fn peer_is_notified_when_other_thread_drops_worker() {
    for context in contexts() {
        let here = context.worker().unwrap();
        let (left, seen) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (note, came) = (left.clone(), seen.clone());
        here.on_peer_left(move |_| note.set(true));
        here.on_message(1, move |_| came.set(true)).unwrap();
        let state = movable(&context, &here.address().unwrap());
        send(&state.worker, &state.there, 7);
        // The pending operations of a dropped worker may be lost.
        while !seen.get() {
            progress(&state.worker, 1);
            progress(&here, 1);
        }
        std::thread::spawn(move || drop(state)).join().unwrap();
        assert!(here.wait_until(|| left.get(), None).unwrap());
    }
}

#[test]
fn operations_that_one_thread_posts_another_one_finishes() {
    let context = context();
    let memory = context.alloc(4096).unwrap();
    let here = context.worker().unwrap();
    let there = here.connect(&here.address().unwrap()).unwrap();
    let key = there.import_key(&memory.remote_key().unwrap()).unwrap();
    here.check_movable().unwrap();
    let put = there.put_bytes(b"posted here", &key, 0).unwrap();
    let flushed = there.flush_messages().unwrap();
    // SAFETY: the value contains all objects of the worker.
    let state = unsafe { Movable::new((here, there, key, put, flushed)) };
    let back = std::thread::spawn(move || {
        let (worker, there, key, put, flushed) = state.into_inner();
        let _ = worker.finish(put).unwrap();
        let _ = worker.finish(flushed).unwrap();
        let added = there.fetch_add(&key, 64, 5).unwrap();
        // SAFETY: the value again contains all objects of the worker.
        unsafe { Movable::new((worker, there, key, added)) }
    });
    let (worker, _there, _key, added) = back.join().unwrap().into_inner();
    assert_eq!(worker.finish(added), Ok(0));
    assert_eq!(memory.to_vec(0..11).unwrap(), b"posted here");
    assert_eq!(memory.atomic_u64(64).unwrap().load(Ordering::Acquire), 5);
}

#[test]
fn a_wake_up_ends_a_wait_at_whatever_point_it_comes() {
    let context = context();
    let worker = context.worker().unwrap();
    let waker = worker.waker().unwrap();
    let turn = Arc::new(AtomicU64::new(0));
    let (theirs, mut spins) = (turn.clone(), 0u32);
    const TURNS: u64 = 2_000;
    let wakes = std::thread::spawn(move || {
        for number in 1..=TURNS {
            while theirs.load(Ordering::Acquire) != 2 * number - 1 {
                std::thread::yield_now();
            }
            // The other thread may be at any point between its poll and its sleep.
            spins = (spins * 5 + 1) % 4096;
            (0..spins).for_each(|_| std::hint::spin_loop());
            theirs.store(2 * number, Ordering::Release);
            waker.wake();
        }
    });
    for number in 1..=TURNS {
        turn.store(2 * number - 1, Ordering::Release);
        while turn.load(Ordering::Acquire) != 2 * number {
            let _ = worker.wait(None).unwrap();
        }
    }
    wakes.join().unwrap();
}

#[test]
fn early_wake_up_ends_next_wait_despite_waits_in_between() {
    let context = context();
    let worker = context.worker().unwrap();
    worker.on_message(1, |_| {}).unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let waker = worker.waker().unwrap();
    let quiet = || {
        while worker.wait(Some(Duration::ZERO)).unwrap().has_moved() {}
    };
    quiet();
    waker.wake();
    waker.wake();
    assert!(worker.wait(None).unwrap().has_moved());
    assert!(!worker.wait(Some(Duration::from_millis(1))).unwrap().has_moved(), "both count as one");
    // Waits for an operation, or for a condition, ignore the wake-up.
    waker.wake();
    let flushed = me.flush_messages().unwrap();
    let _ = worker.finish(flushed).unwrap();
    assert!(!worker.wait_until(|| false, Some(Duration::from_millis(3))).unwrap());
    assert!(worker.wait(None).unwrap().has_moved());
    quiet();
    waker.wake();
    assert!(!worker.arm().unwrap());
    assert!(worker.arm().unwrap(), "it said so");
    drop(worker);
    waker.clone().wake();
}

#[test]
fn a_wake_up_makes_a_wait_look_at_its_condition_anew() {
    let context = context();
    let worker = context.worker().unwrap();
    let waker = worker.waker().unwrap();
    let (set, looked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (theirs, seen) = (set.clone(), looked.clone());
    let other = std::thread::spawn(move || {
        while !seen.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        theirs.store(true, Ordering::Release);
        waker.wake();
    });
    let condition = || {
        looked.store(true, Ordering::Release);
        set.load(Ordering::Acquire)
    };
    assert!(worker.wait_until(condition, None).unwrap());
    other.join().unwrap();
}

#[test]
fn worker_thread_runs_tasks_of_others_in_order() {
    const THREADS: u64 = 3;
    const EACH: u64 = 2_000;
    let context = context();
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let log = seen.clone();
    worker.on_message(1, move |m| log.borrow_mut().push(m.header())).unwrap();
    let state = (me, Cell::new(0u64));
    let remote = worker.remote(16, state).unwrap();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let remote = remote.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    let header = thread * EACH + number;
                    let mut task = move |worker: &Worker, (me, count): &(Endpoint, Cell<u64>)| {
                        assert_eq!(worker.progress(), 0, "it runs inside of progress");
                        assert_eq!(worker.wait(None).unwrap_err().status(), Status::Busy);
                        count.set(count.get() + 1);
                        drop(me.send(1, header, b"").unwrap());
                    };
                    while let Err(not) = remote.run(task) {
                        assert!(matches!(not.error, PostError::Retry(_)), "{not:?}");
                        task = not.task;
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    // The worker alternately sleeps and spins.
    while (seen.borrow().len() as u64) < THREADS * EACH {
        let _ = worker.wait(None).unwrap();
        progress(&worker, 200);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for thread in 0..THREADS {
        let of_it = |header: &u64| header / EACH == thread;
        let seen = seen.borrow();
        assert!(
            seen.iter().copied().filter(of_it).eq(thread * EACH..(thread + 1) * EACH),
            "each thread's own order"
        );
    }
}

#[test]
fn a_worker_that_only_spins_finds_tasks_too() {
    for (providers, quiet) in [("shm", 10_000), ("shm,shm-cma", 10_000), ("shm", 0)] {
        let context = Context::builder().set("TIELINE_PROVIDERS", providers).open().unwrap();
        let worker = context.worker().unwrap();
        // The task is found even if the worker polls some modules rarely when `remote` is called.
        progress(&worker, 10_000);
        let (remote, done) = (worker.remote(1, ()).unwrap(), Arc::new(AtomicBool::new(false)));
        progress(&worker, quiet);
        let note = done.clone();
        remote.run(move |_, ()| note.store(true, Ordering::Release)).unwrap();
        let refused = remote.run(|_, ()| ()).unwrap_err();
        assert!(matches!(refused.error, PostError::Retry(_)), "one is the most");
        let mut looks = 0;
        while !done.load(Ordering::Acquire) {
            let _ = worker.progress();
            looks += 1;
            assert!(looks <= 64, "it looks every 64th time");
        }
    }
}

#[test]
fn tasks_for_ended_worker_are_returned_and_queued_ones_dropped() {
    let context = context();
    let worker = context.worker().unwrap();
    let (remote, held) = (worker.remote(8, ()).unwrap(), Arc::new(()));
    let theirs = held.clone();
    remote.run(move |_, ()| drop(theirs)).unwrap();
    drop(worker);
    assert_eq!(Arc::strong_count(&held), 1, "it will not be run, and is dropped");
    let theirs = held.clone();
    let not = remote.run(move |_, ()| drop(theirs)).unwrap_err();
    assert_eq!(not.error.status(), Status::Closed);
    assert_eq!(Arc::strong_count(&held), 2, "it is given back");
    drop(not.task);
}

#[test]
fn several_workers_of_one_thread_wait_together_and_each_wakes_all() {
    let context = context();
    let workers: Vec<Worker> = (0..3).map(|_| context.worker().unwrap()).collect();
    let mut set = WaitSet::new().unwrap();
    let seen: Rc<RefCell<Vec<usize>>> = Rc::default();
    for (number, worker) in workers.iter().enumerate() {
        let log = seen.clone();
        worker.on_message(1, move |_| log.borrow_mut().push(number)).unwrap();
        set.add(worker).unwrap();
    }
    let addresses: Vec<Vec<u8>> = workers.iter().map(|w| w.address().unwrap()).collect();
    const ROUNDS: usize = 300;
    let turn = Arc::new(AtomicU64::new(0));
    let (theirs, context) = (turn.clone(), context.clone());
    let sends = std::thread::spawn(move || {
        let worker = context.worker().unwrap();
        let there: Vec<Endpoint> =
            addresses.iter().map(|address| worker.connect(address).unwrap()).collect();
        for round in 0..ROUNDS {
            while theirs.load(Ordering::Acquire) != round as u64 {
                let _ = worker.progress();
                std::thread::yield_now();
            }
            send(&worker, &there[round % 3], 0);
        }
        worker.flush().unwrap();
    });
    for round in 0..ROUNDS {
        while seen.borrow().len() <= round {
            let _ = set.wait(None).unwrap();
        }
        turn.store(round as u64 + 1, Ordering::Release);
    }
    assert!(seen.borrow().iter().copied().eq((0..ROUNDS).map(|round| round % 3)));
    sends.join().unwrap();
    // The set also reports tracked completions that were not taken, and a wake-up.
    let waits = |set: &mut WaitSet| set.wait(Some(Duration::from_millis(1))).unwrap().has_moved();
    while waits(&mut set) {}
    workers[1].track(&Outcome::Done(3), 7).unwrap();
    assert!(waits(&mut set) && waits(&mut set));
    assert_eq!(workers[1].take_completed(4, |user, _| assert_eq!(user, 7)), 1);
    workers[2].waker().unwrap().wake();
    assert!(waits(&mut set) && !waits(&mut set));
}

/// The environment variable by which the test below finds itself to be the process that exits: the folder of the providers for TCP, or
/// nothing for shared memory.
const EXITS: &str = "TIELINE_TEST_EXITS_WHILE_USED";

/// Exits while another thread makes progress, right after this thread has used the same worker. The goodbye takes as long as it may:
/// the peer does not take the last messages.
fn exit_while_used(folder: &str) -> ! {
    let settings = match folder {
        "" => vec![("TIELINE_PROVIDERS", "shm")],
        folder => [&TCP[..], &[("TIELINE_PROVIDER_PATH", folder)]].concat(),
    };
    let context = Context::builder().set("TIELINE_CLOSE_TIMEOUT", "200ms");
    let context = settings.iter().fold(context, |all, (name, to)| all.set(name, to));
    let context = context.open().unwrap();
    let (told, address) = channel();
    let theirs = context.clone();
    let _ = std::thread::spawn(move || {
        let (worker, came) = (theirs.worker().unwrap(), Cell::new(false));
        let came = Rc::new(came);
        let comes = came.clone();
        worker.on_message(1, move |_| comes.set(true)).unwrap();
        told.send(worker.address().unwrap()).unwrap();
        let _ = worker.wait_until(|| came.get(), None).unwrap();
        told.send(Vec::new()).unwrap();
        loop {
            std::thread::park();
        }
    });
    let shared = Arc::new(Mutex::new(movable(&context, &address.recv().unwrap())));
    let state = shared.lock().unwrap();
    send(&state.worker, &state.there, 0);
    state.worker.flush().unwrap();
    assert!(address.recv().unwrap().is_empty(), "the peer has stopped");
    let theirs = shared.clone();
    let _ = std::thread::spawn(move || {
        loop {
            if let Ok(state) = theirs.try_lock() {
                progress(&state.worker, 8);
            }
        }
    });
    send(&state.worker, &state.there, 1);
    // A wait notes the thread that uses the worker.
    let _ = state.worker.wait(Some(Duration::ZERO));
    drop(state);
    std::process::exit(0)
}

#[test]
fn exit_while_another_thread_uses_a_worker_prints_nothing() {
    if let Ok(folder) = std::env::var(EXITS) {
        exit_while_used(&folder);
    }
    let test = "exit_while_another_thread_uses_a_worker_prints_nothing";
    for folder in [Some(PathBuf::new()), built::folder(&built::TCP).ok()].iter().flatten() {
        for _ in 0..2 {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env(EXITS, folder)
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
        }
    }
}
