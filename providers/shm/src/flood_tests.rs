//! Tests of peers that flood or stay silent, and of the limits on the work in a poll and on connections.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tieline_plugin_api::{Endpoint, Interface, Status, event};

use crate::channel::{self, kind};
use crate::config::Settings;
use crate::hello::{Address, MAX_RECORD, Record, Refusal};
use crate::hostile_tests::{FASTBOX, Hostile, greet, open, poll};
use crate::interface::RingInterface;
use crate::pool::{LARGEST_SEGMENT, MAX_CHUNK, MAX_SEGMENTS};
use crate::receiver::MOST_IN_TURN;
use crate::ring::head;
use crate::sys;

/// The number of events that `poll` takes in one call.
const EVENTS: usize = 16;

/// A peer that keeps its ring full.
struct Flooder {
    hostile: Hostile,
    position: u64,
    origin: u64,
    layout: crate::ring::Layout,
    kind: u8,
}

impl Flooder {
    fn greet(interface: &RingInterface, kind: u8) -> Flooder {
        Flooder { hostile: greet(interface), position: 0, origin: 0, layout: channel::COLD, kind }
    }

    fn push(&mut self, kind: u8) -> bool {
        self.push_slot(kind, 8, [1, 0, 0])
    }

    fn push_slot(&mut self, kind: u8, len: usize, words: [u64; 3]) -> bool {
        let memory = &self.hostile.memory;
        let count = self.layout.count as u64;
        let tail = memory.word(channel::TAIL).unwrap().load(Ordering::Acquire);
        if self.position >= tail.max(self.origin) + count {
            return false;
        }
        let number = self.position.wrapping_mul(self.layout.step);
        let at = self.layout.slots + (number % count) as usize * 64;
        for (n, word) in words.into_iter().enumerate() {
            memory.word(at + 8 + n * 8).unwrap().store(word, Ordering::Release);
        }
        let word = (self.position / count + 1) << 32 | u64::from(head(kind, len, 1));
        memory.word(at).unwrap().store(word, Ordering::Release);
        self.position += 1;
        true
    }

    fn fill(&mut self) {
        while self.push(self.kind) {}
    }

    /// Continues in the fast box, which every poll drains.
    fn switch(&mut self) {
        assert!(self.push_slot(kind::WANT_FAST, 0, [1, 0, 0]) && self.push(kind::SWITCH));
        self.layout = channel::fast(FASTBOX, true);
        self.position = self.position.next_multiple_of(self.layout.count as u64);
        self.origin = self.position;
    }
}

/// Polls until `count` peers have arrived, and discards the other events.
fn arrive(interface: &RingInterface, count: usize) {
    let start = Instant::now();
    let mut arrived = 0;
    while arrived < count {
        arrived += poll(interface).iter().filter(|e| e.0 == event::PEER_ARRIVED).count();
        assert!(start.elapsed() < Duration::from_secs(60), "{arrived} of {count} arrived");
    }
}

/// Measures the polls that each message of an honest peer waits for. The flooders connect first, the honest peer last.
fn honest_share(flooders: usize, kind: u8, fast: bool, bells: bool) {
    // Without fast boxes the honest peer keeps using its bell.
    let fastbox_max = if fast { 1000 } else { 0 };
    let interface = open(Settings { fastbox_max, threshold: 0, ..Settings::defaults() });
    let mut flood: Vec<Flooder> = (0..flooders).map(|_| Flooder::greet(&interface, kind)).collect();
    arrive(&interface, flooders);
    for flooder in &mut flood {
        if bells {
            assert!(flooder.push(kind::BELL_ON));
        }
        if fast {
            flooder.switch();
        }
    }
    let honest = interface.connect(&interface.address(), b"honest", 7).unwrap();
    let (mut sent, mut got, mut polls, mut messages) = (0u64, 0u64, 0, 0);
    let mut numbers = std::collections::HashSet::new();
    let wanted = 40;
    // One turn of all flooders fills the events of a number of polls, which the size of the ring bounds.
    let ring = if fast { FASTBOX / 64 } else { channel::COLD.count };
    let turn = flooders * (ring / EVENTS + 2) + 10;
    while got < wanted {
        for flooder in &mut flood {
            flooder.fill();
        }
        if bells {
            for word in 0..=flooders / 64 {
                interface.ring_all_bells(word);
            }
        }
        if sent == got && honest.am_short(1, sent, &[1; 8]).is_ok() {
            sent += 1;
        }
        for (kind, peer, _) in poll(&interface) {
            match kind {
                event::MESSAGE if peer == flooders as u64 => got += 1,
                event::MESSAGE => {
                    let _ = numbers.insert(peer);
                    messages += 1;
                }
                _ => {}
            }
        }
        polls += 1;
        assert!(
            polls <= turn * (wanted as usize + 3),
            "{got} messages of the honest peer in {polls} polls, {messages} of {} others",
            numbers.len()
        );
    }
    println!("{got} messages of the honest peer in {polls} polls, {messages} of others");
    if kind == kind::INLINE {
        assert_eq!(numbers.len(), flooders, "every flooder has its turn, too");
    }
}

#[test]
fn an_honest_peer_has_its_share_beside_those_that_fill_fast_boxes() {
    honest_share(20, kind::INLINE, true, false);
}

#[test]
fn honest_peer_gets_its_share_beside_flooding_peers() {
    honest_share(70, kind::INLINE, false, true);
}

#[test]
fn an_honest_peer_has_its_share_beside_those_that_never_ring() {
    honest_share(70, kind::INLINE, false, false);
}

#[test]
fn an_honest_peer_has_its_share_beside_those_that_write_no_messages() {
    honest_share(20, kind::WANT_FAST, false, false);
    honest_share(20, kind::WANT_FAST, false, true);
}

#[test]
fn disconnected_peer_that_keeps_writing_is_ended_without_priority() {
    for fast in [false, true] {
        let interface = open(Settings::defaults());
        let mut gone: Vec<Flooder> =
            (0..4).map(|_| Flooder::greet(&interface, kind::INLINE)).collect();
        arrive(&interface, gone.len());
        if fast {
            gone.iter_mut().for_each(Flooder::switch);
        }
        let honest = interface.connect(&interface.address(), b"honest", 7).unwrap();
        let sockets: Vec<OwnedFd> =
            gone.iter_mut().map(|peer| peer.hostile.socket.take().unwrap()).collect();
        drop(sockets);
        let (mut left, mut sent, mut got) = (0, 0u64, 0u64);
        let mut messages = [0; 4];
        while left < gone.len() || got < 5 {
            gone.iter_mut().for_each(Flooder::fill);
            if sent == got && honest.am_short(1, sent, &[1; 8]).is_ok() {
                sent += 1;
            }
            for (kind, peer, _) in poll(&interface) {
                match (kind, peer) {
                    (event::MESSAGE, 4) => got += 1,
                    (event::MESSAGE, peer) => messages[peer as usize] += 1,
                    (event::PEER_LEFT, _) => left += 1,
                    _ => {}
                }
            }
            // The bound has two parts: the contents of the rings, and the messages before the sockets are checked, whose time
            // depends on the clock.
            assert!(
                messages.iter().all(|&m| m < 10_000),
                "{messages:?}, {left} left, {got} honest"
            );
        }
        assert_eq!((left, got), (gone.len(), sent));
    }
}

#[test]
fn poll_reads_bounded_records_and_serves_sockets_in_turn() {
    const PEERS: usize = 150;
    let interface = open(Settings::defaults());
    let peers: Vec<Hostile> = (0..PEERS).map(|_| greet(&interface)).collect();
    arrive(&interface, PEERS);
    let wake = Record::Wake.pack();
    let fill = |peer: &Hostile| {
        let socket = peer.socket.as_ref().unwrap();
        (0..100_000).take_while(|_| sys::send(socket, &wake, &[]).is_ok()).count()
    };
    let room: usize = peers.iter().map(fill).sum();
    assert!(room > 20 * PEERS, "sockets hold many records: {room}");
    // Each record that is read makes room for another.
    let (mut read, mut most) = (vec![0; PEERS], 0);
    for _ in 0..200 {
        let before = Instant::now();
        while before.elapsed() < Duration::from_micros(150) {
            std::hint::spin_loop(); // the sockets are checked at a fixed interval
        }
        assert!(poll(&interface).is_empty());
        let now: Vec<usize> = peers.iter().map(fill).collect();
        most = most.max(now.iter().sum());
        read.iter_mut().zip(&now).for_each(|(sum, now)| *sum += now);
    }
    let (least, largest) = (read.iter().min().unwrap(), read.iter().max().unwrap());
    println!("at most {most} in a poll; from one socket {least} to {largest}");
    assert!((1..=2048).contains(&most), "{most} records in one poll");
    assert!(*least > 0 && *largest <= 3 * *least, "from one socket {least} to {largest}");
}

/// A peer whose segment file is longer than the largest size, and which announces that segment repeatedly.
struct Hoarder {
    flooder: Flooder,
    file: OwnedFd,
    shown: u64,
}

impl Hoarder {
    fn greet(interface: &RingInterface) -> Hoarder {
        let len = LARGEST_SEGMENT + sys::PAGE;
        let file = sys::memory_file(c"hoard", len).unwrap();
        sys::reserve(&file, 0, len).unwrap();
        Hoarder { flooder: Flooder::greet(interface, kind::POOLED), file, shown: 0 }
    }

    /// Announces segments until the socket is full. Returns the number of announcements.
    fn show(&mut self) -> usize {
        let mut count = 0;
        while self.shown < MAX_SEGMENTS as u64 && self.show_one(LARGEST_SEGMENT) {
            count += 1;
        }
        count
    }

    /// Announces another segment of any size. Returns `false` if the socket is full.
    fn show_one(&mut self, len: usize) -> bool {
        let socket = self.flooder.hostile.socket.as_ref().unwrap();
        let record = Record::Segment { number: self.shown as u32, len: len as u64 }.pack();
        let sent = sys::send(socket, &record, &[self.file.as_fd()]).is_ok();
        self.shown += u64::from(sent);
        sent
    }

    /// Sends a message of this length at the end of the last announced segment.
    fn send(&mut self, len: usize) -> bool {
        let words = [0, (self.shown - 1) | ((len as u64) << 32), (LARGEST_SEGMENT - len) as u64];
        self.flooder.push_slot(kind::POOLED, 16, words)
    }
}

#[test]
fn a_poll_hands_on_and_maps_a_bounded_number_of_bytes() {
    let interface = open(Settings::defaults());
    let mut hoarders: Vec<Hoarder> = (0..3).map(|_| Hoarder::greet(&interface)).collect();
    arrive(&interface, hoarders.len());
    let (mut handed_on, mut most_mapped) = (0, 0);
    for hoarder in &mut hoarders {
        assert!(hoarder.show() > 8, "sockets hold many records");
    }
    for _ in 0..300 {
        for hoarder in &mut hoarders {
            while hoarder.send(MAX_CHUNK) {}
        }
        let events = sys::polled(&interface);
        let bytes: usize = events.iter().map(|event| event.len).sum();
        assert!(events.iter().all(|event| event.kind == event::MESSAGE), "an honest size");
        assert!(bytes <= EVENTS * MAX_CHUNK, "{bytes} bytes in one poll");
        handed_on += bytes;
        // Each segment that was read and mapped makes room for another one.
        most_mapped = most_mapped.max(hoarders.iter_mut().map(Hoarder::show).sum());
    }
    println!("{handed_on} bytes, at most {most_mapped} segments mapped by one");
    assert!(handed_on >= 100 * MAX_CHUNK, "they are served");
    // One turn of a socket maps at most `MOST_IN_TURN` segments. Reading on for a message maps at most the same number again.
    let bound = (hoarders.len() + EVENTS + 1) * MOST_IN_TURN as usize;
    assert!((1..=bound).contains(&most_mapped), "{most_mapped} segments of 8 MiB in one poll");

    // The length of one message is bounded, too, regardless of the size of its segments.
    let mut left = Vec::new();
    while left.is_empty() {
        let _ = hoarders[0].send(LARGEST_SEGMENT);
        let events = sys::polled(&interface);
        assert!(events.iter().all(|event| event.len <= MAX_CHUNK), "a message of a whole segment");
        left = events
            .iter()
            .filter(|e| e.kind == event::PEER_LEFT)
            .map(|e| (e.peer, e.status))
            .collect();
    }
    assert_eq!(left, [(0, Status::BadData as i32)]);
}

#[test]
fn a_segment_that_is_too_large_or_one_too_many_ends_the_channel() {
    // Returns the events of a message in the last announced segment.
    let came = |interface: &RingInterface, hoarder: &mut Hoarder| {
        assert!(hoarder.send(8));
        let mut polls = std::iter::repeat_with(|| poll(interface));
        polls.find_map(|events| events.first().map(|first| (first.0, first.2))).unwrap()
    };
    let (taken, ended) = ((event::MESSAGE, 0), (event::PEER_LEFT, Status::BadData as i32));
    for (fills, len) in [(false, LARGEST_SEGMENT + sys::PAGE), (true, LARGEST_SEGMENT)] {
        let interface = open(Settings::defaults());
        let mut hoarder = Hoarder::greet(&interface);
        arrive(&interface, 1);
        while fills && hoarder.show() > 0 {
            assert_eq!(came(&interface, &mut hoarder), taken);
        }
        assert!(hoarder.show_one(len));
        assert_eq!(came(&interface, &mut hoarder), ended, "{} segments", hoarder.shown);
    }
}

#[test]
fn silent_connections_do_not_keep_an_honest_peer_out() {
    let interface = open(Settings::defaults());
    let address = Address::parse(&interface.address()).unwrap();
    let silent: Vec<OwnedFd> = (0..300).map(|_| sys::connect(&address.socket).unwrap()).collect();
    let honest = greet(&interface);
    let mut buffer = [0; 64];
    let start = Instant::now();
    while poll(&interface).iter().all(|e| e.0 != event::PEER_ARRIVED) {
        let heard = sys::receive(honest.socket.as_ref().unwrap(), &mut buffer);
        assert!(!matches!(heard, Ok(record) if record.len == 0 || buffer[0] == 3), "turned away");
        assert!(start.elapsed() < Duration::from_secs(60), "it is not let in");
    }
    assert!(interface.silent() <= 256, "what says nothing takes no more descriptors");
    drop(silent);
}

#[test]
fn no_connection_is_accepted_while_too_many_are_silent() {
    // On a busy machine the first handshakes may have timed out when the last peer connects.
    let is_crowded = || {
        let interface = open(Settings::defaults());
        let address = Address::parse(&interface.address()).unwrap();
        let silent: Vec<OwnedFd> =
            (0..300).map(|_| sys::connect(&address.socket).unwrap()).collect();
        assert!((0..2).all(|_| interface.arm().is_ok()));
        assert!(interface.silent() <= 256);
        drop(silent);
        interface.accepts_nobody()
    };
    assert!((0..100).any(|_| is_crowded()), "who waits would wake it all the time");
}

#[test]
fn connection_without_greeting_is_refused_with_reason_and_counted() {
    let interface = open(Settings::defaults());
    let address = Address::parse(&interface.address()).unwrap();
    for n in 1..4 {
        let stranger = sys::connect(&address.socket).unwrap();
        sys::send(&stranger, &Record::Wake.pack(), &[]).unwrap();
        let (mut buffer, start) = ([0; MAX_RECORD], Instant::now());
        let got = loop {
            assert!(poll(&interface).is_empty());
            if let Ok(got) = sys::receive(&stranger, &mut buffer) {
                break got.len;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it is not answered");
        };
        let said = Record::parse(&buffer[..got]);
        assert!(matches!(said, Ok(Record::Refused(Refusal::Malformed))), "{said:?}");
        assert_eq!(interface.refused_connections(), n);
    }
}

#[test]
fn peers_that_greet_between_two_polls_are_all_let_in() {
    let interface = open(Settings::defaults());
    let peers: Vec<Hostile> = (0..300).map(|_| greet(&interface)).collect();
    arrive(&interface, peers.len());
    assert_eq!(interface.refused_connections(), 0);
}

#[test]
fn full_ring_leaves_direct_polling_once_its_bell_is_announced() {
    let unpromoted =
        || open(Settings { fastbox_max: 0, threshold: u64::MAX, ..Settings::defaults() });
    let (sender, receiver) = (unpromoted(), unpromoted());
    let endpoint = sender.connect(&receiver.address(), b"", 7).unwrap();
    let fill = || (0..).take_while(|&n| endpoint.am_short(1, n, b"x").is_ok()).count();
    let (mut sent, mut got) = (fill(), 0);
    let look = || poll(&receiver).iter().filter(|seen| seen.0 == event::MESSAGE).count();
    // The receiver answers the greeting, and the answer contains its doorbell page. Slots that this poll delivers make no room
    // before the next poll.
    let start = Instant::now();
    while got == 0 {
        got += look();
        assert!(start.elapsed() < Duration::from_secs(60), "nothing arrives");
    }
    while !endpoint.channel().has_bell() {
        sent += fill();
        assert!(poll(&sender).is_empty());
        assert!(start.elapsed() < Duration::from_secs(60), "the bell does not come");
    }
    assert!(endpoint.am_short(1, 0, b"x").is_err(), "there was no room to say so");
    while got < sent {
        got += look();
    }
    let _ = look();
    assert_eq!(receiver.looked_at(), 1);
    // The next message finds room, and so does the note after the message.
    assert!(endpoint.am_short(1, 0, b"x").is_ok());
    while receiver.looked_at() > 0 {
        got += look();
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on without its bell");
    }
    for _ in 0..3 {
        sent += fill();
        while got < sent + 1 {
            got += look();
        }
    }
}

#[test]
fn a_descriptor_to_say_no_with_is_kept_free_again_once_there_is_one() {
    let interface = open(Settings::defaults());
    assert!(interface.lose_spare());
    assert!(!interface.lose_spare(), "nobody has come");
    let honest = greet(&interface);
    while poll(&interface).iter().all(|e| e.0 != event::PEER_ARRIVED) {}
    assert!(interface.lose_spare());
    drop(honest);
}

#[test]
fn admitted_peers_are_bounded_by_bells_and_the_last_bell_works() {
    let interface = open(Settings::defaults());
    let last = interface.leave_bells(1);
    let mut peer = Flooder::greet(&interface, kind::INLINE);
    while !poll(&interface).contains(&(event::PEER_ARRIVED, last, 0)) {}
    let late = greet(&interface);
    let (socket, mut buffer) = (late.socket.as_ref().unwrap(), [0; MAX_RECORD]);
    let got = loop {
        assert_eq!(poll(&interface), []);
        if let Ok(got) = sys::receive(socket, &mut buffer) {
            break got.len;
        }
    };
    let said = Record::parse(&buffer[..got]);
    assert!(matches!(said, Ok(Record::Refused(Refusal::Resources))), "{said:?}");
    assert_eq!(interface.refused_connections(), 1);
    assert!(peer.push(kind::BELL_ON) && peer.push(kind::INLINE));
    interface.ring_all_bells(last as usize / 64);
    while !poll(&interface).contains(&(event::MESSAGE, last, 0)) {}
}
