//! Tests of the rule alone: no socket, and a clock that the test controls.

use super::*;

fn v4(n: u32) -> Source {
    Source::V4(n)
}

/// A listener's decisions. The keys are numbers in the order of arrival.
struct Played {
    admission: Admission<usize>,
    next: usize,
}

impl Played {
    fn expecting(processes: usize) -> Played {
        let mut admission = Admission::default();
        admission.expect(processes);
        Played { admission, next: 0 }
    }

    fn comes(&mut self, source: Source, now: Instant) -> Verdict<usize> {
        let verdict = self.admission.admit(source, now, false);
        if let Verdict::Instead(oldest) = verdict {
            self.admission.remove(oldest);
        }
        if verdict != Verdict::TurnedAway {
            self.admission.insert(self.next, source, now, false);
        }
        self.next += 1;
        verdict
    }
}

#[test]
fn as_many_as_are_expected_come_at_once_from_one_address_and_lose_nobody() {
    let (now, mut played) = (Instant::now(), Played::expecting(600));
    for _ in 0..600 {
        assert!(played.admission.accepts(now, || false));
        assert_eq!(played.comes(v4(1), now), Verdict::Enters);
    }
    // The reserve is full, too, and no connection is old enough to be closed.
    for _ in 0..RESERVE_PER_SOURCE {
        assert_eq!(played.comes(v4(1), now), Verdict::Enters);
    }
    assert!(!played.admission.accepts(now, || false));
    assert_eq!(played.comes(v4(1), now), Verdict::TurnedAway);
    assert_eq!(played.comes(v4(2), now), Verdict::Enters, "others have room");
}

#[test]
fn one_source_makes_room_for_itself_and_never_takes_that_of_others() {
    let (t0, mut played) = (Instant::now(), Played::expecting(0));
    assert_eq!(played.comes(v4(7), t0), Verdict::Enters);
    for _ in 0..RESERVE_PER_SOURCE {
        assert_eq!(played.comes(v4(1), t0), Verdict::Enters);
    }
    assert_eq!(played.admission.room_at(), Some(t0 + HOLD));
    assert!(!played.admission.accepts(t0 + HOLD - Duration::from_nanos(1), || false));
    assert_eq!(played.comes(v4(1), t0), Verdict::TurnedAway);
    // The first connection is the oldest of all, but another one is closed.
    assert!(played.admission.accepts(t0 + HOLD, || false));
    assert_eq!(played.comes(v4(1), t0 + HOLD), Verdict::Instead(1));
    assert_eq!(played.admission.len(), 1 + RESERVE_PER_SOURCE);
}

#[test]
fn the_source_with_the_most_makes_room_and_at_once_if_that_is_much() {
    let (t0, mut played) = (Instant::now(), Played::expecting(0));
    for n in 0..RESERVE - 100 {
        assert_eq!(played.comes(v4(100 + n as u32), t0), Verdict::Enters);
    }
    for _ in 0..100 {
        assert_eq!(played.comes(v4(1), t0), Verdict::Enters);
    }
    let first = RESERVE - 100;
    assert_eq!(played.comes(v4(2), t0), Verdict::Instead(first), "its own age does not matter");
    assert_eq!(played.comes(v4(1), t0), Verdict::TurnedAway, "it has the most itself");
    // All connections are past their time: the oldest connection of the source with the most connections is closed.
    assert_eq!(played.comes(v4(3), t0 + HOLD), Verdict::Instead(first + 1));
    assert_eq!(played.comes(v4(1), t0 + HOLD), Verdict::Instead(0), "then the oldest of all");
    assert_eq!(played.admission.len(), RESERVE);
}

#[test]
fn many_sources_with_little_each_have_their_time() {
    let (t0, mut played) = (Instant::now(), Played::expecting(0));
    for n in 0..RESERVE {
        assert_eq!(played.comes(v4(n as u32 / 2), t0), Verdict::Enters);
    }
    let early = t0 + HOLD - Duration::from_nanos(1);
    assert_eq!(played.admission.room_at(), Some(t0 + HOLD));
    assert!(!played.admission.accepts(early, || false), "they are waited for");
    assert!(played.admission.accepts(early, || true), "a crowd is not kept waiting");
    assert_eq!(played.comes(v4(9999), early), Verdict::TurnedAway);
    assert_eq!(played.admission.makes_room(early), None);
    assert_eq!(played.comes(v4(9999), t0 + HOLD), Verdict::Instead(254));
}

#[test]
fn a_proof_keeps_a_place_before_all_who_have_none() {
    let (t0, mut played) = (Instant::now(), Played::expecting(0));
    for _ in 0..3 {
        let _ = played.comes(v4(1), t0);
    }
    played.admission.prove(0);
    assert_eq!(played.admission.oldest_by(t0), Some(0), "patience ends for all alike");
    assert_eq!(played.admission.makes_room(t0 + HOLD), Some(1));
    played.admission.remove(1);
    played.admission.remove(2);
    assert_eq!(played.admission.makes_room(t0 + HOLD), None);
    let late = t0 + HOLD;
    for n in 0..RESERVE_PER_SOURCE - 1 {
        assert_eq!(played.comes(v4(1), late), Verdict::Enters, "{n}");
    }
    assert_eq!(played.admission.admit(v4(1), late, false), Verdict::TurnedAway);
    assert_eq!(played.admission.admit(v4(1), late, true), Verdict::Instead(0), "its equals");
    (0..played.next).for_each(|key| played.admission.remove(key));
    played.admission.prove(0);
    assert!(played.admission.is_empty() && played.admission.oldest().is_none());
    assert!(played.admission.sources.is_empty() && played.admission.weights.is_empty());
}

#[test]
fn a_source_is_an_address_of_ipv4_and_a_network_of_ipv6() {
    let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
    assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
    assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}
