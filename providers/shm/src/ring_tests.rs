//! Tests of the ring: of single rules, against a model (property tests), and under loom (interleavings).

use super::*;

#[cfg(loom)]
mod with_loom {
    use super::*;
    use crate::wake;
    use loom::thread;
    use std::sync::Arc;

    /// The memory of a ring under loom, because real memory would hide accesses from loom.
    pub(in super::super) struct Memory {
        slots: Vec<Slot>,
        tail: AtomicU64,
        sleeping: AtomicU64,
    }

    struct Shared(Arc<Memory>);
    // SAFETY: both sides access slots only by the ring's protocol, which loom checks here.
    unsafe impl Send for Shared {}

    fn memory(slots: usize) -> Arc<Memory> {
        let slot = || Slot { control: AtomicU64::new(0), body: Body::new([0; 7]) };
        Arc::new(Memory {
            slots: (0..slots).map(|_| slot()).collect(),
            tail: AtomicU64::new(0),
            sleeping: AtomicU64::new(0),
        })
    }

    fn sender(keep: Arc<Memory>) -> SendRing {
        let count = keep.slots.len();
        let (slots, tail) = (NonNull::from(&keep.slots[0]), NonNull::from(&keep.tail));
        // SAFETY: all of it lies in `keep`.
        let ring = unsafe { SendRing::at(slots, count, tail, keep) };
        ring.limit.set(count as u64);
        ring
    }

    fn receiver(keep: Arc<Memory>) -> RecvRing {
        let count = keep.slots.len();
        let (slots, tail) = (NonNull::from(&keep.slots[0]), NonNull::from(&keep.tail));
        // SAFETY: all of it lies in `keep`.
        unsafe { RecvRing::at(slots, count, tail, keep) }
    }

    /// Sends 1..=n, and waits whenever the ring is full.
    fn produce(ring: &SendRing, n: u64) {
        for i in 1..=n {
            while !ring.has_room() {
                let _ = ring.refresh().unwrap();
                if !ring.has_room() {
                    thread::yield_now();
                }
            }
            let _ = ring.push(head(1, 8, 7), i, &(i * 3).to_ne_bytes());
        }
    }

    /// Takes one message if there is one, and publishes after every `every` slots.
    fn consume(ring: &mut RecvRing, every: u64) -> Option<(u64, u64)> {
        match ring.peek() {
            Peek::Empty => None,
            Peek::Corrupt => panic!("corrupt"),
            Peek::Slot(word) => {
                assert_eq!(word, head(1, 8, 7));
                let got = (ring.header(), ring.word(1));
                ring.advance();
                if ring.unpublished() >= every {
                    ring.publish();
                }
                Some(got)
            }
        }
    }

    #[test]
    fn loom_every_message_arrives_once_whole_and_in_order() {
        for every in [1, 2] {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(3);
            model.check(move || {
                let memory = memory(2);
                let shared = Shared(memory.clone());
                let producer = thread::spawn(move || {
                    let shared = shared;
                    produce(&sender(shared.0), 4);
                });
                let mut ring = receiver(memory);
                let mut next = 1;
                while next <= 4 {
                    match consume(&mut ring, every) {
                        Some(got) => {
                            assert_eq!(got, (next, next * 3));
                            next += 1;
                        }
                        None => thread::yield_now(),
                    }
                }
                assert_eq!(ring.peek(), Peek::Empty);
                producer.join().unwrap();
            });
        }
    }

    #[test]
    fn loom_a_receiver_that_goes_to_sleep_sees_the_message_or_is_woken() {
        loom::model(|| {
            let memory = memory(2);
            let shared = Shared(memory.clone());
            let producer = thread::spawn(move || {
                let memory = { shared }.0;
                let ring = sender(memory.clone());
                let push = || drop(ring.push(head(1, 0, 7), 1, &[]));
                wake::publish(push, || true, &memory.sleeping)
                    && wake::announce(true, || {}, &memory.sleeping)
            });
            let ring = receiver(memory.clone());
            let sleeps =
                wake::may_sleep(|| wake::note(&memory.sleeping), || ring.peek() != Peek::Empty);
            let woken = producer.join().unwrap();
            assert!(!sleeps || woken);
        });
    }

    #[test]
    fn loom_a_sender_that_waits_for_room_sees_it_or_is_woken() {
        loom::model(|| {
            let memory = memory(1);
            let ring = sender(memory.clone());
            let _ = ring.push(head(1, 8, 7), 1, &3u64.to_ne_bytes());
            let shared = Shared(memory.clone());
            let consumer = thread::spawn(move || {
                let memory = { shared }.0;
                assert_eq!(consume(&mut receiver(memory.clone()), 1), Some((1, 3)));
                wake::announce(true, || {}, &memory.sleeping)
            });
            let sleeps = wake::may_sleep(|| wake::note(&memory.sleeping), || ring.tail_now() != 0);
            let woken = consumer.join().unwrap();
            assert!(!sleeps || woken);
        });
    }
}
#[cfg(loom)]
pub(super) use with_loom::Memory;

#[cfg(not(loom))]
mod with_memory {
    use super::*;
    use crate::channel;
    use crate::sys::{self, Mapping};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    fn memory(fastbox: usize) -> Arc<Mapping> {
        let len = channel::memory_len(fastbox);
        let file = sys::memory_file(c"test", len).unwrap();
        Arc::new(Mapping::new(file.as_fd(), len, true).unwrap())
    }

    fn pair(fastbox: usize) -> (SendRing, RecvRing, Arc<Mapping>) {
        let map = memory(fastbox);
        let sender = SendRing::over(map.clone(), channel::COLD).unwrap();
        let _ = sender.refresh().unwrap();
        (sender, RecvRing::over(map.clone(), channel::COLD).unwrap(), map)
    }

    fn payload(ring: &RecvRing, len: usize) -> Vec<u8> {
        (0..6).flat_map(|i| ring.word(1 + i).to_ne_bytes()).take(len).collect()
    }

    #[test]
    fn every_length_up_to_the_slot_is_copied_exactly() {
        let (sender, mut receiver, _) = pair(1024);
        for len in 0..=INLINE {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let _ = sender.push(head(1, len, 1), len as u64, &bytes);
            assert_eq!(receiver.peek(), Peek::Slot(head(1, len, 1)));
            assert_eq!(receiver.header(), len as u64);
            assert_eq!(payload(&receiver, len), bytes);
            receiver.advance();
            receiver.publish();
            let _ = sender.refresh().unwrap();
        }
    }

    #[test]
    fn watched_word_of_every_lap_changes_with_the_next_slot() {
        let (sender, mut receiver, _) = pair(1024);
        for n in 0..3 * channel::COLD.count as u64 {
            let (word, seen) = receiver.watch().unwrap();
            assert_eq!(word.load(Ordering::Relaxed), seen);
            assert!(sender.push(head(1, 0, 0), n, &[]));
            assert_ne!(word.load(Ordering::Relaxed), seen, "slot {n}");
            assert!(receiver.watch().is_none());
            assert_eq!(receiver.next_head(), Some(head(1, 0, 0)));
            receiver.advance();
            assert_eq!(receiver.next_head(), None);
            receiver.publish();
            let _ = sender.refresh().unwrap();
        }
    }

    #[test]
    fn consumed_position_is_due_after_a_quarter_or_if_hurried() {
        let (sender, mut receiver, _) = pair(1024);
        for round in 0..9 {
            for n in 0..receiver.quarter() {
                assert!(!receiver.is_due(), "slot {n} of round {round}");
                assert!(sender.push(head(1, 0, 0), 0, &[]));
                receiver.advance();
            }
            assert!(receiver.is_due());
            receiver.publish();
            assert!(!receiver.is_due());
            receiver.hurry();
            assert!(receiver.is_due());
            receiver.publish();
            let _ = sender.refresh().unwrap();
        }
    }

    /// The number of the lap has 32 bits: in a fast box of 64 slots it begins anew after some hours of a stream.
    #[test]
    fn laps_beyond_the_last_number_of_a_lap_are_told_apart_like_others() {
        for spread in [false, true] {
            let (sender, mut receiver, map) = pair(1024);
            let fast = channel::fast(1024, spread);
            assert!(sender.switch(fast) && receiver.switch(fast));
            let count = fast.count as u64;
            let position = (u64::from(u32::MAX) - 2) * count;
            for place in [&sender.position, &sender.origin, &sender.seen] {
                place.set(position);
            }
            sender.lap.set(lap(position, count));
            (receiver.position, receiver.published) = (position, position);
            receiver.expected = lap(position, count);
            map.word(channel::TAIL).unwrap().store(position, Ordering::Relaxed);
            receiver.publish();
            for number in position..position + 6 * count {
                assert_eq!((receiver.peek(), receiver.next_head()), (Peek::Empty, None));
                assert!(receiver.alone().is_none() && receiver.first().is_none());
                assert!(receiver.watch().is_some());
                let _ = sender.refresh().unwrap();
                assert!(sender.push(head(1, 8, 5), number, &number.to_ne_bytes()), "{number}");
                assert_eq!(receiver.peek(), Peek::Slot(head(1, 8, 5)), "{number}");
                assert_eq!((receiver.header(), receiver.word(1)), (number, number));
                match receiver.alone() {
                    Some(alone) => receiver.take(&alone),
                    None => receiver.advance(),
                }
                if receiver.is_due() {
                    receiver.publish();
                }
            }
            assert_eq!(receiver.expected >> 32, 4, "the numbers have begun anew");
        }
    }

    #[test]
    fn a_ring_of_zeroes_is_empty_and_one_of_noise_is_corrupt() {
        let (_, receiver, map) = pair(1024);
        assert_eq!(receiver.peek(), Peek::Empty);
        map.word(channel::COLD.slots).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(receiver.peek(), Peek::Corrupt);
    }

    #[test]
    fn consumed_slots_count_until_published_and_quarter_fits_current_ring() {
        let (sender, mut receiver, map) = pair(1024);
        let cold = channel::COLD.count as u64;
        assert_eq!((receiver.quarter(), receiver.unpublished()), (cold / 4, 0));
        for count in 1..=3 {
            let _ = sender.push(head(1, 0, 1), 0, &[]);
            receiver.advance();
            assert_eq!((receiver.position(), receiver.unpublished()), (count, count));
        }
        assert_eq!((sender.tail_now(), sender.seen()), (0, 0));
        receiver.publish();
        assert_eq!((receiver.unpublished(), sender.tail_now(), sender.seen()), (0, 3, 0));
        assert_eq!((sender.refresh(), sender.seen()), (Ok(3), 3));
        let fast = channel::fast(1024, true);
        assert!(receiver.switch(fast) && sender.switch(fast));
        let begins = 3u64.next_multiple_of(fast.count as u64);
        assert_eq!(receiver.quarter(), fast.count as u64 / 4);
        assert_eq!((receiver.position(), sender.position()), (begins, begins));
        drop(map);
    }

    #[test]
    fn a_tail_that_runs_ahead_or_backwards_is_nonsense() {
        let (sender, _, map) = pair(1024);
        let _ = sender.push(head(1, 0, 0), 0, &[]);
        let _ = sender.push(head(1, 0, 0), 0, &[]);
        let tail = map.word(channel::TAIL).unwrap();
        tail.store(3, Ordering::Relaxed);
        assert_eq!(sender.refresh(), Err(TailIsNonsense));
        tail.store(2, Ordering::Relaxed);
        assert_eq!(sender.refresh(), Ok(2));
        tail.store(1, Ordering::Relaxed);
        assert_eq!(sender.refresh(), Err(TailIsNonsense));
    }

    #[test]
    fn nothing_is_written_to_a_full_or_shut_ring() {
        let (sender, _, _) = pair(1024);
        while sender.has_room() {
            let _ = sender.push(head(1, 0, 0), 0, &[]);
        }
        assert_eq!(sender.position(), channel::COLD.count as u64);
        assert!(!sender.push(head(1, 0, 0), 0, &[]));
        assert_eq!(sender.position(), channel::COLD.count as u64);
    }

    #[test]
    fn a_ring_outside_of_its_memory_is_refused() {
        let map = memory(1024);
        for place in [
            Layout { slots: 512, count: 1 << 20, tail: channel::TAIL, step: 1 },
            Layout { slots: 520, count: 4, tail: channel::TAIL, step: 1 },
            Layout { slots: 512, count: 3, tail: channel::TAIL, step: 1 },
            Layout { slots: 512, count: 4, tail: 1 << 30, step: 1 },
        ] {
            assert!(SendRing::over(map.clone(), place).is_none(), "{place:?}");
        }
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Push(Vec<u8>),
        Pop,
        Publish,
        Refresh,
        Switch,
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            6 => prop::collection::vec(any::<u8>(), 0..=INLINE).prop_map(Operation::Push),
            6 => Just(Operation::Pop),
            2 => Just(Operation::Publish),
            2 => Just(Operation::Refresh),
            1 => Just(Operation::Switch),
        ]
    }

    proptest! {
        #[test]
        fn the_ring_does_what_a_queue_does(
            operations in prop::collection::vec(operation(), 1..400),
            shift in 10usize..14,
        ) {
            let (sender, mut receiver, _map) = pair(1 << shift);
            let mut model: VecDeque<(u64, Option<Vec<u8>>)> = VecDeque::new();
            let (mut sent, mut fast) = (0u64, false);
            for operation in operations {
                match operation {
                    Operation::Push(bytes) => {
                        if sender.has_room() {
                            sent += 1;
                            let _ = sender.push(head(1, bytes.len(), 9), sent, &bytes);
                            model.push_back((sent, Some(bytes)));
                        }
                    }
                    Operation::Pop => match receiver.peek() {
                        Peek::Empty => prop_assert!(model.is_empty()),
                        Peek::Corrupt => prop_assert!(false, "corrupt"),
                        Peek::Slot(word) => {
                            let (header, bytes) = model.pop_front().unwrap();
                            prop_assert_eq!(receiver.header(), header);
                            match bytes {
                                Some(bytes) => {
                                    prop_assert_eq!(word, head(1, bytes.len(), 9));
                                    prop_assert_eq!(payload(&receiver, bytes.len()), bytes);
                                    receiver.advance();
                                }
                                None => {
                                    receiver.advance();
                                    prop_assert!(receiver.switch(channel::fast(1 << shift, shift % 2 == 0)));
                                }
                            }
                        }
                    },
                    Operation::Publish => receiver.publish(),
                    Operation::Refresh => { let _ = sender.refresh().unwrap(); }
                    Operation::Switch => {
                        if !fast && sender.has_room() {
                            fast = true;
                            sent += 1;
                            let _ = sender.push(head(5, 0, 0), sent, &[]);
                            model.push_back((sent, None));
                            prop_assert!(sender.switch(channel::fast(1 << shift, shift % 2 == 0)));
                        }
                    }
                }
            }
        }
    }
}
