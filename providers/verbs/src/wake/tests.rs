//! Who is woken, and who is not.

use super::*;
use crate::double::domain;
use crate::double::world::announce;
use crate::queue_pair::{Qp, QpShape, Srq};
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

#[test]
fn what_the_device_says_of_a_queue_pair_is_for_its_owner_alone() {
    let domain = domain(&[]).unwrap();
    let (watch, device) = (&domain.state.watch, &domain.state.device);
    let queues = [Cq::new(device, 16).unwrap(), Cq::new(device, 16).unwrap()];
    let [owner, other] = queues.each_ref().map(|cq| Sleep::new(watch, cq).unwrap());
    let srq = Srq::new(&domain.state.pd, 32).unwrap();
    let shape = QpShape {
        kind: IBV_QPT_RC,
        cq: &queues[0],
        srq: Some(&srq),
        send_depth: 16,
        receive_depth: 0,
        sges: 1,
        inline: 0,
    };
    let qp = Qp::new(&domain.state.pd, &shape).unwrap();
    qp.to_error().unwrap();
    assert_eq!(other.async_events().len(), 0, "it is the one that reads");
    assert!(rings(&owner.inbox) && !rings(&other.inbox));
    let told: Vec<_> = owner.async_events().iter().map(|event| (event.kind, event.qp)).collect();
    assert_eq!(told, [(IBV_EVENT_QP_LAST_WQE_REACHED, Some(qp.number()))]);
    announce(IBV_EVENT_PORT_ERR);
    assert_eq!([&owner, &other].map(|sleep| sleep.async_events().len()), [1, 1]);
}
