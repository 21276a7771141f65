//! Tests of several connectors in one process, each with its own listener as in a separate process.

use super::*;
use crate::wire::Wire;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use tieline_net::datagrams::{Links, Note, Notice};
use tieline_net::{Interest, Poller};
use tieline_plugin_api::address_hash as name_of;

fn settings(max_wires: usize) -> Settings {
    let mut settings = Settings::of(|_| None).expect("the defaults");
    settings.net.filter = tieline_net::Filter::parse("lo").expect("a filter");
    settings.max_wires = max_wires;
    settings
}

fn open(settings: &Settings) -> Peers {
    let hub = Hub::open(&settings.net).expect("loopback is there");
    let mailbox = hub.register([5; 16]).expect("free");
    let own = mailbox.contact().pack();
    Peers::open(mailbox, own, settings).expect("descriptors")
}

/// Returns the bytes `from | to | number` and padding, so that a receiver can check order and completeness.
fn numbered(from: usize, to: usize, n: u32) -> Vec<u8> {
    let mut bytes = vec![from as u8, to as u8];
    bytes.extend_from_slice(&n.to_le_bytes());
    bytes.resize(6 + (n as usize * 37) % 2000, n as u8);
    bytes
}

/// Advances all connectors until `done` returns true, and sleeps on their descriptors between the turns.
fn turn_until(all: &mut [Peers], mut done: impl FnMut(&mut [Peers]) -> bool) {
    let poller = Poller::new().expect("epoll");
    for peers in all.iter() {
        poller.watch(peers.fd().as_raw_fd(), Interest::READ, 0).expect("watched");
    }
    let (mut ready, began) = (Vec::new(), Instant::now());
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "somebody is busy with nothing");
        for peers in all.iter_mut() {
            peers.turn().expect("epoll");
        }
        if done(all) {
            return;
        }
        poller.wait(&mut ready, Some(Duration::from_secs(60))).expect("epoll");
        assert!(!ready.is_empty(), "everybody sleeps and nobody is done");
    }
}

/// Lets every connector send `count` datagrams to every other, in an order drawn from `seed`. All datagrams must arrive once and in
/// order.
fn all_to_all(max_wires: usize, members: usize, count: u32, seed: u64) {
    let mut all: Vec<Peers> = (0..members).map(|_| open(&settings(max_wires))).collect();
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    let mut sent = vec![vec![0u32; members]; members];
    let mut seen = vec![vec![0u32; members]; members];
    let mut random = seed;
    let mut draw = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 8) as usize % below
    };
    let left = |sent: &Vec<Vec<u32>>| sent.iter().flatten().any(|n| *n < count);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "there is never room: {sent:?}");
        // A few sends, then a few turns of some connectors, so that connections alternate between active and idle.
        for _ in 0..draw(20) {
            let (from, to) = (draw(members), draw(members));
            let n = sent[from][to];
            if n < count && all[from].send(&addresses[to], &numbered(from, to, n)).is_ok() {
                sent[from][to] += 1;
            }
        }
        for _ in 0..draw(6) {
            all[draw(members)].turn().expect("epoll");
        }
        for peers in &mut all {
            note(peers, &mut seen);
        }
        if !left(&sent) {
            break;
        }
    }
    turn_until(&mut all, |all| {
        for peers in all {
            note(peers, &mut seen);
        }
        seen == sent
    });
    for peers in &all {
        assert!(peers.links.wires.values().all(|wire| wire.failed.is_none()));
    }
}

fn note(peers: &mut Peers, seen: &mut [Vec<u32>]) {
    while let Some(notice) = peers.datagrams.notices.pop_front() {
        match notice {
            Notice::Datagram(_, bytes) => {
                let (from, to) = (bytes[0] as usize, bytes[1] as usize);
                assert_eq!(bytes, numbered(from, to, seen[from][to]), "{from} to {to}");
                seen[from][to] += 1;
            }
            Notice::Left { words, .. } => panic!("nobody leaves: {words}"),
        }
    }
}

#[test]
fn everybody_reaches_everybody_in_order() {
    all_to_all(512, 5, 200, 1);
}

#[test]
fn connections_that_are_closed_and_made_again_lose_and_reorder_nothing() {
    for (max_wires, seed) in [(1, 3), (1, 4), (2, 5), (3, 6), (2, 7)] {
        all_to_all(max_wires, 6, 120, seed);
    }
}

#[test]
fn two_that_dial_each_other_at_once_lose_nothing() {
    for seed in 0..20 {
        all_to_all(512, 2, 10, seed + 100);
    }
}

#[test]
fn the_number_of_connections_stays_near_its_limit() {
    let most = |n| if n == 0 { 3 } else { 512 };
    let mut all: Vec<Peers> = (0..12).map(|n| open(&settings(most(n)))).collect();
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    for address in &addresses[1..] {
        all[0].send(address, b"hello").expect("room");
        turn_until(&mut all, |all| all[0].links.dials.is_empty() && all[0].links.wires.len() <= 3);
    }
    turn_until(&mut all, |all| all[1..].iter().all(|peers| !peers.datagrams.notices.is_empty()));
    assert!(all[0].datagrams.peers() <= 3, "what is closed is forgotten");
}

fn left(peers: &mut Peers) -> Option<(u64, Status, String)> {
    let at =
        peers.datagrams.notices.iter().position(|notice| matches!(notice, Notice::Left { .. }))?;
    match peers.datagrams.notices.remove(at) {
        Some(Notice::Left { hash, status, words }) => Some((hash, status, words)),
        _ => None,
    }
}

fn wait_left(all: &mut [Peers]) -> (u64, Status, String) {
    let mut gone = None;
    turn_until(all, |all| {
        gone = left(&mut all[0]);
        gone.is_some()
    });
    gone.expect("waited for")
}

#[test]
fn closing_connector_delivers_its_data_and_is_reported_closed() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    all[1].send(&addresses[0], b"hello").expect("room");
    turn_until(&mut all, |all| !all[0].datagrams.notices.is_empty());
    all[1].send(&addresses[0], b"last words").expect("room");
    drop(all.pop());
    let (hash, status, words) = wait_left(&mut all);
    assert_eq!((hash, status), (name_of(&addresses[1]), Status::Closed), "{words}");
    let Some(Notice::Datagram(from, bytes)) = all[0].datagrams.notices.pop_back() else {
        panic!("last words")
    };
    assert_eq!((from, &*bytes), (name_of(&addresses[1]), &b"last words"[..]));
    assert!(all[0].datagrams.peers() == 0 && all[0].links.wires.is_empty());
}

/// The queued data is written as soon as the peer reads the earlier data.
#[test]
fn closing_connector_first_writes_data_queued_for_silent_peer() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let there = all[1].links.own.clone();
    let datagram = [1; 1000];
    all[0].send(&there, &datagram).expect("room");
    turn_until(&mut all, |all| !all[1].datagrams.notices.is_empty());
    let mut sent = 1;
    while all[0].datagrams.queued() == 0 {
        all[0].send(&there, &datagram).expect("room");
        sent += 1;
    }
    let mut frame = Vec::new();
    crate::frame::put_datagram(&mut frame, &datagram);
    let unsent: usize = all[0].links.wires.values().map(Wire::unsent).sum();
    let written = sent - 1 - unsent.div_ceil(frame.len());
    let mut seen = 0;
    turn_until(&mut all[1..], |all| {
        seen += all[0].datagrams.notices.drain(..).count();
        seen == written
    });
    drop(all.remove(0));
    turn_until(&mut all, |all| {
        let came = |notice: &Notice| matches!(notice, Notice::Datagram(..));
        let notices: Vec<Notice> = all[0].datagrams.notices.drain(..).collect();
        seen += notices.iter().filter(|notice| came(notice)).count();
        notices.iter().any(|notice| !came(notice))
    });
    assert_eq!(seen, sent);
}

#[test]
fn a_connection_on_which_nothing_can_be_written_takes_nothing_more() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let there = all[1].links.own.clone();
    all[0].send(&there, b"hello").expect("room");
    turn_until(&mut all, |all| !all[1].datagrams.notices.is_empty());
    all[0].links.wires.values().for_each(Wire::end);
    all[0].send(&there, b"it fails").expect("room");
    assert!(all[0].links.wires.values().all(|wire| wire.failed.is_some()));
    assert_eq!(taken(&mut all[0], &there, b"it waits"), WAITING);
    let (_, status, words) = wait_left(&mut all);
    assert_eq!(status, Status::Io);
    assert!(words.contains("Broken pipe"), "{words}");
}

#[test]
fn dead_address_is_reported_with_every_address_tried() {
    let gone = open(&settings(512)).links.own.clone();
    let contact = Contact::parse(&gone).expect("our own");
    let mut all = vec![open(&settings(512))];
    for _ in 0..2 {
        all[0].send(&gone, b"anybody?").expect("room");
        let (hash, status, words) = wait_left(&mut all);
        assert_eq!((hash, status), (name_of(&gone), Status::PeerFailed));
        for address in &contact.addresses {
            let at = SocketAddr::new(address.ip, address.port);
            assert!(words.contains(&format!("{at} (")), "{words}");
        }
        assert!(words.contains("Connection refused"), "{words}");
    }
    assert!(all[0].datagrams.peers() == 0, "no memory of who is not there");
}

#[test]
fn another_secret_is_named_as_the_reason() {
    let mut other = settings(512);
    other.net.secret = b"another".to_vec();
    let mut all = vec![open(&settings(512)), open(&other)];
    let there = all[1].links.own.clone();
    all[0].send(&there, b"let me in").expect("room");
    let (_, status, words) = wait_left(&mut all);
    assert_eq!(status, Status::Permission);
    assert!(words.contains("wrong secret"), "{words}");
    assert!(all[1].hub().counters().unproven > 0);
}

#[test]
fn a_peer_of_another_network_is_unreachable_in_words() {
    let mut all = vec![open(&settings(512))];
    let mut contact = Contact::parse(&all[0].links.own).expect("our own");
    contact.boot_id = [0xee; 16];
    all[0].send(&contact.pack(), b"far away").expect("room");
    let (_, status, words) = wait_left(&mut all);
    assert_eq!(status, Status::Unreachable);
    assert!(words.contains("another host or network namespace"), "{words}");
}

#[test]
fn a_peer_that_does_not_listen_is_answered_again_and_catches_up() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let there = all[1].links.own.clone();
    let datagram = vec![1; MAX_DATAGRAM];
    let mut sent = 0;
    turn_until(&mut all, |all| {
        // The other end advances until it has accepted, and is silent afterwards.
        if all[0].send(&there, &datagram).is_ok() {
            sent += 1;
        }
        all[0].links.wires.len() == 1
    });
    while all[0].send(&there, &datagram).is_ok() {
        sent += 1;
        assert!(sent < 4096, "what waits for a silent peer is bounded");
    }
    let mut seen = 0;
    turn_until(&mut all, |all| {
        seen += all[1].datagrams.notices.drain(..).count();
        seen == sent
    });
}

#[test]
fn garbage_and_scanners_do_not_disturb_the_traffic() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    let contact = Contact::parse(&addresses[1]).expect("our own");
    let port = contact.addresses[0].port;
    let at = SocketAddr::new(contact.addresses[0].ip, port);
    let scanner = std::thread::spawn(move || {
        for n in 0..50u8 {
            let Ok(mut stream) = std::net::TcpStream::connect(at) else { continue };
            let _ = stream.write_all(&[n; 3000]);
            let _ = stream.read(&mut [0; 16]);
        }
    });
    let (mut sent, mut seen) = (0u32, 0u32);
    turn_until(&mut all, |all| {
        while sent < 2000 && all[0].send(&addresses[1], &numbered(0, 1, sent)).is_ok() {
            sent += 1;
        }
        for notice in all[1].datagrams.notices.drain(..) {
            let Notice::Datagram(_, bytes) = notice else { panic!("{notice:?}") };
            assert_eq!(bytes, numbered(0, 1, seen));
            seen += 1;
        }
        seen == 2000 && all[1].hub().counters().unproven == 50
    });
    scanner.join().expect("no panic");
}

#[test]
fn a_member_that_sends_nonsense_loses_its_connection_only() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    all[0].send(&addresses[1], b"hello").expect("room");
    turn_until(&mut all, |all| !all[1].datagrams.notices.is_empty());
    let link = *all[0].links.wires.keys().next().expect("connected");
    all[0].links.note(link, Note::Bye); // the note answers no request
    all[0].settle();
    all[1].datagrams.notices.clear();
    turn_until(&mut all, |all| {
        let left = left(&mut all[1]);
        left.is_some_and(|(_, status, _)| status == Status::BadData)
    });
    turn_until(&mut all, |all| left(&mut all[0]).is_some());
    all[0].send(&addresses[1], b"again").expect("room");
    turn_until(&mut all, |all| !all[1].datagrams.notices.is_empty());
}

#[test]
fn an_address_that_is_none_is_refused() {
    let mut all = [open(&settings(512))];
    assert_eq!(all[0].send(b"nonsense", b"x"), Err(Status::Invalid));
    let own = all[0].links.own.clone();
    all[0].send(&own, b"to myself").expect("room");
    let Some(Notice::Datagram(from, bytes)) = all[0].datagrams.notices.pop_front() else {
        panic!("a datagram")
    };
    assert_eq!((from, &*bytes), (name_of(&own), &b"to myself"[..]));
    while all[0].send(&own, b"more").is_ok() {
        assert!(all[0].datagrams.notices.len() <= WAITING, "bounded");
    }
}

/// Returns the address of a listener that accepts connections and sends nothing.
fn silent(own: &[u8]) -> (std::net::TcpListener, Vec<u8>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut contact = Contact::parse(own).expect("our own");
    contact.target = [7; 16];
    let port = listener.local_addr().expect("bound").port();
    contact.addresses.iter_mut().for_each(|at| at.port = port);
    (listener, contact.pack())
}

/// Returns the number of these datagrams that are accepted for a peer before the result is AGAIN.
fn taken(peers: &mut Peers, address: &[u8], datagram: &[u8]) -> usize {
    let mut count = 0;
    while peers.send(address, datagram).is_ok() {
        count += 1;
        assert!(count < 100_000, "what waits is bounded");
    }
    assert_eq!(peers.send(address, datagram), Err(Status::Again));
    count
}

#[test]
fn queue_of_peer_is_bounded_in_bytes_and_number() {
    for (datagram, most) in [(vec![1; MAX_DATAGRAM], QUEUE / MAX_DATAGRAM), (vec![1], WAITING)] {
        let mut peers = open(&settings(512));
        let (_listener, address) = silent(&peers.links.own);
        assert_eq!(taken(&mut peers, &address, &datagram), most, "of {} bytes", datagram.len());
    }
    let mut peers = open(&settings(512));
    let own = peers.links.own.clone();
    assert_eq!(taken(&mut peers, &own, b"to ourselves"), WAITING);
}

#[test]
fn queue_of_broken_connection_is_dropped_and_its_room_freed() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let there = all[1].links.own.clone();
    all[0].send(&there, b"hello").expect("room");
    turn_until(&mut all, |all| !all[1].datagrams.notices.is_empty());
    let datagram = vec![1; MAX_DATAGRAM];
    let _ = taken(&mut all[0], &there, &datagram);
    let link = *all[0].links.wires.keys().next().expect("it is connected");
    // The peer has another connection, which is used from here on.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let at = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(at).expect("loopback");
    stream.set_nonblocking(true).expect("a socket");
    let second = all[0].links.adopt(stream);
    all[0].handle(LinkEvent::Up { link: second, peer: there.clone(), dial: None });
    all[0].handle(LinkEvent::Lost { link, status: Status::Io, words: "it was cut".into() });
    let (_, status, words) = left(&mut all[0]).expect("it was in use");
    assert_eq!(status, Status::Io);
    assert!(words.starts_with("the connection to the peer at 127.0.0.1:"), "{words}");
    assert!(words.ends_with(" broke: it was cut"), "{words}");
    let _ = taken(&mut all[0], &there, &datagram);
    let most = QUEUE / MAX_DATAGRAM;
    assert_eq!(all[0].datagrams.queued(), most, "as many as ever wait for the second one");
}

#[test]
fn datagrams_that_the_core_does_not_take_stay_with_their_senders() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let there = all[1].links.own.clone();
    let (mut sent, mut most) = (0, 0);
    // One read can return this number of datagrams, all of them beyond the limit.
    let read = BATCH / 6 + 1;
    for _ in 0..40 {
        for _ in 0..1000 {
            sent += usize::from(all[0].send(&there, &[1]).is_ok());
        }
        all.iter_mut().for_each(|peers| peers.turn().expect("epoll"));
        most = most.max(all[1].datagrams.notices.len());
    }
    assert!(sent > most, "{sent} were taken");
    assert!((WAITING..=WAITING + read).contains(&most), "{most} wait for the core");
    let mut seen = 0;
    turn_until(&mut all, |all| {
        seen += all[1].datagrams.notices.drain(..).count();
        seen == sent
    });
}

#[test]
fn longest_unused_of_too_many_connections_is_closed() {
    let most = |n| if n == 0 { 2 } else { 512 };
    let mut all: Vec<Peers> = (0..4).map(|n| open(&settings(most(n)))).collect();
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    // Either a datagram of the near side or of the peer uses the first connection again.
    for ours in [true, false] {
        for to in [1, 2, 1, 3] {
            let (from, to) = if !ours && to == 1 { (to, 0) } else { (0, to) };
            all[from].send(&addresses[to], b"hello").expect("room");
            turn_until(&mut all, |all| !all[to].datagrams.notices.is_empty());
            all[to].datagrams.notices.clear();
        }
        turn_until(&mut all, |all| all[0].links.wires.len() == 2);
        let mut kept: Vec<String> = all[0].links.wires.values().map(Wire::at).collect();
        let at = |address: &Vec<u8>| {
            let first = Contact::parse(address).expect("our own").addresses[0];
            SocketAddr::new(first.ip, first.port).to_string()
        };
        kept.sort_by_key(|kept| addresses.iter().position(|address| at(address) == *kept));
        assert_eq!(kept, [at(&addresses[1]), at(&addresses[3])], "ours: {ours}");
    }
}

#[test]
fn data_of_lost_connection_is_delivered_before_that_of_new_one() {
    let mut all = vec![open(&settings(512)), open(&settings(512))];
    let addresses: Vec<Vec<u8>> = all.iter().map(|peers| peers.links.own.clone()).collect();
    all[1].send(&addresses[0], b"hello").expect("room");
    turn_until(&mut all, |all| !all[0].datagrams.notices.is_empty());
    all[0].datagrams.notices.clear();
    all[1].send(&addresses[0], b"last words").expect("room");
    // The end of this connection is not reported to the peer.
    let kept: Vec<Wire> = all[1].links.wires.drain().map(|(_, wire)| wire).collect();
    all[1].datagrams = Datagrams::new(all[1].links.own.clone(), 512, Duration::MAX);
    all[1].send(&addresses[0], b"I am back").expect("room");
    // The second connection is accepted before the first one is checked again.
    let incoming = loop {
        all[1].turn().expect("epoll");
        all[0].hub().poll();
        if let Some(incoming) = all[0].mailbox_take() {
            break incoming;
        }
    };
    all[0].welcome(incoming);
    let mut heard = Vec::new();
    turn_until(&mut all, |all| {
        for notice in all[0].datagrams.notices.drain(..) {
            heard.push(match notice {
                Notice::Datagram(_, bytes) => String::from_utf8(bytes).expect("words"),
                Notice::Left { status, words, .. } => {
                    assert_eq!(status, Status::Io);
                    words.split(": ").last().expect("words").to_owned()
                }
            });
        }
        heard.last().is_some_and(|last| last == "I am back")
    });
    assert_eq!(heard, ["last words", "the peer has connected anew", "I am back"]);
    assert_eq!(all[0].links.wires.len(), 1);
    drop(kept);
}

#[test]
fn a_dial_that_nobody_answers_ends_at_its_deadline_and_wakes_who_sleeps() {
    let mut brief = settings(512);
    brief.connect_timeout = Duration::from_millis(50);
    let mut all = vec![open(&brief)];
    let (_listener, address) = silent(&all[0].links.own);
    all[0].send(&address, b"anybody?").expect("room");
    assert_eq!(all[0].links.dials.len(), 1);
    let (hash, status, words) = wait_left(&mut all);
    assert_eq!((hash, status), (name_of(&address), Status::Unreachable), "{words}");
    assert!(words.starts_with("no address of the peer can be reached: "), "{words}");
    assert!(all[0].datagrams.peers() == 0 && all[0].links.dials.is_empty());
}
