//! Two ends and a wire that loses, doubles and reorders packets.

use super::packet::{End, Kind, Packet};
use super::receiver::{Receiver, Verdict};
use super::sender::{Sender, WINDOW};
use core::time::Duration;
use proptest::prelude::*;
use tieline_plugin_api::Status;

const MS: Duration = Duration::from_millis(1);
const SENDER: End = End { number: 1, token: 11 };
const RECEIVER: End = End { number: 2, token: 22 };

/// What the wire does to each packet, from a list that goes round: a delay in ms for every copy of it.
struct Wire {
    fates: Vec<Vec<u64>>,
    at: usize,
    /// Due time, order, direction (to the receiver), bytes.
    flying: Vec<(Duration, usize, bool, Vec<u8>)>,
}

impl Wire {
    fn carry(&mut self, now: Duration, to_receiver: bool, bytes: &[u8]) {
        self.at += 1;
        let fate = self.fates[self.at % self.fates.len()].clone();
        for delay in fate {
            self.flying.push((now + MS * delay as u32, self.at, to_receiver, bytes.to_vec()));
        }
    }

    fn landed(&mut self, now: Duration) -> Vec<(bool, Vec<u8>)> {
        self.flying.sort_by_key(|(due, order, ..)| (*due, *order));
        let count = self.flying.iter().take_while(|(due, ..)| *due <= now).count();
        self.flying.drain(..count).map(|(_, _, to, bytes)| (to, bytes)).collect()
    }
}

/// Sends `count` messages over a wire and returns what was delivered.
fn exchange(fates: Vec<Vec<u64>>, count: u64) -> Result<Vec<u64>, Status> {
    let mut wire = Wire { fates, at: 0, flying: Vec::new() };
    let mut sender = Sender::new(SENDER, 5, b"introduction", Duration::from_secs(20));
    let (mut receiver, mut arrived) = (Receiver::<u64>::default(), false);
    let (mut delivered, mut offered, mut now) = (Vec::new(), 0, Duration::ZERO);
    sender.start(now, &mut |bytes| wire.carry(now, true, bytes));
    while !sender.is_quiet() || offered < count {
        while offered < count && sender.has_room() {
            sender.offer(Kind::Message, 3, offered, &offered.to_le_bytes(), now, &mut |bytes| {
                wire.carry(now, true, bytes);
            });
            offered += 1;
        }
        now += MS;
        sender.retransmit(now, &mut |bytes| wire.carry(now, true, bytes))?;
        for (to_receiver, bytes) in wire.landed(now) {
            let (packet, payload) = Packet::unpack(&bytes).unwrap();
            let reply = |kind, sequence, id, header| {
                Packet { kind, end: SENDER, sequence, id, header }.pack()
            };
            match (to_receiver, packet.kind) {
                (true, Kind::Hello) => {
                    assert_eq!(
                        (packet.end, packet.header, payload),
                        (SENDER, 5, b"introduction".as_slice())
                    );
                    arrived = true;
                    wire.carry(now, false, &reply(Kind::Welcome, 0, 0, RECEIVER.to_word()));
                }
                (true, Kind::Message) => {
                    assert!(arrived, "a message before the hello");
                    assert_eq!(packet.end, RECEIVER);
                    match receiver.accept(packet.sequence) {
                        Verdict::Deliver => {
                            assert_eq!(payload, packet.header.to_le_bytes());
                            delivered.push(packet.header);
                            delivered.extend(core::iter::from_fn(|| receiver.following()));
                        }
                        // Now and then there is no room to keep it.
                        Verdict::Early if wire.at % 7 != 0 => {
                            receiver.keep(packet.sequence, packet.header);
                        }
                        _ => {}
                    }
                    let gap = u32::from(receiver.gap);
                    wire.carry(now, false, &reply(Kind::Ack, receiver.next, gap, 0));
                }
                (false, Kind::Welcome) => {
                    let end = End::from_word(packet.header);
                    sender.welcomed(end, now, &mut |bytes| wire.carry(now, true, bytes));
                }
                (false, Kind::Ack) => {
                    sender.acked(packet.sequence, packet.id != 0, now, &mut |bytes| {
                        wire.carry(now, true, bytes);
                    });
                }
                other => panic!("{other:?}"),
            }
        }
    }
    Ok(delivered)
}

#[test]
fn a_perfect_wire_delivers_everything_in_order() {
    assert_eq!(exchange(vec![vec![1]], 1000), Ok((0..1000).collect()));
}

#[test]
fn a_window_that_is_full_has_no_room_until_something_is_acknowledged() {
    let mut sender = Sender::new(SENDER, 5, b"", Duration::from_secs(1));
    let mut sent = 0;
    sender.start(Duration::ZERO, &mut |_| sent += 1);
    while sender.has_room() {
        sender.offer(Kind::Message, 0, 0, b"", Duration::ZERO, &mut |_| sent += 1);
    }
    assert_eq!((sender.next() as usize, sent), (WINDOW, 1), "only the hello before the welcome");
    sender.welcomed(RECEIVER, MS, &mut |_| sent += 1);
    assert_eq!(sent, 1 + WINDOW);
    sender.acked(WINDOW as u32 + 1, false, MS, &mut |_| sent += 1);
    assert!(!sender.has_room(), "an acknowledgement of what was never sent is ignored");
    sender.acked(3, false, MS, &mut |_| sent += 1);
    assert!(sender.has_room() && sender.is_past(3) && !sender.is_past(4));
}

#[test]
fn a_peer_that_never_answers_is_given_up_in_time() {
    let mut sender = Sender::new(SENDER, 5, b"", Duration::from_secs(3));
    let (mut now, mut sent) = (Duration::ZERO, 0);
    sender.start(now, &mut |_| sent += 1);
    while sender.retransmit(now, &mut |_| sent += 1).is_ok() {
        now += MS;
        assert!(now < Duration::from_secs(6), "given up at last");
    }
    assert!(now >= Duration::from_secs(3));
    assert!((5..20).contains(&sent), "{sent} packets: the waits grow");
    assert!(!sender.is_waiting());
}

#[test]
fn a_peer_that_got_further_a_moment_ago_has_all_of_its_time_again() {
    let mut sender = Sender::new(SENDER, 5, b"", Duration::from_secs(1));
    // It is not the first of its interface.
    let mut now = Duration::from_secs(10);
    sender.start(now, &mut |_| ());
    sender.welcomed(RECEIVER, now, &mut |_| ());
    // Always something is on its way.
    sender.offer(Kind::Message, 0, 0, b"", now, &mut |_| ());
    for next in 1..30 {
        sender.offer(Kind::Message, 0, 0, b"", now, &mut |_| ());
        now += MS * 100;
        sender.retransmit(now, &mut |_| ()).unwrap();
        sender.acked(next, false, now, &mut |_| ());
    }
    let last = now;
    while sender.retransmit(now, &mut |_| ()).is_ok() {
        now += MS;
    }
    assert!(now - last >= Duration::from_secs(1), "{:?}", now - last);
}

#[test]
fn what_comes_early_is_kept_until_its_turn_and_then_goes_on_in_order() {
    let mut receiver = Receiver::default();
    let verdicts = [2, 1, 2, 1 + WINDOW as u32].map(|number| {
        let verdict = receiver.accept(number);
        if verdict == Verdict::Early {
            receiver.keep(number, number);
        }
        verdict
    });
    assert_eq!(verdicts, [Verdict::Early, Verdict::Early, Verdict::Duplicate, Verdict::Gap]);
    assert!(receiver.gap);
    assert_eq!(receiver.accept(0), Verdict::Deliver);
    let rest: Vec<u32> = core::iter::from_fn(|| receiver.following()).collect();
    assert_eq!((rest, receiver.next, receiver.gap), (vec![1, 2], 3, false));
    assert_eq!(receiver.accept(1), Verdict::Duplicate);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_wire_that_lets_some_packets_through_delivers_everything_once_and_in_order(
        mut fates in proptest::collection::vec(
            prop_oneof![
                1 => Just(vec![]),
                5 => (1u64..4).prop_map(|delay| vec![delay]),
                1 => (1u64..40, 1u64..40).prop_map(|(one, two)| vec![one, two]),
            ],
            1..60,
        ),
        count in 1u64..200,
    ) {
        fates.push(vec![1]);
        fates.push(vec![2]);
        // A list whose length divides the traffic's rhythm could lose the same packet for ever.
        if fates.len() % 2 == 0 { fates.push(vec![1]); }
        match exchange(fates, count) {
            Ok(delivered) => prop_assert_eq!(delivered, (0..count).collect::<Vec<_>>()),
            Err(status) => prop_assert_eq!(status, Status::TimedOut),
        }
    }
}
