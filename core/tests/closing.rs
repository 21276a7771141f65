//! The end of a worker, over every transport that there is on one host: what said `Done` arrives.

use std::sync::mpsc;
use tieline::{Context, ContextBuilder, Endpoint, Outcome, Status, Worker};
use tieline_testing::{Wait, built};

/// The transports, by name, and the settings with which nothing else is used.
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

/// What the other thread is told to do next.
enum Next {
    /// Take in messages until so many have come.
    Take(u64),
}

/// A thread whose worker takes in messages when it is told to, and says which came.
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
        let came = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let log = came.clone();
        worker.on_message(1, move |m| log.borrow_mut().push(m.header())).unwrap();
        told.send(worker.address().unwrap()).unwrap();
        while let Ok(Next::Take(count)) = orders.recv() {
            let wait = Wait::new("messages of a worker that is gone");
            while (came.borrow().len() as u64) < count {
                wait.goes_on();
                let _ = worker.progress();
            }
            tell.send(came.take()).unwrap();
        }
    });
    Receiver { address: address.recv().unwrap(), next, seen }
}

impl Receiver {
    fn takes(&self, count: u64) {
        self.next.send(Next::Take(count)).unwrap();
    }
}

/// A worker and its endpoint; both sides have heard of each other.
fn sender(context: &Context, to: &Receiver) -> (Worker, Endpoint) {
    let worker = context.worker().unwrap();
    let endpoint = worker.connect(&to.address).unwrap();
    to.takes(1);
    let met = endpoint.send(1, u64::MAX, b"hello").unwrap();
    let _ = worker.finish(met).unwrap();
    assert_eq!(to.seen.recv().unwrap(), [u64::MAX]);
    (worker, endpoint)
}

/// The bytes of a message: of every length there is.
fn payload(n: u64, most: usize) -> Vec<u8> {
    let lens = [0, 8, 100, 1000, 5000, most];
    vec![n as u8; lens[n as usize % lens.len()].min(most)]
}

/// Sends as long as that is `Done` at once, or up to `most`; how many were.
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
fn what_said_done_arrives_though_its_worker_is_dropped_before_the_peer_looks() {
    for (name, settings) in &transports() {
        for most in [1, 20, 5000] {
            std::thread::scope(|scope| {
                let receiver = receiver(scope, settings);
                let context = builder(settings).open().unwrap();
                let (worker, endpoint) = sender(&context, &receiver);
                let done = fill(&endpoint, most);
                // From here on the peer polls.
                receiver.takes(done);
                drop((endpoint, worker));
                let seen = receiver.seen.recv().unwrap();
                assert!(seen.iter().copied().eq(0..done), "over {name}: {done}");
            });
        }
    }
}
