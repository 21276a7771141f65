//! Tests that depend on the time: among others, when each side dials, which connection is chosen, and how long a side waits. These
//! tests do not sleep: they pass a later time to the tested functions.

use super::*;
use crate::address;
use crate::conn::{ConnectionState, Phase};
use crate::frame::{HEAD, Head, Kind};
use crate::link::{Greeting, PURPOSE};
use crate::poll::COOL_AFTER;
use crate::stream::Broke;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use tieline_net::{Hello, Incoming};

const MS: Duration = Duration::from_millis(1);
/// A short close timeout, because the other end does not poll after a test.
const BRIEF: (&str, &str) = ("TIELINE_CLOSE_TIMEOUT", "1ms");

fn inner(side: &Side) -> std::cell::RefMut<'_, ConnectionState> {
    side.endpoint().conn().inner.borrow_mut()
}

/// Returns an endpoint whose peer listens at this port, and that peer's greeting.
fn towards(port: u16, is_lower: bool, variables: &[(&str, &str)]) -> (Side, Greeting) {
    let side = Side::new(&domain(variables));
    let address = side.endpoint().address();
    let (mut contact, rest) = address::parse(&address).unwrap();
    contact.target = if is_lower { [0xff; 16] } else { [0; 16] };
    contact.addresses.iter_mut().for_each(|at| at.port = port);
    side.endpoint().connect(&[&address::pack(&contact), rest].concat()).unwrap();
    let id = side.endpoint().conn().id;
    assert_eq!(inner(&side).links[0].is_lower(), is_lower);
    (side, Greeting { to: id, from_target: contact.target, from: id, stream: 0, round: 0 })
}

/// Connects as the peer; returns the peer's end.
fn knock(side: &Side, greeting: Greeting) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, from) = listener.accept().unwrap();
    let hello = Hello::new(PURPOSE, [9; 16], &greeting.pack()).unwrap();
    inner(side).incoming(greeting, Incoming { stream, hello, from });
    theirs
}

/// Returns a listener that accepts connections and sends nothing.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Returns a port without a listener, reserved while the socket is held.
fn nobody() -> (socket2::Socket, u16) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

/// Returns the next received frame.
fn hear(mut stream: &TcpStream) -> Head {
    let mut bytes = [0; HEAD];
    stream.read_exact(&mut bytes).unwrap();
    Head::parse(&bytes).unwrap()
}

/// Checks whether a stream is in use, and whether a stream is being dialled.
fn has(side: &Side) -> (bool, bool) {
    let inner = inner(side);
    let link = &inner.links[0];
    (link.stream.is_some(), link.is_dialling())
}

fn has_failed(side: &Side) -> bool {
    matches!(inner(side).phase, Phase::Failed(_))
}

fn words(side: &mut Side) -> (Status, String) {
    assert!(has_failed(side));
    while side.failed.is_none() {
        side.turn();
    }
    side.failed.clone().unwrap()
}

#[test]
fn lower_side_dials_immediately_and_upper_side_after_delay() {
    let (_listener, port) = silent();
    let (lower, _) = towards(port, true, &[]);
    assert_eq!(has(&lower), (false, true));
    let before = Instant::now();
    let (upper, _) = towards(port, false, &[]);
    let after = Instant::now();
    inner(&upper).tend_links(before + 299 * MS);
    assert_eq!(has(&upper), (false, false));
    inner(&upper).tend_links(after + 300 * MS);
    assert_eq!(has(&upper), (false, true));
    // While a connection waits for its `Start`, no dial is needed.
    let (upper, greeting) = towards(port, false, &[]);
    let _theirs = knock(&upper, greeting);
    inner(&upper).tend_links(Instant::now() + 400 * MS);
    assert_eq!(has(&upper), (false, false));
}

#[test]
fn missing_listener_backs_off_dials_and_is_gone_after_a_second() {
    let (_socket, port) = nobody();
    let began = Instant::now();
    let (mut side, _) = towards(port, true, &[]);
    let refused = |side: &Side| {
        while has(side).1 {
            inner(side).tend_dial(0);
        }
    };
    let mut before = began;
    refused(&side);
    for pause in [100, 200, 400, 800, 800, 800] {
        let after = Instant::now();
        let next = inner(&side).links[0].dials_at().expect("it was refused");
        let wanted = before + pause * MS..=after + pause * MS;
        assert!(wanted.contains(&next), "{:?} and not {pause}", next - before);
        before = Instant::now();
        inner(&side).gone_since = None;
        inner(&side).links[0].dial_now();
        inner(&side).tend_links(Instant::now());
        refused(&side);
        assert!(!has_failed(&side));
    }
    let last = Instant::now();
    inner(&side).tend_links(before + 1000 * MS);
    assert!(!has_failed(&side), "it may be about to listen");
    inner(&side).tend_links(last + 1001 * MS);
    let (status, words) = words(&mut side);
    assert_eq!(status, Status::PeerFailed, "{words}");
    assert!(words.starts_with("the peer process is gone: "), "{words}");
    assert!(words.contains("refused"), "{words}");
}

#[test]
fn unformed_connection_fails_after_connect_timeout() {
    let (_listener, port) = silent();
    let before = Instant::now();
    let (mut side, _) = towards(port, true, &[("TIELINE_CONNECT_TIMEOUT", "7s")]);
    let after = Instant::now();
    inner(&side).tend_links(before + 7000 * MS);
    assert!(!has_failed(&side));
    inner(&side).tend_links(after + 7001 * MS);
    let (status, words) = words(&mut side);
    assert_eq!(status, Status::TimedOut);
    let begin = "no connection came about in 7.";
    assert!(words.starts_with(begin) && words.ends_with(" s: no answer"), "{words}");
}

#[test]
fn broken_connection_fails_failure_timeout_after_last_sign_of_life() {
    // A reset proves that the peer's host is alive.
    for status in [Status::PeerFailed, Status::TimedOut] {
        let variables = [("TIELINE_TCP_RECONNECT", "on"), ("TIELINE_FAILURE_TIMEOUT", "7s"), BRIEF];
        let mut sides = pair(&variables);
        await_streams(&mut sides, 1);
        let [side, _peer] = &mut sides;
        // A dial to a listener of this process would be answered: all interfaces of a process share one listener, which other tests
        // keep running.
        let (_listener, port) = silent();
        let mut again = inner(side);
        let contact = &mut again.peer.as_mut().unwrap().contact;
        contact.addresses.iter_mut().for_each(|at| at.port = port);
        drop(again);
        let last = side.interface.shared().at_ms(inner(side).last_received_ms);
        let until = Instant::now() + 20 * MS;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let before = Instant::now();
        inner(side).stream_broke(0, &Broke { status, text: "it was cut".into() });
        let since = if status == Status::PeerFailed { before } else { last };
        let after = if status == Status::PeerFailed { Instant::now() } else { last };
        inner(side).tend_links(since + 7000 * MS);
        assert!(!has_failed(side), "{status}");
        inner(side).tend_links(after + 7001 * MS);
        let (failed, words) = words(side);
        assert_eq!(failed, Status::TimedOut);
        let begin = "the connection broke and did not come back in 7.";
        assert!(words.starts_with(begin) && words.ends_with(" s: it was cut"), "{words}");
    }
}

/// The peer's host has lost its addresses.
#[test]
fn broken_connection_without_route_fails_with_that_text() {
    let variables = [("TIELINE_TCP_RECONNECT", "on"), ("TIELINE_FAILURE_TIMEOUT", "7s"), BRIEF];
    let mut sides = pair(&variables);
    await_streams(&mut sides, 1);
    let [side, _peer] = &mut sides;
    inner(side).peer.as_mut().unwrap().contact.boot_id = [0xee; 16];
    let broke = Broke { status: Status::PeerFailed, text: "it was cut".into() };
    inner(side).stream_broke(0, &broke);
    inner(side).links[0].dial_now();
    inner(side).tend_links(Instant::now());
    let (now, again) = (Instant::now(), inner(side).links[0].dials_at());
    assert!(again.is_some_and(|at| at > now) && !has(side).1, "it is tried again later");
    inner(side).tend_links(now + 7001 * MS);
    let (status, words) = words(side);
    assert_eq!(status, Status::TimedOut);
    assert!(words.contains(" s: there is no route to the peer: "), "{words}");
}

/// A new connection proves that the peer is alive, even before any data arrives on the connection.
#[test]
fn new_connection_counts_as_sign_of_life() {
    let (_listener, port) = silent();
    let variables = [("TIELINE_TCP_RECONNECT", "on"), ("TIELINE_FAILURE_TIMEOUT", "7s"), BRIEF];
    let (side, greeting) = towards(port, true, &variables);
    let shared = side.interface.shared();
    let made = shared.at_ms(60_000);
    shared.now.set(made);
    let _theirs = knock(&side, greeting);
    inner(&side).tend_links(Instant::now() + 501 * MS);
    assert_eq!(has(&side), (true, false));
    let broke = Broke { status: Status::TimedOut, text: "it was cut".into() };
    inner(&side).stream_broke(0, &broke);
    inner(&side).tend_links(made + 7000 * MS);
    assert!(!has_failed(&side));
    inner(&side).tend_links(made + 7001 * MS);
    assert!(has_failed(&side));
}

#[test]
fn broken_stream_is_redialled_immediately_by_lower_side_only() {
    let mut sides = pair(&[("TIELINE_TCP_RECONNECT", "on"), BRIEF]);
    await_streams(&mut sides, 1);
    for side in &sides {
        let before = Instant::now();
        let broke = Broke { status: Status::PeerFailed, text: String::new() };
        inner(side).stream_broke(0, &broke);
        let after = Instant::now();
        let inner = inner(side);
        let link = &inner.links[0];
        let pause = if link.is_lower() { Duration::ZERO } else { 300 * MS };
        let at = link.dials_at().expect("it is formed again");
        assert!((before + pause..=after + pause).contains(&at), "{:?}", at - before);
    }
}

#[test]
fn reserve_connection_is_used_only_when_own_dial_hangs() {
    let (_listener, port) = silent();
    let (side, greeting) = towards(port, true, &[]);
    let before = Instant::now();
    let theirs = knock(&side, greeting);
    let after = Instant::now();
    inner(&side).tend_links(before + 499 * MS);
    assert_eq!(has(&side), (false, true));
    inner(&side).tend_links(after + 501 * MS);
    assert_eq!(has(&side), (true, false));
    let head = hear(&theirs);
    assert_eq!((head.kind, head.word), (Kind::Start, 1), "the other side is told which one it is");
    // A connection whose other end is closed does not count.
    let (side, greeting) = towards(port, true, &[]);
    let theirs = knock(&side, greeting);
    assert_eq!(inner(&side).links[0].standbys(), 1);
    drop(theirs);
    while inner(&side).links[0].standbys() > 0 {
        inner(&side).tend_links(Instant::now());
    }
    inner(&side).tend_links(Instant::now() + 501 * MS);
    assert_eq!(has(&side), (false, true));
}

#[test]
fn connections_that_wait_to_be_chosen_are_bounded_and_the_latest_are_kept() {
    let (_listener, port) = silent();
    for (is_lower, most) in [(true, 1), (false, 4)] {
        let (side, greeting) = towards(port, is_lower, &[]);
        let knocks: Vec<TcpStream> = (0..10).map(|_| knock(&side, greeting)).collect();
        assert_eq!(inner(&side).links[0].standbys(), most);
        let (closed, kept) = knocks.split_at(10 - most);
        for mut theirs in closed {
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        }
        for theirs in kept {
            let got = sys::receive(theirs.as_raw_fd(), &mut [0]);
            assert!(got.is_err_and(|error| sys::is_passing(&error)), "the latest are there");
        }
        // An unknown dialler receives `Gone`, and the connection is closed.
        for stranger in [
            Greeting { from: !greeting.from, ..greeting },
            Greeting { from_target: [7; 16], ..greeting },
        ] {
            let theirs = knock(&side, stranger);
            assert_eq!(hear(&theirs).kind, Kind::Gone);
            assert_eq!((&theirs).read(&mut [0]).unwrap(), 0);
        }
        assert_eq!(inner(&side).links[0].standbys(), most);
    }
}

#[test]
fn closed_endpoint_waits_five_seconds_for_goodbye() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let conn = Rc::clone(sides[0].endpoint().conn());
    super::hostile::withhold(&sides[0]);
    sides[0].endpoint = None;
    let is_visited_again = |now: Instant| {
        let mut inner = conn.inner.borrow_mut();
        let again = inner.tick(now);
        assert_eq!(again, !matches!(inner.phase, Phase::Failed(_)));
        again
    };
    // This timer sets no limit for a kernel that has not acknowledged the goodbye.
    let later = Instant::now() + 1000 * Duration::from_secs(1);
    assert!(is_visited_again(later));
    assert_eq!(conn.inner.borrow().since, later);
    conn.inner.borrow_mut().unblock(0);
    conn.inner.borrow_mut().finish();
    while !conn.inner.borrow().has_handed_over() {
        std::thread::yield_now();
    }
    assert!(is_visited_again(later + 5000 * MS));
    assert!(!is_visited_again(later + 5001 * MS));
    while sides[0].interface.memory().peers > 0 {
        sides[0].turn();
    }
    assert_eq!(sides[0].failed, None, "it is closed, and nobody is told");
}

#[test]
fn a_closed_endpoint_is_visited_until_nobody_answers_its_goodbye() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let conn = Rc::clone(sides[0].endpoint().conn());
    let phase = || conn.inner.borrow().phase;
    // An open connection without pending work gets no further visits.
    let mut visits = 0;
    while conn.inner.borrow().timed.get() {
        visits += 1;
        sides[0].interface.tick(Instant::now());
        assert!(visits < 100, "it is visited for nothing");
    }
    let before = Instant::now();
    sides[0].endpoint = None;
    assert_eq!(phase(), Phase::Closing);
    while !conn.inner.borrow().has_handed_over() {
        std::thread::yield_now();
    }
    let closed = conn.inner.borrow().since;
    sides[0].interface.tick(before + 5000 * MS);
    assert_eq!(phase(), Phase::Closing, "the peer may be computing");
    sides[0].interface.tick(closed + 5001 * MS);
    assert_eq!(phase(), Phase::Failed(Status::Closed));
}

#[test]
fn retaining_connection_is_visited_until_all_is_acknowledged() {
    let mut sides = pair(&[("TIELINE_TCP_RECONNECT", "on"), BRIEF]);
    await_streams(&mut sides, 1);
    let asks = |side: &Side| inner(side).tick(Instant::now());
    let is_kept = |side: &Side| !inner(side).outbox.is_empty();
    while is_kept(&sides[0]) || is_kept(&sides[1]) {
        turn(&mut sides);
    }
    assert!(!asks(&sides[0]), "nothing is to be done: who sleeps is not woken");
    send(&mut sides, 1, b"keep this");
    assert!(asks(&sides[0]), "it may have to be sent again");
    while is_kept(&sides[0]) {
        turn(&mut sides);
    }
    assert!(!asks(&sides[0]));
    inner(&sides[0]).drop_stream(0);
    assert!(asks(&sides[0]), "a stream is missing");
}

#[test]
fn sender_is_woken_to_check_for_answer_of_peer_kernel() {
    let large = pattern(20_000, 1);
    for reconnect in ["off", "on"] {
        let variables = [("TIELINE_TCP_RECONNECT", reconnect), ("TIELINE_FAILURE_TIMEOUT", "8s")];
        let mut sides = pair(&variables);
        await_streams(&mut sides, 1);
        let sends: [&dyn Fn(&StreamEndpoint) -> Posted; 2] =
            [&|endpoint| endpoint.am_short(7, 1, b"a word"), &|endpoint| {
                endpoint.am_zcopy(7, 1, &[iov(sys::piece(&large))], 1)
            }];
        for send in sends {
            let shared = sides[0].interface.shared();
            let fd = streams_of(&sides[0])[0];
            while let Some(at) = shared.next_check() {
                sides[0].interface.tick(at);
            }
            let before = Instant::now();
            assert_eq!(send(sides[0].endpoint()), Ok(Posting::Done));
            let after = Instant::now();
            let at = shared.next_check().expect("an eighth of the time that nobody may answer");
            assert!((before + 1000 * MS..=after + 1000 * MS).contains(&at), "{reconnect}");
            sides[0].interface.tick(at - MS);
            assert_eq!(shared.next_check(), Some(at), "not yet");
            while sys::unanswered(fd).unwrap().is_busy() {
                std::thread::yield_now();
            }
            sides[0].interface.tick(at);
            assert_eq!(shared.next_check(), None, "it has answered");
            turn(&mut sides);
        }
    }
}

#[test]
fn stalled_stream_is_closed_only_if_other_streams_answered() {
    let variables = [("TIELINE_TCP_STREAMS", "2"), ("TIELINE_TCP_STALL", "1s"), BRIEF];
    let mut sides = pair(&variables);
    await_streams(&mut sides, 2);
    let is_kept = |side: &Side| !inner(side).outbox.is_empty();
    while is_kept(&sides[0]) || is_kept(&sides[1]) {
        turn(&mut sides);
    }
    // The peer does not poll any more.
    assert_eq!(sides[0].endpoint().am_short(7, 1, b"a word"), Ok(Posting::Done));
    inner(&sides[0]).flush();
    let (suspect, since) = inner(&sides[0]).outbox.oldest().expect("nobody has acknowledged it");
    let (suspect, other) = (usize::from(suspect), 1 - usize::from(suspect));
    let (shared, at_peer) = (sides[0].interface.shared(), streams_of(&sides[1])[other]);
    let heard_until = |number: usize, ms: u64| {
        let mut inner = inner(&sides[0]);
        inner.links[number].stream.as_mut().unwrap().last_received_ms = since + ms;
    };
    let has_asked_after = |ms: u64| {
        shared.now.set(shared.at_ms(since + ms));
        inner(&sides[0]).tend_stall();
        super::moving::readable(at_peer, 0)
    };
    heard_until(suspect, 0);
    assert!(!has_asked_after(500), "half of the time is not over");
    heard_until(suspect, 1);
    assert!(!has_asked_after(501), "it has said something");
    heard_until(suspect, 0);
    assert!(has_asked_after(501));
    let stands = || inner(&sides[0]).links[suspect].stream.is_some();
    heard_until(other, 501);
    assert!(has_asked_after(1000) && stands(), "the time is not over");
    heard_until(other, 500);
    assert!(has_asked_after(1001) && stands(), "the others had not been asked");
    heard_until(other, 501);
    assert!(has_asked_after(1001) && !stands());
}

#[test]
fn active_stream_is_read_directly_between_epoll_queries() {
    let mut sides = pair(&[]);
    send(&mut sides, 1, b"a word");
    let _ = receive(&mut sides);
    let of = |side: &Side| {
        let shared = side.interface.shared();
        (shared.hot.borrow().len(), shared.readers.borrow().len())
    };
    while of(&sides[1]) != (1, 0) {
        sides[1].turn();
    }
    sides[1].interface.ask_later();
    sides[1].turn();
    assert_eq!(of(&sides[1]), (1, 0));
}

#[test]
fn idle_hot_stream_keeps_its_buffer_for_bounded_polls() {
    let mut sides = pair(&[]);
    // In the second round, counting starts anew.
    for word in 0..2 {
        send(&mut sides, word, b"a word");
        let _ = receive(&mut sides);
        let hot = |side: &Side| side.interface.shared().hot.borrow().len();
        let waits = |side: &Side| !side.interface.shared().readers.borrow().is_empty();
        while hot(&sides[1]) == 0 || waits(&sides[1]) {
            sides[1].turn();
        }
        sides[1].interface.ask_later();
        let sent = sides[0].endpoint().am_short(7, word, b"another");
        assert_eq!(sent, Ok(Posting::Done));
        while sides[1].messages.is_empty() {
            sides[1].turn();
        }
        sides[1].messages.clear();
        let stands = |side: &Side| {
            let inner = inner(side);
            let stream = inner.links[0].stream.as_ref().unwrap();
            (stream.hot, stream.buffer.is_some())
        };
        for _ in 0..COOL_AFTER {
            sides[1].turn();
            assert_eq!(hot(&sides[1]), 1);
        }
        assert_eq!(stands(&sides[1]), (true, true));
        sides[1].turn();
        assert_eq!((hot(&sides[1]), stands(&sides[1])), (0, (false, false)));
    }
}
