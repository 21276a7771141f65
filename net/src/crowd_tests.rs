//! Tests of listeners under a crowd of connections from strangers and from honest peers.

use super::*;
use crowd::{Crowd, percentile_95, size, ways};

#[path = "crowd.rs"]
mod crowd;

/// Returns a route from another loopback address.
fn elsewhere(remote: SocketAddr, ip: [u8; 4]) -> Route {
    let local = LocalAddress {
        interface: "lo".into(),
        ip: ip.into(),
        prefix: 8,
        scope_id: 0,
        loopback: true,
        last_resort: false,
        mtu: 0,
        speed_mbps: None,
    };
    Route { local: Some(local), ..route(remote) }
}

#[test]
fn a_flood_of_silent_strangers_keeps_nobody_out() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let remote = at(&hub, false).expect("lo");
    let flood: Vec<_> =
        (0..300).map(|_| TcpStream::connect(remote).expect("the backlog is long")).collect();
    let _there = dial(&hub, hello(0)).expect("in its turn");
    assert!(mailbox.take().is_some());
    assert!(hub.counters().slow >= 40, "who was silent made room: {:?}", hub.counters());
    drop(flood);
}

#[test]
fn the_oldest_of_an_address_makes_room_whatever_it_says() {
    use crate::admission::{HOLD, LOOK, RESERVE_PER_SOURCE};
    let hub = open(Settings { expected: 8, ..Settings::default() });
    let (t0, bound) = (Instant::now(), RESERVE_PER_SOURCE + 8);
    let mut first = silent(&hub, 1);
    accept(&hub, t0, 1);
    let mut others = silent(&hub, bound - 1);
    accept(&hub, t0 + HOLD / 2, bound);
    // There is no room any more. No connection is accepted, the listener is not even watched, and the timer is set to the next
    // check.
    let late = silent(&hub, 40);
    let early = t0 + HOLD - Duration::from_millis(1);
    (0..100).for_each(|_| hub.poll_at(early));
    let (pending, listening, timer) = lock(&hub.handshakes).state();
    assert_eq!((pending, listening), (bound, false));
    assert!(timer.is_some_and(|at| at <= t0 + HOLD && at <= early + LOOK));
    assert_eq!(hub.counters(), Counters::default(), "nobody is dismissed before its time");
    // Each connection sends a byte, which does not renew its age.
    for stream in first.iter_mut().chain(&mut others) {
        stream.write_all(b"T").expect("connected");
    }
    // The kernel's timer wakes the listener; each newcomer takes the place of the oldest connection.
    let due = t0 + HOLD / 2 + HOLD;
    until(&hub, None, |_| {
        hub.poll_at(due.max(Instant::now()));
        (hub.counters().slow >= 40).then_some(())
    });
    assert_eq!((hub.counters().slow, hub.counters().turned_away), (40, 0));
    assert_eq!(lock(&hub.handshakes).state().0, bound);
    assert!(is_closed(&mut first[0]), "it was the oldest");
    drop(late);
}

#[test]
fn a_crowd_from_one_address_keeps_nobody_of_another_one_out() {
    crowd::raise_descriptors();
    let hub = open(Settings { expected: 0, ..Settings::default() });
    let mailbox = hub.register(ME).expect("free");
    let remote = at(&hub, false).expect("lo");
    // A crowd waits in the kernel before the listener polls for the first time.
    let crowd: Vec<_> =
        (0..1400).map(|_| TcpStream::connect(remote).expect("the backlog is long")).collect();
    let there = elsewhere(remote, [127, 0, 0, 77]);
    let mut dial = Dial::start(vec![there], key(&hub), hello(0), soon());
    let _there = finish(&hub, &mut dial).expect("in its turn");
    assert!(mailbox.take().is_some());
    let Counters { slow, turned_away, accepted, .. } = hub.counters();
    // Which of the two it is depends on the speed: a connection in its handshake makes room after `HOLD`.
    assert!(slow + turned_away > 0, "the crowd was not waited for");
    assert_eq!((dial.attempt(), accepted), (1, 1), "it came in at once");
    drop(crowd);
}

#[test]
fn six_hundred_who_come_at_once_from_one_address_lose_nobody() {
    crowd::raise_descriptors();
    let hub = open(Settings { expected: 600, ..Settings::default() });
    let mailbox = hub.register(ME).expect("free");
    let remote = at(&hub, false).expect("lo");
    let begin = |_| Dial::start(vec![route(remote)], key(&hub), hello(0), soon());
    let mut dials: Vec<Dial> = (0..600).map(begin).collect();
    let mut joined = Vec::new();
    while joined.len() < 600 {
        hub.poll();
        dials.retain_mut(|dial| match dial.advance(Instant::now()) {
            Progress::Waiting => true,
            Progress::Done(stream) => {
                assert_eq!(dial.attempt(), 1);
                joined.push(stream);
                false
            }
            Progress::Failed(why) => panic!("{why}"),
        });
        drop(mailbox.take());
    }
    assert_eq!(hub.counters(), Counters { accepted: 600, ..Counters::default() });
}

/// Serves a mailbox like a worker, sleeping until an event arrives.
fn serves(hub: &Arc<Hub>, mailbox: &Mailbox, stop: &std::sync::atomic::AtomicBool) {
    let poller = Poller::new().expect("epoll");
    for fd in [hub.fd(), mailbox.fd()] {
        poller.watch(fd.as_raw_fd(), Interest::READ, 0).expect("watched");
    }
    let mut ready = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        poller.wait(&mut ready, Some(Duration::from_millis(100))).expect("epoll");
        hub.poll();
        while mailbox.take().is_some() {}
    }
}

#[test]
fn a_peer_connects_through_a_crowd_that_drips_and_comes_back() {
    crowd::raise_descriptors();
    let (count, honest) = size();
    for (name, how, bound) in ways(count) {
        let hub = open(Settings { expected: 0, ..Settings::default() });
        let mailbox = hub.register(ME).expect("free");
        let remote = at(&hub, false).expect("lo");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ = scope.spawn(|| serves(&hub, &mailbox, &stop));
            let crowd = Crowd::start(remote, how);
            let one = |_| {
                let begun = Instant::now();
                let there = dial_blocking(remote, &key(&hub), &hello(0), soon());
                stop.store(there.is_err(), Ordering::Relaxed);
                drop(there.expect("it belongs"));
                begun.elapsed()
            };
            let mut took: Vec<Duration> = (0..honest).map(one).collect();
            let p95 = percentile_95(&mut took);
            println!(
                "    connect, {count} strangers, {name}: median {:?}, 95 % {p95:?}, longest {:?}, {} made, {:?}",
                took[honest / 2],
                took[honest - 1],
                crowd.made(),
                hub.counters()
            );
            assert!(honest < 40 || p95 <= bound, "{name}: {p95:?}");
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_stranger_that_left_is_not_polled_while_a_child_holds_its_socket() {
    let hub = open(Settings::default());
    let stranger = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
    until(&hub, None, |_| (lock(&hub.handshakes).state().0 == 1).then_some(()));
    let copies = lock(&hub.handshakes).copies();
    drop(stranger);
    until(&hub, None, |_| (hub.counters().unproven == 1).then_some(()));
    let mut ready = Vec::new();
    hub.poller.wait(&mut ready, Some(Duration::ZERO)).expect("epoll");
    assert!(copies.len() == 1 && ready.is_empty(), "{ready:?}");
}

#[test]
fn an_ended_listener_with_a_copy_in_a_child_accepts_nobody() {
    let hub = open(Settings::default());
    let remote = at(&hub, false).expect("lo");
    let mut stranger = TcpStream::connect(remote).expect("listening");
    until(&hub, None, |_| (lock(&hub.handshakes).state().0 == 1).then_some(()));
    let listeners = lock(&hub.handshakes).listener_copies();
    let streams = lock(&hub.handshakes).copies();
    drop(hub);
    assert!(is_closed(&mut stranger), "it waits for an answer");
    assert!(TcpStream::connect(remote).is_err(), "nobody accepts it");
    drop((listeners, streams));
}
