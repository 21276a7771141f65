//! Who is woken, and who is not.

use super::*;
use crate::double::domain;
use std::sync::atomic::AtomicUsize;

/// Whether a sleeper would be woken by the bell, as the kernel says (`proc_pid_fdinfo(5)`).
fn rings(inbox: &Inbox) -> bool {
    let path = format!("/proc/self/fdinfo/{}", inbox.bell.raw());
    let info = std::fs::read_to_string(path).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
    count.trim() != "0"
}

#[test]
fn who_has_taken_an_event_that_another_thread_brought_is_not_woken_again() {
    const ROUNDS: usize = 1_000;
    let domain = domain(&[]).unwrap();
    let watch = &domain.state.watch;
    let sleep = Sleep::new(watch, &Cq::new(&domain.state.device, 16).unwrap()).unwrap();
    let (round, brought) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let event = AsyncEvent { kind: IBV_EVENT_PORT_ACTIVE, qp: None, queue: None, port: Some(1) };
    let mut woken = 0;
    std::thread::scope(|scope| {
        let _ = scope.spawn(|| {
            for n in 1..=ROUNDS {
                while round.load(Ordering::Acquire) < n {
                    std::thread::yield_now();
                }
                watch.deliver(event);
                brought.store(n, Ordering::Release);
            }
        });
        for n in 1..=ROUNDS {
            round.store(n, Ordering::Release);
            while sleep.async_events().is_empty() {}
            while brought.load(Ordering::Acquire) < n {
                std::thread::yield_now();
            }
            woken += usize::from(rings(&sleep.inbox));
            sleep.inbox.bell.silence();
        }
    });
    assert_eq!(woken, 0, "of {ROUNDS} times");
}
