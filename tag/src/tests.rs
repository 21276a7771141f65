//! Tests of the guarantees that the crate's documentation states, one guarantee per test.

use crate::{Arrival, Matcher, MessageId, Pattern, Post, Receive, ReceiveId};
use std::collections::HashSet;

const ANY_OF_7: Pattern = Pattern { source: None, tag: 7, ignore: 0 };

fn waiting<T>(post: Post<T>) -> ReceiveId {
    match post {
        Post::Waiting(id) => id,
        Post::Matched(message, _) => panic!("matched {:?}", message.id),
    }
}

fn taken<T>(post: Post<T>) -> T {
    match post {
        Post::Matched(message, _) => message.payload,
        Post::Waiting(id) => panic!("waits as {id:?}"),
    }
}

fn word(arrival: Arrival<()>) -> u64 {
    match arrival {
        Arrival::Matched(receive, ()) => receive.word,
        Arrival::Kept(id) => panic!("kept as {id:?}"),
    }
}

fn kept(arrival: Arrival<()>) -> MessageId {
    match arrival {
        Arrival::Kept(id) => id,
        Arrival::Matched(receive, ()) => panic!("matched {receive:?}"),
    }
}

/// Returns all patterns, one of each possible shape, that match a message of source 1 with tag 7.
fn patterns() -> Vec<Pattern> {
    let masks = [0, 1, 2, 3, 4, 8, 16, 32, 64, 1 << 63, u64::MAX];
    let sources = [Some(1), None];
    let of = |ignore| sources.map(|source| Pattern { source, tag: 7, ignore });
    masks.into_iter().flat_map(of).collect()
}

#[test]
fn message_takes_first_posted_receive_for_any_wildcards() {
    let mut patterns = patterns();
    for turn in 0..patterns.len() {
        patterns.rotate_left(1);
        let mut matcher = Matcher::new();
        for (pattern, word) in patterns.iter().zip(0..) {
            let _ = waiting(matcher.post(*pattern, word));
        }
        for expected in 0..patterns.len() as u64 {
            assert_eq!(word(matcher.arrive(1, 7, (), |()| ())), expected, "turn {turn}");
        }
        let _ = kept(matcher.arrive(1, 7, (), |()| ()));
    }
}

#[test]
fn a_receive_takes_the_message_that_arrived_first_whatever_its_wildcards() {
    for pattern in patterns() {
        let mut matcher = Matcher::new();
        let mut expected = Vec::new();
        for n in 0..100 {
            for (source, tag) in [(2, !7), (1, 7)] {
                let _ = kept(matcher.arrive(source, tag, (), |()| (source, n)));
                expected.extend(pattern.fits(source, tag).then_some((source, n)));
            }
        }
        for expected in expected {
            assert_eq!(taken(matcher.post(pattern, 0)), expected, "{pattern:?}");
        }
        assert!(matcher.peek(pattern).is_none());
    }
}

#[test]
fn an_announcement_is_matched_in_its_place_among_the_messages_of_its_pair() {
    #[derive(Debug, PartialEq)]
    enum Kept {
        Bytes(&'static str),
        Announced { bytes: u64 },
    }
    let mut matcher = Matcher::new();
    let _ = matcher.arrive(1, 7, (), |()| Kept::Bytes("first"));
    let _ = matcher.arrive(1, 7, (), |()| Kept::Announced { bytes: 1 << 30 });
    let _ = matcher.arrive(1, 7, (), |()| Kept::Bytes("third"));
    assert_eq!(taken(matcher.post(ANY_OF_7, 0)), Kept::Bytes("first"));
    assert_eq!(taken(matcher.post(Pattern::exact(1, 7), 0)), Kept::Announced { bytes: 1 << 30 });
    assert_eq!(taken(matcher.post(Pattern::ANY, 0)), Kept::Bytes("third"));
}

#[test]
fn a_peek_leaves_the_message_and_a_claim_hides_it_until_it_is_taken() {
    let mut matcher = Matcher::new();
    assert!(matcher.peek(ANY_OF_7).is_none());
    let _ = matcher.arrive(1, 7, (), |()| "first");
    let _ = matcher.arrive(2, 7, (), |()| "second");
    for _ in 0..3 {
        assert_eq!(matcher.peek(ANY_OF_7).map(|message| *message.payload), Some("first"));
    }
    let claim = matcher.claim(ANY_OF_7, 99).map(|message| message.id).unwrap();
    assert_eq!(matcher.peek(ANY_OF_7).map(|message| *message.payload), Some("second"));
    assert_eq!((matcher.unexpected(), matcher.claimed()), (1, 1));
    assert_eq!(matcher.claim_of(99), Some(claim));
    assert_eq!(matcher.claim_of(98), None);
    *matcher.payload_mut(claim).unwrap() = "first, with what came later";
    assert_eq!(matcher.take(claim).unwrap().payload, "first, with what came later");
    assert!(matcher.take(claim).is_none() && matcher.message(claim).is_none());
    assert_eq!(matcher.claim_of(99), None);
    assert_eq!(taken(matcher.post(ANY_OF_7, 0)), "second");
}

#[test]
fn two_claims_under_one_word_are_found_in_the_order_of_claiming() {
    let mut matcher = Matcher::new();
    let _ = matcher.arrive(1, 7, (), |()| "first");
    let _ = matcher.arrive(1, 8, (), |()| "second");
    let later = matcher.claim(Pattern::exact(1, 8), 5).unwrap().id;
    let sooner = matcher.claim(Pattern::exact(1, 7), 5).unwrap().id;
    assert_eq!(matcher.claim_of(5), Some(later));
    let _ = matcher.take(later);
    assert_eq!(matcher.claim_of(5), Some(sooner));
}

#[test]
fn a_receive_ends_once_by_a_message_or_by_its_cancelling() {
    let mut matcher = Matcher::new();
    let first = waiting(matcher.post(ANY_OF_7, 1));
    let second = waiting(matcher.post(ANY_OF_7, 2));
    assert_eq!(matcher.cancel(first).unwrap().word, 1);
    assert!(matcher.cancel(first).is_none());
    assert_eq!(word(matcher.arrive(1, 7, (), |()| ())), 2);
    assert!(matcher.cancel(second).is_none());
    assert_eq!(matcher.posted(), 0);
}

#[test]
fn id_of_ended_entry_is_never_reused() {
    let mut matcher = Matcher::new();
    let (mut receives, mut messages) = (HashSet::new(), HashSet::new());
    for _ in 0..10_000 {
        assert!(receives.insert(waiting(matcher.post(ANY_OF_7, 0))));
        let _ = word(matcher.arrive(1, 7, (), |()| ()));
        assert!(messages.insert(kept(matcher.arrive(1, 7, (), |()| ()))));
        taken(matcher.post(ANY_OF_7, 0));
    }
    let receive = waiting(matcher.post(ANY_OF_7, 0));
    let message = kept(matcher.arrive(1, 8, (), |()| ()));
    assert!(receives.iter().all(|old| matcher.cancel(*old).is_none()));
    assert!(messages.iter().all(|old| matcher.take(*old).is_none()));
    assert!(matcher.cancel(receive).is_some() && matcher.take(message).is_some());
}

#[test]
fn a_receive_of_all_bits_and_any_source_takes_everything_in_order() {
    let mut matcher = Matcher::new();
    for n in 0..1000u64 {
        let _ = kept(matcher.arrive(n % 7, n << 40, (), |()| n));
    }
    for n in 0..1000 {
        assert_eq!(taken(matcher.post(Pattern { tag: n, ..Pattern::ANY }, 0)), n);
    }
    for n in 0..1000 {
        let _ = waiting(matcher.post(Pattern { tag: !n, ..Pattern::ANY }, n));
    }
    for n in 0..1000 {
        assert_eq!(word(matcher.arrive(n, n, (), |()| n)), n);
    }
}

#[test]
fn source_zero_is_a_source_and_not_any() {
    let mut matcher = Matcher::new();
    let _ = waiting(matcher.post(Pattern::exact(0, 7), 1));
    let _ = kept(matcher.arrive(1, 7, (), |()| ()));
    assert_eq!(word(matcher.arrive(0, 7, (), |()| ())), 1);
    assert!(matcher.peek(Pattern::exact(0, 7)).is_none());
    assert!(matcher.peek(ANY_OF_7).is_some());
}

#[test]
fn payload_is_kept_only_without_waiting_receive() {
    let mut matcher = Matcher::new();
    let _ = waiting(matcher.post(ANY_OF_7, 1));
    let _ = word(matcher.arrive(1, 7, (), |()| panic!("a receive waits")));
}

#[test]
fn a_panic_of_the_callers_closure_changes_nothing() {
    let mut matcher = Matcher::<()>::new();
    let _ = waiting(matcher.post(ANY_OF_7, 1));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = matcher.arrive(1, 8, (), |()| panic!("no memory"));
    }));
    assert!(caught.is_err());
    for tag in [7, 9] {
        // The second receive is found by the table, because the message of the first one passes it.
        let _ = waiting(matcher.post(Pattern::exact(1, 9), 2));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = matcher.arrive_with(1, tag, (), |_, ()| panic!("no room"), |()| ());
        }));
        assert!(caught.is_err());
        let id = matcher.receives().filter(|receive| *receive.word == 2).map(|it| it.id).min();
        assert!(id.and_then(|id| matcher.cancel(id)).is_some());
    }
    assert_eq!((matcher.posted(), matcher.unexpected()), (1, 0));
    assert_eq!(word(matcher.arrive(1, 7, (), |()| ())), 1);
}

#[test]
fn million_unexpected_messages_are_in_order_and_free_their_memory() {
    const MESSAGES: u64 = 1_000_000;
    // Orders of receiving: from the head; in reverse, so that all messages are entered in a table; by any source; and by tags in
    // another order.
    let ways: [fn(u64) -> Pattern; 4] = [
        |n| Pattern::exact(n % 10, n / 10),
        |n| Pattern::exact((MESSAGES - 1 - n) % 10, (MESSAGES - 1 - n) / 10),
        |n| Pattern { source: None, tag: n / 10, ignore: 0 },
        |n| Pattern {
            source: None,
            tag: (n / 10).wrapping_mul(7919) % (MESSAGES / 10),
            ignore: 1 << 63,
        },
    ];
    let mut matcher = Matcher::new();
    for (way, pattern) in ways.into_iter().enumerate() {
        for n in 0..MESSAGES {
            let _ = kept(matcher.arrive(n % 10, n / 10, (), |()| n));
        }
        let most = matcher.bytes();
        assert!(most < 150 * MESSAGES as usize, "{most}");
        let mut last = vec![None; MESSAGES as usize / 10];
        for n in 0..MESSAGES {
            let pattern = pattern(n);
            let got = taken(matcher.post(pattern, 0));
            assert!(pattern.fits(got % 10, got / 10));
            let last = &mut last[got as usize / 10];
            assert!(pattern.source.is_some() || last.is_none_or(|last| last < got), "way {way}");
            *last = Some(got);
        }
        assert!(matcher.bytes() < most / 50, "way {way}: {} of {most}", matcher.bytes());
    }
}

#[test]
fn a_hundred_thousand_receives_that_were_cancelled_leave_no_memory_behind() {
    let mut matcher = Matcher::<()>::new();
    let ids: Vec<_> =
        (0..100_000).map(|n| waiting(matcher.post(Pattern::exact(n % 3, n), n))).collect();
    let most = matcher.bytes();
    assert!(most < 100 * 100_000, "{most}");
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(matcher.cancel(*id).unwrap().word, n as u64);
    }
    assert!(matcher.bytes() < most / 40, "{} of {most}", matcher.bytes());
}

#[test]
fn receives_cancelled_behind_waiting_one_leave_no_memory_behind() {
    let mut matcher = Matcher::<()>::new();
    let _ = waiting(matcher.post(ANY_OF_7, 1));
    for n in 0..100_000 {
        let id = waiting(matcher.post(Pattern::exact(1, n), 2));
        assert_eq!(matcher.cancel(id).unwrap().word, 2);
        assert!(matcher.cancel(id).is_none());
    }
    assert!(matcher.bytes() < 20_000, "{}", matcher.bytes());
    assert_eq!((word(matcher.arrive(1, 7, (), |()| ())), matcher.posted()), (1, 0));
}

#[test]
fn memory_is_the_same_after_as_many_matches_as_one_likes() {
    let mut matcher = Matcher::new();
    let mut round = |n: u64| {
        for tag in 0..100 {
            let _ = waiting(matcher.post(Pattern::exact(1, tag), 0));
        }
        for tag in 0..100 {
            let _ = word(matcher.arrive(1, tag, (), |()| n));
        }
        for tag in 0..100 {
            let _ = kept(matcher.arrive(1, tag, (), |()| n));
        }
        for tag in (0..100).rev() {
            assert_eq!(taken(matcher.post(Pattern::exact(1, tag), 0)), n);
        }
        matcher.bytes()
    };
    let _ = round(0);
    let bytes = round(1);
    assert!((2..1000).all(|n| round(n) == bytes));
}

#[test]
fn the_receives_of_one_peer_are_found_and_ended() {
    let mut matcher = Matcher::<()>::new();
    for n in 0..100 {
        let _ = waiting(matcher.post(Pattern::exact(n % 4, n), n));
    }
    let dead = |source| source == Some(3);
    let mut of: Vec<_> =
        matcher.receives().filter(|r| dead(r.pattern.source)).map(Receive::cloned).collect();
    of.sort_by_key(|receive| receive.id);
    assert!(of.iter().map(|receive| receive.word).eq((0..100).filter(|n| n % 4 == 3)));
    assert!(of.iter().all(|receive| matcher.cancel(receive.id) == Some(*receive)));
    assert_eq!(matcher.posted(), 75);
}

#[test]
fn million_receives_in_reverse_order_are_found_by_hash() {
    const RECEIVES: u64 = 1_000_000;
    let mut matcher = Matcher::<()>::new();
    for n in 0..RECEIVES {
        let source = if n % 3 == 0 { None } else { Some(n % 5) };
        let pattern = Pattern { source, tag: n << 8, ignore: n % 2 };
        let _ = waiting(matcher.post(pattern, n));
    }
    for n in (0..RECEIVES).rev() {
        assert_eq!(word(matcher.arrive(n % 5, (n << 8) + n % 2, (), |()| ())), n);
    }
}

#[test]
fn entries_without_table_are_found_in_order() {
    // The test posts receives of more shapes than there are tables, and then a receive of each shape again.
    let shapes: Vec<_> = (0..20).map(|bit| Pattern { ignore: 1 << bit, ..ANY_OF_7 }).collect();
    let mut matcher = Matcher::new();
    for turn in 0..3 {
        for (pattern, n) in shapes.iter().zip(0..) {
            let _ = waiting(matcher.post(*pattern, turn * 100 + n));
        }
        let _ = kept(matcher.arrive(1, 1 << 63 | turn, (), |()| ())); // passes all of them
    }
    // A tag with one other bit matches the receives that ignore that bit; 7 matches all.
    assert_eq!(word(matcher.arrive(1, 7 | 1 << 15, (), |()| ())), 15);
    for n in (0..20).filter(|n| *n != 15) {
        assert_eq!(word(matcher.arrive(1, 7, (), |()| ())), n);
    }
    assert_eq!(word(matcher.arrive(1, 7 | 1 << 19, (), |()| ())), 119);
    let left = (100..119).chain(200..220);
    for n in left {
        assert_eq!(word(matcher.arrive(1, 7, (), |()| ())), n);
    }
    assert_eq!((matcher.posted(), matcher.unexpected()), (0, 3));
}
