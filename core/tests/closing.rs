//! Tests of the end of a worker, over the available transports of one host: operations that returned `Done` arrive, and so do those
//! that were pending at the close.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;
use tieline::{Context, ContextBuilder, Endpoint, Outcome, Status, Worker};
use tieline_testing::{Wait, built};

/// Returns the available transports by name, and the settings under which each is the only one.
fn transports() -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let mut all = vec![("shm", vec![("TIELINE_PROVIDERS", "shm,shm-cma".to_string())])];
    match built::folder(&built::TCP) {
        Ok(folder) => all.push((
            "tcp",
            vec![
                ("TIELINE_PROVIDER_PATH", folder.to_str().unwrap().to_string()),
                ("TIELINE_PROVIDERS", "tcp,tcp-connect".to_string()),
                ("TIELINE_TCP_INTERFACES", "127.0.0.0/8".to_string()),
            ],
        )),
        Err(reason) => println!("skipped: over tcp: {reason}"),
    }
    all
}

fn builder(settings: &[(&str, String)]) -> ContextBuilder {
    settings.iter().fold(Context::builder(), |builder, (name, value)| builder.set(name, value))
}

/// The next command for the receiving thread.
enum Next {
    /// A command to receive messages until this number has arrived, then to report, and to continue until the next command.
    Take(u64),
    /// A command to do nothing until the next one.
    Rest,
}

/// A thread whose worker receives messages on command and reports them.
struct Receiver {
    address: Vec<u8>,
    next: mpsc::Sender<Next>,
    seen: mpsc::Receiver<Vec<u64>>,
}

fn receiver<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    settings: &'scope [(&'static str, String)],
) -> Receiver {
    let (next, orders) = mpsc::channel();
    let (tell, seen) = mpsc::channel();
    let (told, address) = mpsc::channel();
    let _ = scope.spawn(move || {
        let worker = builder(settings).open().unwrap().worker().unwrap();
        let came = Rc::new(RefCell::new(Vec::new()));
        let log = came.clone();
        worker.on_message(1, move |m| log.borrow_mut().push(m.header())).unwrap();
        told.send(worker.address().unwrap()).unwrap();
        let mut order = orders.recv();
        while let Ok(now) = order {
            let Next::Take(count) = now else {
                order = orders.recv();
                continue;
            };
            let wait = Wait::new("messages of a worker that is gone");
            while (came.borrow().len() as u64) < count {
                wait.goes_on();
                let _ = worker.progress();
            }
            tell.send(came.take()).unwrap();
            order = loop {
                match orders.try_recv() {
                    Ok(next) => break Ok(next),
                    Err(mpsc::TryRecvError::Disconnected) => break Err(mpsc::RecvError),
                    Err(mpsc::TryRecvError::Empty) => {
                        drop(worker.wait(Some(Duration::from_millis(1))))
                    }
                }
            };
        }
    });
    Receiver { address: address.recv().unwrap(), next, seen }
}

impl Receiver {
    fn takes(&self, count: u64) {
        self.next.send(Next::Take(count)).unwrap();
    }
}

/// Makes a worker and its endpoint; both sides have exchanged messages.
fn sender(context: &Context, to: &Receiver) -> (Worker, Endpoint) {
    let worker = context.worker().unwrap();
    let endpoint = worker.connect(&to.address).unwrap();
    to.takes(1);
    let met = endpoint.send(1, u64::MAX, b"hello").unwrap();
    let _ = worker.finish(met).unwrap();
    assert_eq!(to.seen.recv().unwrap(), [u64::MAX]);
    to.next.send(Next::Rest).unwrap();
    (worker, endpoint)
}

/// Returns the bytes of message `n`; all kinds of lengths occur.
fn payload(n: u64, most: usize) -> Vec<u8> {
    let lens = [0, 8, 100, 1000, 5000, most];
    vec![n as u8; lens[n as usize % lens.len()].min(most)]
}

/// Sends as long as the result is `Done`, at most `most` messages; returns the number sent.
fn fill(endpoint: &Endpoint, most: u64) -> u64 {
    let longest = endpoint.max_message().unwrap();
    for n in 0..most {
        match endpoint.send(1, n, &payload(n, longest)) {
            Ok(Outcome::Done(_)) => {}
            Ok(Outcome::Pending(_)) => return n,
            Err(error) if error.status() == Status::Again => return n,
            Err(error) => panic!("{error}"),
        }
    }
    most
}

#[test]
fn done_messages_arrive_although_worker_is_dropped_before_peer_polls() {
    for (name, settings) in &transports() {
        for most in [1, 20, 5000] {
            std::thread::scope(|scope| {
                let receiver = receiver(scope, settings);
                let context = builder(settings).open().unwrap();
                let (worker, endpoint) = sender(&context, &receiver);
                let done = fill(&endpoint, most);
                // From this point on the peer polls.
                receiver.takes(done);
                drop((endpoint, worker));
                let seen = receiver.seen.recv().unwrap();
                assert!(seen.iter().copied().eq(0..done), "over {name}: {done}");
            });
        }
    }
}

/// A time longer than any wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends until a post is refused with `Again`, and returns the number of accepted messages, of which some are pending.
fn overfill(endpoint: &Endpoint) -> u64 {
    let longest = endpoint.max_message().unwrap();
    let mut taken = 0;
    loop {
        match endpoint.send(1, taken, &payload(taken, longest)) {
            Ok(_) => taken += 1,
            Err(error) if error.status() == Status::Again => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_worker_that_is_closed_has_delivered_what_was_pending() {
    for (name, settings) in &transports() {
        std::thread::scope(|scope| {
            let receiver = receiver(scope, settings);
            let context = builder(settings).open().unwrap();
            let (worker, endpoint) = sender(&context, &receiver);
            let taken = overfill(&endpoint);
            assert!(worker.pending() > 0, "over {name}: {taken} messages, and none is pending");
            receiver.takes(taken);
            worker.close(PATIENCE).unwrap();
            let seen = receiver.seen.recv().unwrap();
            assert!(seen.iter().copied().eq(0..taken), "over {name}: {taken}");
            assert_eq!(endpoint.send(1, 0, b"").unwrap_err().status(), Status::Closed);
            assert!(worker.close(Duration::ZERO).is_ok(), "it is closed");
        });
    }
}

#[test]
fn messages_undelivered_at_close_timeout_are_reported() {
    for (name, settings) in &transports() {
        std::thread::scope(|scope| {
            let receiver = receiver(scope, settings);
            let context = builder(settings).open().unwrap();
            let (worker, endpoint) = sender(&context, &receiver);
            let _ = overfill(&endpoint);
            let pending = worker.pending();
            // The receiver gets no command to poll.
            let undelivered = worker.close(Duration::from_millis(20)).unwrap_err();
            assert_eq!(undelivered.error.status(), Status::TimedOut, "{undelivered}");
            let [loss] = &undelivered.losses[..] else { panic!("over {name}: {undelivered}") };
            assert!(loss.to.contains(name), "{loss:?}");
            assert!((1..=pending).contains(&loss.operations), "{loss:?} of {pending}");
            assert_eq!(endpoint.send(1, 0, b"").unwrap_err().status(), Status::Closed);
        });
    }
}

/// The dropped worker waits for a peer that receives nothing, but only up to a time limit.
#[test]
fn a_worker_that_is_dropped_does_not_wait_for_a_peer_that_reads_nothing() {
    for (name, settings) in &transports() {
        std::thread::scope(|scope| {
            let receiver = receiver(scope, settings);
            let context = builder(settings).set("TIELINE_CLOSE_TIMEOUT", "20ms").open().unwrap();
            let (worker, endpoint) = sender(&context, &receiver);
            let taken = overfill(&endpoint);
            assert!(worker.pending() > 0, "over {name}: {taken} messages, and none is pending");
            drop((endpoint, worker));
        });
    }
}

#[test]
fn a_worker_is_not_closed_inside_a_handler() {
    let worker = Rc::new(Context::open().unwrap().worker().unwrap());
    let (seen, closed) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
    let (count, result, this) = (seen.clone(), closed.clone(), Rc::downgrade(&worker));
    worker
        .on_message(1, move |_| {
            count.set(count.get() + 1);
            let worker = this.upgrade().unwrap();
            *result.borrow_mut() = worker.close(PATIENCE).err();
        })
        .unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let wait = Wait::new("two messages to oneself");
    for sent in 1..=2 {
        let _ = me.send(1, 0, b"").unwrap();
        while seen.get() < sent {
            wait.goes_on();
            let _ = worker.progress();
        }
        let refused = closed.take().expect("a handler's close is refused");
        assert_eq!(refused.error.status(), Status::Busy);
    }
    worker.close(PATIENCE).unwrap();
}

#[test]
fn messages_posted_by_handlers_during_close_are_delivered() {
    for (name, settings) in &transports() {
        std::thread::scope(|scope| {
            let receiver = receiver(scope, settings);
            let context = builder(settings).open().unwrap();
            let (worker, endpoint) = sender(&context, &receiver);
            // The worker sends itself a message, whose handler sends to the other worker.
            worker.on_message(2, move |_| drop(endpoint.send(1, 77, b"as well").unwrap())).unwrap();
            let me = worker.connect(&worker.address().unwrap()).unwrap();
            let _ = me.send(2, 0, b"").unwrap();
            receiver.takes(1);
            // The handler may not have run when all other operations are delivered, and closing does not wait for the handlers of
            // received messages.
            let _ = worker.finish(me.flush_messages().unwrap()).unwrap();
            worker.close(PATIENCE).unwrap_or_else(|lost| panic!("over {name}: {lost}"));
            assert_eq!(receiver.seen.recv().unwrap(), [77]);
        });
    }
}
