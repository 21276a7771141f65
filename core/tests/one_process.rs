//! Tests of a worker connected to itself, and of two workers of two threads in one process.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use tieline::endpoint::Tried;
use tieline::{AtomicOp, CompletionError, Context, Outcome, PostError, Region, Status, Width};

fn until(worker: &tieline::Worker, done: impl Fn() -> bool) {
    while !done() {
        let _ = worker.progress();
    }
}

#[test]
fn a_worker_connected_to_itself_gets_its_messages_in_order() {
    let context = Context::open().unwrap();
    let worker = context.worker().unwrap();
    let seen: Rc<RefCell<Vec<(u64, usize)>>> = Rc::default();
    let log = seen.clone();
    worker
        .on_message(3, move |m| {
            assert!(m.payload().iter().all(|&b| b == m.header() as u8));
            log.borrow_mut().push((m.header(), m.payload().len()));
        })
        .unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let max = me.max_message().unwrap();
    let lengths = [0, 1, 8, 47, 48, 49, 100, 1000, 4096, 10_000, max];
    for (i, &len) in lengths.iter().enumerate() {
        let outcome = me.send(3, i as u64, &vec![i as u8; len]).unwrap();
        let _ = worker.finish(outcome).unwrap();
    }
    until(&worker, || seen.borrow().len() == lengths.len());
    let expected: Vec<_> = lengths.iter().enumerate().map(|(i, &len)| (i as u64, len)).collect();
    assert_eq!(*seen.borrow(), expected);
    let error = me.send_packed(3, 0, max + 1, |out| out.len()).unwrap_err();
    assert_eq!(error.status(), Status::TooLarge);
    let error = worker.finish(me.send(3, 0, &vec![0; max + 1]).unwrap()).unwrap_err();
    assert!(matches!(error, CompletionError::Refused(_)), "its handler asks for no announcement");
}

#[test]
fn a_flood_is_queued_up_to_the_bound_and_nothing_is_lost() {
    let context = Context::builder().set("TIELINE_QUEUE_BYTES", "4k").open().unwrap();
    let worker = context.worker().unwrap();
    let next = Rc::new(Cell::new(0u64));
    let count = next.clone();
    worker
        .on_message(1, move |m| {
            assert_eq!(m.header(), count.get());
            count.set(count.get() + 1);
        })
        .unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let (mut sent, mut refused) = (0u64, 0);
    while sent < 20_000 {
        match me.send(1, sent, b"flood") {
            Ok(_) => sent += 1,
            Err(error) => {
                assert_eq!(error.status(), Status::Again);
                refused += 1;
                let _ = worker.progress();
            }
        }
    }
    until(&worker, || next.get() == sent);
    assert!(refused > 0, "the bound was never reached");
}

fn memory_operations(context: &Context, expected_path: &str, shared: bool) {
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let target = if shared {
        context.alloc(100_000).unwrap()
    } else {
        context.register(vec![0u8; 100_000]).unwrap()
    };
    let local =
        context.register((0..100_000).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
    let key = me.import_key(&target.remote_key().unwrap()).unwrap();
    while key.is_settling() {
        let _ = worker.progress();
    }
    assert_eq!(key.path(), expected_path);
    for (at, len, offset) in
        [(0, 8, 0), (3, 100, 17), (1000, 70_000, 11), (0, 0, 5), (5, 99_000, 1000)]
    {
        let outcome = me.put(&local, at..at + len, &key, offset as u64).unwrap();
        let _ = worker.finish(outcome).unwrap();
        assert_eq!(
            target.to_vec(offset..offset + len).unwrap(),
            local.to_vec(at..at + len).unwrap()
        );
        let back = context.register(vec![0xeeu8; len + 16]).unwrap();
        let outcome = me.get(&back, 8..8 + len, &key, offset as u64).unwrap();
        let _ = worker.finish(outcome).unwrap();
        assert_eq!(back.to_vec(8..8 + len).unwrap(), local.to_vec(at..at + len).unwrap());
        assert_eq!(back.to_vec(0..8).unwrap(), [0xee; 8]);
        assert_eq!(back.to_vec(8 + len..16 + len).unwrap(), [0xee; 8]);
    }
    // The first list has fewer pieces than a module takes in one call, the second has more.
    for (many, len) in [(3, 500), (100, 900)] {
        let cut = |region, from: usize| -> Vec<(&Region, Range<usize>)> {
            (0..many)
                .rev()
                .map(|n| (region, from + n * len..from + (n + 1) * len - n % 3))
                .collect()
        };
        let held = |pieces: &[(&Region, Range<usize>)]| -> Vec<u8> {
            pieces
                .iter()
                .flat_map(|(region, range)| region.to_vec(range.clone()).unwrap())
                .collect()
        };
        let pieces = cut(&local, 7);
        let whole = held(&pieces);
        let outcome = me.put_pieces(&pieces, &key, 100).unwrap();
        let _ = worker.finish(outcome).unwrap();
        assert!(target.to_vec(100..100 + whole.len()).unwrap() == whole, "{many} pieces");
        let back = context.register(vec![0xeeu8; 100_000]).unwrap();
        let outcome = me.get_pieces(&cut(&back, 9), &key, 100).unwrap();
        let _ = worker.finish(outcome).unwrap();
        assert!(held(&cut(&back, 9)) == whole, "{many} pieces");
        assert_eq!(back.to_vec(0..9).unwrap(), [0xee; 9]);
    }
    let outcome = me.put_bytes(b"bytes from the stack", &key, 40).unwrap();
    let _ = worker.finish(outcome).unwrap();
    assert_eq!(target.to_vec(40..60).unwrap(), b"bytes from the stack");

    target.write(64, &5u64.to_le_bytes()).unwrap();
    let finish = |outcome: Outcome| worker.finish(outcome).unwrap();
    assert_eq!(finish(me.fetch_add(&key, 64, 10).unwrap()), 5);
    let _ = finish(me.atomic(AtomicOp::Xor, Width::Bits64, &key, 64, 1).unwrap());
    worker.flush().unwrap();
    assert_eq!(finish(me.compare_swap(Width::Bits64, &key, 64, 14, 3).unwrap()), 14);
    assert_eq!(finish(me.fetch(AtomicOp::Max, Width::Bits32, &key, 64, 9).unwrap()), 3);
    assert_eq!(finish(me.fetch(AtomicOp::Swap, Width::Bits64, &key, 64, 77).unwrap()), 9);

    let outside = me.put(&local, 0..10, &key, 99_995).unwrap_err();
    assert_eq!(outside.status(), Status::OutOfRange);
    // The error text names a range of local memory in the same form as one of the peer's.
    let end = local.len() + 1;
    for wrong in [
        me.put(&local, 5..end, &key, 0),
        me.get(&local, 5..end, &key, 0),
        me.put_pieces(&[(&local, 0..5), (&local, 5..end)], &key, 0),
    ] {
        let wrong = wrong.unwrap_err();
        let said = format!("bytes 5..{end} of a region of {} bytes", local.len());
        assert_eq!(wrong.status(), Status::OutOfRange);
        assert!(wrong.to_string().starts_with(&said), "{wrong}");
    }
    let misaligned = me.fetch_add(&key, 65, 1).unwrap_err();
    assert_eq!(misaligned.status(), Status::Misaligned);
    assert!(
        misaligned.to_string().starts_with("an atomic of 8 bytes at offset 65"),
        "{misaligned}"
    );
    drop(target);
    let gone = me
        .put_bytes(b"late", &key, 0)
        .map_or_else(tieline::Error::from, |o| worker.finish(o).unwrap_err().into());
    assert_eq!(gone.status(), Status::KeyRejected, "{gone}");
    // The error belonged to that operation: the endpoint is still usable.
    assert!(me.error().is_none());
    let _ = finish(me.send(9, 0, b"still here").unwrap());
}

#[test]
fn memory_of_alloc_is_reached_by_load_and_store() {
    memory_operations(&Context::open().unwrap(), "shm/ring", true);
}

#[test]
fn ordinary_memory_is_reached_by_a_single_copy() {
    memory_operations(&Context::open().unwrap(), "shm-cma/copy", false);
}

#[test]
fn without_single_copy_the_same_operations_are_emulated_over_messages() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "^shm-cma").open().unwrap();
    memory_operations(&context, "emulated over shm/ring", false);
}

#[test]
fn two_threads_with_a_worker_each_exchange_messages_and_share_a_region() {
    let context = Context::open().unwrap();
    let region = context.alloc(64).unwrap();
    let (to_child, from_main) = mpsc::channel::<(Vec<u8>, Vec<u8>)>();
    let (to_main, from_child) = mpsc::channel::<Vec<u8>>();
    let theirs = context.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let child = std::thread::spawn(move || {
        let worker = theirs.worker().unwrap();
        to_main.send(worker.address().unwrap()).unwrap();
        let (address, key) = from_main.recv().unwrap();
        let main = worker.connect(&address).unwrap();
        let key = main.import_key(&key).unwrap();
        for i in 0..1000u64 {
            let outcome = main.fetch_add(&key, 0, i).unwrap();
            let _ = worker.finish(outcome).unwrap();
            let outcome = main.send(2, i, &i.to_le_bytes()).unwrap();
            let _ = worker.finish(outcome).unwrap();
        }
        while !stopped.load(Ordering::Acquire) {
            let _ = worker.progress();
        }
    });
    let worker = context.worker().unwrap();
    let sum = Rc::new(Cell::new((0u64, 0u64)));
    let total = sum.clone();
    worker
        .on_message(2, move |m| {
            let (count, sum) = total.get();
            assert_eq!(m.header(), count);
            total.set((count + 1, sum + m.header()));
        })
        .unwrap();
    let _ = from_child.recv().unwrap();
    to_child.send((worker.address().unwrap(), region.remote_key().unwrap())).unwrap();
    until(&worker, || sum.get().0 == 1000);
    assert_eq!(sum.get().1, 499_500);
    assert_eq!(region.atomic_u64(0).unwrap().load(Ordering::SeqCst), 499_500);
    stop.store(true, Ordering::Release);
    child.join().unwrap();
}

#[test]
fn misuse_gets_a_clear_error() {
    let context = Context::open().unwrap();
    let worker = context.worker().unwrap();
    assert_eq!(worker.connect(b"nonsense").err().unwrap().status(), Status::BadData);
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    for id in [tieline::MAX_MESSAGE_ID + 1, 0xffff] {
        assert_eq!(worker.on_message(id, |_| {}).unwrap_err().status(), Status::Invalid);
        assert_eq!(me.send(id, 0, b"").unwrap_err().status(), Status::Invalid);
        let packed = me.send_packed(id, 0, 8, |_| 8);
        assert_eq!(packed.unwrap_err().status(), Status::Invalid);
        let gathered = me.send_regions(id, 0, &[(&context.alloc(8).unwrap(), 0..8)]);
        assert_eq!(gathered.unwrap_err().status(), Status::Invalid);
    }
    let last = Rc::new(Cell::new(0));
    let count = last.clone();
    let highest = tieline::MAX_MESSAGE_ID;
    worker.on_message(highest, move |_| count.set(count.get() + 1)).unwrap();
    drop((me.send(highest, 0, b"").unwrap(), me.send_packed(highest, 0, 8, |_| 8).unwrap()));
    until(&worker, || last.get() == 2);
    assert_eq!(me.import_key(b"nonsense").err().unwrap().status(), Status::KeyRejected);
    let other = Context::open().unwrap();
    let foreign = other.alloc(8).unwrap().remote_key().unwrap();
    assert_eq!(me.import_key(&foreign).err().unwrap().status(), Status::KeyRejected);
    // An id without a handler is counted and dropped.
    let outcome = me.send(4000, 0, b"nobody").unwrap();
    let _ = worker.finish(outcome).unwrap();
    until(&worker, || worker.counters().unknown_ids == 1);
    drop(worker);
    assert_eq!(me.send(1, 0, b"").unwrap_err().status(), Status::Closed);
}

#[test]
fn a_wait_without_a_limit_ends_when_a_message_comes() {
    let context = Context::open().unwrap();
    let worker = context.worker().unwrap();
    let got = Rc::new(Cell::new(false));
    let seen = got.clone();
    worker.on_message(1, move |_| seen.set(true)).unwrap();
    let address = worker.address().unwrap();
    let theirs = context.clone();
    let child = std::thread::spawn(move || {
        let worker = theirs.worker().unwrap();
        let main = worker.connect(&address).unwrap();
        let outcome = main.send(1, 0, b"wake up").unwrap();
        let _ = worker.finish(outcome).unwrap();
    });
    while !got.get() {
        let _ = worker.wait(None).unwrap();
    }
    child.join().unwrap();
}

#[test]
fn a_progress_thread_serves_a_target_that_computes() {
    let builder = || Context::builder().set("TIELINE_PROVIDERS", "^shm-cma");
    let target = builder().progress_thread(true).open().unwrap();
    let passive = target.worker().unwrap();
    let memory = target.register(vec![7u8; 1000]).unwrap();
    let context = builder().open().unwrap();
    let worker = context.worker().unwrap();
    let there = worker.connect(&passive.address().unwrap()).unwrap();
    let key = there.import_key(&memory.remote_key().unwrap()).unwrap();
    assert!(key.reaches_passive_target());
    // From this point on `passive` makes no progress.
    let outcome = there.put_bytes(b"written", &key, 100).unwrap();
    let _ = worker.finish(outcome).unwrap();
    assert_eq!(memory.to_vec(100..107).unwrap(), b"written");
    let back = context.register(vec![0u8; 300]).unwrap();
    let outcome = there.get(&back, 0..300, &key, 0).unwrap();
    let _ = worker.finish(outcome).unwrap();
    assert_eq!(back.to_vec(98..109).unwrap(), b"\x07\x07written\x07\x07");
    assert_eq!(worker.finish(there.fetch_add(&key, 0, 0).unwrap()).unwrap(), 0x0707_0707_0707_0707);
}

#[test]
fn a_put_that_had_completed_locally_tells_its_failure_at_the_next_flush() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "^shm-cma").open().unwrap();
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let local = context.register(vec![1u8; 100]).unwrap();
    let target = context.register(vec![0u8; 100]).unwrap();
    let key = me.import_key(&target.remote_key().unwrap()).unwrap();
    let put = |offset| {
        let local_only = tieline::Completion::Local;
        let outcome = me.put_with(&local, 0..10, &key, offset, local_only).unwrap();
        worker.finish(outcome).unwrap()
    };
    let _ = put(5);
    let _ = worker.finish(me.flush().unwrap()).unwrap();
    assert_eq!(target.to_vec(5..15).unwrap(), [1; 10]);
    drop(target);
    let _ = put(5);
    let flush = || worker.finish(me.flush().unwrap());
    // The refusal may arrive before the flush or with it; the next flush reports no error.
    let error = flush().and_then(|_| flush()).unwrap_err();
    assert_eq!(error.status(), Status::KeyRejected);
    let _ = flush().unwrap();
}

#[test]
fn a_panic_in_a_handler_reaches_the_caller_and_progress_goes_on() {
    let context = Context::open().unwrap();
    let worker = context.worker().unwrap();
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    worker
        .on_message(1, move |m| {
            assert!(m.header() != 1, "the handler does not like this one");
            count.set(count.get() + 1);
        })
        .unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    for header in [0, 1] {
        let outcome = me.send(1, header, b"").unwrap();
        let _ = worker.finish(outcome).unwrap();
    }
    let run = || {
        for _ in 0..100_000 {
            let _ = worker.progress();
        }
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    assert!(panic.is_err());
    let outcome = me.send(1, 2, b"").unwrap();
    let _ = worker.finish(outcome).unwrap();
    until(&worker, || seen.get() == 2);
}

#[test]
fn a_kept_message_outlives_its_handler() {
    let context = Context::open().unwrap();
    let worker = context.worker().unwrap();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    worker.on_message(1, move |m| keep.borrow_mut().push(m.keep())).unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    for i in 0..100u64 {
        let outcome = me.send(1, i, &vec![i as u8; 1 + 50 * i as usize]).unwrap();
        let _ = worker.finish(outcome).unwrap();
        let _ = worker.progress();
    }
    until(&worker, || kept.borrow().len() == 100);
    for (i, message) in kept.borrow().iter().enumerate() {
        assert_eq!(message.header(), i as u64);
        assert_eq!(message.payload(), vec![i as u8; 1 + 50 * i]);
    }
}

#[test]
fn a_self_test_lets_good_modules_pass() {
    let context = Context::builder().set("TIELINE_SELFTEST", "on").open().unwrap();
    memory_operations(&context, "shm/ring", true);
    memory_operations(&context, "shm-cma/copy", false);
}

/// While the messages are sent, the connection switches from one ring to another.
#[test]
fn the_first_messages_of_a_connection_arrive_whole() {
    let context = Context::open().unwrap();
    let theirs = context.clone();
    let (to_sender, addresses) = mpsc::channel::<Vec<u8>>();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let sender = std::thread::spawn(move || {
        let worker = theirs.worker().unwrap();
        let mut payload = vec![0u8; 20_000];
        for address in addresses {
            let to = worker.connect(&address).unwrap();
            for i in 0..200u64 {
                payload.fill(i as u8);
                loop {
                    match to.send(1, i, &payload) {
                        Ok(_) => break,
                        Err(error) => assert_eq!(error.status(), Status::Again),
                    }
                    let _ = worker.progress();
                }
            }
            // Answers make the doorbell arrive while messages are in flight.
            let _ = worker.finish(to.flush_messages().unwrap()).unwrap();
        }
        while !stopped.load(Ordering::Acquire) {
            let _ = worker.progress();
        }
    });
    let worker = context.worker().unwrap();
    let seen = Rc::new(Cell::new(0u64));
    let count = seen.clone();
    worker
        .on_message(1, move |m| {
            assert!(m.payload().iter().all(|&b| b == m.header() as u8), "message {}", m.header());
            count.set(count.get() + 1);
        })
        .unwrap();
    for _ in 0..100 {
        to_sender.send(worker.address().unwrap()).unwrap();
    }
    until(&worker, || seen.get() == 100 * 200);
    drop(to_sender);
    for _ in 0..10_000 {
        let _ = worker.progress();
    }
    stop.store(true, Ordering::Release);
    while !sender.is_finished() {
        let _ = worker.progress();
    }
    sender.join().unwrap();
}

#[test]
fn packed_messages_to_a_receiver_that_does_not_poll_wait_and_harm_nobody() {
    let context = Context::builder().set("TIELINE_QUEUE_BYTES", "4k").open().unwrap();
    for len in [8usize, 100, 5000] {
        let worker = context.worker().unwrap();
        let next = Rc::new(Cell::new(0u64));
        let count = next.clone();
        worker
            .on_message(1, move |m| {
                assert_eq!(m.header(), count.get());
                assert!(m.payload().iter().all(|&byte| byte == m.header() as u8));
                count.set(count.get() + 1);
            })
            .unwrap();
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        let (mut sent, mut packed) = (0u64, 0u64);
        let refused = loop {
            let result = me.send_packed(1, sent, len, |buffer| {
                packed += 1;
                buffer.fill(sent as u8);
                len
            });
            match result {
                Ok(_) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.status(), Status::Again, "after {sent} messages: {refused}");
        assert_eq!(packed, sent, "a message that was refused was packed");
        until(&worker, || next.get() == sent);
        // The library blames no provider: memory and workers are available as before.
        let _ = context.alloc(4096).unwrap();
        let _ = context.worker().unwrap();
    }
}

#[test]
fn message_without_queue_needs_no_further_progress_of_sender() {
    let context = Context::open().unwrap();
    for len in [8usize, 100, 5000] {
        let (sender, receiver) = (context.worker().unwrap(), context.worker().unwrap());
        let next = Rc::new(Cell::new(0u64));
        let count = next.clone();
        receiver
            .on_message(1, move |m| {
                assert_eq!((m.header(), m.payload().len()), (count.get(), len));
                count.set(count.get() + 1);
            })
            .unwrap();
        let endpoint = sender.connect(&receiver.address().unwrap()).unwrap();
        let bytes = vec![7; len];
        let send = |n: u64| match n % 2 {
            0 => endpoint.send_further_now(Tried::NOT, 1, n, &bytes),
            _ => endpoint.send_packed_now(1, n, len, |out| {
                out.copy_from_slice(&bytes);
                len
            }),
        };
        // The first message connects the endpoint, which takes progress of both.
        until(&sender, || {
            let _ = receiver.progress();
            send(0).is_ok()
        });
        let refused = (1u64..).find_map(|n| send(n).err().map(|error| (n, error)));
        let (sent, error) = refused.unwrap();
        assert!(matches!(error, PostError::Retry(_)), "after {sent} messages: {error}");
        until(&receiver, || next.get() == sent);
        let longer = vec![7; endpoint.max_message().unwrap() + 1];
        let error = endpoint.send_further_now(Tried::NOT, 1, sent, &longer).unwrap_err();
        assert_eq!(error.status(), Status::TooLarge);
    }
}

#[test]
fn immediate_puts_use_mapped_memory_without_own_progress() {
    let context = Context::open().unwrap();
    let other = Context::open().unwrap();
    let (tell, hear) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ended = stop.clone();
        let owner = scope.spawn(move || {
            let worker = other.worker().unwrap();
            let region = other.alloc(4096).unwrap();
            tell.send((worker.address().unwrap(), region.remote_key().unwrap())).unwrap();
            until(&worker, || ended.load(Ordering::Relaxed));
            region.to_vec(0..8).unwrap()
        });
        let (address, key) = hear.recv().unwrap();
        let worker = context.worker().unwrap();
        let endpoint = worker.connect(&address).unwrap();
        let key = endpoint.import_key(&key).unwrap();
        let mut puts = 0u64;
        while key.path() != "shm/ring" {
            puts += 1;
            // Meanwhile the kernel makes a single copy, which also completes immediately.
            let put = endpoint.put_bytes(&puts.to_ne_bytes(), &key, 0);
            if !matches!(put, Ok(Outcome::Done(_))) || puts > 2_000_000 {
                stop.store(true, Ordering::Relaxed);
                panic!("{put:?} after {puts} puts over {}", key.path());
            }
        }
        let _ = endpoint.put_bytes(b"by store", &key, 0).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(owner.join().unwrap(), b"by store");
    });
}

/// The first worker never polled, and a sender was waiting for it when it closed.
#[test]
fn the_end_of_one_worker_is_not_the_end_of_its_process() {
    let open = || Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
    let (here, there) = (open(), open());
    let a = here.worker().unwrap();
    let (first, second) = (there.worker().unwrap(), there.worker().unwrap());
    let [to_first, to_second] =
        [&first, &second].map(|worker| a.connect(&worker.address().unwrap()).unwrap());
    let arrived = Rc::new(Cell::new(0));
    let count = arrived.clone();
    second.on_message(1, move |_| count.set(count.get() + 1)).unwrap();
    let have_arrived = |n: usize| {
        let _ = second.progress();
        arrived.get() == n
    };
    let _ = to_second.send(1, 0, b"").unwrap();
    until(&a, || have_arrived(1));
    let _ = to_first.send(1, 0, b"").unwrap();
    drop(first);
    until(&a, || to_first.error().is_some());
    assert_eq!(to_first.error().map(|error| error.status()), Some(Status::Closed));
    assert_eq!(to_second.error(), None);
    let _ = to_second.send(1, 0, b"").unwrap();
    until(&a, || have_arrived(2));
}
