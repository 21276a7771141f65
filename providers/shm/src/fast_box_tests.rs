//! Tests of a peer that keeps to the protocol into a fast box, with either order of slots, and writes arbitrary data on the way.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tieline_plugin_api::{Endpoint, Interface, Status, event};

use crate::channel::{self, KNOWS_SPREAD, kind};
use crate::config::Settings;
use crate::hello::Record;
use crate::hostile_tests::{FASTBOX, Hostile, greet, open, poll};
use crate::interface::RingInterface;
use crate::ring::{Layout, head};
use crate::sys;

#[derive(Clone, Debug)]
enum Step {
    /// A slot at the next position: its kind, length, id, body, and the distance of its lap from the right one.
    Slot(u8, u8, u16, [u64; 3], u64),
    /// A request for a fast box.
    Want(u64),
    /// A note of the switch with this order.
    Switch(u64),
    /// A word of the slots from the next position on.
    Near(usize, u64),
    /// A word of the page with the positions and flags.
    Control(usize, u64),
    Segment,
    Record(Vec<u8>),
    Poll,
    Arm,
    Disconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let word = || prop_oneof![any::<u64>(), 0u64..70000, Just(u64::MAX), Just(1 << 32)];
    let body = || [word(), word(), word()];
    let order = prop_oneof![10 => 0..2u64, 1 => any::<u64>()];
    let request = prop_oneof![Just(KNOWS_SPREAD | 1), Just(1), any::<u64>()];
    let control = prop::sample::select(&[
        channel::WAITING,
        channel::TAIL,
        channel::VERDICT,
        channel::SLEEPING,
    ]);
    prop_oneof![
        20 => (0..49u8, any::<u16>(), body()).prop_map(|(len, id, body)| Step::Slot(kind::INLINE, len, id, body, 0)),
        4 => (0..2u64, 0u64..70000, 0u64..9000)
            .prop_map(|(segment, len, at)| Step::Slot(kind::POOLED, 16, 3, [9, segment | len << 32, at], 0)),
        2 => (any::<u8>(), any::<u8>(), any::<u16>(), body())
            .prop_map(|(kind, len, id, body)| Step::Slot(kind, len, id, body, 0)),
        1 => any::<u64>().prop_map(|lap| Step::Slot(kind::INLINE, 8, 1, [0; 3], lap)),
        5 => request.prop_map(Step::Want),
        4 => order.prop_map(Step::Switch),
        1 => (0..16usize, word()).prop_map(|(at, word)| Step::Near(at, word)),
        3 => (control, word()).prop_map(|(at, word)| Step::Control(at, word)),
        2 => Just(Step::Segment),
        1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Step::Record),
        30 => Just(Step::Poll),
        2 => Just(Step::Arm),
        1 => Just(Step::Disconnect),
    ]
}

/// A hostile peer with its position in its ring.
struct Writer {
    hostile: Hostile,
    layout: Layout,
    position: u64,
}

impl Writer {
    fn write(&self, at: usize, word: u64) {
        if let Some(place) = self.hostile.memory.word(at) {
            place.store(word, Ordering::Release);
        }
    }

    /// Returns the place of a slot in memory.
    fn place(&self, position: u64) -> usize {
        let index = position.wrapping_mul(self.layout.step) % self.layout.count as u64;
        self.layout.slots + index as usize * 64
    }

    fn slot(&mut self, head: u32, body: [u64; 3], lap: u64) {
        let at = self.place(self.position);
        for (n, word) in body.into_iter().enumerate() {
            self.write(at + 8 + n * 8, word);
        }
        let lap = (self.position / self.layout.count as u64 + 1).wrapping_add(lap);
        self.write(at, lap << 32 | u64::from(head));
        self.position += 1;
    }

    fn record(&self, bytes: &[u8], file: Option<&std::os::fd::OwnedFd>) {
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        if let Some(socket) = &self.hostile.socket {
            let _ = sys::send(socket, bytes, &files);
        }
    }

    /// Makes a step that needs nothing of the interface.
    fn make(&mut self, step: Step) {
        match step {
            Step::Slot(kind, len, id, body, lap) => {
                self.slot(head(kind, len.into(), id), body, lap);
            }
            Step::Want(request) => self.slot(head(kind::WANT_FAST, 0, 0), [request, 0, 0], 0),
            Step::Switch(order) => {
                self.slot(head(kind::SWITCH, 0, 0), [order, 0, 0], 0);
                self.layout = channel::fast(FASTBOX, order == 1);
                self.position = self.position.next_multiple_of(self.layout.count as u64);
            }
            Step::Near(at, word) => {
                self.write(self.place(self.position + at as u64 / 8) + at % 8 * 8, word);
            }
            Step::Control(at, word) => self.write(at, word),
            Step::Segment => {
                let file = sys::memory_file(c"hostile", 8192).unwrap();
                sys::reserve(&file, 0, 8192).unwrap();
                self.record(&Record::Segment { number: 0, len: 8192 }.pack(), Some(&file));
            }
            Step::Record(bytes) => self.record(&bytes, None),
            Step::Disconnect => drop(self.hostile.socket.take()),
            Step::Poll | Step::Arm => {}
        }
    }
}

/// The events of an interface with an honest peer, the first one, and a hostile one.
#[derive(Default)]
struct Seen {
    /// The number of messages of the honest peer, which are numbered.
    honest: u64,
    left: Vec<(u64, i32)>,
}

impl Seen {
    fn poll(&mut self, interface: &RingInterface) {
        for event in sys::polled(interface) {
            let _ = sys::payload(&event); // an overread would crash
            match (event.kind, event.peer) {
                (event::MESSAGE, 0) => {
                    assert_eq!(event.header, self.honest);
                    self.honest += 1;
                }
                (event::PEER_LEFT, peer) => self.left.push((peer, event.status)),
                (event::ENDPOINT_FAILED, _) => panic!("the honest peer's endpoint has failed"),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    #[test]
    fn peer_that_writes_anything_in_a_fast_box_harms_nobody_else(
        steps in prop::collection::vec(step(), 1..300),
        fastbox_max in 0..3u64,
    ) {
        let interface = open(Settings { fastbox_max, threshold: 1, ..Settings::defaults() });
        let honest = interface.connect(&interface.address(), b"honest", 1).unwrap();
        let arrives = || while poll(&interface).iter().all(|e| e.0 != event::PEER_ARRIVED) {};
        arrives();
        let hostile = greet(&interface);
        arrives();
        let mut writer = Writer { hostile, layout: channel::COLD, position: 0 };
        let (mut sent, mut seen) = (0, Seen::default());
        for step in steps {
            match step {
                Step::Poll => {
                    let payload: &[u8] = if sent % 3 == 0 { &[1; 140] } else { &[1; 40] };
                    sent += u64::from(honest.am_short(1, sent, payload).is_ok());
                    seen.poll(&interface);
                }
                Step::Arm => drop(interface.arm().unwrap()),
                step => writer.make(step),
            }
        }
        for _ in 0..1_000_000 {
            if seen.honest < sent {
                seen.poll(&interface);
            }
        }
        prop_assert_eq!(seen.honest, sent, "messages of the honest peer");
        drop(writer);
        while seen.left.is_empty() {
            seen.poll(&interface);
        }
        let [(1, status)] = seen.left[..] else { panic!("{:?}", seen.left) };
        let allowed = [Status::BadData, Status::PeerFailed, Status::NoMemory].map(|it| it as i32);
        prop_assert!(status == 0 || allowed.contains(&status), "{}", status);
        prop_assert!(interface.fast_boxes() <= 1);
    }
}
