//! Tests of single connections over the device double.

use super::PURPOSE;
use super::address::{self, tests::contact};
use super::connector::RdmaCm;
use super::double::sys as manager;
use super::half_open::FULL;
use super::sys::{Channel, Id};
use super::wire::{Phase, Wire};
use super::wires::Wires;
use crate::abi::IBV_EVENT_DEVICE_FATAL;
use crate::double::world::{announce, fault, pairs};
use crate::double::{domain, interval, sys};
use core::mem::MaybeUninit;
use std::time::{Duration, Instant};
use tieline_net::datagrams::{LinkEvent, Links};
use tieline_net::{Acceptor, Dialler, Hello, Key, LocalAddress};
use tieline_plugin_api::{Connector, Events, Status, address_hash, event};

/// Returns an address in the same network as one of the contact's.
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

#[test]
fn unpollable_completion_queue_fails_all_connections_and_dials() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let here = vec![local("10.77.0.2"), local("fd00::2")];
    let mut wires = Wires::new(domain.state.clone(), channel, here, Default::default()).unwrap();
    let peer = address::pack(&contact(1));
    manager::fault(|faults| faults.silent = true);
    let dial = wires.dial(&peer);
    assert!(wires.events.is_empty() && wires.dials.len() == 1, "{:?}", wires.events);
    let mut links = Vec::new();
    for phase in [Phase::Up, Phase::Finishing] {
        let link = wires.number();
        let id = Id::new(&wires.channel).unwrap();
        let _ = wires.ids.insert(id.key(), link);
        let _ = wires.wires.insert(link, Wire::new(id, phase, Instant::now() + Duration::MAX / 4));
        let _ = wires.prepare(link);
        links.push(link);
    }
    fault(|faults| faults.polls_fail = true);
    let _ = wires.progress();
    let words = "the completion queue cannot be polled any more";
    let mut ends = [false; 3];
    for event in wires.events.drain(..) {
        match event {
            LinkEvent::Lost { link, status: Status::NoDevice, words: said } => {
                assert_eq!((link, &said[..]), (links[0], words));
                ends[0] = true;
            }
            LinkEvent::Finished { link } => ends[1] = link == links[1],
            LinkEvent::DialFailed { dial: of, status: Status::NoDevice, words: said } => {
                assert!(of == dial && said.ends_with(words), "{said}");
                ends[2] = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends, [true; 3]);
    assert!(wires.wires.is_empty() && wires.ids.is_empty() && wires.dials.is_empty());
    assert!(pairs().is_empty(), "{:?}", pairs());
    let again = wires.dial(&peer);
    let Some(LinkEvent::DialFailed { dial, status: Status::NoDevice, .. }) =
        wires.events.pop_front()
    else {
        panic!("it dials")
    };
    assert_eq!(dial, again);
}

#[test]
fn device_events_are_read_before_sleep() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let mut wires =
        Wires::new(domain.state.clone(), channel, Vec::new(), Default::default()).unwrap();
    let watched = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", wires.fd())).unwrap();
    let is_channel = |line: &str| {
        let fd = line.strip_prefix("tfd:").and_then(|rest| rest.split_whitespace().next());
        fd.is_some_and(|fd| fd.parse() == Ok(wires.channel.fd()))
    };
    assert!(watched.lines().any(is_channel), "what the manager says wakes as well: {watched}");
    let (link, id) = (wires.number(), Id::new(&wires.channel).unwrap());
    let _ = wires.wires.insert(link, Wire::new(id, Phase::Up, Instant::now()));
    announce(IBV_EVENT_DEVICE_FATAL);
    assert!(!wires.arm(true), "there is something to tell first");
    let Some(LinkEvent::Lost { status: Status::NoDevice, .. }) = wires.events.pop_front() else {
        panic!("it is not told")
    };
    assert!(wires.arm(false));
}

#[test]
fn sleeper_wakes_often_during_wireup_and_rarely_afterwards() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let here = vec![local("10.77.0.2")];
    let mut wires = Wires::new(domain.state.clone(), channel, here, Default::default()).unwrap();
    let armed = |wires: &mut Wires, has_links: bool| {
        assert!(wires.arm(has_links));
        interval(wires.fd())
    };
    let (often, now_and_then, never) = ("(0, 50000000)", "(0, 500000000)", "(0, 0)");
    assert_eq!(armed(&mut wires, false), never);
    assert_eq!(armed(&mut wires, true), now_and_then, "one of them may fall silent");
    manager::fault(|faults| faults.silent = true);
    let _ = wires.dial(&address::pack(&contact(1)));
    assert_eq!(armed(&mut wires, false), often);
    // The loop tests each reason separately: a dial that waits for its retry, and a connection with a deadline.
    let attempts = core::mem::take(&mut wires.wires);
    assert_eq!((armed(&mut wires, true), wires.dials.len()), (often.to_string(), 1));
    (wires.wires, wires.dials) = (attempts, Default::default());
    assert_eq!(armed(&mut wires, false), often);
    wires.wires.values_mut().for_each(|wire| wire.deadline = None);
    assert_eq!(armed(&mut wires, true), now_and_then);
    assert_eq!(armed(&mut wires, false), never);
}

#[test]
fn pending_dials_fail_when_the_connector_breaks() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let here = vec![local("10.77.0.2")];
    let wires = Wires::new(domain.state.clone(), channel, here, Default::default()).unwrap();
    let (connector, peer) = (RdmaCm::new(wires), address::pack(&contact(1)));
    manager::fault(|faults| faults.silent = true);
    assert_eq!(connector.send(&peer, b"waits for a connection"), Ok(()));
    fault(|faults| faults.polls_fail = true);
    let mut room = [const { MaybeUninit::uninit() }; 4];
    let mut events = Events::new(&mut room);
    connector.poll(&mut events).unwrap();
    let len = events.len();
    let told = sys::pushed(&room, len);
    let [left] = &told[..] else { panic!("{} events", told.len()) };
    assert_eq!((left.kind, left.header), (event::PEER_LEFT, address_hash(&peer)));
    let words = String::from_utf8(sys::payload(left)).unwrap();
    assert_eq!(Status::from_code(left.status), Status::NoDevice, "{words}");
    assert!(words.ends_with("the completion queue cannot be polled any more"), "{words}");
}

/// Returns a connector with a local address for each of the contact's addresses.
fn wires() -> Wires {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let here = vec![local("10.77.0.2"), local("fd00::2")];
    Wires::new(domain.state.clone(), channel, here, Default::default()).unwrap()
}

/// Fails every route until the dial fails. Returns the number of attempts, and the final status and text.
fn fail_all_routes(status: Status) -> (usize, Status, String) {
    let mut wires = wires();
    let dial = wires.dial(&address::pack(&contact(1)));
    for times in 1..20 {
        wires.failed(dial, status, &format!("trouble {times}"));
        match wires.events.pop_front() {
            None => assert_eq!(wires.dials.len(), 1, "it goes on"),
            Some(LinkEvent::DialFailed { dial: of, status, words }) => {
                assert_eq!((of, wires.dials.len()), (dial, 0));
                return (times, status, words);
            }
            Some(other) => panic!("{other:?}"),
        }
    }
    panic!("it is never given up")
}

#[test]
fn failed_dial_reports_every_route() {
    let (times, status, words) = fail_all_routes(Status::TimedOut);
    assert_eq!((times, status), (2, Status::TimedOut));
    let routes: Vec<&str> = words.split("; ").collect();
    assert_eq!(routes.len(), 2, "{words}");
    for (route, trouble) in routes.iter().zip(["trouble 1", "trouble 2"]) {
        assert!(route.ends_with(&format!(": {trouble}")), "{words}");
    }
    for remote in ["10.77.0.1:7001 (", "[fd00::1]:7001 ("] {
        assert!(routes.iter().any(|route| route.starts_with(remote)), "{remote}: {words}");
    }
}

#[test]
fn each_stale_route_is_retried_three_times() {
    let (times, status, words) = fail_all_routes(Status::Busy);
    assert_eq!((times, status), (8, Status::Busy));
    assert_eq!(words.split("; ").count(), 2, "it is named once: {words}");
}

#[test]
fn full_listener_is_retried_once_after_the_pause() {
    let mut wires = wires();
    manager::fault(|faults| faults.silent = true);
    let _ = wires.dial(&address::pack(&contact(1)));
    let link = *wires.wires.keys().next().unwrap();
    wires.rejected(link, 0, FULL);
    assert!(wires.wires.is_empty() && wires.events.is_empty(), "{:?}", wires.events);
    let later = Instant::now() + Duration::from_millis(500);
    for _ in 0..3 {
        wires.try_again(later);
        assert_eq!((wires.wires.len(), wires.events.len()), (1, 0));
    }
}

#[test]
fn quiet_connection_finishes_immediately() {
    let mut wires = wires();
    let (link, id) = (wires.number(), Id::new(&wires.channel).unwrap());
    let _ = wires.ids.insert(id.key(), link);
    let _ = wires.wires.insert(link, Wire::new(id, Phase::Up, Instant::now()));
    wires.finish(link);
    match wires.events.pop_front() {
        Some(LinkEvent::Finished { link: finished }) => assert_eq!(finished, link),
        other => panic!("{other:?}"),
    }
    assert!(wires.wires.is_empty() && wires.ids.is_empty() && wires.events.is_empty());
    wires.finish(link); // a missing link causes no event
    assert!(wires.events.is_empty());
}

/// Makes an incoming connection to `wires` from a peer that uses this key and this target. Returns its number and the bytes of its
/// proof.
fn newcomer(wires: &mut Wires, key: &Key, target: [u8; 16]) -> (u64, Vec<u8>) {
    let hello = Hello::new(PURPOSE, target, &address::pack(&contact(1))).unwrap();
    let mut dialler = Dialler::new(key.clone(), &hello, [1; 32]);
    let mut acceptor = Acceptor::new(wires.key.clone(), [2; 32]);
    let start = dialler.output().to_vec();
    dialler.sent(start.len());
    assert!(acceptor.receive(&start).unwrap().is_none());
    let challenge = acceptor.output().to_vec();
    acceptor.sent(challenge.len());
    assert!(!dialler.receive(&challenge).unwrap());
    let (link, id) = (wires.number(), Id::new(&wires.channel).unwrap());
    let _ = wires.ids.insert(id.key(), link);
    let _ = wires.wires.insert(link, Wire::new(id, Phase::Accepting(acceptor), Instant::now()));
    (link, dialler.output().to_vec())
}

fn has_come(wires: &mut Wires, link: u64) -> bool {
    let up = |event: LinkEvent| match event {
        LinkEvent::Up { link: of, peer, dial } => {
            assert_eq!((of, peer, dial), (link, address::pack(&contact(1)), None));
            true
        }
        _ => false,
    };
    wires.events.drain(..).any(up)
}

#[test]
fn proof_in_one_frame_is_read_in_steps() {
    let mut wires = wires();
    let (key, target) = (wires.key.clone(), wires.contact.target);
    let (link, proof) = newcomer(&mut wires, &key, target);
    wires.prove(link, &proof);
    assert_eq!((has_come(&mut wires, link), wires.unproven), (true, 0));
}

#[test]
fn peer_with_wrong_key_or_target_is_refused() {
    let mut wires = wires();
    let (key, target) = (wires.key.clone(), wires.contact.target);
    let stranger = Key::derive(b"", &[77; 16]);
    let (link, proof) = newcomer(&mut wires, &stranger, target);
    wires.prove(link, &proof);
    assert_eq!((has_come(&mut wires, link), wires.unproven), (false, 1), "it proved nothing");
    let (link, proof) = newcomer(&mut wires, &key, [77; 16]);
    wires.prove(link, &proof);
    assert_eq!((has_come(&mut wires, link), wires.unproven), (false, 1), "nobody lives there");
}
