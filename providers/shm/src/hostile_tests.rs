//! Tests of a peer that greets properly and then writes arbitrary data into the channel, of key requests, and of fences.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use tieline_plugin_api::{Endpoint, Interface, Posting, Status, event};

use crate::channel;
use crate::config::Settings;
use crate::hello::{Address, Hello, Record};
use crate::interface::RingInterface;
use crate::keys::{Exports, Key};
use crate::pool::MAX_CHUNK;
use crate::receiver::RecvChannel;
use crate::shared::DomainState;
use crate::sys::{self, Mapping};
use crate::wake::FENCES;

pub(crate) const FASTBOX: usize = 1024;

fn interface() -> RingInterface {
    open(Settings::defaults())
}

pub(crate) fn domain(id: u8) -> Arc<DomainState> {
    Arc::new(DomainState {
        id: [id; 16],
        host: OnceLock::new(),
        exports: Exports::default(),
        log: None,
        warned: std::sync::Once::new(),
        lacked: std::sync::Mutex::default(),
    })
}

pub(crate) fn open(settings: Settings) -> RingInterface {
    RingInterface::open(domain(3), settings).unwrap()
}

/// Returns the events of a poll, with every payload read completely.
pub(crate) fn poll(interface: &RingInterface) -> Vec<(u32, u64, i32)> {
    let seen = Cell::new(0u64);
    let events = sys::polled(interface);
    let list = events.iter().map(|e| {
        assert!(e.len <= MAX_CHUNK);
        let copy = sys::payload(e); // an overread would crash
        seen.set(seen.get() + copy.iter().map(|&b| u64::from(b)).sum::<u64>());
        (e.kind, e.peer, e.status)
    });
    list.collect()
}

pub(crate) struct Hostile {
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) memory: Mapping,
    pub(crate) file: OwnedFd,
}

/// Returns the parts of a greeting: a connection, the memory of a channel, and the greeting itself.
fn greeting(interface: &RingInterface, asymmetric: bool) -> (OwnedFd, OwnedFd, Hello) {
    let address = Address::parse(&interface.address()).unwrap();
    let file = sys::memory_file(c"hostile", channel::memory_len(FASTBOX)).unwrap();
    let socket = sys::connect(&address.socket).unwrap();
    let (cookie, fastbox) = (address.cookie, FASTBOX as u32);
    (socket, file, Hello { cookie, asymmetric, fastbox, identity: b"trust me".to_vec() })
}

pub(crate) fn greet(interface: &RingInterface) -> Hostile {
    let (socket, file, hello) = greeting(interface, true);
    let memory = Mapping::new(file.as_fd(), channel::memory_len(FASTBOX), true).unwrap();
    sys::send(&socket, &Record::Hello(hello).pack(), &[file.as_fd()]).unwrap();
    Hostile { socket: Some(socket), memory, file }
}

#[derive(Clone, Debug)]
enum Attack {
    /// An arbitrary word anywhere.
    Scribble(usize, u64),
    /// A control word of the right lap in a slot, with an arbitrary body.
    Slot(usize, u8, u8, [u64; 3]),
    /// Arbitrary bytes on the socket.
    Record(Vec<u8>),
    /// A segment of the pool, with a possibly wrong length.
    Segment(u32, u64),
}

fn attack() -> impl Strategy<Value = Attack> {
    let word = prop_oneof![any::<u64>(), 0u64..70000, Just(u64::MAX), Just(1 << 32)];
    prop_oneof![
        (0usize..640, any::<u64>()).prop_map(|(at, word)| Attack::Scribble(at * 8, word)),
        (0usize..32, 0u8..7, 0u8..60, [word.clone(), word.clone(), word])
            .prop_map(|(at, kind, len, body)| Attack::Slot(at, kind, len, body)),
        (0usize..32, Just(2u8), Just(16u8), 0u64..3, 0u64..70000, 0u64..20000).prop_map(
            |(at, kind, len, segment, bytes, offset)| {
                Attack::Slot(at, kind, len, [0, segment | bytes << 32, offset])
            }
        ),
        prop::collection::vec(any::<u8>(), 1..40).prop_map(Attack::Record),
        (0u32..3, prop_oneof![Just(8192u64), any::<u64>()])
            .prop_map(|(number, len)| Attack::Segment(number, len)),
    ]
}

fn strike(hostile: &Hostile, attack: &Attack) {
    match attack {
        Attack::Scribble(at, value) => {
            hostile.memory.word(*at).unwrap().store(*value, Ordering::Release);
        }
        Attack::Slot(slot, kind, len, body) => {
            let at = channel::COLD.slots + slot * 64;
            for (i, value) in body.iter().enumerate() {
                hostile.memory.word(at + 8 + i * 8).unwrap().store(*value, Ordering::Release);
            }
            let head = u64::from(crate::ring::head(*kind, *len as usize, 1));
            hostile.memory.word(at).unwrap().store(1 << 32 | head, Ordering::Release);
        }
        Attack::Record(bytes) => {
            let _ = sys::send(hostile.socket.as_ref().unwrap(), bytes, &[]);
        }
        Attack::Segment(number, len) => {
            let file = sys::memory_file(c"hostile", 8192).unwrap();
            // A segment without memory is refused; only every second segment gets memory.
            if number % 2 == 0 {
                sys::reserve(&file, 0, 8192).unwrap();
            }
            let record = Record::Segment { number: *number, len: *len };
            let _ = sys::send(hostile.socket.as_ref().unwrap(), &record.pack(), &[file.as_fd()]);
        }
    }
}

#[test]
fn a_peer_that_keeps_asking_takes_one_fast_box_and_gives_it_back() {
    let interface = interface();
    let hostile = greet(&interface);
    while poll(&interface).is_empty() {}
    for slot in 0..20 {
        strike(&hostile, &Attack::Slot(slot, channel::kind::WANT_FAST, 0, [slot as u64 + 1, 0, 0]));
    }
    let answered = || hostile.memory.word(channel::VERDICT).unwrap().load(Ordering::Acquire);
    // A poll stops after one such slot.
    for _ in 0..40 {
        assert!(poll(&interface).is_empty());
    }
    assert_eq!(answered(), 20 << 2 | channel::GRANTED, "it is told which request is answered");
    assert_eq!(interface.fast_boxes(), 1);
    drop(hostile.socket);
    while poll(&interface).is_empty() {}
    assert_eq!(interface.fast_boxes(), 0);
}

#[test]
fn exhausted_fast_boxes_are_refused_by_request_number() {
    let interface = open(Settings { fastbox_max: 0, ..Settings::defaults() });
    let hostile = greet(&interface);
    while poll(&interface).is_empty() {}
    let answered = || hostile.memory.word(channel::VERDICT).unwrap().load(Ordering::Acquire);
    for (slot, request) in [1, 2, 77].into_iter().enumerate() {
        strike(&hostile, &Attack::Slot(slot, channel::kind::WANT_FAST, 0, [request, 0, 0]));
        for _ in 0..3 {
            assert!(poll(&interface).is_empty());
        }
        assert_eq!(answered(), request << 2 | channel::REFUSED);
    }
    assert_eq!(interface.fast_boxes(), 0);
}

#[test]
fn a_message_behind_the_note_that_the_bell_will_ring_needs_no_bell() {
    let interface = interface();
    let hostile = greet(&interface);
    while poll(&interface).is_empty() {}
    assert_eq!(interface.looked_at(), 1);
    strike(&hostile, &Attack::Slot(0, channel::kind::BELL_ON, 0, [0, 0, 0]));
    strike(&hostile, &Attack::Slot(1, channel::kind::INLINE, 8, [1, 0, 0]));
    let came: Vec<u32> = (0..3).flat_map(|_| poll(&interface)).map(|seen| seen.0).collect();
    assert_eq!((came, interface.looked_at()), (vec![event::MESSAGE], 0));
    // From here on the bells are rung.
    strike(&hostile, &Attack::Slot(2, channel::kind::INLINE, 8, [1, 0, 0]));
    interface.ring_all_bells(0);
    let came: Vec<u32> = (0..3).flat_map(|_| poll(&interface)).map(|seen| seen.0).collect();
    assert_eq!(came, [event::MESSAGE]);
}

#[test]
fn received_segment_is_mapped_for_the_message_that_names_it() {
    let interface = interface();
    let hostile = greet(&interface);
    while poll(&interface).is_empty() {}
    // No check of the sockets is due.
    for _ in 0..3 {
        assert!(poll(&interface).is_empty());
    }
    assert!(!interface.attends());
    strike(&hostile, &Attack::Segment(0, 8192));
    strike(&hostile, &Attack::Slot(0, channel::kind::POOLED, 16, [0, 100 << 32, 64]));
    let came: Vec<u32> = poll(&interface).iter().map(|seen| seen.0).collect();
    assert_eq!(came, [event::MESSAGE]);
}

/// A descriptor and the slot that needs it use different routes.
#[test]
fn message_waits_for_its_segment_in_flight() {
    let interface = interface();
    let hostile = greet(&interface);
    while poll(&interface).is_empty() {}
    // The records before the segment fill two turns of the socket.
    let none = Record::Wake.pack();
    for _ in 0..2 * crate::receiver::MOST_IN_TURN {
        sys::send(hostile.socket.as_ref().unwrap(), &none, &[]).unwrap();
    }
    strike(&hostile, &Attack::Segment(0, 8192));
    strike(&hostile, &Attack::Slot(0, channel::kind::POOLED, 16, [0, 100 << 32, 64]));
    let came: Vec<u32> = (0..4).flat_map(|_| poll(&interface)).map(|seen| seen.0).collect();
    assert_eq!(came, [event::MESSAGE]);
}

#[test]
fn message_in_missing_segment_or_beyond_its_end_is_invalid() {
    for (segment, at) in [(1, 64), (0, 8192 - 99), (0, u64::MAX - 50)] {
        let interface = interface();
        let hostile = greet(&interface);
        while poll(&interface).is_empty() {}
        strike(&hostile, &Attack::Segment(0, 8192));
        let slot = [0, segment | 100 << 32, at];
        strike(&hostile, &Attack::Slot(0, channel::kind::POOLED, 16, slot));
        let seen: Vec<_> = (0..4).flat_map(|_| poll(&interface)).collect();
        assert_eq!(seen, [(event::PEER_LEFT, 0, Status::BadData as i32)], "{segment} {at}");
    }
}

#[test]
fn a_peer_that_takes_a_fast_box_without_being_granted_one_is_hung_up_on() {
    let interface = open(Settings { fastbox_max: 0, ..Settings::defaults() });
    for asks in [false, true] {
        let hostile = greet(&interface);
        while poll(&interface).is_empty() {}
        if asks {
            strike(&hostile, &Attack::Slot(0, channel::kind::WANT_FAST, 0, [1, 0, 0]));
        }
        strike(&hostile, &Attack::Slot(asks.into(), channel::kind::SWITCH, 0, [0, 0, 0]));
        let left = std::iter::repeat_with(|| poll(&interface)).find(|events| !events.is_empty());
        let [(kind, _, status)] = left.unwrap()[..] else { panic!("one event") };
        assert_eq!((kind, status), (event::PEER_LEFT, Status::BadData as i32));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn a_hostile_peer_ends_its_own_channel_and_nothing_else(
        attacks in prop::collection::vec(attack(), 1..60)
    ) {
        let interface = interface();
        let good = interface.connect(&interface.address(), b"good", 1).unwrap();
        let mut arrived = 0;
        while arrived == 0 {
            arrived = poll(&interface).iter().filter(|e| e.0 == event::PEER_ARRIVED).count();
        }
        let hostile = greet(&interface);
        while poll(&interface).iter().all(|e| e.0 != event::PEER_ARRIVED) {}
        let mut sent = 0u64;
        let mut got = 0u64;
        let mut left = Vec::new();
        let mut look = |got: &mut u64| {
            for (kind, peer, status) in poll(&interface) {
                match (kind, peer) {
                    (event::MESSAGE, 0) => *got += 1,
                    (event::PEER_LEFT, _) => left.push((peer, status)),
                    _ => {}
                }
            }
        };
        for attack in &attacks {
            strike(&hostile, attack);
            if good.am_short(1, sent, &[1; 100]).is_ok() {
                sent += 1;
            }
            look(&mut got);
        }
        let mut rounds = 0;
        while got < sent {
            look(&mut got);
            rounds += 1;
            prop_assert!(rounds < 1_000_000, "the honest peer's messages are lost");
        }
        prop_assert_eq!(got, sent);
        drop(hostile);
        let allowed = [Status::BadData as i32, Status::PeerFailed as i32, Status::NoMemory as i32, 0];
        for (peer, status) in left {
            prop_assert_eq!(peer, 1);
            prop_assert!(allowed.contains(&status));
        }
    }

    #[test]
    fn a_receiver_that_writes_nonsense_fails_the_endpoint_only(
        words in prop::collection::vec((0usize..64, any::<u64>()), 1..20)
    ) {
        let interface = interface();
        let endpoint = interface.connect(&interface.address(), b"me", 1).unwrap();
        let memory = endpoint.channel_memory();
        for (at, value) in words {
            memory.word(at * 8).unwrap().store(value, Ordering::Release);
            for _ in 0..40 {
                if endpoint.am_short(1, 0, &[2; 60]).is_err() {
                    break;
                }
            }
            let _ = poll(&interface);
        }
        // Another peer of the same interface is served.
        let other = interface.connect(&interface.address(), b"other", 2).unwrap();
        prop_assert_eq!(other.am_short(9, 0, b"still here"), Ok(Posting::Done));
        // The last peer to arrive is the other one.
        let (mut last, mut heard) = (0, false);
        for (kind, peer, _) in (0..10_000).flat_map(|_| poll(&interface)) {
            match kind {
                event::PEER_ARRIVED => (last, heard) = (peer, false),
                event::MESSAGE => heard |= peer == last,
                _ => {}
            }
        }
        prop_assert!(heard, "the interface no longer brings messages");
    }
}

/// The peer's answer would find no endpoint.
#[test]
fn closing_endpoint_requests_no_key_and_unanswered_request_is_repeated() {
    let (here, there) = (interface(), interface());
    let to = here.connect(&there.address(), b"", 1).unwrap();
    let key = Key { domain: [5; 16], number: 7, slot: 0, len: 1, access: 1, segment: 7, offset: 0 };
    assert_eq!(to.channel().request_key(key), Status::Again);
    to.channel().close();
    assert_eq!(to.channel().request_key(key), Status::Closed);
}

/// Returns the number of fences that a step executes.
fn fences(step: impl FnOnce()) -> u32 {
    let before = FENCES.get();
    step();
    FENCES.get() - before
}

/// Returns the number of fences of a message if both sides have membarrier: none, if this machine has it.
fn fences_with_membarrier_on_both_sides() -> u32 {
    u32::from(!sys::asymmetric())
}

#[test]
fn sender_uses_fences_unless_both_sides_have_membarrier() {
    let (here, there) = (interface(), interface());
    let to = here.connect(&there.address(), b"", 1).unwrap();
    let short = || assert_eq!(to.am_short(1, 0, b"news"), Ok(Posting::Done));
    let long = || assert_eq!(to.am_short(1, 0, &[1; 1000]), Ok(Posting::Done));
    let answer = |asymmetric, files: &[OwnedFd]| {
        let record = Record::Ack { asymmetric, bell: 0 };
        to.channel().handle(record, files, false).unwrap();
    };
    assert_eq!((fences(short), fences(long)), (1, 1), "the peer has not answered");
    answer(false, &[]);
    assert_eq!((fences(short), fences(long)), (1, 1), "the peer has no membarrier");
    answer(true, &[]);
    let each = fences_with_membarrier_on_both_sides();
    assert_eq!((fences(short), fences(long)), (each, each));
    // A note is written once in the life of a channel, and always has its own fence.
    let page = sys::memory_file(c"bells", sys::PAGE).unwrap();
    sys::reserve(&page, 0, sys::PAGE).unwrap();
    assert_eq!(fences(|| answer(true, &[page])), 1, "the note that the bell will ring");
    assert!(to.channel().has_bell());
    assert_eq!(fences(short), each);
}

#[test]
fn receiver_uses_fence_for_room_unless_both_sides_have_membarrier() {
    let interface = interface();
    for (asymmetric, each) in [(false, 1), (true, fences_with_membarrier_on_both_sides())] {
        let (socket, file, hello) = greeting(&interface, asymmetric);
        let channel = RecvChannel::accept(&hello, &file, socket, 0);
        let mut channel = channel.map_err(|(_, refusal)| refusal.text()).unwrap();
        for _ in 0..3 {
            assert_eq!(fences(|| channel.publish()), each, "{asymmetric}");
        }
    }
}
