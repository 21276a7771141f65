//! Tests through the whole core to the device double: short puts and the application's events for them, service over `ud`, and a
//! fork.

use crate::double::world::fault;
use crate::instructions_tests::Half;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tieline::endpoint::Completion;
use tieline::{Endpoint, Error, Outcome, PostError, Region, RemoteKey, Status};
use tieline_testing::holds_in_child;

/// A number of words above an endpoint's limit on open operations.
const WORDS: usize = 10_000;

/// Two connected workers with memory at both ends. The fields are dropped in this order.
struct Pair {
    endpoint: Endpoint,
    key: RemoteKey,
    here: Region,
    there: Region,
    near: Half,
    far: Half,
}

impl Pair {
    fn new() -> Pair {
        let (near, far) = (Half::open(), Half::open());
        let endpoint = near.worker.connect(&far.worker.address().unwrap()).unwrap();
        let (here, there) = (near.context.alloc(8 * WORDS), far.context.alloc(64).unwrap());
        let key = endpoint.import_key(&there.remote_key().unwrap()).unwrap();
        let pair = Pair { endpoint, key, here: here.unwrap(), there, near, far };
        // The first put establishes the connection.
        if let Outcome::Pending(first) = pair.endpoint.put_bytes(&[0; 8], &pair.key, 0).unwrap() {
            while pair.near.worker.test(&first).is_none() {
                pair.progress();
            }
        }
        while pair.key.is_settling() {
            pair.progress();
        }
        assert_eq!(pair.key.path(), "verbs:double0/rc");
        pair
    }

    fn progress(&self) {
        let _ = self.near.worker.progress() + self.far.worker.progress();
    }

    /// Puts word `word` of the source, which is overwritten as soon as the completion allows it.
    fn put(&self, word: usize, completion: Completion) -> Result<Outcome, PostError> {
        let from = 8 * word..8 * word + 8;
        self.here.write(from.start, &word.to_le_bytes()).unwrap();
        let put = self.endpoint.put_with(&self.here, from.clone(), &self.key, 0, completion)?;
        if put.is_done() {
            self.here.write(from.start, &[0xee; 8]).unwrap();
        }
        Ok(put)
    }

    fn flushed(&self) -> Result<u64, Status> {
        let flush =
            || -> Result<u64, Error> { Ok(self.near.worker.finish(self.endpoint.flush()?)?) };
        flush().map_err(|error| error.status())
    }
}

/// The device accepts puts up to its queue's depth, the endpoint queues the rest up to its limit, and no put overtakes another.
#[test]
fn short_puts_without_room_are_queued_and_arrive_in_order() {
    let pair = Pair::new();
    fault(|faults| faults.stuck = true);
    let (mut taken, mut done, mut open) = (0, 0, Vec::new());
    loop {
        let completion = if taken % 3 == 0 { Completion::Remote } else { Completion::Local };
        match pair.put(taken, completion) {
            Ok(Outcome::Done(_)) => done += 1,
            Ok(outcome) => open.push(outcome),
            Err(PostError::Retry(_)) => break,
            Err(error) => panic!("{error}"),
        }
        taken += 1;
    }
    assert!(done > 16 && open.len() > 1000, "{done} of {taken}");
    assert_eq!(pair.near.worker.pending(), open.len());
    fault(|faults| faults.stuck = false);
    for outcome in open {
        assert_eq!(pair.near.worker.finish(outcome).unwrap(), 0);
    }
    assert_eq!(pair.flushed(), Ok(0));
    assert_eq!(pair.there.to_vec(0..8).unwrap(), (taken - 1).to_le_bytes());
    assert_eq!(pair.near.worker.pending(), 0);
    assert!(pair.put(1, Completion::Local).unwrap().is_done(), "there is room again");
    assert_eq!(pair.flushed(), Ok(0));
}

#[test]
fn failure_of_done_put_is_reported_by_the_next_flush() {
    for after_the_end in [false, true] {
        let pair = Pair::new();
        fault(|faults| faults.cut = true);
        for word in 0..4 {
            assert!(pair.put(word, Completion::Local).unwrap().is_done());
        }
        while after_the_end && pair.endpoint.error().is_none() {
            pair.progress();
        }
        assert_eq!(pair.flushed(), Err(Status::TimedOut), "after the end: {after_the_end}");
        assert!(matches!(pair.put(5, Completion::Local), Err(PostError::Reconnect(_))));
        fault(|faults| faults.cut = false);
    }
}

#[test]
fn closing_worker_reports_done_puts_that_did_not_arrive() {
    let Pair { endpoint, key, here, there, near, far } = Pair::new();
    fault(|faults| faults.cut = true);
    let put = endpoint.put_with(&here, 0..8, &key, 0, Completion::Local).unwrap();
    assert!(put.is_done());
    let undelivered = near.worker.close(Duration::from_secs(60)).unwrap_err();
    assert_eq!(undelivered.error.status(), Status::TimedOut);
    assert!(!undelivered.losses.is_empty(), "{undelivered}");
    fault(|faults| faults.cut = false);
    drop((there, far));
}

/// The target's memory is freed: the failure is reported.
#[test]
fn failure_of_short_put_to_freed_memory_is_reported_by_flush() {
    for completion in [Completion::Local, Completion::Remote] {
        let Pair { endpoint, key, here, there, near, far } = Pair::new();
        drop(there);
        let put = endpoint.put_with(&here, 0..8, &key, 0, completion).unwrap();
        assert_eq!(put.is_done(), completion == Completion::Local);
        let told = match put.is_done() {
            true => endpoint.flush().unwrap(),
            false => put,
        };
        assert!(near.worker.finish(told).is_err());
        drop(far);
    }
}

/// Makes progress on both ends of a pair until `so` is true.
fn until(halves: &[&Half], mut so: impl FnMut() -> bool) {
    while !so() {
        for half in halves {
            let _ = half.worker.progress();
        }
    }
}

/// Without a free connection at either end, datagrams carry the messages, and also puts and atomics in the form of messages.
#[test]
fn peers_beyond_the_connection_limit_are_served_by_datagrams() {
    let near = Half::with(&[("TIELINE_VERBS_CONNECTIONS", "1")]);
    let others = [Half::open(), Half::open(), Half::open()];
    let all = [&near, &others[0], &others[1], &others[2]];
    let [first, second, third] = &others;
    let address = near.worker.address().unwrap();
    // First the side without a free connection connects, then a side connects to it.
    let mut open = Vec::new();
    for (from, to, path) in [
        (&near, address_of(first), "verbs:double0/rc"),
        (&near, address_of(second), "verbs:double0/ud"),
        (third, address, "verbs:double0/ud"),
    ] {
        let endpoint = from.worker.connect(&to).unwrap();
        for half in all {
            half.seen.set(0);
        }
        for number in 0..100 {
            until(&all, || endpoint.send(1, number, b"a message").is_ok());
        }
        until(&all, || all.iter().any(|half| half.seen.get() == 100));
        assert_eq!(endpoint.message_path(), path);
        open.push(endpoint);
    }
    for (endpoint, there) in open.iter().zip([first, second]) {
        let memory = there.context.alloc(4096).unwrap();
        let key = endpoint.import_key(&memory.remote_key().unwrap()).unwrap();
        let put = endpoint.put_bytes(&[7; 3000], &key, 0).unwrap();
        finish(&all, &near, put);
        assert_eq!(memory.to_vec(0..3000).unwrap(), [7; 3000]);
        let add = endpoint.fetch_add(&key, 8, 1).unwrap();
        finish(&all, &near, add);
        assert_eq!(memory.to_vec(8..16).unwrap(), [8, 7, 7, 7, 7, 7, 7, 7]);
    }
}

/// Messages queued while `rc` connects are sent over `ud`: in order, exactly once, even if a datagram is too short for one.
#[test]
fn messages_queued_for_connecting_rc_go_over_ud_in_order() {
    let near = Half::with(&[("TIELINE_VERBS_CONNECTIONS", "1")]);
    let (first, second) = (Half::open(), Half::open());
    let all = [&near, &first, &second];
    let served = near.worker.connect(&address_of(&first)).unwrap();
    until(&all, || served.send(1, 0, b"a message").is_ok());
    until(&all, || first.seen.get() == 1);
    let (came, told) = (Rc::<RefCell<Vec<u64>>>::default(), Rc::<RefCell<Vec<u32>>>::default());
    let (log, words) = (came.clone(), told.clone());
    near.worker.on_message(2, move |message| log.borrow_mut().push(message.header())).unwrap();
    near.worker.on_notification(move |_, word| words.borrow_mut().push(word)).unwrap();
    let memory = near.context.alloc(64).unwrap();
    let to_near = second.worker.connect(&address_of(&near)).unwrap();
    let mut open: Vec<Outcome> = Vec::new();
    for number in 0..20 {
        open.push(to_near.send(2, number, &[7; 20]).unwrap());
    }
    let key = to_near.import_key(&memory.remote_key().unwrap()).unwrap();
    open.push(to_near.put_bytes_notify(&[9; 8], &key, 0, 5).unwrap());
    to_near.fence().unwrap();
    open.push(to_near.put_bytes(&[8; 8], &key, 0).unwrap());
    open.push(to_near.flush().unwrap());
    open.into_iter().for_each(|outcome| finish(&all, &second, outcome));
    finish(&all, &second, to_near.flush_messages().unwrap());
    assert_eq!(to_near.message_path(), "verbs:double0/ud");
    assert_eq!(*came.borrow(), (0..20).collect::<Vec<_>>());
    assert_eq!(*told.borrow(), [5]);
    assert_eq!(memory.to_vec(0..8).unwrap(), [8; 8]);
}

/// A module that the user of either end excludes from data carries no messages. Without a free `rc` connection such a peer gets no
/// service.
#[test]
fn connect_only_datagram_module_carries_no_messages() {
    let barred = [
        ("TIELINE_VERBS_CONNECTIONS", "1"),
        ("TIELINE_MODULES", "^verbs:double0/ud"),
        ("TIELINE_CONNECT", "verbs:double0/ud"),
    ];
    let near = Half::with(&barred);
    let others = [Half::open(), Half::open(), Half::open()];
    let all = [&near, &others[0], &others[1], &others[2]];
    let [first, second, third] = &others;
    let served = near.worker.connect(&address_of(first)).unwrap();
    until(&all, || served.send(1, 0, b"a message").is_ok());
    until(&all, || first.seen.get() == 1);
    for (from, to) in [(&near, second), (third, &near)] {
        let endpoint = from.worker.connect(&address_of(to)).unwrap();
        let _ = endpoint.send(1, 0, b"a message");
        until(&all, || endpoint.error().is_some() || endpoint.message_path() != "verbs:double0/rc");
        assert_eq!(endpoint.message_path(), "verbs:double0/rc");
    }
    assert_eq!([&near, second, third].map(|half| half.seen.get()), [0; 3]);
}

/// The peer did not answer over either device, so datagrams of neither device carry messages to it.
#[test]
fn peer_silent_on_two_devices_is_not_served_by_datagrams() {
    let two = ("TIELINE_VERBS_DEVICES", "double0,double1");
    let near = Half::with(&[two, ("TIELINE_CONNECT_TIMEOUT", "50ms")]);
    let far = Half::with(&[two]);
    let endpoint = near.worker.connect(&address_of(&far)).unwrap();
    let _ = endpoint.send(1, 0, b"a message");
    until(&[&near], || endpoint.error().is_some() || endpoint.message_path().ends_with("/ud"));
    let error = endpoint.error().expect("nobody answers");
    assert_eq!(error.status(), Status::TimedOut);
    assert!(error.to_string().contains("came about"), "{error}");
    assert_eq!(endpoint.message_path(), "verbs:double1/rc");
}

fn address_of(half: &Half) -> Vec<u8> {
    half.worker.address().unwrap()
}

fn finish(all: &[&Half], at: &Half, outcome: Outcome) {
    if let Outcome::Pending(request) = outcome {
        until(all, || at.worker.test(&request).is_some_and(|ended| ended.map(drop) == Ok(())));
    }
}

/// A message posted before its module is known becomes a rendezvous message if datagrams turn out too short for it.
#[test]
fn message_too_long_for_ud_arrives_as_rendezvous() {
    let near = Half::with(&[("TIELINE_VERBS_CONNECTIONS", "1")]);
    let others = [Half::open(), Half::open()];
    let all = [&near, &others[0], &others[1]];
    let came = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let log = came.clone();
    let kept = move |message: &tieline::Message<'_>| log.borrow_mut().extend(message.rendezvous());
    others[1].worker.on_message(2, kept).unwrap();
    let first = near.worker.connect(&address_of(&others[0])).unwrap();
    until(&all, || first.send(1, 0, b"").is_ok());
    until(&all, || others[0].seen.get() == 1);
    let standing = first.max_message().unwrap();
    let second = near.worker.connect(&address_of(&others[1])).unwrap();
    let sent = second.send(2, 0, &vec![7; standing]).unwrap();
    until(&all, || !came.borrow().is_empty());
    assert_eq!(second.message_path(), "verbs:double0/ud");
    let room = others[1].context.alloc(standing).unwrap();
    let announcement = came.borrow_mut().pop().unwrap();
    let taken = announcement.receive_into(&room, 0..standing).unwrap();
    finish(&all, &others[1], taken);
    finish(&all, &near, sent);
    assert_eq!(room.to_vec(0..standing).unwrap(), vec![7; standing]);
    assert!(second.max_message().unwrap() < standing);
}

/// After some polls only `rc` is active, and most progress calls poll it without any other step.
#[test]
fn messages_behind_panicking_handler_arrive_in_order_in_later_calls() {
    const ROUNDS: u64 = 600;
    const EACH: u64 = 8;
    let pair = Pair::new();
    let came = Rc::new(RefCell::new(Vec::new()));
    let log = came.clone();
    let handler = move |message: &tieline::Message<'_>| {
        log.borrow_mut().push(message.header());
        if message.header() % 5 == 1 {
            std::panic::resume_unwind(Box::new("the handler ends here"));
        }
    };
    pair.far.worker.on_message(2, handler).unwrap();
    let mut panics = 0;
    for round in 0..ROUNDS {
        for n in round * EACH..(round + 1) * EACH {
            while !pair.endpoint.send(2, n, b"").is_ok_and(|sent| sent.is_done()) {
                pair.progress();
            }
        }
        let _ = pair.near.worker.progress();
        while came.borrow().len() < ((round + 1) * EACH) as usize {
            let progress = std::panic::AssertUnwindSafe(|| pair.far.worker.progress());
            panics += u64::from(std::panic::catch_unwind(progress).is_err());
        }
    }
    let all: Vec<u64> = (0..ROUNDS * EACH).collect();
    assert_eq!(*came.borrow(), all);
    assert_eq!(panics, ROUNDS * EACH / 5);
}

/// Puts a number from one side of a pair to the other and waits for its arrival. Returns `true`.
fn moves(pair: &Pair, number: usize) -> bool {
    let put = pair.put(number, Completion::Remote).unwrap();
    let _ = pair.near.worker.finish(put).unwrap();
    while pair.there.to_vec(0..8).unwrap() != number.to_le_bytes() {
        pair.progress();
    }
    true
}

#[test]
fn forked_child_opens_its_own_device_and_keeps_its_parents_intact() {
    let mut pair = Some(Pair::new());
    assert!(pair.as_ref().is_some_and(|pair| moves(pair, 1)));
    assert!(holds_in_child(|| {
        let refused = pair.as_ref().is_some_and(|pair| pair.put(2, Completion::Remote).is_err());
        pair = None;
        refused && moves(&Pair::new(), 3)
    }));
    assert!(pair.as_ref().is_some_and(|pair| moves(pair, 4)));
}

#[test]
fn a_child_forked_while_another_thread_lists_devices_is_refused() {
    let listing = crate::sys::LISTING.begin();
    assert!(holds_in_child(|| {
        let refused = crate::sys::Device::open("double0").err();
        refused.is_some_and(|why| {
            why.status == Status::Unsupported && why.text.contains("inside libibverbs at the fork")
        })
    }));
    drop(listing);
    assert!(holds_in_child(|| crate::sys::Device::open("double0").is_ok()));
}
