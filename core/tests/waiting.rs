//! Tests of `Worker::wait_until`: the events that end a wait, the calls that it refuses, and that it loses no event in either case.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tieline::{Context, Endpoint, Status, Worker};
use tieline_testing::built;

/// Makes a worker with an endpoint to itself, and the list of the headers of the received messages.
fn worker(settings: &[(&str, &str)]) -> (Context, Worker, Endpoint, Rc<RefCell<Vec<u64>>>) {
    let builder = settings.iter().fold(Context::builder(), |b, (name, value)| b.set(name, value));
    let context = builder.open().unwrap();
    let worker = context.worker().unwrap();
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let log = seen.clone();
    worker.on_message(1, move |m| log.borrow_mut().push(m.header())).unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    (context, worker, me, seen)
}

#[test]
fn a_wait_ends_when_its_condition_holds_and_makes_no_progress_beyond_that() {
    let (_context, worker, me, seen) = worker(&[]);
    assert!(worker.wait_until(|| true, None).unwrap());
    let sent = me.send(1, 7, b"").unwrap();
    let _ = worker.finish(sent).unwrap();
    assert!(worker.wait_until(|| !seen.borrow().is_empty(), None).unwrap());
    assert_eq!(*seen.borrow(), [7]);
}

#[test]
fn a_wait_ends_after_its_timeout_and_not_before() {
    let (_context, worker, _me, _seen) = worker(&[]);
    for timeout in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(30)] {
        let (begun, mut looks) = (Instant::now(), 0);
        let never = || {
            looks += 1;
            false
        };
        assert!(!worker.wait_until(never, Some(timeout)).unwrap());
        assert!(begun.elapsed() >= timeout);
        assert!(looks >= 2, "the condition is looked at before and after");
    }
}

#[test]
fn events_that_never_end_do_not_keep_a_wait_from_its_timeout() {
    let (_context, worker, me, seen) = worker(&[]);
    let flood = || {
        let _ = me.send(1, 0, b"on and on");
        false
    };
    assert!(!worker.wait_until(flood, Some(Duration::from_millis(5))).unwrap());
    assert!(!seen.borrow().is_empty());
}

#[test]
fn a_condition_that_holds_when_the_time_is_up_has_been_met() {
    let (_context, worker, _me, _seen) = worker(&[]);
    let begun = Instant::now();
    let late = || begun.elapsed() >= Duration::from_millis(2);
    // The condition is checked once more after the timeout.
    while !worker.wait_until(late, Some(Duration::from_millis(1))).unwrap() {}
    assert!(worker.wait_until(late, Some(Duration::ZERO)).unwrap());
}

#[test]
fn inside_a_handler_a_wait_is_refused() {
    let (_context, worker, me, _seen) = worker(&[]);
    let worker = Rc::new(worker);
    let said: Rc<RefCell<Vec<Status>>> = Rc::default();
    let (log, inside) = (said.clone(), Rc::downgrade(&worker));
    worker
        .on_message(2, move |_| {
            let Some(worker) = inside.upgrade() else { return };
            let refused = |result: Result<bool, tieline::Error>| result.unwrap_err().status();
            log.borrow_mut().push(refused(worker.wait_until(|| true, None)));
            log.borrow_mut()
                .push(refused(worker.wait(Some(Duration::ZERO)).map(|waited| waited.has_moved())));
        })
        .unwrap();
    let _ = me.send(2, 0, b"").unwrap();
    assert!(worker.wait_until(|| said.borrow().len() == 2, None).unwrap());
    assert_eq!(*said.borrow(), [Status::Busy, Status::Busy]);
}

#[test]
fn a_condition_that_panics_loses_nothing() {
    let (_context, worker, me, seen) = worker(&[]);
    for header in 0..100 {
        let looks = Cell::new(0);
        let panics = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 + header % 3 {
                panic!("a condition");
            }
            false
        };
        let _ = me.send(1, header, b"").unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| worker.wait_until(panics, None)));
        assert!(panicked.is_err());
    }
    assert!(worker.wait_until(|| seen.borrow().len() == 100, None).unwrap());
    assert_eq!(*seen.borrow(), (0..100).collect::<Vec<_>>());
}

/// Tests any phase of the wait: `after` lets it spin, yield or sleep first.
fn ended_by_memory_that_another_thread_writes(settings: &[(&str, &str)], after: Duration) {
    let (context, worker, _me, _seen) = worker(settings);
    let memory = context.alloc(8).unwrap();
    let writing = Arc::new(AtomicBool::new(false));
    let (start, theirs) = (writing.clone(), memory.clone());
    let writer = std::thread::spawn(move || {
        let mut waiting = None::<Instant>;
        while waiting.is_none_or(|since| since.elapsed() < after) {
            if start.load(Ordering::Acquire) {
                let _ = waiting.get_or_insert_with(Instant::now);
            }
            std::thread::yield_now();
        }
        theirs.atomic_u64(0).unwrap().store(1, Ordering::Release);
    });
    let word = memory.atomic_u64(0).unwrap();
    let written = || {
        writing.store(true, Ordering::Release);
        word.load(Ordering::Acquire) == 1
    };
    assert!(worker.wait_until(written, None).unwrap());
    writer.join().unwrap();
}

#[test]
fn remote_writes_end_wait_in_any_phase() {
    for spin in ["0", "50us", "inf"] {
        for after in [0, 200, 20_000] {
            let after = Duration::from_micros(after);
            ended_by_memory_that_another_thread_writes(&[("TIELINE_SPIN", spin)], after);
        }
    }
}

#[test]
fn a_region_that_somebody_still_holds_is_given_back_when_the_time_is_up() {
    let (context, worker, _me, _seen) = worker(&[]);
    let region = context.alloc(64).unwrap();
    let held = region.clone();
    let not = worker.close_region(region, Duration::from_millis(2)).unwrap_err();
    assert_eq!(not.error.status(), Status::Busy);
    drop(held);
    worker.close_region(not.region, Duration::from_secs(60)).unwrap();
}

#[test]
fn the_report_says_what_waits_begin_with_and_why() {
    let waits = |spin: Option<&str>| {
        let builder = Context::builder();
        let builder = spin.map_or(builder, |spin| Context::builder().set("TIELINE_SPIN", spin));
        let report = builder.open().unwrap().report();
        assert!(report.why().contains("WAITS\n"), "{}", report.why());
        report.waits
    };
    assert!(waits(None).contains("1 process of the job on this host"), "{}", waits(None));
    assert!(waits(Some("0")).starts_with("yield their processor at once"), "{}", waits(Some("0")));
    assert!(waits(Some("3us")).starts_with("spin for 3µs"), "{}", waits(Some("3us")));
    assert!(
        waits(Some("3us")).contains("TIELINE_SPIN was set (program)"),
        "{}",
        waits(Some("3us"))
    );
    let error = Context::builder().set("TIELINE_SPIN", "long").open().map(drop).unwrap_err();
    assert!(error.to_string().contains("TIELINE_SPIN"), "{error}");
}

#[test]
fn a_word_of_own_memory_is_waited_for_by_value_whoever_writes_it() {
    let (context, worker, me, _seen) = worker(&[]);
    let flags = context.alloc(64).unwrap();
    let key = me.import_key(&flags.remote_key().unwrap()).unwrap();
    let millis = |n| Some(Duration::from_millis(n));
    assert_eq!(worker.wait_word(&flags, 8, |word| word > 0, millis(2)), Ok(None));
    let _ = me.put_bytes(&5u64.to_le_bytes(), &key, 8).unwrap();
    let little = u64::from_le_bytes(5u64.to_ne_bytes());
    assert_eq!(worker.wait_word(&flags, 8, |word| word > 0, None), Ok(Some(little)));
    let misplaced = |offset| worker.wait_word(&flags, offset, |_| true, None).unwrap_err().status();
    assert_eq!((misplaced(4), misplaced(64)), (Status::Misaligned, Status::OutOfRange));
    // Another worker executes atomics, in any phase of this worker's wait.
    let address = flags.remote_key().unwrap();
    let to = worker.address().unwrap();
    let other = std::thread::spawn(move || {
        let worker = context.worker().unwrap();
        let there = worker.connect(&to).unwrap();
        let key = there.import_key(&address).unwrap();
        for _ in 0..50 {
            let added = there.fetch_add(&key, 16, 1).unwrap();
            let _ = worker.finish(added).unwrap();
        }
    });
    let mut seen = 0;
    while seen < 50 {
        seen = worker.wait_word(&flags, 16, |word| word > seen, None).unwrap().unwrap();
    }
    other.join().unwrap();
}

/// Returns the available transports of one host, and the settings under which each is the only one.
fn transports() -> Vec<Vec<(&'static str, String)>> {
    let only = |providers: &str| ("TIELINE_PROVIDERS", providers.to_string());
    let mut all = vec![vec![only("shm")], vec![only("shm,shm-cma")]];
    match built::folder(&built::TCP) {
        Ok(folder) => all.push(vec![
            ("TIELINE_PROVIDER_PATH", folder.to_str().unwrap().to_string()),
            only("tcp,tcp-connect"),
            ("TIELINE_TCP_INTERFACES", "127.0.0.0/8".to_string()),
        ]),
        Err(reason) => println!("skipped: over tcp: {reason}"),
    }
    all
}

#[test]
fn notification_ends_wait_after_its_bytes_arrived() {
    const ROUNDS: u32 = 200;
    for settings in transports() {
        let open = || {
            let builder = Context::builder();
            settings.iter().fold(builder, |b, (name, value)| b.set(name, value)).open().unwrap()
        };
        let (here, there) = (open(), open());
        // One memory can be mapped by the peer, and the other cannot.
        for memory in [there.alloc(4096).unwrap(), there.register(vec![0; 4096]).unwrap()] {
            let worker = there.worker().unwrap();
            let (address, key) = (worker.address().unwrap(), memory.remote_key().unwrap());
            let came = Rc::new(Cell::new(0));
            let note = came.clone();
            worker.on_notification(move |_, word| note.set(word)).unwrap();
            let turn = Arc::new(AtomicU64::new(0));
            let (seen, here) = (turn.clone(), here.clone());
            let puts = std::thread::spawn(move || {
                let worker = here.worker().unwrap();
                let there = worker.connect(&address).unwrap();
                let key = there.import_key(&key).unwrap();
                for word in 1..=ROUNDS {
                    let local = here.register(vec![word as u8; 4096]).unwrap();
                    let put = there.put_notify(&local, 0..4096, &key, 0, word).unwrap();
                    let _ = worker.finish(put).unwrap();
                    let told = || seen.load(Ordering::Acquire) == u64::from(word);
                    assert!(worker.wait_until(told, None).unwrap());
                }
            });
            for word in 1..=ROUNDS {
                while came.get() != word {
                    let _ = worker.wait(None).unwrap();
                }
                assert!(memory.to_vec(0..4096).unwrap() == vec![word as u8; 4096], "{settings:?}");
                turn.store(u64::from(word), Ordering::Release);
            }
            // The worker must send the last answer.
            let done = || puts.is_finished();
            assert!(worker.wait_until(done, None).unwrap());
            puts.join().unwrap();
        }
    }
}
