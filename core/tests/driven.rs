//! Tests of driven workers: several threads post to one, wait for it and close it; handlers run one at a time, in order.

#![allow(unsafe_code)] // memory by address

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline::driven::{
    DrivenAfter, DrivenDescriptor, DrivenEndpoint, DrivenKeyLookup, DrivenOutcome,
};
use tieline::{
    AtomicOp, Completion, CompletionError, Context, DrivenWorker, PostError, SendOptions, Status,
    Waited, Width,
};
use tieline_testing::built;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Returns contexts with one transport each.
fn contexts() -> Vec<Context> {
    let over_files = |what: &str, folder: Result<PathBuf, String>, settings: &[(&str, &str)]| {
        let folder =
            folder.inspect_err(|reason| println!("skipped: over {what}: {reason}")).ok()?;
        let context = Context::builder().set("TIELINE_PROVIDER_PATH", folder.to_str().unwrap());
        let set = settings.iter().fold(context, |context, (name, value)| context.set(name, value));
        Some(set.open().unwrap())
    };
    let tcp = [("TIELINE_PROVIDERS", "tcp,tcp-connect"), ("TIELINE_TCP_INTERFACES", "127.0.0.0/8")];
    let mut contexts = vec![shm()];
    contexts.extend(over_files("tcp", built::folder(&built::TCP), &tcp));
    contexts
}

fn shm() -> Context {
    Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open().unwrap()
}

fn pair(context: &Context) -> (DrivenWorker, DrivenWorker, DrivenEndpoint) {
    let (here, there) = (context.driven_worker().unwrap(), context.driven_worker().unwrap());
    let endpoint = here.connect(&there.address().unwrap()).unwrap();
    (here, there, endpoint)
}

/// Sends until the endpoint accepts the message.
fn send(worker: &DrivenWorker, there: &DrivenEndpoint, header: u64, payload: &[u8]) {
    loop {
        match there.send(1, header, payload) {
            Ok(_) => return,
            Err(PostError::Retry(_)) => {
                let _ = worker.wait_until(|| false, Some(Duration::from_micros(50))).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn four_threads_post_to_one_worker_and_each_keeps_its_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 3000;
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let (runs, next) = (AtomicBool::new(false), Mutex::new([0; THREADS as usize]));
        let shared = Arc::new((runs, next, AtomicU64::new(0)));
        let seen = shared.clone();
        there
            .on_message(1, move |message| {
                let (runs, next, count) = &*seen;
                assert!(!runs.swap(true, Ordering::Relaxed), "two handlers run at once");
                let (thread, number) = (message.header() >> 32, message.header() & 0xffff_ffff);
                let expected = &mut next.try_lock().unwrap()[thread as usize];
                assert_eq!(*expected, number, "thread {thread}");
                *expected += 1;
                assert_eq!(message.payload(), number.to_le_bytes());
                runs.store(false, Ordering::Relaxed);
                let _ = count.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (here, endpoint) = (&here, &endpoint);
                let _ = scope.spawn(move || {
                    for number in 0..EACH {
                        let header = thread << 32 | number;
                        send(here, endpoint, header, &number.to_le_bytes());
                    }
                });
            }
        });
        let all = || shared.2.load(Ordering::Relaxed) == THREADS * EACH;
        assert!(there.wait_until(all, LONG).unwrap());
        here.close(LONG.unwrap()).unwrap();
        there.close(LONG.unwrap()).unwrap();
    }
}

#[test]
fn four_threads_wait_for_their_own_operations_at_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 300;
    for context in contexts() {
        let (here, _there, endpoint) = pair(&context);
        let memory = context.alloc(4096).unwrap();
        let key = endpoint.import_key(&memory.remote_key().unwrap()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (endpoint, key, memory) = (&endpoint, &key, &memory);
                let _ = scope.spawn(move || {
                    for number in 0..EACH {
                        let add = tieline::AtomicOp::Add;
                        let width = tieline::Width::Bits64;
                        let sum = endpoint.fetch(add, width, key, 0, 1).unwrap();
                        assert!(sum.wait(LONG).unwrap().unwrap() < THREADS * EACH);
                        let (word, at) = (number.to_le_bytes(), 64 * (thread + 1));
                        let put = endpoint.put_bytes(&word, key, at).unwrap();
                        assert_eq!(put.wait(LONG).unwrap(), Some(0));
                        let at = at as usize;
                        assert_eq!(memory.to_vec(at..at + 8).unwrap(), word);
                    }
                });
            }
        });
        assert_eq!(memory.atomic_u64(0).unwrap().load(Ordering::Relaxed), THREADS * EACH);
        assert_eq!(here.pending().unwrap(), 0);
    }
}

#[test]
fn sleeping_worker_is_woken_for_each_message() {
    const ROUNDS: u64 = 300;
    for context in contexts() {
        let worker = context.driven_worker().unwrap();
        let (told, came) = sync_channel(1);
        worker.on_message(1, move |message| told.send(message.header()).unwrap()).unwrap();
        let sender = context.worker().unwrap();
        let there = sender.connect(&worker.address().unwrap()).unwrap();
        for round in 0..ROUNDS {
            // The progress thread is at another point of its way to sleep in each round.
            (0..round % 7 * 100).for_each(|_| std::hint::spin_loop());
            let sent = there.send(1, round, b"").unwrap();
            let _ = sender.finish(sent).unwrap();
            let got = sender.wait_for(|| came.try_recv().ok(), LONG).unwrap();
            assert_eq!(got, Some(round), "the message or its wake-up was lost");
        }
    }
}

#[test]
fn wait_for_event_of_idle_worker_lasts_until_event_or_its_time() {
    const TIME: Duration = Duration::from_millis(100);
    for context in contexts() {
        let worker = context.driven_worker().unwrap();
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        worker.on_message(1, |_| {}).unwrap();
        let options = SendOptions::new().delivered();
        let send = || me.send_with(1, 0, b"acknowledged", &options).unwrap();
        assert_eq!(send().wait(LONG).unwrap(), Some(0));
        // The end of the delivery may cause a few events, but a wait that examines a condition would end after each of its naps.
        let ended =
            (0..10).position(|_| worker.wait_event(Some(TIME)).unwrap() == Waited::TimeIsUp);
        assert!(ended.is_some(), "an idle worker has reported events");
        worker.track(send(), 17).unwrap();
        while worker.take_completed(1).unwrap().is_empty() {
            assert_eq!(worker.wait_event(LONG).unwrap(), Waited::Moved);
        }
    }
}

#[test]
fn operation_of_one_thread_is_driven_while_nobody_waits() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        there.on_message(1, |_| {}).unwrap();
        let options = SendOptions::new().delivered();
        let sent = endpoint.send_with(1, 0, b"acknowledged", &options).unwrap();
        here.track(sent, 17).unwrap();
        // This thread does not drive the worker.
        let taken = loop {
            let taken = here.take_completed(4).unwrap();
            if !taken.is_empty() {
                break taken;
            }
            std::thread::yield_now();
        };
        assert_eq!((taken[0].user, &taken[0].result), (17, &Ok(0)));
    }
}

#[test]
fn handler_replies_but_may_not_wait() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let (told, refused) = channel();
        let (answering, region) = (there.clone(), context.alloc(64).unwrap());
        there
            .on_message(1, move |message| {
                let back = answering.endpoint_to(message.peer()).unwrap();
                let sent = back.send(2, message.header() + 1, message.payload()).unwrap();
                let flush = back.flush().unwrap();
                let waits = [
                    answering.wait_until(|| true, None).unwrap_err().status(),
                    answering.close(Duration::ZERO).unwrap_err().error.status(),
                    answering.flush(None).unwrap_err().status(),
                ];
                told.send(waits).unwrap();
                if let DrivenOutcome::Pending(_) = &flush {
                    let error = flush.wait(None).unwrap_err();
                    assert!(matches!(error, CompletionError::Pending(_)), "{error}");
                }
                drop(sent);
                let _ = &region;
            })
            .unwrap();
        let (answer, answered) = channel();
        here.on_message(2, move |message| answer.send(message.header()).unwrap()).unwrap();
        let _ = endpoint.send(1, 41, b"question").unwrap();
        assert_eq!(refused.recv_timeout(LONG.unwrap()).unwrap(), [Status::Busy; 3]);
        assert_eq!(answered.recv_timeout(LONG.unwrap()).unwrap(), 42);
        there.close(LONG.unwrap()).unwrap();
    }
}

#[test]
fn panic_of_handler_reaches_a_wait_once_and_the_worker_goes_on() {
    let (here, there, endpoint) = pair(&shm());
    let count = Arc::new(AtomicU64::new(0));
    let seen = count.clone();
    there
        .on_message(1, move |message| {
            let _ = seen.fetch_add(1, Ordering::Relaxed);
            assert!(message.header() != 1, "the second message");
        })
        .unwrap();
    let options = SendOptions::new().delivered();
    let sent = [0, 1, 2].map(|header| endpoint.send_with(1, header, b"", &options).unwrap());
    assert_eq!(sent[0].wait(LONG).unwrap(), Some(0));
    let canceled = sent[1].wait(LONG).unwrap_err();
    assert!(matches!(canceled, CompletionError::Canceled(_)), "{canceled:?}");
    assert_eq!(sent[2].wait(LONG).unwrap(), Some(0));
    assert_eq!(count.load(Ordering::Relaxed), 3);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = there.wait_until(|| true, None);
        let _ = there.wait_completed(Some(Duration::ZERO));
    }));
    let words = *caught.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(words, "the second message");
    assert!(!there.wait_completed(Some(Duration::ZERO)).unwrap(), "it is raised once");
    there.close(LONG.unwrap()).unwrap();
    here.close(LONG.unwrap()).unwrap();
}

#[test]
fn close_ends_the_waits_of_other_threads() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        // Nobody receives this rendezvous message.
        let (told, arrived) = channel();
        there.on_message(1, move |message| told.send(message.rendezvous()).unwrap()).unwrap();
        let long = endpoint.send(1, 0, &vec![7; 1 << 20]).unwrap();
        let kept = arrived.recv_timeout(LONG.unwrap()).unwrap();
        std::thread::scope(|scope| {
            let (here, long) = (&here, &long);
            let waits = [
                scope.spawn(move || long.wait(None).map_err(|error| error.status())),
                scope.spawn(move || {
                    let ended = here.wait_until(|| false, None);
                    ended.map(|_| None).map_err(|error| error.status())
                }),
                scope.spawn(move || {
                    let ended = here.wait_completed(None);
                    ended.map(|_| None).map_err(|error| error.status())
                }),
            ];
            let undelivered = here.close(Duration::from_millis(20)).unwrap_err();
            assert_eq!(undelivered.error.status(), Status::TimedOut, "{undelivered}");
            for (at, wait) in waits.into_iter().enumerate() {
                let ended = wait.join().unwrap();
                let list = at == 2 && ended == Ok(None);
                assert!(list || ended == Err(Status::Closed), "wait {at}: {ended:?}");
            }
        });
        let refused = endpoint.send(1, 0, b"").unwrap_err();
        assert_eq!(refused.status(), Status::Closed);
        here.close(Duration::ZERO).unwrap();
        drop(kept);
    }
}

#[test]
fn close_delivers_what_other_threads_have_posted() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let count = Arc::new(AtomicU64::new(0));
        let seen = count.clone();
        there.on_message(1, move |_| _ = seen.fetch_add(1, Ordering::Relaxed)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (here, endpoint) = (&here, &endpoint);
                let _ = scope.spawn(move || (0..100).for_each(|n| send(here, endpoint, n, b"")));
            }
        });
        here.close(LONG.unwrap()).unwrap();
        let all = || count.load(Ordering::Relaxed) == 300;
        assert!(there.wait_until(all, LONG).unwrap(), "{count:?}");
    }
}

#[test]
fn last_handle_may_be_dropped_in_a_handler() {
    let (here, there, endpoint) = pair(&shm());
    let (told, gone) = channel();
    let last = Arc::new(Mutex::new(None));
    let inside = last.clone();
    there
        .on_message(1, move |_| {
            let worker: Option<DrivenWorker> = inside.lock().unwrap().take();
            if worker.is_some() {
                drop(worker);
                told.send(()).unwrap();
            }
        })
        .unwrap();
    *last.lock().unwrap() = Some(there);
    let _ = endpoint.send(1, 0, b"").unwrap();
    // The peer may have left by now.
    for _ in 0..2 {
        let _ = endpoint.send(1, 0, b"");
    }
    gone.recv_timeout(LONG.unwrap()).unwrap();
    let left = || endpoint.error().is_some();
    assert!(here.wait_until(left, LONG).unwrap());
}

#[test]
fn messages_carry_everything_out_of_the_lock() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let (told, came) = channel();
        there
            .on_message(1, move |message| {
                let parts = (message.keep(), message.rendezvous(), message.acknowledgement());
                told.send((message.len(), parts)).unwrap();
            })
            .unwrap();
        let options = SendOptions::new().header_bytes(b"beside").delivered();
        let payload = vec![3; 5000];
        let short = endpoint.send_with(1, 9, &payload, &options).unwrap();
        let (len, (kept, none, acknowledgement)) = came.recv_timeout(LONG.unwrap()).unwrap();
        assert_eq!((len, kept.header(), kept.header_bytes()), (5000, 9, &b"beside"[..]));
        assert!(none.is_none() && kept.payload() == payload);
        assert_eq!(short.wait(Some(Duration::from_millis(5))).unwrap(), None, "not given yet");
        std::thread::spawn(move || acknowledgement.unwrap().give()).join().unwrap();
        assert_eq!(short.wait(LONG).unwrap(), Some(0));

        let long = vec![5; 1 << 20];
        let sent = endpoint.send(1, 0, &long).unwrap();
        let (len, (_, rendezvous, _)) = came.recv_timeout(LONG.unwrap()).unwrap();
        let buffer = context.register_transient(vec![0; len]).unwrap();
        let taken = rendezvous.unwrap().receive_into(&buffer, 0..len).unwrap();
        assert!(taken.wait(LONG).unwrap().is_some() && sent.wait(LONG).unwrap().is_some());
        drop(taken);
        assert!(*buffer.into_buffer().unwrap() == *long);

        let refused = endpoint.send(1, 0, &long).unwrap();
        let (_, (_, rendezvous, _)) = came.recv_timeout(LONG.unwrap()).unwrap();
        std::thread::spawn(move || drop(rendezvous)).join().unwrap();
        let error = refused.wait(LONG).unwrap_err();
        assert!(matches!(error, CompletionError::Refused(_)), "{error:?}");
        drop(kept);
        there.close(LONG.unwrap()).unwrap();
        here.close(LONG.unwrap()).unwrap();
    }
}

#[test]
fn counters_flushes_and_notifications_work_from_any_thread() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let (told, came) = channel();
        there.on_notification(move |_, word| told.send(word).unwrap()).unwrap();
        let (from, to) = (context.alloc(64).unwrap(), context.alloc(64).unwrap());
        from.write(0, b"bytes").unwrap();
        let key = endpoint.import_key(&to.remote_key().unwrap()).unwrap();
        let counter = here.completion_counter().unwrap();
        for word in 0..3 {
            let put = endpoint.put_notify(&from, 0..5, &key, 0, word, Completion::Remote).unwrap();
            here.count(put, &counter).unwrap();
        }
        assert!(counter.wait(LONG).unwrap());
        let counts = counter.read().unwrap();
        assert_eq!((counts.done, counts.failed, counts.pending), (3, 0, 0));
        for word in 0..3 {
            assert_eq!(came.recv_timeout(LONG.unwrap()), Ok(word));
        }
        assert!(here.flush(LONG).unwrap());
        assert_eq!(to.to_vec(0..5).unwrap(), b"bytes");
        let wrong = there.completion_counter().unwrap();
        let put = endpoint.put_bytes(b"x", &key, 0).unwrap();
        assert_eq!(here.count(put, &wrong).unwrap_err().status(), Status::Invalid);
        drop((key, endpoint));
        here.close_region(to, LONG.unwrap()).unwrap();
    }
}

/// Posts lists, and puts and gets memory by address, in the thread's part of the target: its bytes from `at` on.
fn use_lists_and_addresses(
    context: &Context,
    endpoint: &DrivenEndpoint,
    key: &tieline::driven::DrivenKey,
    at: u64,
) {
    let ended = |posted: Result<DrivenOutcome, PostError>| {
        posted.unwrap().wait(LONG).unwrap().expect("the operation has ended")
    };
    let (from, to) = (context.alloc(64).unwrap(), context.alloc(64).unwrap());
    let list = |region, parts: [usize; 4]| {
        parts.map(|part| DrivenDescriptor::new(region, part..part + 8, key, at + part as u64))
    };
    let prepared = endpoint.prepare_put_list(&list(&from, [0, 16, 8, 24])).unwrap();
    assert_eq!((prepared.len(), prepared.is_empty()), (4, false));
    for round in 1..=20 {
        from.write(0, &[round; 64]).unwrap();
        let put = endpoint.post_list(&prepared).unwrap();
        let behind = endpoint.notify(DrivenAfter::Operations(&[&put]), 1, at, b"list");
        let _ = (ended(behind), ended(Ok(put)));
        let _ = ended(endpoint.get_list(&list(&to, [24, 8, 16, 0])));
        assert_eq!(to.to_vec(0..32).unwrap(), [round; 32]);
        let (bytes, mut found, mut old) = ([round ^ 0x55; 16], [0; 8], [0; 8]);
        // SAFETY: the arrays live until these operations have ended.
        unsafe {
            let (base, remote) = (bytes.as_ptr(), Completion::Remote);
            let _ = ended(endpoint.put_raw(base, 8, key, at + 32, remote));
            let word = DrivenDescriptor::raw(base.cast_mut(), 16, key, at + 40);
            let _ = ended(endpoint.put_list(&[word]));
            let _ = ended(endpoint.get_raw(found.as_mut_ptr(), 8, key, at + 48));
            let (add, wide) = (AtomicOp::Add, Width::Bits64);
            let value = endpoint.fetch_raw(add, wide, key, at + 56, 1, old.as_mut_ptr());
            assert_eq!(
                (ended(value), u64::from_ne_bytes(old)),
                (u64::from(round) - 1, u64::from(round) - 1)
            );
        }
        assert_eq!(found, bytes[..8]);
    }
}

#[test]
fn lists_and_memory_by_address_are_used_by_several_threads() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let seen = Arc::new(AtomicU64::new(0));
        let count = seen.clone();
        there.on_message(1, move |_| _ = count.fetch_add(1, Ordering::Relaxed)).unwrap();
        let target = context.alloc(4 * 64).unwrap();
        let key = endpoint.import_key(&target.remote_key().unwrap()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (context, endpoint, key) = (&context, &endpoint, &key);
                let _ = scope
                    .spawn(move || use_lists_and_addresses(context, endpoint, key, 64 * thread));
            }
        });
        let all = || seen.load(Ordering::Relaxed) == 80;
        assert!(there.wait_until(all, LONG).unwrap());
        let counter = here.completion_counter().unwrap();
        for after in [DrivenAfter::Everything, DrivenAfter::Counted(&counter)] {
            let sent = endpoint.notify(after, 1, 0, b"").unwrap();
            assert!(sent.wait(LONG).unwrap().is_some());
        }
        assert!(there.wait_until(|| seen.load(Ordering::Relaxed) == 82, LONG).unwrap());
    }
}

#[test]
fn key_of_number_is_looked_up_by_a_driven_worker() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").publish_keys(true);
    let context = context.open().unwrap();
    let (_here, _there, endpoint) = pair(&context);
    let target = context.alloc(64).unwrap();
    target.publish(17).unwrap();
    let key = loop {
        match endpoint.key_by_number(17).unwrap() {
            DrivenKeyLookup::Known(key) => break key,
            DrivenKeyLookup::Asked(asked) => assert!(asked.wait(LONG).unwrap().is_some()),
        }
    };
    assert_eq!(key.region_len().unwrap(), 64);
}

#[test]
fn objects_of_another_worker_are_refused() {
    let context = shm();
    let (_here, there, endpoint) = pair(&context);
    let memory = context.alloc(64).unwrap();
    let other = there.connect(&there.address().unwrap()).unwrap();
    let key = other.import_key(&memory.remote_key().unwrap()).unwrap();
    assert_eq!(endpoint.put_bytes(b"x", &key, 0).unwrap_err().status(), Status::Invalid);
    let own = endpoint.import_key(&memory.remote_key().unwrap()).unwrap();
    let list = [&own, &key].map(|key| DrivenDescriptor::new(&memory, 0..8, key, 8));
    let refused = endpoint.put_list(&list).unwrap_err();
    assert_eq!((refused.status(), refused.index()), (Status::Invalid, Some(1)));
    let prepared = endpoint.prepare_get_list(&list[..1]).unwrap();
    assert_eq!(other.post_list(&prepared).unwrap_err().status(), Status::Invalid);
    let counter = there.completion_counter().unwrap();
    let refused = endpoint.notify(DrivenAfter::Counted(&counter), 1, 0, b"").unwrap_err();
    assert_eq!(refused.status(), Status::Invalid);
}

#[test]
fn departed_peer_is_reported_once_outside_posts() {
    for context in contexts() {
        let (here, there, endpoint) = pair(&context);
        let (told, left) = channel();
        here.on_peer_left(move |peer| told.send(peer).unwrap()).unwrap();
        there.on_message(1, |_| {}).unwrap();
        let sent = endpoint.send(1, 0, b"known to each other").unwrap();
        let _ = sent.wait(LONG).unwrap();
        assert!(endpoint.flush_messages().unwrap().wait(LONG).unwrap().is_some());
        drop(there);
        assert_eq!(left.recv_timeout(LONG.unwrap()).unwrap(), endpoint.peer().unwrap());
    }
}

/// The environment variable by which this test finds itself to be the peer's process: the address of the first worker, and the
/// transport.
const PEER: &str = "TIELINE_TEST_DRIVEN_PEER";

/// Plays the peer: acknowledges nothing, and waits to be killed.
fn play_peer(told: &str) {
    let (transport, address) = told.split_once(' ').unwrap();
    let digits = address.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
    let address: Vec<u8> = digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect();
    let context = &contexts()[transport.parse::<usize>().unwrap()];
    let worker = context.driven_worker().unwrap();
    worker.on_message(2, |message| std::mem::forget(message.acknowledgement().unwrap())).unwrap();
    let there = worker.connect(&address).unwrap();
    let _ = there.send(1, 0, b"ready").unwrap();
    loop {
        let _ = worker.wait_until(|| false, None);
    }
}

#[test]
fn killed_peer_ends_waits_and_is_reported_by_the_progress_thread() {
    if let Ok(told) = std::env::var(PEER) {
        return play_peer(&told);
    }
    for (transport, context) in contexts().iter().enumerate() {
        let worker = context.driven_worker().unwrap();
        let (told, came) = channel();
        worker.on_message(1, move |message| told.send(message.peer()).unwrap()).unwrap();
        let (told, failed) = channel();
        worker
            .on_peer_failure(move |peer, error| told.send((peer, error.status())).unwrap())
            .unwrap();
        let address = worker.address().unwrap();
        let address: String = address.iter().map(|byte| format!("{byte:02x}")).collect();
        let test = "killed_peer_ends_waits_and_is_reported_by_the_progress_thread";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(PEER, format!("{transport} {address}"))
            .spawn()
            .unwrap();
        let peer = came.recv_timeout(LONG.unwrap()).unwrap();
        let there = worker.endpoint_to(peer).unwrap();
        let options = SendOptions::new().delivered();
        let sent = there.send_with(2, 0, b"never acknowledged", &options).unwrap();
        assert!(there.flush_messages().unwrap().wait(LONG).unwrap().is_some());
        let ended = std::thread::scope(|scope| {
            let wait = scope.spawn(|| sent.wait(LONG));
            child.kill().unwrap();
            wait.join().unwrap()
        });
        assert!(matches!(ended, Err(CompletionError::Unknown(_))), "{ended:?}");
        // This thread does not drive the worker.
        assert_eq!(failed.recv_timeout(LONG.unwrap()).unwrap(), (peer, Status::PeerFailed));
        let _ = child.wait().unwrap();
    }
}
