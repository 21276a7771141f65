//! Tests of connectors that reach each other over the device double and the connection manager double.

use super::abi::*;
use super::double::sys::{asked, classes, fault, is_readable, remove_device};
use super::half_open::HALF_OPEN;
use super::sys::{Channel, Id};
use super::wire::Phase;
use super::wires::Wires;
use super::{MAX_DATAGRAM, RdmaCm, listening};
use crate::double::world::{counts, fault as device, logged, pairs};
use crate::double::{domain, sys};
use core::mem::MaybeUninit;
use std::time::{Duration, Instant};
use tieline_net::LocalAddress;
use tieline_net::datagrams::{LinkEvent, Links, WAITING};
use tieline_plugin_api::{Armed, Connector, Events, Status, address_hash, event};

/// Returns an address of this host.
fn local(ip: &str) -> LocalAddress {
    LocalAddress {
        interface: "eth0".into(),
        ip: ip.parse().unwrap(),
        prefix: 24,
        scope_id: 0,
        loopback: false,
        last_resort: false,
        mtu: 1500,
        speed_mbps: None,
    }
}

/// Returns the connections of a connector that listens at this address, with these settings.
fn wires_at(ip: &str, settings: &[(&str, &str)]) -> Wires {
    let (domain, channel) = (domain(settings).unwrap(), Channel::new().unwrap());
    let here = vec![local(ip)];
    let listening = listening::listen(&channel, &domain.state.name, &here).unwrap();
    Wires::new(domain.state.clone(), channel, here, listening).unwrap()
}

fn connector(ip: &str, settings: &[(&str, &str)]) -> RdmaCm {
    RdmaCm::new(wires_at(ip, settings))
}

/// An event of a connector.
#[derive(Debug, PartialEq)]
enum Told {
    Datagram(u64, Vec<u8>),
    Left(u64, Status, String),
}

/// Polls once for at most `most` events.
fn poll(connector: &RdmaCm, most: usize) -> Vec<Told> {
    let mut room = [const { MaybeUninit::uninit() }; 64];
    let mut events = Events::new(&mut room[..most]);
    connector.poll(&mut events).unwrap();
    let len = events.len();
    let told = sys::pushed(&room, len);
    let told = told.iter().map(|told| match told.kind {
        event::DATAGRAM => Told::Datagram(told.header, sys::payload(told)),
        event::PEER_LEFT => {
            let words = String::from_utf8(sys::payload(told)).unwrap();
            Told::Left(told.header, Status::from_code(told.status), words)
        }
        kind => panic!("an event of kind {kind}"),
    });
    told.collect()
}

/// Polls all connectors until they have reported `count` events together. Only a hang reaches the time limit.
fn told(connectors: &[&RdmaCm], count: usize) -> Vec<Told> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut told = Vec::new();
    while told.len() < count {
        assert!(Instant::now() < until, "only {told:?}");
        connectors.iter().for_each(|connector| told.extend(poll(connector, 64)));
    }
    told
}

/// Polls all connectors until `holds` is true.
fn poll_until(connectors: &[&RdmaCm], mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "it hangs");
        let told: Vec<Told> = connectors.iter().flat_map(|connector| poll(connector, 64)).collect();
        assert_eq!(told, []);
    }
}

/// Returns the single event that the connectors report.
fn only(connectors: &[&RdmaCm]) -> Told {
    let mut told = told(connectors, 1);
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

fn left(told: Told) -> (u64, Status, String) {
    match told {
        Told::Left(hash, status, words) => (hash, status, words),
        other => panic!("{other:?}"),
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

#[test]
fn datagrams_of_every_length_arrive_in_order_with_their_sender() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    let lens = [0, 1, 4093, 4094, 4095, 8188, 8189, MAX_DATAGRAM - 1, MAX_DATAGRAM];
    for (from, to) in [(&a, &b), (&b, &a)] {
        for (seed, len) in lens.iter().enumerate() {
            assert_eq!(from.send(&to.address(), &bytes(*len, seed)), Ok(()));
        }
        let hash = address_hash(&from.address());
        let all: Vec<Told> =
            (0..lens.len()).map(|seed| Told::Datagram(hash, bytes(lens[seed], seed))).collect();
        assert_eq!(told(&[&a, &b], lens.len()), all);
    }
    assert_eq!(a.send(&b.address(), &[0; MAX_DATAGRAM + 1]), Err(Status::TooLarge));
    assert_eq!(a.send(b"nobody", b"lost"), Err(Status::Invalid));
    assert_eq!(pairs().len(), 2, "one connection serves both ways");
}

#[test]
fn datagrams_beyond_the_peers_buffers_arrive_as_it_reads() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    let hash = address_hash(&a.address());
    let (mut sent, mut came) = (0usize, 0usize);
    while came < 600 {
        while sent < 600 && a.send(&b.address(), &bytes(100, sent)) == Ok(()) {
            sent += 1;
        }
        let _ = poll(&a, 64);
        for told in poll(&b, 3) {
            assert_eq!(told, Told::Datagram(hash, bytes(100, came)));
            came += 1;
        }
    }
}

#[test]
fn simultaneous_dials_deliver_everything_once_and_in_order() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    for n in 0..20 {
        a.send(&b.address(), &[n]).unwrap();
        b.send(&a.address(), &[n]).unwrap();
    }
    let all = told(&[&a, &b], 40);
    for from in [&a, &b] {
        let hash = address_hash(&from.address());
        let of = |told: &Told| match told {
            Told::Datagram(header, bytes) => (*header == hash).then(|| bytes[0]),
            Told::Left(..) => panic!("{told:?}"),
        };
        assert!(all.iter().filter_map(of).eq(0..20), "{all:?}");
    }
}

#[test]
fn proof_at_the_deadline_is_accepted_and_connection_stays() {
    let (mut a, mut b) = (wires_at("10.77.0.1", &[]), wires_at("10.77.0.2", &[]));
    let _ = a.dial(&b.own);
    let until = Instant::now() + Duration::from_secs(60);
    let has_come = |wires: &Wires| wires.wires.values().any(|wire| matches!(wire.phase, Phase::Up));
    while !has_come(&b) {
        assert!(Instant::now() < until, "it hangs");
        let _ = a.progress();
        if a.wires.values().any(|w| matches!(w.phase, Phase::Dialling { answered: true, .. })) {
            // The proof has arrived: the connector reads it before it checks the deadline.
            b.wires.values_mut().for_each(|wire| wire.deadline = Some(Instant::now()));
        }
        let _ = b.progress();
    }
    // The loop ends at the next timer check.
    while !b.progress() {
        let _ = a.progress();
        std::thread::yield_now();
    }
    let [LinkEvent::Up { .. }] = b.events.make_contiguous() else { panic!("{:?}", b.events) };
    assert!(has_come(&b));
    assert!(b.wires.values().all(|wire| wire.silent_since.is_none()), "it proves itself no more");
}

#[test]
fn closing_connector_is_reported_and_frees_its_queue_pairs() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    let hash = address_hash(&a.address());
    a.send(&b.address(), b"hello").unwrap();
    assert_eq!(only(&[&a, &b]), Told::Datagram(hash, b"hello".to_vec()));
    drop(a);
    let (of, status, words) = left(only(&[&b]));
    assert_eq!((of, status), (hash, Status::Closed), "{words}");
    assert!(pairs().is_empty(), "{:?}", pairs());
}

#[test]
fn vanished_peer_is_failed_and_peer_without_route_is_unreachable() {
    let a = connector("10.77.0.1", &[]);
    let gone = connector("10.77.0.2", &[]).address();
    a.send(&gone, b"hello").unwrap();
    let (hash, status, words) = left(only(&[&a]));
    assert_eq!((hash, status), (address_hash(&gone), Status::PeerFailed));
    assert!(words.contains("10.77.0.2:") && words.contains("nobody listens"), "{words}");
    let cases = [
        (RDMA_CM_EVENT_ADDR_ERROR, "cannot be resolved"),
        (RDMA_CM_EVENT_ROUTE_ERROR, "no route"),
        (RDMA_CM_EVENT_UNREACHABLE, "does not answer"),
    ];
    for (kind, expected) in cases {
        fault(|faults| match kind {
            RDMA_CM_EVENT_ADDR_ERROR => faults.addresses.push_back((kind, -libc::ETIMEDOUT)),
            _ => faults.routes.push_back((kind, -libc::ETIMEDOUT)),
        });
        a.send(&gone, b"hello").unwrap();
        let (_, status, words) = left(only(&[&a]));
        assert!(status == Status::Unreachable && words.contains(expected), "{status:?} {words}");
    }
    fault(|faults| faults.port = Some(2));
    a.send(&gone, b"hello").unwrap();
    let (_, status, words) = left(only(&[&a]));
    assert_eq!(status, Status::Unreachable);
    assert!(words.contains("leaves from double0 port 2, not from"), "{words}");
    assert!(pairs().is_empty(), "{:?}", pairs());
}

#[test]
fn peer_with_other_secret_is_refused_on_both_sides() {
    let a = connector("10.77.0.1", &[("TIELINE_SECRET", "ours")]);
    let b = connector("10.77.0.2", &[("TIELINE_SECRET", "theirs")]);
    a.send(&b.address(), b"let me in").unwrap();
    let (hash, status, words) = left(only(&[&a, &b]));
    assert_eq!((hash, status), (address_hash(&b.address()), Status::Permission), "{words}");
    poll_until(&[&a, &b], || pairs().is_empty());
}

#[test]
fn stale_connection_on_the_peers_host_is_retried() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    fault(|faults| faults.rejections.extend([10, 10, 10]));
    a.send(&b.address(), b"at last").unwrap();
    let hash = address_hash(&a.address());
    assert_eq!(only(&[&a, &b]), Told::Datagram(hash, b"at last".to_vec()));
}

#[test]
fn unanswered_request_times_out() {
    let settings = [("TIELINE_CONNECT_TIMEOUT", "60ms")];
    let (a, b) = (connector("10.77.0.1", &settings), connector("10.77.0.2", &[]));
    fault(|faults| faults.silent = true);
    a.send(&b.address(), b"hello?").unwrap();
    let (_, status, words) = left(only(&[&a, &b]));
    assert_eq!(status, Status::TimedOut);
    assert!(words.contains("no answer in time"), "{words}");
    fault(|faults| faults.silent = false);
    a.send(&b.address(), b"hello").unwrap();
    let hash = address_hash(&a.address());
    assert_eq!(only(&[&a, &b]), Told::Datagram(hash, b"hello".to_vec()), "it is dialled anew");
}

#[test]
fn unproven_connections_are_bounded_and_newcomers_still_connect() {
    let (a, b) = (connector("10.77.0.1", &[]), wires_at("10.77.0.2", &[]));
    let b = RdmaCm::new(b);
    // This peer has dialled and was accepted, and then stays silent.
    let mut silent = wires_at("10.77.0.3", &[]);
    for _ in 0..HALF_OPEN {
        let _ = Links::dial(&mut silent, &b.address());
    }
    let requested = || asked().iter().filter(|what| **what == "connect").count();
    let mut requests = 0;
    while requests < HALF_OPEN {
        let _ = silent.progress();
        requests += requested();
    }
    assert_eq!(poll(&b, 64), []);
    assert_eq!(pairs().len(), 2 * HALF_OPEN, "each has a queue pair");
    a.send(&b.address(), b"me, too").unwrap();
    let hash = address_hash(&a.address());
    assert_eq!(only(&[&a, &b]), Told::Datagram(hash, b"me, too".to_vec()));
    assert!(asked().iter().filter(|what| **what == "connect").count() > 1, "it was turned away");
}

#[test]
fn request_without_handshake_is_rejected_without_queue_pair() {
    let b = connector("10.77.0.2", &[]);
    let channel = Channel::new().unwrap();
    let contact = super::address::parse(&b.address()).unwrap();
    let to = (contact.addresses[0].ip, contact.addresses[0].port).into();
    let id = Id::new(&channel).unwrap();
    id.resolve_address("10.77.0.9:0".parse().unwrap(), to, 1).unwrap();
    id.connect(7, b"GET / HTTP/1.1").unwrap();
    assert_eq!(poll(&b, 64), []);
    assert!(pairs().is_empty());
    let mut last = None;
    while let Some(event) = channel.next().unwrap() {
        last = Some((event.key, event.kind));
    }
    assert_eq!(last, Some((id.key(), RDMA_CM_EVENT_REJECTED)));
}

#[test]
fn idle_connection_is_closed_and_reopened_on_demand() {
    let settings = [("TIELINE_VERBS_CM_IDLE", "1ms")];
    let (a, b) = (connector("10.77.0.1", &settings), connector("10.77.0.2", &[]));
    let hash = address_hash(&a.address());
    for round in 0..3 {
        a.send(&b.address(), &[round]).unwrap();
        assert_eq!(only(&[&a, &b]), Told::Datagram(hash, vec![round]));
        assert_eq!(pairs().len(), 2);
        poll_until(&[&a, &b], || pairs().is_empty());
    }
}

#[test]
fn least_recently_used_connection_is_closed_above_the_limit() {
    let a = connector("10.77.0.1", &[("TIELINE_VERBS_CM_CONNECTIONS", "2")]);
    let others: Vec<RdmaCm> = (2..6).map(|n| connector(&format!("10.77.0.{n}"), &[])).collect();
    let hash = address_hash(&a.address());
    for b in &others {
        a.send(&b.address(), b"one of many").unwrap();
        assert_eq!(only(&[&a, b]), Told::Datagram(hash, b"one of many".to_vec()));
    }
    let all: Vec<&RdmaCm> = others.iter().chain([&a]).collect();
    poll_until(&all, || pairs().len() == 4);
    // The connections to the first peers were closed; these peers can be reached again.
    a.send(&others[0].address(), b"again").unwrap();
    assert_eq!(only(&all), Told::Datagram(hash, b"again".to_vec()));
}

#[test]
fn removed_device_fails_connections_and_connector() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    a.send(&b.address(), b"hello").unwrap();
    let _ = only(&[&a, &b]);
    assert_eq!(a.reachable(&b.address()), Ok(()));
    remove_device();
    let (hash, status, words) = left(told(&[&a], 1).remove(0));
    assert_eq!((hash, status), (address_hash(&b.address()), Status::NoDevice));
    assert!(words.ends_with("the device double0 was removed"), "{words}");
    let failure = a.reachable(&b.address()).unwrap_err();
    assert_eq!(failure.status, Status::NoDevice);
    a.send(&b.address(), b"hello").unwrap();
    assert_eq!(left(told(&[&a], 1).remove(0)).1, Status::NoDevice);
}

#[test]
fn unusable_event_channel_fails_the_connector() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    a.send(&b.address(), b"hello").unwrap();
    let _ = only(&[&a, &b]);
    fault(|faults| faults.deaf = true);
    let (_, _, words) = left(told(&[&a], 1).remove(0));
    assert!(words.contains("events of rdma_cm"), "{words}");
    assert!(a.reachable(&b.address()).is_err());
}

#[test]
fn type_of_service_is_set_if_configured() {
    let b = connector("10.77.0.2", &[]);
    for (class, set) in [("0", vec![]), ("96", vec![96])] {
        let a = connector("10.77.0.1", &[("TIELINE_VERBS_TRAFFIC_CLASS", class)]);
        a.send(&b.address(), b"hello").unwrap();
        let _ = only(&[&a, &b]);
        assert_eq!(classes(), set);
    }
}

#[test]
fn address_of_another_device_gets_no_listener() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    fault(|faults| faults.port = Some(2));
    let here = [local("10.77.0.1")];
    let Err(failure) = listening::listen(&channel, &domain.state.name, &here) else {
        panic!("it listens")
    };
    assert_eq!(failure.status, Status::NoDevice);
    assert!(failure.text.starts_with("10.77.0.1 leads to "), "{}", failure.text);
}

#[test]
fn manager_and_device_events_wake_a_sleeper() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    let readable = |connector: &RdmaCm| is_readable(connector.event_fd().unwrap());
    poll_until(&[&b], || b.arm() == Ok(Armed::Sleep));
    assert!(!readable(&b));
    a.send(&b.address(), b"wake up").unwrap();
    poll_until(&[&a], || readable(&b));
    let _ = told(&[&a, &b], 1);
    assert_eq!(a.send(&a.address(), b"to myself"), Ok(()));
    assert_eq!(a.arm(), Ok(Armed::Ready), "there is something to tell");
    let hash = address_hash(&a.address());
    assert_eq!(poll(&a, 64), [Told::Datagram(hash, b"to myself".to_vec())]);
}

#[test]
fn simultaneous_close_requests_agree_and_lose_nothing() {
    let settings = [("TIELINE_VERBS_CM_IDLE", "1ms")];
    let (a, b) = (connector("10.77.0.1", &settings), connector("10.77.0.2", &settings));
    let hash = address_hash(&a.address());
    a.send(&b.address(), b"hello").unwrap();
    assert_eq!(only(&[&a, &b]), Told::Datagram(hash, b"hello".to_vec()));
    device(|faults| faults.stuck = true);
    let before = counts().sends;
    poll_until(&[&a, &b], || counts().sends == before + 2);
    a.send(&b.address(), b"after all").unwrap();
    assert_eq!(poll(&a, 64), [], "it waits for the end of the connection");
    device(|faults| faults.stuck = false);
    assert_eq!(only(&[&a, &b]), Told::Datagram(hash, b"after all".to_vec()));
    poll_until(&[&a, &b], || pairs().is_empty());
}

#[test]
fn peer_with_silent_device_times_out() {
    let settings = [("TIELINE_FAILURE_TIMEOUT", "100ms")];
    for is_cut in [true, false] {
        let (a, b) = (connector("10.77.0.1", &settings), connector("10.77.0.2", &[]));
        a.send(&b.address(), b"hello").unwrap();
        let _ = only(&[&a, &b]);
        device(|faults| (faults.cut, faults.stuck) = (is_cut, !is_cut));
        a.send(&b.address(), b"hello?").unwrap();
        let (hash, status, words) = left(only(&[&a]));
        assert_eq!(hash, address_hash(&b.address()));
        let expected = match is_cut {
            true => (Status::PeerFailed, "the peer did not acknowledge what was sent"),
            false => (Status::TimedOut, "there was no answer in time"),
        };
        assert!(status == expected.0 && words.ends_with(expected.1), "{status:?} {words}");
        device(|faults| (faults.cut, faults.stuck) = (false, false));
        let (hash, status, words) = left(only(&[&b]));
        assert_eq!((hash, status), (address_hash(&a.address()), Status::PeerFailed));
        assert!(words.ends_with("the peer has closed it, or its process ended"), "{words}");
    }
}

#[test]
fn connector_closes_although_its_goodbye_is_not_acknowledged() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    a.send(&b.address(), b"hello").unwrap();
    let _ = only(&[&a, &b]);
    device(|faults| faults.stuck = true);
    drop(a);
    device(|faults| faults.stuck = false);
    let (_, status, words) = left(only(&[&b]));
    assert_eq!(status, Status::PeerFailed, "{words}");
    assert!(pairs().is_empty(), "{:?}", pairs());
}

#[test]
fn unproven_connections_are_logged_again_when_their_count_doubles() {
    let b = connector("10.77.0.2", &[]);
    let contact = super::address::parse(&b.address()).unwrap();
    let to = (contact.addresses[0].ip, contact.addresses[0].port).into();
    let channel = Channel::new().unwrap();
    let mut came = 0;
    for doubled in [1, 2, 4, 8] {
        while came < doubled {
            let id = Id::new(&channel).unwrap();
            id.resolve_address("10.77.0.9:0".parse().unwrap(), to, 1).unwrap();
            id.connect(7, b"GET / HTTP/1.1").unwrap();
            assert_eq!(poll(&b, 64), []);
            came += 1;
        }
        let mut lines = Vec::new();
        poll_until(&[&b], || {
            lines.extend(logged());
            !lines.is_empty()
        });
        let words = format!("verbs: {doubled} connections to rdmacm of this process were closed");
        assert!(lines.len() == 1 && lines[0].starts_with(&words), "{lines:?}");
    }
}

#[test]
fn events_beyond_the_room_are_delivered_by_the_next_poll() {
    let a = connector("10.77.0.1", &[]);
    let (own, hash) = (a.address(), address_hash(&a.address()));
    for n in 0..5 {
        a.send(&own, &[n]).unwrap();
    }
    let all = [&[0u8, 1][..], &[2, 3], &[4], &[]];
    for expected in all {
        let expected: Vec<Told> = expected.iter().map(|n| Told::Datagram(hash, vec![*n])).collect();
        assert_eq!(poll(&a, 2), expected);
    }
    let taken = (0..5000).take_while(|_| a.send(&own, b"more") == Ok(())).count();
    assert_eq!(taken, WAITING, "who does not poll is not given more");
}

#[test]
fn a_listener_that_can_make_no_queue_pair_refuses() {
    let (a, b) = (connector("10.77.0.1", &[]), connector("10.77.0.2", &[]));
    device(|faults| faults.most_pairs = Some(1));
    a.send(&b.address(), b"hello").unwrap();
    let (_, status, words) = left(only(&[&a, &b]));
    assert_eq!(status, Status::Unreachable);
    assert!(words.ends_with("the peer's connector refused"), "{words}");
    assert!(pairs().is_empty());
    device(|faults| faults.most_pairs = Some(0));
    a.send(&b.address(), b"hello").unwrap();
    let (_, _, words) = left(only(&[&a]));
    assert!(words.contains("10.77.0.2:"), "{words}");
}

#[test]
fn peer_with_other_version_learns_the_local_version() {
    let b = connector("10.77.0.2", &[]);
    let contact = super::address::parse(&b.address()).unwrap();
    let to = (contact.addresses[0].ip, contact.addresses[0].port).into();
    let channel = Channel::new().unwrap();
    let id = Id::new(&channel).unwrap();
    id.resolve_address("10.77.0.9:0".parse().unwrap(), to, 1).unwrap();
    id.connect(7, &[&b"TLN\x63"[..], &[5; 32]].concat()).unwrap();
    assert_eq!(poll(&b, 64), []);
    let mut last = None;
    while let Some(event) = channel.next().unwrap() {
        last = Some(event);
    }
    let last = last.unwrap();
    assert_eq!(last.kind, RDMA_CM_EVENT_REJECTED);
    assert_eq!(last.private[..4], [b'T', b'L', b'N', tieline_net::VERSION]);
    assert!(pairs().is_empty());
}
