//! Tests of a peer that has passed the handshake and lies in the fields of the protocol. Its frames are refused or end that one
//! connection, and no memory is accessed that the peer has no right to.

use super::*;
use crate::frame::{HEAD, Head, KeyPart, Kind, MAX_FRAGMENT};
use crate::gathered::Gathered;
use crate::link::{Greeting, MAX_EARLY, PURPOSE};
use crate::ops::MAX_GETS;
use crate::window::WINDOW;
use std::net::{TcpListener, TcpStream};
use tieline_net::{Hello, Incoming};

/// Sends side 0 a frame that side 1 never queued, in the order of its stream.
fn forge(sides: &[Side; 2], mut head: Head, key: Option<&KeyPart>, payload: &[u8]) {
    let conn = sides[1].endpoint().conn();
    let mut inner = conn.inner.borrow_mut();
    if head.kind.is_sequenced() {
        head.seq = inner.outbox.take_seq();
    }
    drop(inner);
    head.len = payload.len() as u32;
    say(sides, 0, head, key, payload);
}

/// Sends a frame like `forge`, with the numbers in the head, on one of the streams.
fn say(sides: &[Side; 2], stream: usize, head: Head, key: Option<&KeyPart>, payload: &[u8]) {
    let head = key.map_or(head.pack().to_vec(), |key| head.pack_with(key).to_vec());
    let bytes = [&head, payload].concat();
    let fd = streams_of(&sides[1])[stream];
    assert_eq!(sys::send(fd, &bytes).unwrap(), bytes.len());
}

/// Waits until side 0 ends its connection for invalid data. Its pending operations must complete once.
fn is_refused(sides: &mut [Side; 2], cookies: &[u64]) -> String {
    while sides[0].failed.is_none() {
        sides[0].turn();
    }
    let (status, words) = sides[0].failed.clone().unwrap();
    assert_eq!(status, Status::BadData, "{words}");
    let mut ended: Vec<u64> = sides[0].completions.iter().map(|(cookie, _)| *cookie).collect();
    ended.sort_unstable();
    assert_eq!(ended, cookies, "{words}");
    for (cookie, status) in &sides[0].completions {
        assert_ne!(*status, 0, "operation {cookie} ended well: {words}");
    }
    // The sender of the invalid data is notified, too.
    while sides[1].failed.is_none() {
        turn(sides);
    }
    words
}

fn stand() -> [Side; 2] {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    sides
}

#[test]
fn an_answer_to_what_was_never_asked_ends_the_connection() {
    for head in [
        Head::bare(Kind::PutDone, 1, 0),
        Head::bare(Kind::PutFailed, 1, 8),
        Head::bare(Kind::GetDone, 1, 0),
        Head::bare(Kind::GetDone, 1, 8),
        Head::bare(Kind::FlushDone, 1, 0),
        Head::bare(Kind::GetData, 1, 0),
        Head::bare(Kind::Start, 0, 1),
    ] {
        let mut sides = stand();
        forge(&sides, head, None, if head.kind == Kind::GetData { b"data" } else { b"" });
        let _ = is_refused(&mut sides, &[]);
    }
}

/// Posts a get of side 0 that side 1 does not answer, with guard memory around its pieces, and returns its number.
fn asking(sides: &mut [Side; 2], memory: &mut [u8]) -> u32 {
    let domain = domain(&[]);
    let (_region, packed) = key_of(&domain, &mut [0u8; 64]);
    let mut key = Key::parse(&packed).unwrap();
    key.domain = sides[0].endpoint().conn().inner.borrow().peer.as_ref().unwrap().domain;
    let (first, second) = (sys::piece_mut(&mut memory[100..400]), 600..1300);
    let second = sys::piece_mut(&mut memory[second]);
    let iov = [iov(first), iov(second)];
    let op =
        RmaOp { iov: &iov, len: 1000, offset: 0, cookie: 5, flags: op_flags::REMOTE_COMPLETION };
    assert_eq!(sides[0].endpoint().get(&key, &op), Ok(Posting::Pending));
    let conn = sides[0].endpoint().conn();
    let inner = conn.inner.borrow();
    inner.ops.as_ref().unwrap().last_get
}

#[test]
fn unrequested_get_data_is_not_written_and_ends_connection() {
    // The offsets and lengths of the pieces of an answer.
    let lies: [&[(u64, usize)]; 9] = [
        &[(0, 1001)],
        &[(999, 2)],
        &[(1000, 1)],
        &[(u64::MAX, 1)],
        &[(u64::MAX - 5, 100)],
        &[(1 << 63, 10)],
        &[(0, 400), (0, 400)], // the data arrives twice
        &[(500, 500)],         // the first half is missing
        &[(0, 1000), (0, 1000)],
    ];
    for lie in lies {
        let mut sides = stand();
        let mut memory = vec![0xaa; 2000];
        let number = asking(&mut sides, &mut memory);
        for &(at, len) in lie {
            forge(&sides, Head::bare(Kind::GetData, number, at), None, &vec![0x55; len]);
        }
        let _ = is_refused(&mut sides, &[5]);
        let around = [0..100, 400..600, 1300..2000];
        for n in around.into_iter().flatten() {
            assert_eq!(memory[n], 0xaa, "{lie:?}: byte {n} is not of the get");
        }
    }
}

#[test]
fn get_end_requires_all_data_and_later_data_is_discarded() {
    let mut sides = stand();
    let mut memory = vec![0xaa; 2000];
    let number = asking(&mut sides, &mut memory);
    forge(&sides, Head::bare(Kind::GetData, number, 0), None, &[0x55; 999]);
    forge(&sides, Head::bare(Kind::GetDone, number, 0), None, &[]);
    let words = is_refused(&mut sides, &[5]);
    assert!(words.contains("whose data did not come"), "{words}");

    let mut sides = stand();
    let number = asking(&mut sides, &mut memory);
    let refused = crate::frame::status_word(Err(Status::KeyRejected.into()));
    forge(&sides, Head::bare(Kind::GetDone, number, refused), None, &[]);
    while sides[0].completions.is_empty() {
        sides[0].turn();
    }
    assert_eq!(sides[0].completions, [(5, Status::KeyRejected as i32)]);
    // From here on the memory is used for something else.
    memory.fill(0xcc);
    forge(&sides, Head::bare(Kind::GetData, number, 0), None, &[0x55; 1000]);
    let words = is_refused(&mut sides, &[5]);
    assert!(words.contains("nothing asked for"), "{words}");
    assert!(memory.iter().all(|&byte| byte == 0xcc), "written after its end");
}

#[test]
fn landing_data_of_get_ended_on_another_stream_is_discarded() {
    let mut sides = pair(&[("TIELINE_TCP_STREAMS", "2")]);
    await_streams(&mut sides, 2);
    let mut memory = vec![0xaa; 2000];
    let number = asking(&mut sides, &mut memory);
    let seq = sides[1].endpoint().conn().inner.borrow_mut().outbox.take_seq();
    // The second frame has half of the data; the first frame is the end.
    let data = Head { seq: seq + 1, len: 1000, ..Head::bare(Kind::GetData, number, 0) };
    say(&sides, 0, data, None, &[0x55; 300]);
    let landed = |side: &Side| {
        let inner = side.endpoint().conn().inner.borrow();
        let landing = inner.links[0].stream.as_ref().and_then(|stream| stream.landing.as_ref());
        landing.map_or(0, |landing| landing.at)
    };
    while landed(&sides[0]) < 300 {
        sides[0].turn();
    }
    let refused = crate::frame::status_word(Err(Status::KeyRejected.into()));
    say(&sides, 1, Head { seq, ..Head::bare(Kind::GetDone, number, refused) }, None, &[]);
    while sides[0].completions.is_empty() {
        sides[0].turn();
    }
    memory.fill(0xcc);
    assert_eq!(sys::send(streams_of(&sides[1])[0], &[0x55; 700]).unwrap(), 700);
    let _ = is_refused(&mut sides, &[5]);
    assert!(memory.iter().all(|&byte| byte == 0xcc), "written after its end");
}

#[test]
fn a_put_that_is_not_sent_cannot_have_ended() {
    for head in [Head::bare(Kind::PutDone, 1, 0), Head::bare(Kind::PutFailed, 1, 8)] {
        for len in [8 << 20, 20_000] {
            let domain = domain(&[]);
            let mut sides = pair_in([&domain, &domain]);
            await_streams(&mut sides, 1);
            let mut target = vec![0u8; len];
            let (region, packed) = key_of(&domain, &mut target);
            let key = sides[0].endpoint().import_key(&packed).unwrap();
            let mut source = pattern(len, 3);
            withhold(&sides[0]);
            rma(&mut sides, true, &key, &mut source, 0, 5);
            forge(&sides, head, None, &[]);
            let _ = is_refused(&mut sides, &[5]);
            domain.deregister(region).unwrap();
        }
    }
}

#[test]
fn a_put_that_has_ended_is_not_read_from_its_memory_when_it_is_sent_again() {
    let domain = domain(&[("TIELINE_TCP_RECONNECT", "on")]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 100_000];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut source = pattern(target.len(), 3);
    rma(&mut sides, true, &key, &mut source, 0, 5);
    // The kernel has all of the put's data, and nothing is acknowledged when its end is reported.
    forge(&sides, Head::bare(Kind::PutDone, 1, 0), None, &[]);
    assert_eq!(await_sender(&mut sides[0], 5), 0);
    let piece = sys::piece(&source);
    let all = piece.iov();
    let lies_in = |base: usize| (all.base.addr()..all.base.addr() + all.len).contains(&base);
    let conn = sides[0].endpoint().conn();
    let mut inner = conn.inner.borrow_mut();
    assert!(!inner.outbox.is_empty(), "it is kept until it is acknowledged");
    inner.outbox.stream_broke(0);
    let mut gathered = Gathered::default();
    inner.outbox.gather(&crate::outbox::Track::new(0), &mut gathered);
    assert!(gathered.len >= source.len());
    for piece in &gathered.pieces {
        assert!(!lies_in(piece.iov().base.addr()), "memory that was given back would be sent");
    }
    drop(inner);
    domain.deregister(region).unwrap();
}

fn await_sender(side: &mut Side, cookie: u64) -> i32 {
    loop {
        if let Some(at) = side.completions.iter().position(|c| c.0 == cookie) {
            return side.completions.remove(at).1;
        }
        side.turn();
    }
}

#[test]
fn answers_that_were_given_already_end_the_connection() {
    let domain = domain(&[]);
    for kind in [Kind::PutDone, Kind::PutFailed, Kind::FlushDone, Kind::GetDone] {
        let mut sides = pair_in([&domain, &domain]);
        await_streams(&mut sides, 1);
        let mut target = vec![0u8; 100];
        let (region, packed) = key_of(&domain, &mut target);
        let key = sides[0].endpoint().import_key(&packed).unwrap();
        let mut source = pattern(100, 3);
        rma(&mut sides, true, &key, &mut source, 0, 5);
        rma(&mut sides, false, &key, &mut source, 0, 6);
        assert_eq!(sides[0].endpoint().flush(7), Ok(Posting::Pending));
        for cookie in 5..8 {
            assert_eq!(await_completion(&mut sides, cookie), 0);
        }
        forge(&sides, Head::bare(kind, 1, 0), None, &[]);
        let _ = is_refused(&mut sides, &[]);
        domain.deregister(region).unwrap();
    }
}

#[test]
fn peer_puts_and_gets_stay_within_region_and_key_rights() {
    let mine = domain(&[]);
    let mut sides = pair_in([&mine, &domain(&[])]);
    await_streams(&mut sides, 1);
    let mut memory = vec![0xaa; 3000];
    let inside = memory[1000..2000].as_mut_ptr();
    let region = mine.register(&RegisterParams::new(inside, 1000, access::REMOTE_WRITE)).unwrap();
    let other = mine
        .register(&RegisterParams::new(memory.as_mut_ptr(), 3000, access::REMOTE_READ))
        .unwrap();
    let part = |region: &std::sync::Arc<crate::regions::Region>| {
        let mut key = vec![0; 64];
        let len = mine.pack_key(region, &KeyParams::empty(), &mut key).unwrap();
        Key::parse(&key[..len]).unwrap().part(100)
    };
    let (good, read_only) = (part(&region), part(&other));
    let puts = [
        (good, 901, Status::OutOfRange),
        (good, u64::MAX - 50, Status::OutOfRange),
        (good, 1 << 63, Status::OutOfRange),
        (read_only, 0, Status::KeyRejected),
        (KeyPart { tag: good.tag ^ 1, ..good }, 0, Status::KeyRejected),
        (KeyPart { domain: good.domain ^ 1, ..good }, 0, Status::KeyRejected),
        (KeyPart { index: u32::MAX, ..good }, 0, Status::KeyRejected),
        (KeyPart { index: read_only.index, ..good }, 0, Status::KeyRejected),
    ];
    for (n, (key, at, status)) in (1..).zip(puts) {
        let head = Head { last: true, ..Head::bare(Kind::Put, n, at) };
        forge(&sides, head, Some(&key), &[0x55; 100]);
        assert_eq!(answer(&mut sides, Kind::PutFailed), (n, Err(status)));
        assert_eq!(answer(&mut sides, Kind::PutDone).0, n);
    }
    let gets = [
        (good, 0, 100, Status::KeyRejected),
        (read_only, 2901, 100, Status::OutOfRange),
        (read_only, 0, 3001, Status::OutOfRange),
        (read_only, 1, u64::MAX, Status::OutOfRange),
        (read_only, u64::MAX, 1, Status::OutOfRange),
        (KeyPart { tag: 0, ..read_only }, 0, 1, Status::KeyRejected),
    ];
    for (n, (key, at, total, status)) in (1..).zip(gets) {
        forge(&sides, Head::bare(Kind::Get, n, at), Some(&KeyPart { total, ..key }), &[]);
        assert_eq!(answer(&mut sides, Kind::GetDone), (n, Err(status)));
    }
    assert!(memory.iter().all(|&byte| byte == 0xaa));
    assert_eq!(sides[0].failed, None, "those are the peer's mistakes, and its operations fail");
    let head = Head { last: true, ..Head::bare(Kind::Put, 9, 900) };
    forge(&sides, head, Some(&good), &[0x55; 100]);
    assert_eq!(answer(&mut sides, Kind::PutDone).0, 9);
    assert!(memory[1900..2000].iter().all(|&byte| byte == 0x55), "what the key allows works");
    assert!(memory[2000..].iter().all(|&byte| byte == 0xaa));
}

/// Returns the next answer of side 0, read from the socket of side 1.
fn answer(sides: &mut [Side; 2], kind: Kind) -> (u32, Result<(), Status>) {
    let fd = streams_of(&sides[1])[0];
    let mut bytes = [0; HEAD];
    let mut got = 0;
    while got < HEAD {
        sides[0].turn();
        match sys::receive(fd, &mut bytes[got..]) {
            Ok(count) => got += count,
            Err(error) => assert!(sys::is_passing(&error), "{error}"),
        }
    }
    let head = Head::parse(&bytes).unwrap();
    assert_eq!(head.kind, kind);
    (head.number, crate::frame::word_status(head.word).map_err(crate::frame::Refused::status))
}

#[test]
fn a_peer_that_asks_for_more_than_may_be_under_way_is_cut_off() {
    let mut sides = stand();
    let mut memory = vec![1u8; 1 << 20];
    let domain = domain(&[]);
    let region = {
        let regions = &sides[0].interface.shared().regions;
        regions.register(memory.as_mut_ptr(), memory.len(), RIGHTS).unwrap()
    };
    let key = sides[0].interface.shared().regions.key(&region).part(memory.len() as u64);
    // The peer reads none of the data that it requests.
    for n in 1..=3 * MAX_GETS as u32 {
        forge(&sides, Head::bare(Kind::Get, n, 0), Some(&key), &[]);
    }
    let words = is_refused(&mut sides, &[]);
    assert!(words.contains("more gets than may be under way"), "{words}");
    drop(domain);
}

/// Until an endpoint knows its peer, every holder of the secret may claim to be that peer.
#[test]
fn connections_that_come_before_the_peers_address_are_bounded() {
    let side = Side::new(&domain(&[]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let come = |n: u64| {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let from = stream.peer_addr().unwrap();
        let greeting = Greeting { to: 1, from_target: [9; 16], from: n, stream: 0, round: 0 };
        let hello = Hello::new(PURPOSE, [9; 16], &greeting.pack()).unwrap();
        let mut inner = side.endpoint().conn().inner.borrow_mut();
        inner.incoming(greeting, Incoming { stream, hello, from });
        inner.early.len()
    };
    let kept: Vec<usize> = (0..2 * MAX_EARLY as u64).map(come).collect();
    let expected = (1..=MAX_EARLY).chain(std::iter::repeat_n(MAX_EARLY, MAX_EARLY));
    assert!(kept.iter().copied().eq(expected), "{kept:?}");
}

#[test]
fn out_of_order_frame_on_single_stream_ends_connection() {
    for ahead in [1, 5, WINDOW - 1, WINDOW, 1 << 31, u32::MAX] {
        let mut sides = stand();
        let seq = sides[1].endpoint().conn().inner.borrow_mut().outbox.take_seq();
        let head =
            Head { seq: seq.wrapping_add(ahead), len: 1000, ..Head::bare(Kind::Message, 7, 0) };
        say(&sides, 0, head, None, &[1; 1000]);
        let _ = is_refused(&mut sides, &[]);
        assert!(sides[0].messages.is_empty());
    }
}

#[test]
fn frames_held_for_a_peer_are_bounded_by_window_and_reported() {
    let mut sides = pair(&[("TIELINE_TCP_STREAMS", "2")]);
    await_streams(&mut sides, 2);
    let first = sides[1].endpoint().conn().inner.borrow_mut().outbox.take_seq();
    let message = |ahead: u32, len: usize| {
        let seq = first.wrapping_add(ahead);
        Head { seq, len: len as u32, ..Head::bare(Kind::Message, 7, u64::from(ahead)) }
    };
    let held = |side: &Side| side.endpoint().conn().inner.borrow().held_bytes;
    for ahead in 1..WINDOW {
        say(&sides, 0, message(ahead, 1000), None, &[1; 1000]);
        if ahead % 100 == 0 {
            sides[0].turn();
        }
    }
    while held(&sides[0]) < (WINDOW as usize - 1) * 1000 {
        sides[0].turn();
    }
    assert!(sides[0].messages.is_empty(), "the first is missing");
    let memory = sides[0].interface.memory();
    assert!(memory.buffer_bytes >= u64::from(WINDOW - 1) * 1000, "{memory:?}");
    // The first frame arrives: all frames are delivered once, in order, and none is held any more.
    say(&sides, 1, message(0, 10), None, &[1; 10]);
    while sides[0].messages.len() < WINDOW as usize {
        sides[0].turn();
    }
    assert!(sides[0].messages.iter().map(|m| m.1).eq(0..u64::from(WINDOW)));
    assert_eq!(held(&sides[0]), 0);
    // The frame is one further than the window.
    say(&sides, 0, message(2 * WINDOW, 10), None, &[1; 10]);
    let words = is_refused(&mut sides, &[]);
    assert!(words.contains("far ahead of all others"), "{words}");
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_connection() {
    // Every frame carries an acknowledgement.
    for kind in [Kind::Ack, Kind::Message, Kind::Flush, Kind::Goodbye] {
        let mut sides = pair(&[("TIELINE_TCP_RECONNECT", "on")]);
        await_streams(&mut sides, 1);
        let mut head = Head::bare(kind, 0, 0);
        head.ack = 7;
        forge(&sides, head, None, &[]);
        let words = is_refused(&mut sides, &[]);
        assert!(words.contains("an acknowledgement of what was never sent"), "{kind:?}: {words}");
    }
}

#[test]
fn one_poll_reads_a_bounded_number_of_frames_and_bytes_of_a_peer() {
    // These frames have no effect and need no room for events.
    let mut sides = stand();
    let flood = Head::bare(Kind::Ack, 0, 0).pack().repeat(4000);
    let fd = streams_of(&sides[1])[0];
    let (mut sent, mut received) = (0, 0);
    while let Ok(count) = sys::send(fd, &flood) {
        sent += count;
    }
    assert!(sent > 10 * crate::buffer::BUFFER, "{sent}");
    let took = |side: &Side| side.interface.shared().received.get();
    while received < sent {
        sides[0].turn();
        assert!(took(&sides[0]) <= 2 * crate::buffer::BUFFER, "{}", took(&sides[0]));
        received += took(&sides[0]);
    }
    // Data of a put is read directly to its destination.
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 32 << 20];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut source = pattern(target.len(), 4);
    rma(&mut sides, true, &key, &mut source, 0, 5);
    while sides[0].completions.is_empty() {
        turn(&mut sides);
        assert!(took(&sides[1]) <= 3 << 20, "{}", took(&sides[1]));
    }
    assert!(target == source);
    domain.deregister(region).unwrap();
}

/// Keeps the later data of this side from its socket.
pub(super) fn withhold(side: &Side) {
    let conn = side.endpoint().conn();
    conn.inner.borrow_mut().links[0].stream.as_mut().unwrap().blocked = true;
}

/// Returns the data that the side would have sent.
pub(super) fn withheld(side: &Side) -> Vec<u8> {
    let conn = side.endpoint().conn();
    let mut inner = conn.inner.borrow_mut();
    let mut gathered = Gathered::default();
    inner.outbox.gather(&crate::outbox::Track::new(0), &mut gathered);
    let mut bytes = Vec::new();
    for piece in &gathered.pieces {
        let at = bytes.len();
        bytes.resize(at + piece.len(), 0);
        sys::read_piece(*piece, &mut bytes[at..]);
    }
    bytes
}

#[test]
fn any_frames_whatever_end_the_connection_at_the_worst() {
    let kinds = Kind::ALL;
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    // Two broken streams are formed again for the last sent data, while the other end does not poll.
    let brief = ("TIELINE_CLOSE_TIMEOUT", "1ms");
    let mine = domain(&[brief]);
    let mut memory = vec![0xaa; 4000];
    let region =
        mine.register(&RegisterParams::new(memory[1000..3000].as_mut_ptr(), 2000, RIGHTS)).unwrap();
    let mut packed = vec![0; 64];
    let len = mine.pack_key(&region, &KeyParams::empty(), &mut packed).unwrap();
    let good = Key::parse(&packed[..len]).unwrap();
    for round in 0..150 {
        let streams = if round % 3 == 0 { "2" } else { "1" };
        let variables = [("TIELINE_TCP_STREAMS", streams), brief];
        let side_domain = domain(&variables);
        let mut sides = [Side::new(&mine), Side::new(&side_domain)];
        let addresses = [sides[0].endpoint().address(), sides[1].endpoint().address()];
        sides[0].endpoint().connect(&addresses[1]).unwrap();
        sides[1].endpoint().connect(&addresses[0]).unwrap();
        await_streams(&mut sides, 1);
        let mut pieces = vec![0xbb; 2000];
        let number = asking(&mut sides, &mut pieces);
        for _ in 0..40 {
            if sides[0].failed.is_some() || sides[1].failed.is_some() {
                break;
            }
            let kind = kinds[draw(kinds.len() as u64) as usize];
            let len = match kind {
                Kind::Message | Kind::Put | Kind::GetData => draw(1500) as usize,
                _ => 0,
            };
            let seq = sides[1].endpoint().conn().inner.borrow_mut().outbox.take_seq();
            let word = [0, draw(3000), u64::MAX - draw(100), draw(1000)][draw(4) as usize];
            let head = Head {
                kind,
                last: kind == Kind::Put && draw(2) == 0,
                len: len as u32,
                seq: seq.wrapping_add([0, 0, 0, draw(5) as u32][draw(4) as usize]),
                ack: [0, draw(10) as u32][draw(2) as usize],
                number: [number, draw(4) as u32][draw(2) as usize],
                word,
            };
            let total = [draw(3000), u64::MAX][usize::from(draw(8) == 0)];
            let key = KeyPart { tag: good.tag ^ u64::from(draw(8) == 0), ..good.part(total) };
            let key = matches!(kind, Kind::Put | Kind::Get).then_some(&key);
            say(&sides, 0, head, key, &vec![0x55; len.min(MAX_FRAGMENT)]);
            sides[0].turn();
        }
        (0..20).for_each(|_| sides[0].turn());
        for n in (0..1000).chain(3000..4000) {
            assert_eq!(memory[n], 0xaa, "byte {n} lies outside of the region");
        }
        for n in (0..100).chain(400..600).chain(1300..2000) {
            assert_eq!(pieces[n], 0xbb, "byte {n} lies outside of the get");
        }
    }
    mine.deregister(region).unwrap();
}
