//! Tests of the state that a program gets from `Context::status` and `Worker::status`.

use std::time::Duration;
use tieline::live::Status;
use tieline::{Context, Endpoint, Worker};

const ID: u16 = 7;

/// Two contexts of one thread that have exchanged messages.
struct Pair {
    endpoint: Endpoint,
    sender: Worker,
    receiver: Worker,
    here: Context,
    _there: Context,
}

fn open() -> Context {
    Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open().unwrap()
}

impl Pair {
    fn new() -> Pair {
        let (here, there) = (open(), open());
        let (sender, receiver) = (here.worker().unwrap(), there.worker().unwrap());
        receiver.on_message(ID, |message| drop(message.rendezvous())).unwrap();
        let endpoint = sender.connect(&receiver.address().unwrap()).unwrap();
        let _ = endpoint.send(ID, 0, b"first").unwrap();
        let mut pair = Pair { endpoint, sender, receiver, here, _there: there };
        pair.settle();
        pair
    }

    fn settle(&mut self) {
        while self.sender.progress() + self.receiver.progress() > 0 || self.sender.pending() > 0 {}
    }

    /// Sends a rendezvous message that waits and is not received.
    fn announce(&self) -> tieline::Region {
        let memory = self.here.register_transient(vec![1; 1 << 20]).unwrap();
        let sent = self.endpoint.send_regions(ID, 0, &[(&memory, 0..1 << 20)]).unwrap();
        assert!(matches!(sent, tieline::Outcome::Pending(_)));
        memory
    }
}

fn waits(status: &Status) -> bool {
    status.workers.iter().flat_map(|worker| &worker.endpoints).any(|e| e.waits.is_some())
}

#[test]
fn among_many_endpoints_the_one_that_waits_comes_first() {
    let pair = Pair::new();
    let address = pair.receiver.address().unwrap();
    let others: Vec<Endpoint> = (0..2000).map(|_| pair.sender.connect(&address).unwrap()).collect();
    let last = &others[1999];
    let memory = pair.here.register_transient(vec![1; 1 << 20]).unwrap();
    let _ = last.send_regions(ID, 0, &[(&memory, 0..1 << 20)]).unwrap();
    last.set_user(77);
    while !waits(&pair.here.status()) {
        let _ = pair.sender.progress();
    }
    let shown = &pair.here.status().workers[0];
    assert_eq!((shown.endpoints[0].user, shown.endpoints[0].open), (77, 1));
    assert_eq!(shown.endpoints.len() + shown.more_endpoints, 2001);
    let whole = pair.sender.status();
    assert_eq!((whole.endpoints.len(), whole.more_endpoints), (2001, 0));
    assert_eq!(whole.endpoints[0].user, 77);
}

#[test]
fn closed_worker_is_not_shown_and_dropped_one_frees_its_place() {
    let pair = Pair::new();
    let memory = pair.announce();
    while !waits(&pair.here.status()) {
        let _ = pair.sender.progress();
    }
    let _ = pair.sender.close(Duration::ZERO);
    assert_eq!(pair.here.status().workers, [], "the worker and its endpoint are still held");
    let second = pair.here.worker().unwrap();
    assert_eq!(pair.here.status().workers.len(), 1);
    drop((second, pair, memory));
}

#[test]
fn live_off_hides_context_but_worker_status_works() {
    let context = Context::builder()
        .set("TIELINE_PROVIDERS", "shm,shm-cma")
        .set("TIELINE_LIVE", "off")
        .open()
        .unwrap();
    let worker = context.worker().unwrap();
    assert_eq!(context.status().workers, []);
    assert_eq!(worker.status().worker.len(), 8);
}
