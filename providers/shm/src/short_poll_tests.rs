//! Tests of polls that take one message by the short form, and of chunks that their senders use again.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Endpoint, Interface, Status, event};

use crate::config::Settings;
use crate::endpoint::RingEndpoint;
use crate::hostile_tests::{open, poll};
use crate::interface::RingInterface;
use crate::pool::MAX_CHUNK;
use crate::sys;

/// Returns the payload of a message by its header.
fn payload_of(header: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (header as u8).wrapping_mul(31).wrapping_add(at as u8)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// The sender sends messages of one length.
    Send(usize, usize, u8),
    Poll,
    PollSenders,
    /// The receiver prepares to sleep.
    Arm,
    /// The sender closes its endpoint and connects again.
    Again(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..=48usize, 3 => 49..=300usize, 1 => Just(5000), 1 => Just(20_000)];
    prop_oneof![
        12 => (0..3usize, len.clone()).prop_map(|(of, len)| Step::Send(of, len, 1)),
        3 => (0..3usize, len, 2..40u8).prop_map(|(of, len, count)| Step::Send(of, len, count)),
        20 => Just(Step::Poll),
        2 => Just(Step::PollSenders),
        1 => Just(Step::Arm),
        1 => (0..3usize).prop_map(Step::Again),
    ]
}

/// A connection: its number, its endpoint and the number of messages sent.
struct Sender {
    number: u64,
    endpoint: RingEndpoint,
    sent: u64,
}

struct Receiver {
    interface: RingInterface,
    /// The messages of the last poll, and their payloads at that time.
    held: Vec<(Event, Vec<u8>)>,
    /// The number of messages received, by connection.
    counts: HashMap<u64, u64>,
}

impl Receiver {
    fn check(&self) {
        for (event, payload) in &self.held {
            assert_eq!(sys::payload(event), *payload, "changed before the next poll");
        }
    }

    fn poll(&mut self) {
        self.check();
        let events = sys::polled(&self.interface).into_iter();
        let messages = events.filter(|event| event.kind == event::MESSAGE);
        self.held = messages.map(|event| (event, payload_of(event.header, event.len))).collect();
        for (event, _) in &self.held {
            let count = self.counts.entry(event.header >> 32).or_default();
            assert_eq!(event.header as u32 as u64, *count, "lost, repeated or out of order");
            *count += 1;
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_message_arrives_once_and_stays_valid_until_the_next_poll(
        steps in prop::collection::vec(step(), 1..400),
        fastbox_max in 0..3u64,
    ) {
        let settings = || Settings {
            fastbox_max,
            pool_max: 256 << 10,
            window: 128 << 10,
            ..Settings::defaults()
        };
        let senders = [open(settings()), open(settings())];
        let mut receiver =
            Receiver { interface: open(settings()), held: Vec::new(), counts: HashMap::new() };
        let address = receiver.interface.address();
        let connect = |of: usize, number: u64| {
            let endpoint = senders[of % 2].connect(&address, b"", number).unwrap();
            Sender { number, endpoint, sent: 0 }
        };
        let mut open_ones: Vec<Sender> = (0..3).map(|of| connect(of, of as u64)).collect();
        let mut all: Vec<(u64, u64)> = Vec::new();
        let mut numbers = 3..;
        for step in steps {
            match step {
                Step::Send(of, len, count) => {
                    let sender = &mut open_ones[of];
                    for _ in 0..count {
                        let header = sender.number << 32 | sender.sent;
                        match sender.endpoint.am_short(5, header, &payload_of(header, len)) {
                            Ok(_) => sender.sent += 1,
                            Err(status) => assert_eq!(status, Status::Again),
                        }
                    }
                    receiver.check();
                }
                Step::Poll => receiver.poll(),
                Step::PollSenders => senders.iter().for_each(|sender| _ = poll(sender)),
                Step::Arm => {
                    let _ = receiver.interface.arm().unwrap();
                    receiver.check();
                }
                Step::Again(of) => {
                    let next = connect(of, numbers.next().unwrap());
                    let before = std::mem::replace(&mut open_ones[of], next);
                    all.push((before.number, before.sent));
                }
            }
        }
        all.extend(open_ones.iter().map(|sender| (sender.number, sender.sent)));
        all.retain(|(_, sent)| *sent > 0);
        let start = Instant::now();
        while !all.iter().all(|(number, sent)| receiver.counts.get(number) == Some(sent)) {
            receiver.poll();
            senders.iter().for_each(|sender| _ = poll(sender));
            assert!(start.elapsed() < Duration::from_secs(60), "{all:?} {:?}", receiver.counts);
        }
    }
}

/// Polls until a poll has no event.
fn drain(interface: &RingInterface) {
    while !poll(interface).is_empty() {}
}

#[test]
fn single_messages_take_the_short_form_also_after_a_full_poll() {
    let [a, b] = [(); 2].map(|()| open(Settings::defaults()));
    let endpoint = a.connect(&b.address(), b"", 1).unwrap();
    let start = Instant::now();
    // From the first message through the fast box on, this channel needs no bell.
    while b.fast_boxes() == 0 || b.looked_at() == 0 {
        let _ = endpoint.am_short(1, 0, b"here");
        let _ = (poll(&a), poll(&b));
        assert!(start.elapsed() < Duration::from_secs(60), "no fast box");
    }
    let short_forms = || {
        drain(&b);
        let alone = |_: &u32| {
            let _ = endpoint.am_short(1, 0, b"alone").unwrap();
            let is_short = b.poll_at_once(&mut MaybeUninit::uninit());
            drain(&b);
            is_short
        };
        (0..32).filter(alone).count()
    };
    for round in 0..4 {
        let taken = short_forms();
        assert!(taken >= 16, "{taken} of 32 after {round} full polls");
        (0..20).for_each(|_| _ = endpoint.am_short(1, 0, b"one of many").unwrap());
    }
}

#[test]
fn sender_does_not_sleep_while_released_chunks_wait_on_another_channel() {
    const POOL: usize = 256 << 10;
    let settings = || Settings { pool_max: POOL, window: POOL, ..Settings::defaults() };
    let [a, b, c] = [(); 3].map(|()| open(settings()));
    let [to_b, to_c] = [&b, &c].map(|peer| a.connect(&peer.address(), b"", 1).unwrap());
    for interface in [&b, &c, &a] {
        let _ = interface.arm().unwrap();
        drain(interface);
    }
    let long = [7; MAX_CHUNK];
    while to_b.am_short(1, 0, &long).is_ok() {}
    drain(&a);
    drain(&b);
    // The ring fills up, and its sender reads that the receiver has released the chunks.
    while to_b.am_short(1, 0, b"short").is_ok() {}
    if to_c.am_short(1, 0, &long).is_ok() {
        return; // the chunks are in the pool already
    }
    assert_eq!(a.arm(), Ok(Armed::Ready), "a message waits for chunks that are released");
    let _ = poll(&a);
    assert!(to_c.am_short(1, 0, &long).is_ok());
}
