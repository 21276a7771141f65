//! Tests of chunks, claims and requests, without a peer.

use super::*;

#[test]
fn every_chunk_is_taken_once_from_either_end() {
    for chunks in [1, 2, 7, 100, 1000] {
        let mut claims = Claims { sequence: 9, front: 0, back: 0 };
        let mut seen = vec![false; chunks as usize];
        for turn in 0.. {
            let taken = match turn % 3 {
                0 => claims.take_back(chunks),
                _ => claims.take_front(chunks),
            };
            let Some((run, next)) = taken else { break };
            assert!(run.count <= MOST_AT_ONCE);
            for index in run.first..run.first + run.count {
                assert!(!std::mem::replace(&mut seen[index as usize], true));
            }
            claims = Claims::unpack(next.pack());
            assert_eq!(claims.sequence, 9);
        }
        assert!(seen.iter().all(|&s| s));
    }
}

#[test]
fn claims_that_make_no_sense_yield_nothing() {
    let wild = Claims { sequence: 1, front: MOST_CHUNKS, back: MOST_CHUNKS };
    assert_eq!(wild.take_front(10), None);
    assert_eq!(wild.take_back(10), None);
}

#[test]
fn a_peer_that_writes_into_the_claims_does_not_keep_us_copying() {
    let mut word = Claims { sequence: 9, front: 0, back: 0 }.pack();
    let (mut front, mut runs) = (0, 0);
    let ended = loop {
        match Claims::unpack(word).next_front(100, 9, front) {
            Ok(Some((run, next))) => {
                assert!(runs < 100, "no end");
                (word, front, runs) = (next.pack(), next.front, runs + 1);
                assert_eq!(run.first + run.count, front);
            }
            ended => break ended,
        }
        if runs == 3 {
            word = Claims { sequence: 9, front: 0, back: 0 }.pack();
        }
    };
    assert_eq!((ended, runs), (Err(Status::BadData), 3));
    let other = Claims { sequence: 8, front: 0, back: 0 };
    assert_eq!(other.next_front(100, 9, 0), Err(Status::BadData));
    assert_eq!(other.next_front(100, 8, 0), Ok(other.take_front(100)));
}

#[test]
fn slots_run_out_and_returned_slot_is_free_again() {
    let slots = Slots::default();
    for slot in 0..SLOTS as u16 {
        assert!(slots.has_free());
        assert_eq!(slots.take(), Some(slot));
    }
    assert_eq!((slots.has_free(), slots.take()), (false, None));
    slots.give_back(5);
    assert_eq!((slots.has_free(), slots.take()), (true, Some(5)));
}

#[test]
fn the_last_piece_is_what_is_left() {
    let target = Target { region: 0, generation: 0, offset: 0 };
    let plan = Plan { put: true, sequence: 1, slot: 0, len: CHUNK as u64 + 5, at: 0, target };
    assert_eq!(plan.chunks(), 2);
    assert_eq!(plan.piece(Run { first: 1, count: 1 }), (CHUNK as u64, 5));
    assert_eq!(plan.piece(Run { first: 0, count: 2 }), (0, CHUNK as u64 + 5));
}

#[test]
fn a_request_survives_its_bytes_and_nonsense_does_not() {
    let target = Target { region: 1, generation: 2, offset: 3 };
    let plan = Plan { put: false, sequence: 4, slot: 5, len: 6, at: 7, target };
    let bytes = request_bytes(&plan, b"control", b"memory").unwrap();
    assert_eq!(parse_request(&bytes).unwrap(), (plan, &b"control"[..], &b"memory"[..]));
    for end in 0..bytes.len() {
        assert!(parse_request(&bytes[..end]).is_err());
    }
}

#[test]
fn every_slot_is_given_to_one_transfer_at_a_time() {
    let slots = Slots::default();
    let mut taken: Vec<u16> = (0..SLOTS).map_while(|_| slots.take()).collect();
    assert_eq!(taken, (0..SLOTS as u16).collect::<Vec<_>>());
    assert_eq!(slots.take(), None, "there are no more");
    for back in [3, 0, SLOTS as u16 - 1] {
        slots.give_back(back);
        assert_eq!(slots.take(), Some(back), "the only free one");
        assert_eq!(slots.take(), None);
    }
    taken.drain(..).for_each(|slot| slots.give_back(slot));
    assert_eq!(slots.take(), Some(0));
}

#[test]
fn a_slot_that_was_given_back_twice_is_no_others() {
    let slots = Slots::default();
    let (first, second) = (slots.take(), slots.take());
    slots.give_back(first.unwrap());
    slots.give_back(first.unwrap());
    assert_eq!((slots.take(), slots.take()), (first, Some(2)));
    assert_eq!(second, Some(1));
}

/// A slot that nothing has written contains zeros.
#[test]
fn sequence_advances_only_after_request_and_is_never_0() {
    let slots = Slots::default();
    assert_eq!((slots.next_sequence(), slots.next_sequence()), (1, 1));
    slots.used(1);
    assert_eq!(slots.next_sequence(), 2);
    slots.used(u16::MAX);
    assert_eq!(slots.next_sequence(), 1);
}

#[test]
fn a_request_for_a_slot_or_a_length_that_there_is_not_is_refused() {
    let target = Target { region: 1, generation: 2, offset: 3 };
    let longest = MOST_CHUNKS * CHUNK as u64;
    for (slot, len, taken) in [
        (SLOTS as u16 - 1, longest, true),
        (SLOTS as u16, longest, false),
        (SLOTS as u16 - 1, longest + 1, false),
    ] {
        let plan = Plan { put: true, sequence: 4, slot, len, at: 7, target };
        let bytes = request_bytes(&plan, b"control", b"memory").unwrap();
        assert_eq!(parse_request(&bytes).is_ok(), taken, "{slot} {len}");
    }
}
