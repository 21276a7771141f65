//! Tests of connections that form, cross and end orderly.

use std::io::Write;

use super::*;
use crate::address;
use crate::frame::VERSION;

#[test]
fn both_directions_opened_at_once_end_as_one_connection_per_stream() {
    for round in 0..150 {
        let streams = ["1", "2", "4"][round % 3];
        let count: usize = streams.parse().unwrap();
        let mut sides = pair(&[("TIELINE_TCP_STREAMS", streams)]);
        if round % 2 == 1 {
            // Both sides dial at the same time.
            for side in &sides {
                let conn = side.endpoint().conn();
                let mut inner = conn.inner.borrow_mut();
                inner.links.iter_mut().for_each(|link| link.dial_now());
                inner.tend_links(Instant::now());
            }
        }
        await_streams(&mut sides, count);
        send(&mut sides, 5, b"one way");
        assert_eq!(receive(&mut sides).2, b"one way");
        sides.swap(0, 1);
        send(&mut sides, 6, b"and back");
        assert_eq!(receive(&mut sides).2, b"and back");
        sides.swap(0, 1);
        let ends = sides.each_ref().map(|side| {
            let conn = side.endpoint().conn();
            let inner = conn.inner.borrow();
            assert_eq!(inner.links.len(), count);
            inner
                .links
                .iter()
                .map(|link| link.stream.as_ref().unwrap().addresses())
                .collect::<Vec<_>>()
        });
        for (near, far) in ends[0].iter().zip(&ends[1]) {
            assert_eq!((near.0, near.1), (far.1, far.0), "another connection on each side");
        }
    }
}

#[test]
fn smaller_requested_stream_count_is_used() {
    let domains =
        [domain(&[("TIELINE_TCP_STREAMS", "3")]), domain(&[("TIELINE_TCP_STREAMS", "2")])];
    let mut sides = pair_in([&domains[0], &domains[1]]);
    await_streams(&mut sides, 2);
    send(&mut sides, 1, b"hello");
    assert_eq!(receive(&mut sides).2, b"hello");
    assert_eq!(streams_of(&sides[0]).len(), 2);
}

#[test]
fn a_message_sent_before_the_peer_connects_arrives_when_it_does() {
    let domain = domain(&[]);
    let mut sides = [Side::new(&domain), Side::new(&domain)];
    let addresses = [sides[0].endpoint().address(), sides[1].endpoint().address()];
    sides[0].endpoint().connect(&addresses[1]).unwrap();
    for _ in 0..50 {
        turn(&mut sides);
        std::thread::sleep(Duration::from_millis(1));
    }
    sides[1].endpoint().connect(&addresses[0]).unwrap();
    send(&mut sides, 3, b"early");
    assert_eq!(receive(&mut sides), (7, 3, b"early".to_vec()));
}

#[test]
fn a_goodbye_is_closed_and_what_was_sent_before_arrives() {
    for streams in ["1", "2"] {
        let mut sides = pair(&[("TIELINE_TCP_STREAMS", streams)]);
        for n in 0..100 {
            send(&mut sides, n, &pattern(3000, n));
        }
        sides[0].endpoint = None;
        for n in 0..100 {
            assert_eq!(receive(&mut sides), (7, n, pattern(3000, n)));
        }
        while sides[1].failed.is_none() {
            turn(&mut sides);
        }
        let (status, words) = sides[1].failed.clone().unwrap();
        assert_eq!(status, Status::Closed, "{words}");
        assert_eq!(sides[1].endpoint().am_short(1, 1, b"?"), Err(Status::Closed));
        while sides[0].interface.memory().peers > 0 {
            turn(&mut sides);
        }
    }
}

/// If a socket with unread received data is closed, it sends a reset, and the peer loses the data that is still in the kernel.
#[test]
fn data_in_kernel_arrives_despite_short_close_timeout_and_unread_data() {
    let mut sides = pair(&[("TIELINE_CLOSE_TIMEOUT", "0ms")]);
    send(&mut sides, 0, b"first");
    let _ = receive(&mut sides);
    assert_eq!(sides[1].endpoint().am_short(7, 1, b"never read"), Ok(Posting::Done));
    let payload = pattern(30_000, 1);
    let mut taken = 0;
    while sides[0].endpoint().am_short(7, taken, &payload) == Ok(Posting::Done)
        && sides[0].interface.shared().blocked.get() == 0
    {
        taken += 1;
    }
    assert!(taken > 1, "the kernel takes more than one");
    let [closing, mut peer] = sides;
    drop(closing.endpoint);
    drop(closing.interface);
    while peer.failed.is_none() {
        peer.turn();
    }
    assert!(peer.messages.len() as u64 >= taken, "{} of {taken}", peer.messages.len());
    assert!(peer.messages.iter().all(|(_, _, bytes)| *bytes == payload));
}

#[test]
fn connecting_to_an_endpoint_that_was_closed_fails_in_words() {
    let domain = domain(&[]);
    let mut sides = [Side::new(&domain), Side::new(&domain)];
    let address = sides[1].endpoint().address();
    sides[1].endpoint = None;
    sides[0].endpoint().connect(&address).unwrap();
    while sides[0].failed.is_none() {
        turn(&mut sides);
    }
    let (status, words) = sides[0].failed.clone().unwrap();
    assert_eq!(status, Status::Closed, "{words}");
}

#[test]
fn garbage_ends_the_connection_it_came_on_and_nothing_else() {
    let mut sides = pair(&[]);
    let mut others = pair(&[]);
    await_streams(&mut sides, 1);
    await_streams(&mut others, 1);
    // The first case is a connection to the listener.
    let place = address::parse(&sides[1].endpoint().address()).unwrap().0.addresses[0];
    for len in [1usize, 100, 100_000] {
        let mut intruder = std::net::TcpStream::connect((place.ip, place.port)).unwrap();
        let _ = intruder.write_all(&pattern(len, 5));
    }
    send(&mut sides, 1, b"still here");
    assert_eq!(receive(&mut sides).2, b"still here");
    // The second case is an established connection.
    let fd = streams_of(&sides[0])[0];
    assert_eq!(sys::send(fd, &pattern(500, 11)).unwrap(), 500);
    while sides[1].failed.is_none() {
        turn(&mut sides);
    }
    let (status, words) = sides[1].failed.clone().unwrap();
    assert_eq!(status, Status::BadData, "{words}");
    send(&mut others, 1, b"unharmed");
    assert_eq!(receive(&mut others).2, b"unharmed");
}

#[test]
fn a_peer_that_never_connects_its_endpoint_is_given_up_in_words() {
    let domain = domain(&[("TIELINE_CONNECT_TIMEOUT", "200ms")]);
    let mut sides = [Side::new(&domain), Side::new(&domain)];
    // The side with the lower address has a stream as soon as the peer's process answers. The other side has none before the peer
    // connects its endpoint.
    if sides[0].endpoint().address() < sides[1].endpoint().address() {
        sides.reverse();
    }
    let address = sides[1].endpoint().address();
    sides[0].endpoint().connect(&address).unwrap();
    while sides[0].failed.is_none() {
        turn(&mut sides);
    }
    let (status, words) = sides[0].failed.clone().unwrap();
    assert_eq!(status, Status::TimedOut);
    assert!(words.starts_with("no connection came about in "), "{words}");
    assert_eq!(sides[1].failed, None, "nobody told it of a peer");
}

#[test]
fn invalid_address_and_second_connect_are_refused_with_text() {
    let domain = domain(&[]);
    let sides = [Side::new(&domain), Side::new(&domain)];
    let good = sides[1].endpoint().address();
    let end = good.len();
    let refused = |address: &[u8]| {
        let failure = sides[0].endpoint().connect(address).unwrap_err();
        assert_eq!(failure.status, Status::Invalid, "{}", failure.text);
        failure.text
    };
    for cut in [0, 1, end - 18, end - 11, end - 10, end - 3, end - 2, end - 1] {
        let words = refused(&good[..cut]);
        assert!(words.starts_with("no endpoint of tcp: "), "{words}");
    }
    let _ = refused(&[&good[..], &[0]].concat());
    // The changed bytes are the number of streams, and whether sent data is kept.
    for (at, byte) in [(end - 2, 0), (end - 2, 9), (end - 1, 2)] {
        let mut bad = good.clone();
        bad[at] = byte;
        let words = refused(&bad);
        assert!(words.contains("is invalid"), "{words}");
    }
    sides[0].endpoint().connect(&good).unwrap();
    let words = refused(&good);
    assert!(words.contains("connected already"), "{words}");
}

/// Without the check, this side would consider the peer's frames damaged.
#[test]
fn a_peer_that_speaks_another_version_is_not_reachable_and_hears_of_both() {
    let domain = domain(&[]);
    let sides = [Side::new(&domain), Side::new(&domain)];
    let (place, endpoint) = (sides[1].interface.address(), sides[1].endpoint().address());
    sides[0].interface.reachable(&place).unwrap();
    // The oldest addresses began with the contact, whose first byte is 1.
    let (older, newer) = (&place[1..], [&[VERSION + 1], &place[1..]].concat());
    for (address, theirs) in [(older, 1), (&newer[..], VERSION + 1)] {
        let words = sides[0].interface.reachable(address).unwrap_err().text;
        assert!(words.contains(&format!("version {theirs}, this one {VERSION}")), "{words}");
    }
    assert!(sides[0].interface.reachable(&[&place[..], &[0]].concat()).is_err());
    let words = sides[0].endpoint().connect(&endpoint[1..]).unwrap_err().text;
    assert!(words.contains("version 1"), "{words}");
}

#[test]
fn a_key_of_another_process_than_the_endpoint_leads_to_is_rejected() {
    let (here, there) = (domain(&[]), domain(&[]));
    let mut memory = [0u8; 8];
    let (mine, theirs) = (key_of(&here, &mut memory), key_of(&there, &mut memory));
    let sides = [Side::new(&here), Side::new(&there)];
    let status = |key: &[u8]| sides[0].endpoint().import_key(key).map_err(|f| f.status);
    assert_eq!(status(&theirs.1).unwrap_err(), Status::Again, "nobody knows whose it is");
    sides[0].endpoint().connect(&sides[1].endpoint().address()).unwrap();
    assert!(status(&theirs.1).is_ok());
    assert_eq!(status(&mine.1).unwrap_err(), Status::KeyRejected);
    assert_eq!(status(&theirs.1[1..]).unwrap_err(), Status::KeyRejected);
    here.deregister(mine.0).unwrap();
    there.deregister(theirs.0).unwrap();
}
