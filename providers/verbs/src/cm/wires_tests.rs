//! Connections over a device that this process plays, and a connection manager that says nothing.

use super::address::{self, tests::contact};
use super::connector::RdmaCm;
use super::peers::{Event, Net};
use super::sys::{Channel, Id};
use super::wire::{Phase, Wire};
use super::wires::Wires;
use crate::abi::IBV_EVENT_DEVICE_FATAL;
use crate::double::world::{announce, fault, pairs};
use crate::double::{domain, sys};
use core::mem::MaybeUninit;
use std::time::{Duration, Instant};
use tieline_net::LocalAddress;
use tieline_plugin_api::{Connector, Events, Status, address_hash, event};

/// An address next to one of the contact's.
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
fn a_completion_queue_that_cannot_be_polled_ends_every_connection_and_every_dial() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let here = vec![local("10.77.0.2"), local("fd00::2")];
    let mut wires = Wires::new(domain.state.clone(), channel, here, Default::default()).unwrap();
    let peer = address::pack(&contact(1));
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
            Event::Lost { link, status: Status::NoDevice, words: said } => {
                assert_eq!((link, &said[..]), (links[0], words));
                ends[0] = true;
            }
            Event::Finished { link } => ends[1] = link == links[1],
            Event::DialFailed { dial: of, status: Status::NoDevice, words: said } => {
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
    let Some(Event::DialFailed { dial, status: Status::NoDevice, .. }) = wires.events.pop_front()
    else {
        panic!("it dials")
    };
    assert_eq!(dial, again);
}

#[test]
fn what_the_device_has_said_is_read_before_sleep_since_it_would_wake_at_once() {
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
    let Some(Event::Lost { status: Status::NoDevice, .. }) = wires.events.pop_front() else {
        panic!("it is not told")
    };
    assert!(wires.arm(false));
}

#[test]
fn who_waits_for_a_peer_hears_it_when_the_connector_cannot_go_on() {
    let (domain, channel) = (domain(&[]).unwrap(), Channel::new().unwrap());
    let here = vec![local("10.77.0.2")];
    let wires = Wires::new(domain.state.clone(), channel, here, Default::default()).unwrap();
    let (connector, peer) = (RdmaCm::new(wires), address::pack(&contact(1)));
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
