//! Tests of the numbers of peers, and of the reports about peers.

use super::*;

fn stranger(peers: &mut Peers) -> u32 {
    peers.add(None).0
}

#[test]
fn connected_peer_is_kept_and_idle_one_forgotten_after_1024_others() {
    let mut peers = Peers::default();
    let (stays, goes) = (stranger(&mut peers), stranger(&mut peers));
    peers.arrived(stays);
    peers.arrived(goes);
    assert!(peers.left(goes).is_none());
    for _ in 0..4 * REMEMBERED {
        let number = stranger(&mut peers);
        peers.arrived(number);
        let _ = peers.left(number);
    }
    assert!(peers.get(stays).is_some());
    assert!(peers.get(goes).is_none());
    assert!(peers.known.len() <= REMEMBERED + 2, "{}", peers.known.len());
}

#[test]
fn peer_that_reconnects_in_time_keeps_its_number() {
    let mut peers = Peers::default();
    let number = stranger(&mut peers);
    peers.arrived(number);
    let _ = peers.left(number);
    peers.arrived(number);
    for _ in 0..2 * REMEMBERED {
        let _ = stranger(&mut peers);
    }
    assert!(peers.get(number).is_some());
}

#[test]
fn a_number_is_not_given_to_somebody_else() {
    let mut peers = Peers::default();
    let first = stranger(&mut peers);
    for _ in 0..2 * REMEMBERED {
        assert_ne!(stranger(&mut peers), first);
    }
    assert!(peers.get(first).is_none());
}

#[test]
fn peer_failure_is_reported_once_per_reconnection() {
    let mut peers = Peers::default();
    let number = stranger(&mut peers);
    peers.arrived(number);
    peers.arrived(number); // two connections
    assert!(peers.tell(number, &gone("gone")));
    assert!(!peers.tell(number, &gone("gone")), "the second connection's end is no second failure");
    peers.arrived(number);
    assert!(
        !peers.tell(number, &gone("gone")),
        "a connection that is forming, and may never stand, says nothing"
    );
    peers.stands(number);
    assert!(peers.tell(number, &gone("gone")));
    assert!(!peers.tell(77, &gone("gone")), "nobody has that number");
}

fn gone(words: &str) -> Error {
    Error::new(crate::Status::PeerFailed, words, "", "")
}

/// Makes a peer whose worker is known by this byte.
fn known(peers: &mut Peers, worker: u8) -> u32 {
    let address = WorkerAddress {
        context: [1; 16],
        messages: crate::address::MESSAGES,
        location: crate::address::Location::here(),
        entry: crate::address::WorkerEntry {
            worker: [worker; 16],
            candidates: Vec::new(),
            schemes: Vec::new(),
        },
        service: None,
        polls_often: false,
        name: Box::default(),
    };
    peers.number(&address).0
}

#[test]
fn first_error_of_lost_peer_is_kept_until_reported() {
    let mut peers = Peers::default();
    let number = known(&mut peers, 7);
    assert!(peers.lost(&[7; 16]).is_none(), "nobody has said so");
    assert_eq!(peers.lose(number, &gone("first")), Some([7; 16]));
    assert_eq!(peers.lose(number, &gone("second")), Some([7; 16]));
    let (who, error) = peers.lost(&[7; 16]).expect("it is lost");
    assert_eq!((who, error.what()), (number, "first"));
    assert!(peers.tell(number, &gone("gone")));
    assert!(peers.lost(&[7; 16]).is_none(), "it has been told");
}

#[test]
fn a_peer_that_stands_again_is_not_lost_and_can_be_lost_and_leave_anew() {
    let mut peers = Peers::default();
    let number = known(&mut peers, 7);
    let _ = peers.lose(number, &gone("before"));
    assert!(peers.part(number));
    assert!(!peers.part(number), "it leaves once");
    peers.stands(number);
    assert!(peers.lost(&[7; 16]).is_none());
    assert!(peers.part(number));
    let _ = peers.lose(number, &gone("after"));
    assert_eq!(peers.lost(&[7; 16]).expect("it is lost").1.what(), "after");
}

#[test]
fn last_failure_is_kept_until_a_peer_stands_or_leaves() {
    let mut peers = Peers::default();
    let (one, other) = (known(&mut peers, 7), known(&mut peers, 8));
    assert!(peers.tell(one, &gone("it died")));
    assert_eq!(peers.last_failure().map(Error::what), Some("it died"));
    peers.arrived(other);
    assert!(peers.last_failure().is_none(), "a peer is here");
    let _ = peers.left(other);
    assert!(peers.last_failure().is_some());
    assert!(peers.part(other) && peers.last_failure().is_none());
    assert!(peers.tell(other, &gone("it died")));
    peers.stands(one);
    assert!(peers.last_failure().is_none());
}

#[test]
fn unknown_peer_number_neither_leaves_nor_fails() {
    let mut peers = Peers::default();
    let stranger = stranger(&mut peers);
    assert_eq!(peers.lose(stranger, &gone("here")), None, "its worker is not known");
    assert_eq!(peers.lose(77, &gone("here")), None);
    assert!(!peers.part(77));
    assert!(peers.left(77).is_none());
    assert_eq!((peers.ways(77), peers.known_number(&[7; 16])), (0, None));
}

#[test]
fn a_peer_rests_when_the_last_way_to_it_is_gone_and_not_before() {
    let mut peers = Peers::default();
    let number = stranger(&mut peers);
    peers.arrived(number);
    peers.arrived(number);
    let _ = peers.left(number);
    assert_eq!(peers.ways(number), 1);
    for _ in 0..2 * REMEMBERED {
        let _ = stranger(&mut peers);
    }
    assert!(peers.get(number).is_some(), "one leads to it still");
    let _ = peers.left(number);
    let _ = peers.left(number); // reported more often than there were connections
    assert_eq!(peers.ways(number), 0);
}

#[test]
fn remembered_worker_keeps_its_number_and_forgotten_one_gets_another() {
    let mut peers = Peers::default();
    let first = known(&mut peers, 7);
    assert_eq!((known(&mut peers, 7), peers.known_number(&[7; 16])), (first, Some(first)));
    for _ in 0..2 * REMEMBERED {
        let _ = stranger(&mut peers);
    }
    assert_eq!(peers.known_number(&[7; 16]), None);
    assert_ne!(known(&mut peers, 7), first);
}

#[test]
fn repeated_endpoints_to_one_peer_evict_no_other_peer() {
    let (mut peers, mut ids) = (Peers::default(), tieline_order::slab::Slab::<()>::default());
    let (rests, number) = (stranger(&mut peers), known(&mut peers, 7));
    for _ in 0..2 * REMEMBERED {
        let id = ids.insert(()).unwrap();
        peers.named([7; 16], id);
        assert_eq!(peers.endpoints_to(number).collect::<Vec<_>>(), [id]);
        assert!(peers.not_named(&[7; 16], id).is_none());
        assert_eq!(peers.let_go_to(number).collect::<Vec<_>>(), [id]);
        peers.gone(&[7; 16], id);
    }
    assert!(peers.get(rests).is_some() && peers.get(number).is_some());
    assert!(peers.endpoints.is_empty() && peers.let_go.is_empty());
}

#[test]
fn peer_is_forgotten_1024_others_after_its_endpoint_was_dropped() {
    let (mut peers, mut ids) = (Peers::default(), tieline_order::slab::Slab::<()>::default());
    let (number, id) = (known(&mut peers, 7), ids.insert(()).unwrap());
    peers.named([7; 16], id);
    let crowd = |peers: &mut Peers| {
        for _ in 0..REMEMBERED - 1 {
            let _ = stranger(peers);
        }
    };
    crowd(&mut peers);
    crowd(&mut peers);
    assert!(peers.get(number).is_some());
    let _ = peers.not_named(&[7; 16], id);
    crowd(&mut peers);
    assert!(peers.get(number).is_some());
    crowd(&mut peers);
    assert!(peers.get(number).is_none());
}

#[test]
fn a_number_is_never_one_that_is_in_use_nor_the_highest() {
    let mut peers = Peers::default();
    let first = stranger(&mut peers);
    peers.next = u32::MAX;
    assert_eq!((stranger(&mut peers), first), (1, 0));
}

#[test]
fn oldest_idle_peer_is_evicted_beyond_the_maximum() {
    let mut peers = Peers::default();
    let all: Vec<u32> = (0..REMEMBERED).map(|_| stranger(&mut peers)).collect();
    assert!(peers.get(all[0]).is_some() && peers.len() == REMEMBERED);
    let more = stranger(&mut peers);
    assert!(peers.get(all[0]).is_none() && peers.get(all[1]).is_some());
    assert_eq!((peers.len(), more), (REMEMBERED, REMEMBERED as u32));
}

#[test]
fn that_a_peer_has_left_or_is_gone_is_told_once_until_it_stands_again() {
    let mut peers = Peers::default();
    let number = stranger(&mut peers);
    peers.arrived(number);
    peers.arrived(number);
    assert_eq!(peers.ways(number), 2);
    let twice = |peers: &mut Peers| {
        [
            peers.part(number),
            peers.part(number),
            peers.tell(number, &gone("gone")),
            peers.tell(number, &gone("gone")),
        ]
    };
    for _ in 0..2 {
        assert_eq!(twice(&mut peers), [true, false, true, false]);
        peers.stands(number);
    }
    assert!(peers.part(number) && !peers.is_gone(number), "two connections lead here");
    assert!(peers.left(number).is_none());
    assert_eq!((peers.ways(number), peers.ways(7)), (1, 0));
    assert!(peers.left(number).is_none() && peers.is_gone(number) && peers.is_gone(7));
    peers.arrived(number);
    peers.stands(number);
    assert!(!peers.is_gone(number), "it is back");
    assert!(!peers.part(7) && !peers.tell(7, &gone("gone")), "nobody has that number");
    assert_eq!(peers.lose(number, &Error::from_status(crate::Status::Io)), None);
}
