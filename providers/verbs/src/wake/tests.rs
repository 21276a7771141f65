//! Tests of the wake-up of sleeping interfaces, and of the device's asynchronous events: their recipients, the state of the port, and
//! the removal of the device.

use super::*;
use crate::devices::Published;
use crate::devices::tests::FakeClass;
use crate::double::clock::pass;
use crate::double::domain;
use crate::double::sys::host;
use crate::double::world::{announce, announce_of, reported};
use crate::queue_pair::{Qp, QpShape, Srq};
use std::sync::atomic::AtomicUsize;

/// Returns a field of the kernel's description of a descriptor (`proc_pid_fdinfo(5)`).
fn info(fd: i32, what: &str) -> String {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    info.lines().find_map(|line| line.strip_prefix(what)).unwrap().trim().to_string()
}

/// Checks whether the bell would wake a sleeper.
fn rings(inbox: &Inbox) -> bool {
    info(inbox.bell.raw(), "eventfd-count:") != "0"
}

#[test]
fn expired_timer_wakes_a_sleeper_once_and_continues() {
    let domain = domain(&[]).unwrap();
    let cq = Cq::new(&domain.state.device, 16).unwrap();
    let sleep = Sleep::new(&domain.state.watch, Some(&cq)).unwrap();
    let interval = || info(sleep.ticker.raw(), "it_interval:");
    let wakes = || info(sleep.ticker.raw(), "ticks:") != "0";
    let every = Some(Duration::from_millis(20));
    assert_eq!(interval(), "(0, 0)");
    sleep.wake_every(every);
    assert_eq!(interval(), "(0, 20000000)");
    while !wakes() {
        std::thread::yield_now();
    }
    // The timer keeps running: on a busy machine the timer may have expired again.
    let silenced = || {
        sleep.wake_every(every);
        !wakes()
    };
    assert!((0..100).any(|_| silenced()), "whoever sleeps is woken at once, for ever");
    assert_eq!(interval(), "(0, 20000000)");
    sleep.wake_every(None);
    assert_eq!(interval(), "(0, 0)");
}

#[test]
fn event_read_from_another_thread_causes_no_second_wake_up() {
    const ROUNDS: usize = 1_000;
    let domain = domain(&[]).unwrap();
    let watch = &domain.state.watch;
    let sleep = Sleep::new(watch, Some(&Cq::new(&domain.state.device, 16).unwrap())).unwrap();
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
fn queue_pair_event_is_delivered_only_to_its_owner() {
    let domain = domain(&[]).unwrap();
    let (watch, device) = (&domain.state.watch, &domain.state.device);
    let queues = [Cq::new(device, 16).unwrap(), Cq::new(device, 16).unwrap()];
    let [owner, other] = queues.each_ref().map(|cq| Sleep::new(watch, Some(cq)).unwrap());
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

#[test]
fn other_ports_link_events_are_ignored_and_closed_inbox_gets_none() {
    let domain = domain(&[]).unwrap();
    let watch = &domain.state.watch;
    let sleep = || Sleep::new(watch, Some(&Cq::new(&domain.state.device, 16).unwrap())).unwrap();
    (0..5).for_each(|_| drop(sleep()));
    let here = sleep();
    assert_eq!(watch.inboxes.lock().unwrap().len(), 1);
    for (port, kind, down) in [
        (2, IBV_EVENT_PORT_ERR, false),
        (1, IBV_EVENT_PORT_ERR, true),
        (2, IBV_EVENT_PORT_ACTIVE, true),
        (1, IBV_EVENT_PORT_ACTIVE, false),
    ] {
        announce_of(port, kind);
        assert_eq!(here.async_events().len(), 1);
        assert_eq!(watch.port_down(), down, "{kind} of port {port}");
    }
}

#[test]
fn vanished_entry_means_removed_device_without_an_event() {
    let folder = FakeClass::new("vanishes");
    folder.file("uverbs0/ibdev", "double0\n");
    let entry = folder.0.join("uverbs0");
    let device = domain(&[]).unwrap().state.device.clone();
    let name = PortName { device: "double0".into(), port: 1 };
    let published = Published::new(&entry, &name, None, 0, 0);
    let watch = Arc::new(Watch::new(device.clone(), &name, Some(entry.clone()), published, host()));
    let sleep = Sleep::new(&watch, Some(&Cq::new(&device, 16).unwrap())).unwrap();
    pass(ENTRY_EVERY);
    assert!(sleep.async_events().is_empty() && !watch.device_gone(), "it is there");
    std::fs::remove_dir_all(entry).unwrap();
    assert!(
        sleep.async_events().is_empty() && !watch.device_gone(),
        "it is looked at now and then"
    );
    let mut told = Vec::new();
    for _ in 0..3 {
        pass(ENTRY_EVERY);
        told.extend(sleep.async_events().iter().map(|event| event.kind));
    }
    assert_eq!((told, watch.device_gone()), (vec![IBV_EVENT_DEVICE_FATAL], true), "told once");
    assert_eq!(reported(), [(async_kind::DEVICE_GONE, "verbs:double0".to_owned())]);
}

#[test]
fn host_is_notified_once_of_lost_port_or_device() {
    let domain = domain(&[]).unwrap();
    let watch = &domain.state.watch;
    let sleep = || Sleep::new(watch, Some(&Cq::new(&domain.state.device, 16).unwrap())).unwrap();
    let both = [sleep(), sleep()];
    for (port, kind) in [
        (1, IBV_EVENT_PORT_ACTIVE),
        (1, IBV_EVENT_PORT_ERR),
        (2, IBV_EVENT_PORT_ERR),
        (1, IBV_EVENT_PORT_ERR),
        (1, IBV_EVENT_PORT_ACTIVE),
        (1, IBV_EVENT_DEVICE_FATAL),
        (1, IBV_EVENT_DEVICE_FATAL),
    ] {
        announce_of(port, kind);
        for sleep in &both {
            assert_eq!(sleep.async_events().len(), 1);
        }
    }
    let kinds: Vec<u32> = reported().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [async_kind::PORT_DOWN, async_kind::PORT_UP, async_kind::DEVICE_GONE]);
}
