//! Tests within one process, between interfaces of one thread or of several.
#![allow(missing_docs)]

#[path = "one_process/memory.rs"]
mod memory;
#[path = "common/sys.rs"]
mod sys;

use std::time::{Duration, Instant};

use sys::{Endpoint, Interface, Provider, data, events};
use tieline_plugin_api::{Status, access, event};

fn all_rights() -> u64 {
    access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC
}

/// A received event: (kind, peer, id, header, status, bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: u32,
    peer: u64,
    id: u32,
    header: u64,
    status: i32,
    cookie: u64,
    data: Vec<u8>,
}

fn poll(interface: &Interface<'_>) -> Vec<Seen> {
    let mut buffer = events::<8>();
    let seen = |e: &tieline_plugin_api::abi::Event| Seen {
        kind: e.kind,
        peer: e.peer,
        id: e.id,
        header: e.header,
        status: e.status,
        cookie: e.cookie,
        data: data(e).to_vec(),
    };
    interface.poll(&mut buffer).iter().map(seen).collect()
}

/// Polls until `done` returns true; fails after a minute.
fn poll_until(interface: &Interface<'_>, mut done: impl FnMut(&Seen) -> bool) -> Seen {
    let start = Instant::now();
    loop {
        for seen in poll(interface) {
            if done(&seen) {
                return seen;
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing came");
    }
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + salt * 7 + i / 251) as u8).collect()
}

/// Retries a send until there is room, and keeps the events that arrive meanwhile.
fn send(
    endpoint: &Endpoint<'_>,
    interface: &Interface<'_>,
    arrived: &mut Vec<Seen>,
    header: u64,
    payload: &[u8],
) {
    loop {
        let sent = match header % 3 {
            0 if payload.len() <= 8192 => endpoint.short(3, header, payload),
            1 => {
                let (a, b) = payload.split_at(payload.len() / 3);
                endpoint.gathered(3, header, &[a, b])
            }
            _ => endpoint.packed(3, header, payload, payload.len()),
        };
        match sent {
            Ok(_) => return,
            Err(Status::Again) => arrived.extend(poll(interface)),
            Err(status) => panic!("{status}"),
        }
    }
}

/// Connects many endpoints of an interface to itself. Every message must arrive once, complete and in order.
fn everything_arrives(config: &[(&str, &str)], endpoints: usize, messages: usize, longest: usize) {
    let provider = Provider::open(config).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let address = interface.address();
    interface.reachable(&address).unwrap();
    let endpoints: Vec<Endpoint<'_>> = (0..endpoints)
        .map(|i| interface.connect(&address, &[i as u8], i as u64).unwrap())
        .collect();
    let mut arrived = Vec::new();
    for message in 0..messages {
        for (i, endpoint) in endpoints.iter().enumerate() {
            let len = (message * 977 + i * 13) % (longest + 1);
            send(endpoint, &interface, &mut arrived, message as u64, &pattern(len, message + i));
        }
    }
    let count = |arrived: &[Seen]| arrived.iter().filter(|s| s.kind == event::MESSAGE).count();
    let start = Instant::now();
    while count(&arrived) < messages * endpoints.len() {
        arrived.extend(poll(&interface));
        assert!(start.elapsed() < Duration::from_secs(60), "lost messages");
    }
    let mut who = vec![usize::MAX; endpoints.len()];
    let mut next = vec![0; endpoints.len()];
    for seen in arrived {
        let peer = seen.peer as usize;
        match seen.kind {
            event::PEER_ARRIVED => who[peer] = seen.data[0] as usize,
            event::MESSAGE => {
                let (message, i) = (seen.header as usize, who[peer]);
                assert_eq!((message, seen.id), (next[peer], 3));
                let len = (message * 977 + i * 13) % (longest + 1);
                assert!(seen.data == pattern(len, message + i), "message {message} of {i}");
                next[peer] += 1;
            }
            other => panic!("event {other}"),
        }
    }
}

#[test]
fn small_messages_of_many_peers_arrive_with_the_defaults() {
    everything_arrives(&[], 50, 400, 48);
}

#[test]
fn messages_of_every_size_arrive() {
    everything_arrives(&[], 3, 2000, 65536);
}

#[test]
fn messages_arrive_with_fast_boxes_from_the_start() {
    everything_arrives(&[("TIELINE_SHM_FASTBOX_THRESHOLD", "0")], 5, 3000, 60);
}

#[test]
fn messages_arrive_without_fast_boxes() {
    everything_arrives(&[("TIELINE_SHM_FASTBOX_MAX", "0")], 70, 300, 60);
}

#[test]
fn messages_arrive_with_few_and_small_fast_boxes() {
    let config = [("TIELINE_SHM_FASTBOX_MAX", "2"), ("TIELINE_SHM_FASTBOX_SIZE", "1k")];
    everything_arrives(&config, 9, 1500, 300);
}

#[test]
fn messages_arrive_with_large_fast_boxes_and_a_tiny_pool() {
    let config = [
        ("TIELINE_SHM_FASTBOX_SIZE", "64k"),
        ("TIELINE_SHM_POOL_MAX", "256k"),
        ("TIELINE_SHM_WINDOW", "64k"),
    ];
    everything_arrives(&config, 6, 500, 65536);
}

#[test]
fn a_bad_setting_is_an_error_when_the_provider_opens() {
    let error = Provider::open(&[("TIELINE_SHM_WINDOW", "some")]).err().unwrap();
    assert_eq!(error.status, Status::Invalid);
}

#[test]
fn messages_before_close_arrive_and_then_peer_leaves_orderly() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"me", 5).unwrap();
    for i in 0..20 {
        assert_eq!(endpoint.short(1, i, &pattern(i as usize * 20, 0)), Ok(0));
    }
    drop(endpoint);
    drop(a);
    assert_eq!(poll_until_next(&b).kind, event::PEER_ARRIVED);
    for i in 0..20 {
        let seen = poll_until_next(&b);
        assert_eq!((seen.kind, seen.header), (event::MESSAGE, i));
        assert_eq!(seen.data, pattern(i as usize * 20, 0));
    }
    let seen = poll_until_next(&b);
    assert_eq!((seen.kind, seen.status), (event::PEER_LEFT, 0));
}

/// Polls for one event at a time: nothing may be lost with a small array.
fn poll_until_next(interface: &Interface<'_>) -> Seen {
    let start = Instant::now();
    loop {
        let mut one = events::<1>();
        if let Some(e) = interface.poll(&mut one).first() {
            return Seen {
                kind: e.kind,
                peer: e.peer,
                id: e.id,
                header: e.header,
                status: e.status,
                cookie: e.cookie,
                data: data(e).to_vec(),
            };
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing came");
    }
}

#[test]
fn endpoint_fails_with_text_when_target_interface_closes() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 77).unwrap();
    let gone = b.address();
    let _ = poll_until(&b, |seen| seen.kind == event::PEER_ARRIVED);
    drop(b);
    let seen = poll_until(&a, |seen| seen.kind == event::ENDPOINT_FAILED);
    // The endpoint was closed orderly: the process may live on, with other interfaces.
    assert_eq!((seen.cookie, seen.status), (77, Status::Closed as i32));
    assert!(String::from_utf8(seen.data).unwrap().contains("closed its interface"));
    assert_eq!(endpoint.short(1, 1, b""), Err(Status::Closed));
    assert_eq!(endpoint.packed(1, 1, &pattern(500, 1), 500), Err(Status::Closed));
    let error = a.connect(&gone, b"", 78).err().unwrap();
    assert_eq!(error.status, Status::PeerFailed);
    assert!(error.text.contains("exited"), "{}", error.text);
}

#[test]
fn peer_awaiting_admission_learns_that_interface_closed() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    for polls in [false, true] {
        let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
        let endpoint = a.connect(&b.address(), b"", 77).unwrap();
        assert_eq!(endpoint.short(1, 1, b"nobody reads it"), Ok(0));
        if polls {
            let _ = poll(&a);
        }
        drop(b);
        let seen = poll_until(&a, |seen| seen.kind == event::ENDPOINT_FAILED);
        assert_eq!((seen.cookie, seen.status), (77, Status::Closed as i32));
        assert_eq!(endpoint.short(1, 1, b""), Err(Status::Closed));
    }
}

#[test]
fn a_forged_address_is_refused_and_disturbs_nobody() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let good = a.connect(&b.address(), b"good", 1).unwrap();
    let mut forged = b.address();
    forged[5] ^= 1; // changes a bit of the cookie
    let bad = a.connect(&forged, b"bad", 2).unwrap();
    let _ = bad.short(1, 1, b"let me in");
    let seen = poll_until(&b, |seen| seen.kind == event::PEER_ARRIVED);
    assert_eq!(seen.data, b"good");
    let start = Instant::now();
    let failed = loop {
        assert!(poll(&b).is_empty());
        if let Some(seen) = poll(&a).pop() {
            break seen;
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    };
    assert_eq!((failed.kind, failed.cookie), (event::ENDPOINT_FAILED, 2));
    assert_eq!(failed.status, Status::Permission as i32);
    assert!(String::from_utf8(failed.data).unwrap().contains("forged"));
    assert_eq!(bad.short(1, 1, b""), Err(Status::Permission));
    assert_eq!(good.short(1, 9, b"still here"), Ok(0));
    assert_eq!(poll_until(&b, |_| true).header, 9);
}

#[test]
fn a_malformed_address_is_refused_whatever_its_bytes() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let address = interface.address();
    for cut in 0..address.len() {
        assert!(interface.reachable(&address[..cut]).is_err());
        assert!(interface.connect(&address[..cut], b"", 0).is_err());
    }
    let mut elsewhere = address.clone();
    elsewhere[20] ^= 1; // changes a bit of the boot id
    let error = interface.reachable(&elsewhere).unwrap_err();
    assert_eq!(error.status, Status::Unreachable);
    assert!(error.text.contains("another kernel"), "{}", error.text);
}

#[test]
fn oversized_messages_and_ids_are_refused_and_the_endpoint_lives_on() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let endpoint = interface.connect(&interface.address(), b"", 0).unwrap();
    let long = pattern(65537, 0);
    assert_eq!(endpoint.gathered(1, 1, &[&long]), Err(Status::TooLarge));
    assert_eq!(endpoint.short(0x1_0000, 1, b""), Err(Status::Invalid));
    assert_eq!(endpoint.short(0xffff, 1, b"ok"), Ok(0));
    assert_eq!(poll_until(&interface, |s| s.kind == event::MESSAGE).id, 0xffff);
}

/// Both sides sleep between messages; a lost wake-up would leave both asleep.
#[test]
fn two_threads_that_sleep_between_messages_never_miss_one() {
    let rounds = 3000u64;
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (to_main, from_thread) = std::sync::mpsc::channel();
    let (to_thread, from_main) = std::sync::mpsc::channel();
    let next = |interface: &Interface<'_>| loop {
        if let Some(seen) = poll(interface).into_iter().find(|s| s.kind == event::MESSAGE) {
            return seen.header;
        }
        if interface.arm() == 0 {
            assert!(interface.wait(20_000), "a wake-up was lost");
        }
    };
    std::thread::scope(|scope| {
        let domain = &domain;
        let _ = scope.spawn(move || {
            let interface = domain.interface().unwrap();
            to_main.send(interface.address()).unwrap();
            let address: Vec<u8> = from_main.recv().unwrap();
            let endpoint = interface.connect(&address, b"", 0).unwrap();
            for i in 0..rounds {
                assert_eq!(next(&interface), i);
                assert_eq!(endpoint.short(1, i, &pattern((i % 100) as usize, 0)), Ok(0));
            }
        });
        let interface = domain.interface().unwrap();
        to_thread.send(interface.address()).unwrap();
        let endpoint = interface.connect(&from_thread.recv().unwrap(), b"", 0).unwrap();
        for i in 0..rounds {
            assert_eq!(endpoint.short(1, i, &pattern((i % 100) as usize, 0)), Ok(0));
            assert_eq!(next(&interface), i);
        }
    });
}

#[test]
fn a_sender_that_found_no_room_is_woken_when_there_is_some() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    for payload in [pattern(8, 0), pattern(5000, 0)] {
        for _ in 0..20 {
            let mut sent = 0;
            while endpoint.short(1, 1, &payload).is_ok() {
                sent += 1;
            }
            let mut armed = a.arm();
            for _ in 0..4 {
                let _ = poll(&a); // receives the acknowledgements of the connection
                armed = a.arm();
            }
            assert_eq!(armed, 0);
            assert!(!a.wait(0));
            let mut seen = 0;
            while seen < sent {
                seen += poll(&b).iter().filter(|s| s.kind == event::MESSAGE).count();
            }
            let _ = (poll(&b), poll(&b));
            assert!(a.wait(20_000), "a wake-up was lost");
            let _ = poll(&a);
            // Room is reported once. An interface whose endpoint then sends nothing may sleep.
            let told = (0..10).find(|_| {
                a.arm() == 0 || {
                    let _ = poll(&a);
                    false
                }
            });
            assert!(told.is_some(), "who was told of room cannot sleep");
            assert_eq!(endpoint.short(1, 1, &payload), Ok(0));
            while poll(&b).is_empty() {}
        }
    }
}

#[test]
fn nested_send_in_packer_finds_no_room_and_outer_message_is_sent() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    for max in [8, 100, 9000] {
        // The loop sends until the ring has one free slot, and makes some more attempts.
        let (mut sent, mut tries) = (0, 0);
        while tries < 1000 {
            tries += 1;
            let mut inside = Vec::new();
            let outcome = endpoint.packed_by(1, sent, max, |room| {
                assert_eq!(room, max);
                inside.push(endpoint.short(2, 0, b""));
                inside.push(endpoint.short(2, 0, &[1; 500]));
                inside.push(endpoint.packed(2, 0, b"nested", 20));
                let _ = poll(&a);
                inside.push(endpoint.short(2, 0, b""));
                room as i64
            });
            match outcome {
                Ok(len) => {
                    assert_eq!(len as usize, max);
                    assert_eq!(inside, [Err(Status::Again); 4]);
                    sent += 1;
                }
                Err(status) => {
                    assert_eq!((status, inside.len()), (Status::Again, 0));
                    break;
                }
            }
        }
        assert!(tries < 1000, "the ring never was full");
        let mut next = 0;
        while next < sent {
            for seen in poll(&b).iter().filter(|seen| seen.kind == event::MESSAGE) {
                assert_eq!((seen.id, seen.header, seen.data.len()), (1, next, max));
                next += 1;
            }
        }
        assert!(poll(&b).is_empty());
        // A packer that fails or returns a wrong length leaves room for the next message.
        for answer in [-2, max as i64 + 1, i64::MAX] {
            for _ in 0..200 {
                let failed = endpoint.packed_by(1, 0, max, |_| answer);
                assert!(matches!(failed, Err(status) if status != Status::Again), "{failed:?}");
            }
        }
        assert_eq!(endpoint.packed_by(1, 99, max, |_| 1), Ok(1));
        assert_eq!(poll_until(&b, |s| s.kind == event::MESSAGE).header, 99);
    }
}

#[test]
fn an_interface_with_nothing_to_do_may_sleep() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    assert!(poll(&interface).is_empty());
    assert_eq!(interface.arm(), 0);
    assert!(!interface.wait(0));
    let endpoint = interface.connect(&interface.address(), b"", 0).unwrap();
    assert_eq!(endpoint.short(1, 1, b""), Ok(0));
    assert!(interface.wait(20_000));
}

#[test]
fn interface_with_unread_ring_behind_a_bell_may_not_sleep() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    assert_eq!(endpoint.short(1, 0, b"x"), Ok(0));
    let _ = poll_until(&b, |seen| seen.kind == event::MESSAGE);
    while b.arm() != 0 {
        let _ = poll(&b);
    }
    // The interface is active again, so it is not woken, and it has not polled its rings since.
    assert_eq!(poll(&b), []);
    assert_eq!(endpoint.short(1, 1, b"x"), Ok(0));
    assert_ne!(b.arm(), 0, "it would sleep on a message");
    assert_eq!(poll_until(&b, |seen| seen.kind == event::MESSAGE).header, 1);
}

/// The first poll after a sleep clears the sleep flag, even if it does not check the clock.
#[test]
fn interface_that_polls_again_is_not_woken() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    for round in 0..200 {
        while b.arm() != 0 {
            let _ = poll(&b);
        }
        assert_eq!(poll(&b), []);
        assert_eq!(endpoint.short(1, round, b"x"), Ok(0));
        assert!(round == 0 || !b.wait(0), "round {round}: it polls");
        assert_eq!(poll_until(&b, |seen| seen.kind == event::MESSAGE).header, round);
        let _ = poll(&a); // receives the acknowledgements of the connection
    }
}

#[test]
fn memory_stays_small_until_a_peer_talks() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    assert!(a.memory().base_bytes + a.memory().buffer_bytes <= 1 << 20);
    let endpoints: Vec<Endpoint<'_>> =
        (0..20).map(|i| a.connect(&b.address(), b"", i).unwrap()).collect();
    assert!(a.memory().peer_bytes <= 20 * (16 << 10), "{:?}", a.memory());
    for endpoint in &endpoints {
        for i in 0..100 {
            while endpoint.short(1, i, b"x") == Err(Status::Again) {
                let _ = (poll(&a), poll(&b));
            }
        }
    }
    for _ in 0..2000 {
        let _ = (poll(&a), poll(&b));
    }
    let used = a.memory();
    assert!(used.peer_bytes <= 20 * (64 << 10), "{used:?}");
    assert_eq!(used.peers, 20);
}

#[test]
fn a_socket_directory_is_checked_swept_and_left_clean() {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let dir = std::env::temp_dir().join(format!("tieline-shm-test-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    let text = dir.to_str().unwrap();
    let provider = Provider::open(&[("TIELINE_SHM_DIR", text)]).unwrap();
    let domain = provider.domain();
    let (a, b) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    assert_eq!(endpoint.short(1, 42, b""), Ok(0));
    assert_eq!(poll_until(&b, |s| s.kind == event::MESSAGE).header, 42);
    let files = || std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(files(), 2);
    // The socket of a killed process: bound once, without a listener.
    let stale = dir.join("tieline-00000000000000000000000000000000.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    std::fs::write(dir.join("notes.txt"), "not ours").unwrap();
    assert_eq!(files(), 4);
    let third = domain.interface().unwrap();
    assert!(!stale.exists() || cfg!(not(target_os = "linux")));
    drop((endpoint, third));
    drop((a, b));
    assert_eq!(files(), 1);
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = domain.interface().err().unwrap();
    assert_eq!(error.status, Status::Invalid);
    assert!(error.text.contains("chmod 700"), "{}", error.text);
    std::fs::remove_dir_all(&dir).unwrap();
    // A directory whose name may be misspelt is not created.
    let error = domain.interface().err().unwrap();
    assert!(error.text.contains("TIELINE_SHM_DIR") && error.text.contains("does not exist"));
    assert!(!dir.exists());
    // A provider does not open with such a directory either.
    let error = Provider::open(&[("TIELINE_SHM_DIR", text)]).err().unwrap();
    assert_eq!(error.status, Status::Invalid);
}
