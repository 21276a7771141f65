//! Tests of many peers on one interface: floods, and fairness.

use super::*;
use tieline_plugin_api::Events;

/// An interface that many peers send to. The cookie of each peer is its index in `senders`.
struct Crowd {
    receiver: StreamInterface,
    _ends: Vec<StreamEndpoint>,
    sender: StreamInterface,
    senders: Vec<StreamEndpoint>,
    until: Instant,
}

impl Crowd {
    fn new(domain: &TcpDomain, count: usize) -> Crowd {
        let open = || domain.open_interface(MODULE, [0; 16]).unwrap();
        let (receiver, sender) = (open(), open());
        let (mut ends, mut senders) = (Vec::new(), Vec::new());
        for n in 0..count {
            let here = receiver.connect(&[], &[], n as u64).unwrap();
            let there = sender.connect(&[], &[], n as u64).unwrap();
            here.connect(&there.address()).unwrap();
            there.connect(&here.address()).unwrap();
            ends.push(here);
            senders.push(there);
        }
        let until = Instant::now() + TIMEOUT;
        let mut crowd = Crowd { receiver, _ends: ends, sender, senders, until };
        for n in 0..count {
            while crowd.senders[n].am_short(7, 0, b"").is_err() {
                let _ = crowd.turn();
            }
            while !crowd.turn().contains(&n) {}
        }
        crowd
    }

    /// Polls once and returns the senders of the received messages.
    fn turn(&mut self) -> Vec<usize> {
        assert!(Instant::now() < self.until, "it hangs");
        let _ = sys::poll(&self.sender);
        let told = sys::poll(&self.receiver);
        told.into_iter()
            .map(|(event, _)| {
                assert_eq!(event.kind, event::MESSAGE, "{event:?}");
                event.peer as usize
            })
            .collect()
    }

    /// Sends from this peer until no more messages are accepted.
    fn flood(&mut self, n: usize, payload: &[u8]) {
        while self.senders[n].am_short(7, 0, payload).is_ok() {}
    }
}

/// Counts the polls that receive messages of each peer. `flooders` peers send all that is accepted, and one peer sends a message
/// when its last one has arrived.
fn polls_with_a_message(flooders: usize, payload: &[u8], polls: usize) -> Vec<usize> {
    let mut crowd = Crowd::new(&domain(&[]), flooders + 1);
    let (honest, mut waits) = (flooders, false);
    let mut shares = vec![0; flooders + 1];
    for _ in 0..polls {
        for n in 0..flooders {
            crowd.flood(n, payload);
        }
        if !waits {
            waits = crowd.senders[honest].am_short(7, 0, b"a word").is_ok();
        }
        let mut came = crowd.turn();
        came.sort_unstable();
        came.dedup();
        waits &= !came.contains(&honest);
        came.into_iter().for_each(|n| shares[n] += 1);
    }
    shares
}

#[test]
fn a_peer_that_floods_does_not_keep_another_one_from_being_heard() {
    for flooders in [1, 2, 3] {
        let polls = 300;
        let shares = polls_with_a_message(flooders, &[1; 100], polls);
        // The message of that peer waits at most while one other peer fills the events of a poll.
        assert!(shares[flooders] >= polls / 4, "{shares:?} of {polls}");
    }
}

#[test]
fn flooding_peers_and_a_quiet_peer_all_get_their_turns() {
    let (flooders, polls) = (24, 400);
    let shares = polls_with_a_message(flooders, &[1; 1000], polls);
    // One poll serves four peers.
    let turns = polls / (flooders + 1) * 4;
    for (n, share) in shares.iter().enumerate() {
        assert!(*share >= turns / 2, "peer {n}: {shares:?} of {polls}");
    }
}

#[test]
fn frames_without_events_are_read_when_event_array_is_full() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 1 << 20];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut source = pattern(target.len(), 4);
    rma(&mut sides, true, &key, &mut source, 0, 5);
    // The target has no room for a single event.
    while sides[0].completions.is_empty() {
        sides[0].turn();
        sides[1].interface.poll(&mut Events::new(&mut [])).unwrap();
    }
    assert_eq!((sides[0].completions[0], target == source), ((5, 0), true));
    domain.deregister(region).unwrap();
}

#[test]
fn a_message_that_found_no_room_is_the_first_of_the_next_poll() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    send(&mut sides, 3, b"it waits");
    for _ in 0..1000 {
        sides[1].interface.poll(&mut Events::new(&mut [])).unwrap();
    }
    sides[1].turn();
    assert_eq!(sides[1].messages.pop_front(), Some((7, 3, b"it waits".to_vec())));
}

#[test]
fn data_read_without_event_room_is_answered_without_further_data() {
    for reconnect in ["off", "on"] {
        let mut sides = pair(&[("TIELINE_TCP_RECONNECT", reconnect)]);
        await_streams(&mut sides, 1);
        // One read receives more messages than several polls have events for, followed by a frame that requires an answer.
        let count = 100;
        for header in 0..count {
            assert_eq!(sides[0].endpoint().am_short(7, header, b"a word"), Ok(Posting::Done));
        }
        assert_eq!(sides[0].endpoint().flush(8), Ok(Posting::Pending));
        sides[0].turn();
        assert_eq!(await_completion(&mut sides, 8), 0, "reconnect {reconnect}");
        let headers: Vec<u64> = sides[1].messages.iter().map(|message| message.1).collect();
        assert_eq!(headers, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn completions_and_messages_share_the_events_of_a_poll() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 8];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut source = vec![7u8; 8];
    for cookie in 0..200 {
        rma(&mut sides, true, &key, &mut source, 0, cookie);
    }
    // All puts have ended at the target before this side polls again.
    while sides[0].completions.is_empty() {
        (0..50).for_each(|_| sides[1].turn());
        sides[0].turn();
    }
    assert_eq!(sides[1].endpoint().am_short(7, 1, b"between"), Ok(Posting::Done));
    while sides[0].messages.is_empty() {
        sides[0].turn();
    }
    assert!(sides[0].completions.len() < 200, "the message came behind all completions");
    domain.deregister(region).unwrap();
}

/// Posts a put that completes when the kernel has read its data, which a poll reports.
fn put_at_once(side: &Side, key: &Key, source: &mut [u8]) {
    let (len, pieces) = (source.len(), [iov(sys::piece_mut(source))]);
    let op = RmaOp { iov: &pieces, len, offset: 0, cookie: 5, flags: 0 };
    assert_eq!(side.endpoint().put(key, &op), Ok(Posting::Pending));
    assert_eq!(side.interface.shared().notices.borrow().len(), 1);
}

#[test]
fn completion_is_reported_despite_message_flood_and_before_sleep() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 9000];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut source = vec![7u8; target.len()];
    // No other event is pending, and there is no room to report the completion.
    put_at_once(&sides[0], &key, &mut source);
    let poll_without_room = || sides[0].interface.poll(&mut Events::new(&mut [])).unwrap();
    let shared = sides[0].interface.shared();
    poll_without_room();
    while !shared.attention.borrow().is_empty() || !shared.readers.borrow().is_empty() {
        poll_without_room();
    }
    assert_eq!(sides[0].interface.arm(), Ok(Armed::Ready));
    sides[0].turn();
    assert_eq!(sides[0].completions, [(5, 0)]);
    // The peer floods.
    while sides[1].endpoint().am_short(7, 0, b"a word").is_ok() {}
    let mut came = 0;
    while sides[0].messages.len() < came + 16 {
        came = sides[0].messages.len();
        sides[0].turn();
    }
    put_at_once(&sides[0], &key, &mut source);
    sides[0].turn();
    assert_eq!(sides[0].completions, [(5, 0), (5, 0)]);
    domain.deregister(region).unwrap();
}

#[test]
fn streams_beyond_those_that_keep_their_buffers_share_what_is_there() {
    let mut crowd = Crowd::new(&domain(&[]), 40);
    let made = |crowd: &Crowd| crowd.receiver.shared().pool.borrow().made();
    let round = |crowd: &mut Crowd| {
        let mut missing: Vec<usize> = (0..crowd.senders.len()).collect();
        for sender in &crowd.senders {
            while sender.am_short(7, 0, &[1; 60_000]).is_err() {
                let _ = sys::poll(&crowd.sender);
            }
        }
        while !missing.is_empty() {
            let came = crowd.turn();
            missing.retain(|n| !came.contains(n));
        }
    };
    (0..5).for_each(|_| round(&mut crowd));
    let before = made(&crowd);
    (0..50).for_each(|_| round(&mut crowd));
    let made = made(&crowd) - before;
    assert!(made <= 100, "{made} buffers were made for 2000 messages though others were free");
    let buffer = crate::buffer::BUFFER as u64;
    let memory = crowd.receiver.memory();
    assert!(memory.buffer_bytes >= 16 * buffer, "those are there, and told: {memory:?}");
    assert!(memory.buffer_bytes <= (40 + 64) * buffer, "{memory:?}");
    // Nothing more arrives: the rest is the memory of idle connections.
    while crowd.receiver.arm().unwrap() == Armed::Ready {
        let _ = crowd.turn();
    }
    let _ = crowd.turn();
    while crowd.receiver.arm().unwrap() == Armed::Ready {}
    let memory = crowd.receiver.memory();
    assert!(memory.buffer_bytes < 2 * buffer, "{memory:?}");
}

#[test]
fn the_beginning_of_a_message_holds_no_more_memory_than_it_has_bytes() {
    let count = 50;
    let mut crowd = Crowd::new(&domain(&[]), count);
    for sender in &crowd.senders {
        let mut head = crate::frame::Head::bare(crate::frame::Kind::Message, 7, 0);
        let inner = &mut sender.conn().inner.borrow_mut();
        head.seq = inner.outbox.take_seq();
        head.len = 60_000;
        let stream = inner.links[0].stream.as_ref().unwrap();
        assert_eq!(sys::send(stream.sender(), &head.pack()).unwrap(), 32);
        assert_eq!(sys::send(stream.sender(), &[1; 100]).unwrap(), 100);
    }
    let bytes = |crowd: &Crowd| {
        let shared = crowd.receiver.shared();
        let pooled = shared.pool.borrow().committed() as u64;
        crowd.receiver.memory().buffer_bytes - pooled
    };
    (0..1000).for_each(|_| assert!(crowd.turn().is_empty()));
    assert!(bytes(&crowd) >= 16 * crate::buffer::BUFFER as u64, "the active ones keep theirs");
    assert!(bytes(&crowd) < 20 * crate::buffer::BUFFER as u64, "{}", bytes(&crowd));
    // The rest of each message arrives.
    for sender in &crowd.senders {
        let inner = sender.conn().inner.borrow();
        let stream = inner.links[0].stream.as_ref().unwrap();
        assert_eq!(sys::send(stream.sender(), &[1; 59_900]).unwrap(), 59_900);
    }
    let mut came = Vec::new();
    while came.len() < count {
        came.extend(crowd.turn());
    }
    came.sort_unstable();
    assert_eq!(came, (0..count).collect::<Vec<_>>());
}
