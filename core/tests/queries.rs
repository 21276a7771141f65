//! Tests of the properties of an endpoint and of a key that a program can query.

use tieline::{Context, Endpoint, EndpointCounters, Outcome, PostError, RemoteKey, Status, Worker};

const ID: u16 = 7;

struct Pair {
    endpoint: Endpoint,
    sender: Worker,
    receiver: Worker,
    here: Context,
    there: Context,
}

fn pair(providers: &str) -> Pair {
    pair_that_serves(providers, "off")
}

/// Makes a pair. `by_thread`: whether a progress thread serves the other side's memory.
fn pair_that_serves(providers: &str, by_thread: &str) -> Pair {
    let builder = || {
        let builder = Context::builder().set("TIELINE_PROVIDERS", providers);
        builder.set("TIELINE_QUEUE_BYTES", "64k")
    };
    let here = builder().open().unwrap();
    let there = builder().set("TIELINE_PROGRESS_THREAD", by_thread).open().unwrap();
    let (sender, receiver) = (here.worker().unwrap(), there.worker().unwrap());
    receiver.on_message(ID, |message| drop(message.rendezvous())).unwrap();
    let endpoint = sender.connect(&receiver.address().unwrap()).unwrap();
    Pair { endpoint, sender, receiver, here, there }
}

impl Pair {
    fn until(&self, done: impl Fn() -> bool) {
        while !done() {
            let _ = (self.sender.progress(), self.receiver.progress());
        }
    }

    fn ends(&self, outcome: Outcome) {
        let Outcome::Pending(request) = outcome else { return };
        while self.sender.test(&request).is_none() {
            let _ = (self.sender.progress(), self.receiver.progress());
        }
    }

    /// Makes a key of memory that its own module allocated, or of other memory.
    fn key(&self, allocated: bool) -> (tieline::Region, RemoteKey) {
        let memory = match allocated {
            true => self.there.alloc(1 << 20).unwrap(),
            false => self.there.register(vec![0; 1 << 20]).unwrap(),
        };
        let key = self.endpoint.import_key(&memory.remote_key().unwrap()).unwrap();
        self.until(|| !key.is_settling());
        (memory, key)
    }
}

#[test]
fn limits_are_those_that_calls_keep() {
    let pair = pair("shm");
    let limits = pair.endpoint.limits().unwrap();
    assert_eq!(limits.max_message, pair.endpoint.max_message().unwrap());
    assert!(0 < limits.max_short && limits.max_short <= limits.max_message);
    assert_eq!(limits.max_queued_bytes, 64 << 10);
    // A message up to the limit is eager, and one above it is a rendezvous message.
    let _ = pair.endpoint.send(ID, 0, &vec![1; limits.max_message]).unwrap();
    assert_eq!(pair.endpoint.counters().announced, 0);
    pair.until(|| pair.sender.pending() == 0);
    let memory = pair.here.register_transient(vec![1; limits.max_message + 1]).unwrap();
    let pieces = [(&memory, 0..limits.max_message + 1)];
    let sent = pair.endpoint.send_regions(ID, 0, &pieces).unwrap();
    assert_eq!(pair.endpoint.counters().announced, 1);
    drop(sent);
    // The limit is the number of operations that may be pending, and the next one is refused.
    let (_memory, key) = pair.key(false);
    pair.until(|| pair.sender.pending() == 0);
    let mut posted = 0;
    let refused = loop {
        match pair.endpoint.fetch_add(&key, 0, 1) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.status() == Status::Again, "{refused}");
    assert_eq!(posted, limits.max_pending);
    let counted = || (pair.endpoint.counters().refused, pair.endpoint.counters().emulated);
    assert_eq!(counted(), (1, posted as u64), "what was refused was asked of nobody");
    assert!(pair.endpoint.fetch_add(&key, 0, 1).is_err());
    assert_eq!(counted(), (2, posted as u64));
}

#[test]
fn operation_served_by_progress_thread_is_counted_once_at_poster() {
    let pair = pair_that_serves("shm", "on");
    pair.receiver.on_notification(|_, _| {}).unwrap();
    let (_memory, key) = pair.key(false);
    assert!(key.path().starts_with("emulated"), "{}", key.path());
    pair.ends(pair.endpoint.put_bytes_notify(&[1; 8], &key, 0, 7).unwrap());
    assert_eq!(pair.endpoint.counters().emulated, 1);
    let mut posted = 1;
    while pair.endpoint.put_bytes(&[1; 3000], &key, 0).is_ok() {
        posted += 1;
    }
    let counters = pair.endpoint.counters();
    assert_eq!((counters.refused, counters.emulated), (1, posted), "{counters:?}");
}

#[test]
fn a_key_says_whether_a_module_reaches_the_memory_and_how_much_at_once() {
    let pair = pair("shm");
    let (_mapped, key) = pair.key(true);
    let limits = key.limits().unwrap();
    assert!(limits.native && limits.max_put > 0 && limits.max_get > 0 && limits.max_pieces > 0);
    let (_other, key) = pair.key(false);
    let limits = key.limits().unwrap();
    assert!(key.path().starts_with("emulated"), "{}", key.path());
    assert_eq!((limits.native, limits.max_put, limits.max_pieces), (false, 0, 0));
    let _ = pair.endpoint.send(ID, 0, b"hello").unwrap();
    let Pair { endpoint, sender, receiver, .. } = pair;
    for _ in 0..10 {
        let _ = (sender.progress(), receiver.progress());
    }
    drop(receiver);
    while endpoint.error().is_none() {
        let _ = (endpoint.send(ID, 0, b"hello"), sender.progress());
    }
    assert!(matches!(key.limits(), Err(PostError::Reconnect(_))));
}

#[test]
fn queued_operations_are_counted_and_shown_in_status() {
    let pair = pair("shm");
    let (_memory, key) = pair.key(false);
    assert_eq!(pair.endpoint.counters().refused, 0);
    let bytes = vec![5; 3000];
    pair.ends(pair.endpoint.put_bytes(&bytes, &key, 0).unwrap());
    assert_eq!(pair.endpoint.counters().emulated, 1);
    // The loop fills the ring, and then the queue.
    while pair.endpoint.send(ID, 0, &bytes).is_ok() {}
    let counters = pair.endpoint.counters();
    assert!(counters.queued > 0 && counters.refused > 0, "{counters:?}");
    let status = pair.endpoint.status();
    assert_eq!((status.state.as_str(), status.message.as_str()), ("queueing", "shm/ring"));
    assert!(status.queued > 0 && status.queued_bytes > 0);
    assert!(status.waits.unwrap().for_what.starts_with("room in shm/ring"));
    assert_eq!(status.counters["queued"], counters.queued);
    let other = pair.sender.connect(&pair.receiver.address().unwrap()).unwrap();
    assert_eq!(other.counters(), EndpointCounters::default(), "each counts its own");
    assert_eq!(pair.endpoint.clone().counters(), counters);
}
