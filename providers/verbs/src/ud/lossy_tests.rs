//! Tests of the two ends of a channel over a wire that loses, duplicates and reorders packets.

use super::packet::{End, Kind, Packet};
use super::receiver::{Receiver, Verdict};
use super::sender::{Sender, WINDOW};
use core::time::Duration;
use proptest::prelude::*;
use tieline_plugin_api::Status;

const MS: Duration = Duration::from_millis(1);
const SENDER: End = End { number: 1, token: 11 };
const RECEIVER: End = End { number: 2, token: 22 };

/// A wire with a list, used cyclically, of the treatment of each packet: a delay in ms for every copy.
struct Wire {
    fates: Vec<Vec<u64>>,
    at: usize,
    /// The packets in flight: due time, order, direction (to the receiver), bytes.
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
                        // For every seventh packet there is no buffer to keep it.
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
fn full_window_has_no_room_until_an_acknowledgement() {
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
fn silent_peer_times_out() {
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
fn progress_restarts_the_timeout_of_a_peer() {
    let mut sender = Sender::new(SENDER, 5, b"", Duration::from_secs(1));
    // The channel starts late in the life of its interface.
    let mut now = Duration::from_secs(10);
    sender.start(now, &mut |_| ());
    sender.welcomed(RECEIVER, now, &mut |_| ());
    // A packet is always outstanding.
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
fn early_messages_are_kept_and_delivered_in_order() {
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
    fn lossy_wire_delivers_everything_once_and_in_order(
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
        // A list whose length divides the traffic's period could lose the same packet for ever.
        if fates.len() % 2 == 0 { fates.push(vec![1]); }
        match exchange(fates, count) {
            Ok(delivered) => prop_assert_eq!(delivered, (0..count).collect::<Vec<_>>()),
            Err(status) => prop_assert_eq!(status, Status::TimedOut),
        }
    }
}

/// Polls just before `at`, when nothing may be sent, and at `at`. Returns the number of packets sent at `at`.
fn due_at(sender: &mut Sender, at: Duration) -> Result<usize, Status> {
    let mut sent = 0;
    assert!(!sender.is_due(at - MS) && sender.is_due(at), "{at:?}");
    assert_eq!(sender.retransmit(at - MS, &mut |_| panic!("before its time")), Ok(()));
    sender.retransmit(at, &mut |_| sent += 1).map(|()| sent)
}

#[test]
fn retransmission_interval_doubles_up_to_one_second() {
    let mut sender = Sender::new(SENDER, 5, b"", MS * 9260);
    sender.start(MS * 10, &mut |_| {});
    let mut at = MS * 10;
    for wait in [20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000, 1000, 1000] {
        at += MS * wait;
        assert_eq!(due_at(&mut sender, at), Ok(1));
    }
    // The timeout expires exactly to the millisecond.
    assert_eq!(at, MS * 8270);
    assert_eq!(due_at(&mut sender, MS * 9270), Err(Status::TimedOut));
    assert!(!sender.is_waiting() && !sender.is_due(MS * 99_999));
}

#[test]
fn peer_times_out_only_after_three_retransmissions() {
    let mut sender = Sender::new(SENDER, 5, b"", MS);
    sender.start(Duration::ZERO, &mut |_| {});
    let ends = [20, 60, 140, 300].map(|at| due_at(&mut sender, MS * at));
    assert_eq!(ends, [Ok(1), Ok(1), Ok(1), Err(Status::TimedOut)]);
}

#[test]
fn gap_is_repaired_once_and_restarts_the_timer() {
    let mut sender = Sender::new(SENDER, 5, b"", Duration::from_secs(20));
    let mut wire = Vec::new();
    let mut carry = |bytes: &[u8]| wire.push(Packet::unpack(bytes).unwrap().0.sequence);
    sender.start(Duration::ZERO, &mut |_| {});
    sender.acked(0, true, MS, &mut |_| panic!("nobody has opened the other end"));
    for header in 0..3 {
        sender.offer(Kind::Message, 3, header, &[], MS, &mut |_| panic!("nor is it known"));
    }
    sender.acked(3, false, MS, &mut |_| {});
    assert!(!sender.is_quiet(), "nor has it acknowledged anything");
    sender.welcomed(RECEIVER, MS * 2, &mut carry);
    sender.welcomed(RECEIVER, MS * 3, &mut |_| panic!("a second time"));
    sender.acked(0, true, MS * 5, &mut carry);
    sender.acked(0, true, MS * 6, &mut |_| panic!("it is on its way"));
    assert!(!sender.is_due(MS * 24) && sender.is_due(MS * 25));
    sender.acked(1, true, MS * 10, &mut carry);
    sender.acked(4, true, MS * 11, &mut |_| panic!("what was never sent"));
    assert!(!sender.is_due(MS * 29) && sender.is_due(MS * 30) && !sender.is_quiet());
    sender.acked(3, true, MS * 12, &mut |_| panic!("nothing is missing"));
    assert!(sender.is_quiet() && !sender.is_waiting());
    assert_eq!((wire, sender.next()), (vec![0, 1, 2, 0, 1], 3));
    for (number, past) in [(3, true), (4, false), (3 | 1 << 31, false), (4 | 1 << 31, true)] {
        assert_eq!(sender.is_past(number), past, "{number:#x}");
    }
}

#[test]
fn peer_can_narrow_the_window_to_one_but_never_widen_it() {
    for (said, window) in [(0, WINDOW), (1, 1), (2, 2), (32, 32), (33, WINDOW)] {
        let mut sender = Sender::new(SENDER, 5, b"", Duration::from_secs(20));
        sender.allow(said);
        let mut sent = 0;
        while sender.has_room() {
            sender.offer(Kind::Message, 3, 0, &[], MS, &mut |_| {});
            sent += 1;
        }
        assert_eq!(sent, window, "{said}");
    }
}

#[test]
fn sequence_beyond_window_is_gap_and_earlier_one_is_duplicate() {
    let mut receiver = Receiver::<u8>::default();
    let mut accept = |sequence| (receiver.accept(sequence), receiver.gap);
    let far = WINDOW as u32;
    assert_eq!(accept(u32::MAX), (Verdict::Duplicate, false));
    assert_eq!(accept(1 << 31), (Verdict::Duplicate, false));
    assert_eq!(accept(far - 1), (Verdict::Early, true));
    assert_eq!(accept(far), (Verdict::Gap, true));
    assert_eq!(accept((1 << 31) - 1), (Verdict::Gap, true));
    assert_eq!(accept(0), (Verdict::Deliver, false), "nothing is kept");
    receiver.keep(2, 7);
    assert_eq!((receiver.accept(2), receiver.gap), (Verdict::Duplicate, true));
    assert_eq!((receiver.accept(1), receiver.gap), (Verdict::Deliver, true));
    assert_eq!((receiver.following(), receiver.gap), (Some(7), false));
    assert_eq!((receiver.following(), receiver.next), (None, 3));
}
