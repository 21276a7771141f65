//! Peers that never stop: they take their share of the polls and of a poll's work, and no more.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tieline_plugin_api::{Endpoint, Interface, event};

use crate::channel::{self, kind};
use crate::config::Settings;
use crate::hello::{Address, Record};
use crate::hostile_tests::{FASTBOX, Hostile, greet, open, poll};
use crate::interface::RingInterface;
use crate::ring::head;
use crate::sys;

/// How many events `poll` takes at once.
const EVENTS: usize = 16;

/// A peer that keeps its ring full.
struct Flooder {
    hostile: Hostile,
    position: u64,
    origin: u64,
    place: crate::ring::Place,
    kind: u8,
}

impl Flooder {
    fn greet(interface: &RingInterface, kind: u8) -> Flooder {
        Flooder { hostile: greet(interface), position: 0, origin: 0, place: channel::COLD, kind }
    }

    fn push(&mut self, kind: u8) -> bool {
        let memory = &self.hostile.memory;
        let count = self.place.count as u64;
        let tail = memory.word(channel::TAIL).unwrap().load(Ordering::Acquire);
        if self.position >= tail.max(self.origin) + count {
            return false;
        }
        let at = self.place.slots + (self.position % count) as usize * 64;
        memory.word(at + 8).unwrap().store(1, Ordering::Release);
        let word = (self.position / count + 1) << 32 | u64::from(head(kind, 8, 1));
        memory.word(at).unwrap().store(word, Ordering::Release);
        self.position += 1;
        true
    }

    fn fill(&mut self) {
        while self.push(self.kind) {}
    }

    /// Goes on in the fast box, which is looked at in every poll.
    fn switch(&mut self) {
        assert!(self.push(kind::SWITCH));
        self.place = channel::fast(FASTBOX);
        self.position = self.position.next_multiple_of(self.place.count as u64);
        self.origin = self.position;
    }
}

/// Polls until so many peers have arrived; all that comes is thrown away.
fn arrive(interface: &RingInterface, count: usize) {
    let start = Instant::now();
    let mut arrived = 0;
    while arrived < count {
        arrived += poll(interface).iter().filter(|e| e.0 == event::PEER_ARRIVED).count();
        assert!(start.elapsed() < Duration::from_secs(60), "{arrived} of {count} arrived");
    }
}

/// Flooders come first, one honest peer last; what each of the honest one's messages waited for, in polls.
fn honest_share(flooders: usize, kind: u8, fast: bool, bells: bool) {
    // Without fast boxes the honest one stays on its bell.
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
    // A turn of all flooders, each of which fills the events of as many polls as its ring has room for.
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
fn an_honest_peer_has_its_share_beside_those_that_fill_rings_and_ring_bells() {
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
fn a_peer_that_hung_up_and_goes_on_writing_is_buried_and_does_not_come_first() {
    for fast in [false, true] {
        let interface = open(Settings::defaults());
        let mut ghosts: Vec<Flooder> =
            (0..4).map(|_| Flooder::greet(&interface, kind::INLINE)).collect();
        arrive(&interface, ghosts.len());
        if fast {
            ghosts.iter_mut().for_each(Flooder::switch);
        }
        let honest = interface.connect(&interface.address(), b"honest", 7).unwrap();
        let sockets: Vec<OwnedFd> =
            ghosts.iter_mut().map(|ghost| ghost.hostile.socket.take().unwrap()).collect();
        drop(sockets);
        let (mut left, mut sent, mut got) = (0, 0u64, 0u64);
        let mut messages = [0; 4];
        while left < ghosts.len() || got < 5 {
            ghosts.iter_mut().for_each(Flooder::fill);
            if sent == got && honest.am_short(1, sent, &[1; 8]).is_ok() {
                sent += 1;
            }
            for (kind, peer, _) in poll(&interface) {
                match (kind, peer) {
                    (event::MESSAGE, 4) => got += 1,
                    (event::MESSAGE, ghost) => messages[ghost as usize] += 1,
                    (event::PEER_LEFT, _) => left += 1,
                    _ => {}
                }
            }
            // What the rings hold, and what comes before the sockets are looked at: the clock decides when.
            assert!(
                messages.iter().all(|&m| m < 10_000),
                "{messages:?}, {left} left, {got} honest"
            );
        }
        assert_eq!((left, got), (ghosts.len(), sent));
    }
}

#[test]
fn a_poll_reads_a_bounded_number_of_records_and_hears_every_socket_in_its_turn() {
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
    // Whatever is read makes room for as much.
    let (mut read, mut most) = (vec![0; PEERS], 0);
    for _ in 0..200 {
        let before = Instant::now();
        while before.elapsed() < Duration::from_micros(150) {
            std::hint::spin_loop(); // sockets are looked at so often and no oftener
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
    drop(silent);
}

#[test]
fn peers_that_greet_between_two_polls_are_all_let_in() {
    let interface = open(Settings::defaults());
    let peers: Vec<Hostile> = (0..300).map(|_| greet(&interface)).collect();
    arrive(&interface, peers.len());
    assert_eq!(interface.refused_connections(), 0);
}
