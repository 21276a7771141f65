//! Tests of two sessions over streams that break, lose data, deliver in arbitrary pieces and overtake each other: every message
//! arrives once and in order.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::frame::{HEAD, Head, Kind};
use crate::gathered::Gathered;
use crate::outbox::{Outbox, Track};
use crate::sys;
use crate::window::{Verdict, WINDOW, Window};

const STREAMS: usize = 3;

/// One side: its outbox, its received messages, and the unread bytes of each stream.
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

    /// Writes up to `most` bytes to a stream.
    fn write(&mut self, stream: usize, most: usize) -> Vec<u8> {
        let mut gathered = Gathered::default();
        self.outbox.gather(&self.tracks[stream], &mut gathered);
        let mut bytes = Vec::new();
        for &piece in &gathered.pieces {
            let at = bytes.len();
            bytes.resize(at + piece.len(), 0);
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
    /// The break of a stream, whose data still arrives at the sides that `reads` selects.
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
    /// The bytes under way to each side, by stream.
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

/// An acknowledgement also contains the number after the highest received one, beyond missing frames.
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

const ROOM: usize = 128 << 10;

fn message(outbox: &mut Outbox, len: usize) {
    outbox.push(Head::bare(Kind::Message, 7, 0), None, &vec![1; len]);
}

/// Takes up to `most` bytes for a stream at this time. Returns the number of bytes taken.
fn take(outbox: &mut Outbox, track: &mut Track, most: usize, now_ms: u64) -> usize {
    let mut gathered = Gathered::default();
    outbox.gather(track, &mut gathered);
    let count = gathered.len.min(most);
    gathered.clear();
    outbox.wrote(track, count, now_ms);
    count
}

#[test]
fn messages_leave_room_to_answers_and_to_those_that_are_being_packed() {
    for retain in [false, true] {
        let mut outbox = Outbox::new(ROOM, retain);
        let most = ROOM - (4 << 10);
        assert!(outbox.has_room(most) && !outbox.has_room(most + 1));
        assert!(!outbox.is_reserved());
        outbox.reserve(1000);
        outbox.reserve(500);
        assert!(outbox.has_room(most - 1500) && !outbox.has_room(most - 1499));
        outbox.unreserve(500);
        assert!(outbox.is_reserved(), "one is still being packed");
        outbox.unreserve(1000);
        assert!(outbox.has_room(most) && !outbox.is_reserved());
        message(&mut outbox, most - HEAD);
        assert!(outbox.has_room(0) && !outbox.has_room(1));
        let mut answers = 0;
        while outbox.has_room_for_answer() {
            outbox.push(Head::bare(Kind::PutDone, 1, 0), None, &[]);
            answers += 1;
            assert!(answers * HEAD <= ROOM, "there is room without end");
        }
        assert!(answers > 100, "{answers}");
        assert_eq!(outbox.waiting(), most + answers * HEAD);
    }
}

#[test]
fn frames_that_are_kept_are_bounded_by_what_the_peer_holds_of_them() {
    let mut kept = Outbox::new(ROOM, true);
    let mut count = 0;
    while count < WINDOW && kept.has_room(HEAD) {
        message(&mut kept, 0);
        count += 1;
    }
    assert_eq!(count, WINDOW - 64);
    while count <= WINDOW && kept.has_room_for_answer() {
        message(&mut kept, 0);
        count += 1;
    }
    assert_eq!(count, WINDOW, "and answers have the rest of the window");
    // A message whose packer runs counts.
    let mut kept = Outbox::new(ROOM, true);
    (0..WINDOW - 66).for_each(|_| message(&mut kept, 0));
    kept.reserve(0);
    assert!(kept.has_room(HEAD));
    kept.reserve(0);
    assert!(!kept.has_room(HEAD));
    // Pieces that are sent in place take no bytes of the ring; their number has its own limit.
    for (retain, most) in [(true, 128), (false, 8192)] {
        let mut outbox = Outbox::new(ROOM, retain);
        let mut count = 0;
        while count <= most && outbox.has_room_for_bulk() {
            let _ = outbox.push_bulk(Head::bare(Kind::Put, 1, 0), None, Vec::new(), None);
            count += 1;
        }
        assert_eq!(count, most);
    }
}

#[test]
fn frame_waits_until_begun_and_is_written_when_kernel_has_all() {
    for retain in [false, true] {
        let (mut outbox, mut track) = (Outbox::new(ROOM, retain), Track::new(0));
        // Another frame precedes the merged ones.
        message(&mut outbox, 10);
        assert_eq!(take(&mut outbox, &mut track, usize::MAX, 1), HEAD + 10);
        assert_eq!(outbox.acknowledged(1), Ok(()));
        let payload = vec![1; 1000];
        let data = Head::bare(Kind::GetData, 1, 0);
        let number = outbox.push_bulk(data, None, vec![sys::piece(&payload)], None);
        assert_eq!((outbox.waiting(), outbox.is_written(number)), (HEAD + 1000, false));
        assert_eq!((outbox.is_written_out(), outbox.oldest()), (false, None));
        assert_eq!(take(&mut outbox, &mut track, 500, 3), 500);
        assert_eq!((outbox.waiting(), outbox.is_written(number)), (0, false));
        assert_eq!(outbox.oldest(), Some((0, 3)), "since then something moved on that stream");
        assert!(!track.is_idle() && !outbox.is_written_out());
        assert_eq!(take(&mut outbox, &mut track, usize::MAX, 5), HEAD + 500);
        assert!(outbox.is_written(number) && outbox.is_written_out() && track.is_idle());
        assert_eq!(outbox.oldest(), retain.then_some((0, 5)), "only what is kept waits for an end");
        assert_eq!(outbox.is_empty(), !retain);
        outbox.stream_broke(0);
        assert_eq!((outbox.oldest(), outbox.is_written(number)), (None, !retain));
    }
}

#[test]
fn put_is_fully_read_when_kernel_has_last_piece_without_resends() {
    for retain in [false, true] {
        let (mut outbox, mut track) = (Outbox::new(ROOM, retain), Track::new(0));
        let payload = vec![1; 1000];
        for last in [false, true] {
            let head = Head { last, ..Head::bare(Kind::Put, 9, 0) };
            let _ = outbox.push_bulk(head, None, vec![sys::piece(&payload)], None);
        }
        let all: usize = outbox.waiting();
        assert_eq!(take(&mut outbox, &mut track, all - 1, 0), all - 1);
        assert_eq!((outbox.take_read(), outbox.end_put(9)), (None, false));
        assert_eq!(take(&mut outbox, &mut track, 1, 0), 1);
        assert_eq!(outbox.take_read(), (!retain).then_some(9));
        assert_eq!((outbox.take_read(), outbox.end_put(9)), (None, true));
    }
}

#[test]
fn region_gone_at_resend_fails_session_and_zeros_fill_the_frame() {
    let regions = crate::regions::Regions::new(7, None);
    const LEN: usize = 150_000;
    let mut memory = vec![7u8; LEN];
    let zeros = |outbox: &mut Outbox, track: &Track| {
        let bytes = offered(outbox, track);
        bytes[bytes.len() - LEN..].iter().filter(|byte| **byte == 0).count()
    };
    // The cases: whether the frame is kept, and whether it was begun. Only a frame whose first half the peer may have is lost.
    for (retain, begun) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut outbox, mut track) = (Outbox::new(ROOM, retain), Track::new(0));
        let region = regions.register(memory.as_mut_ptr(), memory.len(), 0).unwrap();
        let piece = region.piece(0, memory.len());
        let data = Head::bare(Kind::GetData, 1, 0);
        let _ = outbox.push_bulk(data, None, vec![piece], Some(region.clone()));
        if begun {
            let _ = take(&mut outbox, &mut track, HEAD, 0);
        }
        if retain && begun {
            outbox.stream_broke(0);
            track = Track::new(0);
        }
        assert_eq!(zeros(&mut outbox, &track), 0, "it is there");
        assert!(!outbox.is_lost());
        regions.deregister(&region);
        assert_eq!(zeros(&mut outbox, &track), LEN, "its bytes are somebody else's");
        assert_eq!(outbox.is_lost(), retain && begun);
    }
}

#[test]
fn an_outbox_with_nothing_in_it_gives_its_memory_back_and_no_other_does() {
    let (mut outbox, mut track) = (Outbox::new(ROOM, true), Track::new(0));
    message(&mut outbox, 1000);
    let _ = take(&mut outbox, &mut track, usize::MAX, 0);
    outbox.trim();
    assert!(outbox.committed() > 16 << 10, "it may be sent again: its bytes, and where they are");
    outbox.stream_broke(0);
    assert_eq!(take(&mut outbox, &mut track, usize::MAX, 0), 1000 + HEAD);
    assert_eq!(outbox.acknowledged(1), Ok(()));
    outbox.trim();
    assert_eq!(outbox.committed(), 0);
}

/// Returns the bytes that a stream would write next.
fn offered(outbox: &mut Outbox, track: &Track) -> Vec<u8> {
    let mut gathered = Gathered::default();
    outbox.gather(track, &mut gathered);
    let mut bytes = Vec::new();
    for &piece in &gathered.pieces {
        let at = bytes.len();
        bytes.resize(at + piece.len(), 0);
        sys::read_piece(piece, &mut bytes[at..]);
    }
    bytes
}

#[test]
fn unretained_short_messages_merge_until_frame_is_long_or_begun() {
    const LONG: usize = 16 << 10;
    // The cases: the lengths of frames, the number of bytes that a stream takes before the last frame is added, and the resulting
    // number of frames.
    for (retain, lens, begun, frames) in [
        (false, &[100, 100, 100][..], 0, 1),
        (true, &[100, 100, 100], 0, 3),
        (false, &[LONG - 1, 100], 0, 1),
        (false, &[LONG, 100], 0, 2),
        (false, &[LONG - 1, 100, 100], 0, 2),
        (false, &[100, 100], 1, 2),
        (false, &[100, 100], 99, 2),
    ] {
        let (mut outbox, mut track) = (Outbox::new(ROOM, retain), Track::new(0));
        for (n, len) in lens.iter().enumerate() {
            if n + 1 == lens.len() {
                assert_eq!(take(&mut outbox, &mut track, begun, 0), begun);
            }
            message(&mut outbox, len - HEAD);
        }
        let behind = Head::bare(Kind::GetData, 1, 0);
        assert_eq!(outbox.push_bulk(behind, None, Vec::new(), None), frames, "{retain} {lens:?}");
        let all = lens.iter().sum::<usize>() + HEAD - begun;
        assert_eq!(offered(&mut outbox, &track).len(), all, "{retain} {lens:?} {begun}");
        // A frame of another kind after it ends the merging.
        message(&mut outbox, 0);
        let last = outbox.push_bulk(behind, None, Vec::new(), None);
        assert_eq!(last, frames + 2, "{retain} {lens:?}");
    }
}

#[test]
fn in_place_payloads_are_copied_before_operation_memory_is_released() {
    let (mut outbox, mut track) = (Outbox::new(ROOM, true), Track::new(0));
    let mut memory: Vec<u8> = (0..100).collect();
    let pieces = vec![sys::piece(&memory[..30]), sys::piece(&memory[50..])];
    let _ = outbox.push_bulk(Head::bare(Kind::Put, 1, 0), None, pieces, None);
    let before = offered(&mut outbox, &track);
    assert_eq!(before[before.len() - 80..], [&memory[..30], &memory[50..]].concat());
    outbox.own_payloads();
    memory.fill(0xee);
    drop(memory);
    assert_eq!(offered(&mut outbox, &track), before);
    assert_eq!(take(&mut outbox, &mut track, before.len() - 60, 0), before.len() - 60);
    assert_eq!(offered(&mut outbox, &track), before[before.len() - 60..]);
}

#[test]
fn latest_unnumbered_frame_is_sent_and_splits_no_other_frame() {
    let (mut outbox, mut track) = (Outbox::new(ROOM, true), Track::new(0));
    message(&mut outbox, 100);
    assert_eq!(take(&mut outbox, &mut track, 10, 0), 10);
    let aside = |number| Head::bare(Kind::Ack, number, 0);
    assert!(track.send_aside(&aside(1)) && track.send_aside(&aside(2)) && !track.is_idle());
    message(&mut outbox, 0);
    let all = offered(&mut outbox, &track);
    let rest = HEAD + 90;
    assert_eq!(all.len(), rest + HEAD + HEAD, "the rest, what came aside, and the next one");
    assert_eq!(all[rest..rest + HEAD], aside(2).pack());
    assert_eq!(take(&mut outbox, &mut track, rest, 0), rest);
    assert!(track.send_aside(&aside(3)), "nothing of the other one is gone");
    assert_eq!(take(&mut outbox, &mut track, 1, 0), 1);
    assert!(!track.send_aside(&aside(4)));
    assert_eq!(offered(&mut outbox, &track)[..HEAD - 1], aside(3).pack()[1..]);
    assert_eq!(take(&mut outbox, &mut track, HEAD - 1, 0), HEAD - 1);
    assert!(track.is_idle() && track.send_aside(&aside(4)));
    assert_eq!(take(&mut outbox, &mut track, usize::MAX, 0), HEAD + HEAD);
    assert!(track.is_idle() && outbox.is_written_out());
}
