//! Two sessions over streams that break, lose what was on them, deliver in any pieces and overtake each other:
//! every message arrives once, in order.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::frame::{HEAD, Head, Kind};
use crate::gathered::Gathered;
use crate::outbox::{Outbox, Track};
use crate::sys;
use crate::window::{Verdict, WINDOW, Window};

const STREAMS: usize = 3;

/// One side: what it sends, what it has received, and the unread bytes of each stream.
struct Side {
    outbox: Outbox,
    window: Window<Vec<u8>>,
    tracks: Vec<Track>,
    unread: Vec<Vec<u8>>,
    delivered: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Side {
    fn new() -> Side {
        Side {
            outbox: Outbox::new(128 << 10, true),
            window: Window::default(),
            tracks: (0..STREAMS as u8).map(Track::new).collect(),
            unread: vec![Vec::new(); STREAMS],
            delivered: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn send(&mut self, len: usize) {
        if !self.outbox.has_room(HEAD + len) {
            return;
        }
        let number = self.sent.len();
        let payload: Vec<u8> = (0..len).map(|n| (n * 7 + number) as u8).collect();
        let mut head = Head::bare(Kind::Message, number as u32, 0);
        head.ack = self.window.expected();
        self.outbox.push(head, None, &payload);
        self.sent.push(payload);
    }

    /// Up to `most` bytes go onto a stream.
    fn write(&mut self, stream: usize, most: usize) -> Vec<u8> {
        let mut gathered = Gathered::default();
        self.outbox.gather(&self.tracks[stream], &mut gathered);
        let mut bytes = Vec::new();
        for &piece in &gathered.pieces {
            let at = bytes.len();
            bytes.resize(at + piece.len, 0);
            sys::read_piece(piece, &mut bytes[at..]);
        }
        bytes.truncate(most);
        self.outbox.wrote(&mut self.tracks[stream], bytes.len(), 0);
        bytes
    }

    fn acknowledge(&mut self, stream: usize) {
        let mut head = Head::bare(Kind::Ack, self.window.highest(), 0);
        head.ack = self.window.expected();
        let _ = self.tracks[stream].send_aside(&head);
    }

    fn read(&mut self, stream: usize, bytes: &[u8]) {
        self.unread[stream].extend_from_slice(bytes);
        loop {
            let unread = &self.unread[stream];
            let Some(first) = unread.first_chunk::<HEAD>() else { return };
            let head = Head::parse(first).expect("nothing is garbled, only lost");
            let end = HEAD + head.len as usize;
            if unread.len() < end {
                return;
            }
            let payload = unread[HEAD..end].to_vec();
            drop(self.unread[stream].drain(..end));
            self.outbox.acknowledged(head.ack).expect("only what was sent is acknowledged");
            if head.kind == Kind::Ack {
                continue;
            }
            match self.window.judge(head.seq).expect("within the window") {
                Verdict::Next => {
                    self.window.advance();
                    self.delivered.push(payload);
                    while let Some(held) = self.window.take_ready() {
                        self.delivered.push(held);
                    }
                }
                Verdict::Ahead => self.window.hold(head.seq, payload),
                Verdict::Duplicate => {}
            }
        }
    }

    fn broke(&mut self, stream: usize) {
        self.unread[stream].clear();
        self.tracks[stream] = Track::new(stream as u8);
        self.outbox.stream_broke(stream as u8);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        side: usize,
        len: usize,
    },
    Write {
        side: usize,
        stream: usize,
        most: usize,
    },
    Read {
        side: usize,
        stream: usize,
        most: usize,
    },
    Acknowledge {
        side: usize,
        stream: usize,
    },
    /// The stream breaks; what is on its way to the sides that `reads` names still arrives.
    Break {
        stream: usize,
        reads: [bool; 2],
    },
}

fn a_step() -> impl Strategy<Value = Step> {
    let (side, stream) = (0..2usize, 0..STREAMS);
    prop_oneof![
        3 => (side.clone(), 0..3000usize).prop_map(|(side, len)| Step::Send { side, len }),
        4 => (side.clone(), stream.clone(), 1..6000usize)
            .prop_map(|(side, stream, most)| Step::Write { side, stream, most }),
        4 => (side.clone(), stream.clone(), 1..6000usize)
            .prop_map(|(side, stream, most)| Step::Read { side, stream, most }),
        1 => (side, stream.clone()).prop_map(|(side, stream)| Step::Acknowledge { side, stream }),
        1 => (stream, any::<[bool; 2]>())
            .prop_map(|(stream, reads)| Step::Break { stream, reads }),
    ]
}

struct World {
    sides: [Side; 2],
    /// Bytes on their way to each side, by stream.
    pipes: [Vec<VecDeque<u8>>; 2],
}

impl World {
    fn new() -> World {
        let pipes = || vec![VecDeque::new(); STREAMS];
        World { sides: [Side::new(), Side::new()], pipes: [pipes(), pipes()] }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { side, len } => self.sides[side].send(len),
            Step::Write { side, stream, most } => {
                let bytes = self.sides[side].write(stream, most);
                self.pipes[1 - side][stream].extend(bytes);
            }
            Step::Read { side, stream, most } => {
                let pipe = &mut self.pipes[side][stream];
                let bytes: Vec<u8> = pipe.drain(..most.min(pipe.len())).collect();
                self.sides[side].read(stream, &bytes);
            }
            Step::Acknowledge { side, stream } => self.sides[side].acknowledge(stream),
            Step::Break { stream, reads } => {
                for (side, read) in reads.into_iter().enumerate() {
                    if read {
                        self.step(&Step::Read { side, stream, most: usize::MAX });
                    }
                    self.pipes[side][stream].clear();
                    self.sides[side].broke(stream);
                }
            }
        }
    }

    fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            for side in 0..2 {
                for stream in 0..STREAMS {
                    self.sides[side].acknowledge(stream);
                    self.step(&Step::Write { side, stream, most: usize::MAX });
                    self.step(&Step::Read { side: 1 - side, stream, most: usize::MAX });
                }
            }
            if self.sides.iter().all(|side| side.outbox.is_empty()) {
                return;
            }
        }
        panic!("something is never acknowledged");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_message_arrives_once_and_in_order(steps in prop::collection::vec(a_step(), 0..300)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.deliver_all();
        for side in 0..2 {
            prop_assert!(world.sides[side].sent == world.sides[1 - side].delivered);
            prop_assert!(!world.sides[side].window.has_gap());
        }
    }
}

#[test]
fn numbers_may_wrap() {
    let mut window: Window<()> = Window::starting_at(u32::MAX - 1);
    for seq in [u32::MAX - 1, u32::MAX, 0, 1] {
        assert_eq!(window.judge(seq), Ok(Verdict::Next));
        window.advance();
        assert_eq!(window.judge(seq), Ok(Verdict::Duplicate));
    }
    assert_eq!(window.judge(3), Ok(Verdict::Ahead));
    assert!(window.judge(2 + WINDOW).is_err());
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_refused() {
    let mut side = Side::new();
    side.send(10);
    assert!(side.outbox.acknowledged(1).is_err());
    let _ = side.write(0, usize::MAX);
    assert!(side.outbox.acknowledged(2).is_err());
    assert_eq!(side.outbox.acknowledged(1), Ok(()));
    assert_eq!(side.outbox.acknowledged(0), Ok(()));
    assert!(side.outbox.is_empty());
}

#[test]
fn an_outbox_that_is_full_says_so_and_takes_more_after_an_acknowledgement() {
    let mut side = Side::new();
    while side.outbox.has_room(HEAD + 1000) {
        side.send(1000);
    }
    assert!(side.outbox.committed() <= 1 << 20);
    while !side.write(1, usize::MAX).is_empty() {}
    assert!(!side.outbox.has_room(HEAD + 1000));
    assert_eq!(side.outbox.acknowledged(side.sent.len() as u32), Ok(()));
    assert!(side.outbox.has_room(HEAD + 1000));
}

/// Who acknowledges says how far it has heard, beyond what is missing.
#[test]
fn the_highest_number_that_came_is_known_beyond_a_gap() {
    let mut window: Window<()> = Window::starting_at(u32::MAX - 1);
    assert_eq!(window.highest(), u32::MAX - 1);
    window.hold(1, ());
    assert_eq!((window.expected(), window.highest()), (u32::MAX - 1, 2));
    window.hold(u32::MAX, ());
    assert_eq!(window.highest(), 2);
    for _ in 0..4 {
        window.advance();
    }
    assert_eq!((window.expected(), window.highest()), (2, 2));
}
