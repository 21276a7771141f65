//! Tests with real processes: this test program starts itself again in the role that a test assigns.
#![allow(missing_docs)]

#[path = "common/sys.rs"]
mod sys;

use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sys::{Endpoint, Interface, Provider, data, events};
use tieline_plugin_api::{Status, event};

const ROLE: &str = "TIELINE_SHM_TEST_ROLE";
const ADDRESS: &str = "TIELINE_SHM_TEST_ADDRESS";
const DIR: &str = "TIELINE_SHM_TEST_DIR";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn command(role: &str, address: &[u8]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let _ = command
        .args(["a_child_plays_its_role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ADDRESS, hex(address))
        .stdout(Stdio::null());
    command
}

/// A child process that is killed when the test ends, whatever its outcome.
struct Peer(Child);

impl Peer {
    fn start(role: &str, address: &[u8]) -> Peer {
        Peer(command(role, address).spawn().unwrap())
    }
    fn succeeded(mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The main function of a child process, and not a separate test.
#[test]
fn a_child_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = unhex(&std::env::var(ADDRESS).unwrap());
    match role.as_str() {
        "echo" => echo(&address),
        "stream" => stream(&address),
        "other-user" => other_user(&address),
        "no-descriptors" => no_descriptors(&address),
        "full" => full(),
        other => panic!("no role {other}"),
    }
}

fn config() -> Vec<(&'static str, &'static str)> {
    match std::env::var(DIR) {
        Ok(dir) => vec![("TIELINE_SHM_DIR", Box::leak(dir.into_boxed_str()))],
        Err(_) => vec![],
    }
}

fn send(endpoint: &Endpoint<'_>, interface: &Interface<'_>, id: u32, header: u64, payload: &[u8]) {
    let mut buffer = events::<1>();
    loop {
        match endpoint.packed(id, header, payload, payload.len()) {
            Ok(_) => return,
            Err(Status::Again) => assert!(
                interface.poll(&mut buffer).iter().all(|e| e.kind != event::MESSAGE),
                "a message in between"
            ),
            Err(status) => panic!("{status}"),
        }
    }
}

/// Sends everything back until a stop message arrives.
fn echo(address: &[u8]) {
    let provider = Provider::open(&config()).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let endpoint = interface.connect(address, &interface.address(), 0).unwrap();
    let mut buffer = events::<1>();
    loop {
        for e in interface.poll(&mut buffer) {
            match (e.kind, e.id) {
                (event::MESSAGE, 1) => {
                    let bytes = data(e).to_vec();
                    send(&endpoint, &interface, 1, e.header, &bytes);
                }
                (event::MESSAGE, _) | (event::ENDPOINT_FAILED, _) => return,
                _ => {}
            }
        }
    }
}

/// Sends numbered messages until this process or its peer is killed.
fn stream(address: &[u8]) {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let endpoint = interface.connect(address, b"", 0).unwrap();
    let mut buffer = events::<4>();
    let mut next = 0;
    loop {
        match endpoint.short(1, next, &vec![7; (next % 200) as usize]) {
            Ok(_) => next += 1,
            Err(Status::Again) => {
                let _ = interface.poll(&mut buffer);
            }
            Err(_) => return,
        }
    }
}

/// Plays the process of another user.
fn other_user(address: &[u8]) {
    assert!(sys::become_user(65534));
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let error = interface.connect(address, b"", 0).err().unwrap();
    assert_eq!(error.status, Status::Permission);
    assert!(error.text.contains("another user"), "{}", error.text);
    // The other user's process cannot even reach the socket.
    assert_eq!(sys::connect_error(address), libc::EACCES);
}

/// Plays a process without a free descriptor, which gets errors and does not crash.
fn no_descriptors(address: &[u8]) {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let mut held = Vec::new();
    sys::limit_files(64);
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let error = interface.connect(address, b"", 0).err().unwrap();
    assert_eq!(error.status, Status::NoMemory, "{}", error.text);
    let error = domain.interface().err().unwrap();
    assert_eq!(error.status, Status::NoMemory, "{}", error.text);
    assert_eq!(domain.alloc(4096, 7).err().unwrap().status, Status::NoMemory);
    drop(held);
    let endpoint = interface.connect(address, b"", 0).unwrap();
    send(&endpoint, &interface, 1, 5, b"after all");
    drop(endpoint);
}

/// Receives without a free descriptor: sends refusals instead of staying silent.
fn full() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let (full, other) = (domain.interface().unwrap(), domain.interface().unwrap());
    let endpoint = other.connect(&full.address(), b"", 3).unwrap();
    let mut held = Vec::new();
    sys::limit_files(64);
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let mut buffer = events::<4>();
    let failed = loop {
        assert!(full.poll(&mut buffer).is_empty());
        if let Some(e) = other.poll(&mut buffer).first() {
            break (e.kind, e.status, String::from_utf8(data(e).to_vec()).unwrap());
        }
    };
    assert_eq!((failed.0, failed.1), (event::ENDPOINT_FAILED, Status::NoMemory as i32));
    assert!(failed.2.contains("ulimit -n"), "{}", failed.2);
    drop(endpoint);
}

/// Waits for the next event of a kind; fails after a minute.
fn next(interface: &Interface<'_>, kind: u32) -> (u64, u64, i32, Vec<u8>) {
    let start = Instant::now();
    let mut buffer = events::<1>();
    loop {
        if let Some(e) = interface.poll(&mut buffer).first() {
            if e.kind == kind {
                return (e.peer, e.header, e.status, data(e).to_vec());
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no event {kind}");
    }
}

fn echo_works(config: &[(&str, &str)], start: impl FnOnce(&[u8]) -> Peer) {
    let provider = Provider::open(config).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let peer = start(&interface.address());
    let (_, _, _, address) = next(&interface, event::PEER_ARRIVED);
    let endpoint = interface.connect(&address, b"", 0).unwrap();
    for i in 0..300usize {
        let payload: Vec<u8> = (0..i * i * 7 % 65537).map(|at| (at ^ i) as u8).collect();
        send(&endpoint, &interface, 1, i as u64, &payload);
        let (_, header, _, back) = next(&interface, event::MESSAGE);
        assert!(header == i as u64 && back == payload, "message {i}");
    }
    send(&endpoint, &interface, 2, 0, b"");
    assert!(peer.succeeded());
    let (_, _, status, _) = next(&interface, event::PEER_LEFT);
    assert_eq!(status, 0);
}

#[test]
fn two_processes_exchange_messages_of_every_size() {
    echo_works(&[], |address| Peer::start("echo", address));
}

#[test]
fn processes_without_common_namespaces_meet_through_a_directory() {
    let dir = std::env::temp_dir().join(format!("tieline-shm-ns-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    let text = dir.to_str().unwrap().to_string();
    let unshare = ["-n", "-p", "-i", "-u", "-f", "--mount-proc"];
    let can = Command::new("unshare").args(unshare).arg("true").status();
    if !sys::is_root() || !can.is_ok_and(|status| status.success()) {
        println!("skipped: unshare needs root");
        std::fs::remove_dir(&dir).unwrap();
        return;
    }
    echo_works(&[("TIELINE_SHM_DIR", &text)], |address| {
        let role = command("echo", address);
        let mut outer = Command::new("unshare");
        let _ = outer.args(unshare).arg(role.get_program()).args(role.get_args());
        for (name, value) in role.get_envs() {
            let _ = outer.env(name, value.unwrap());
        }
        Peer(outer.env(DIR, &text).stdout(Stdio::null()).spawn().unwrap())
    });
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_killed_sender_is_reported_and_a_killed_receiver_fails_the_endpoint() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let peer = Peer::start("echo", &interface.address());
    let (number, _, _, address) = next(&interface, event::PEER_ARRIVED);
    let endpoint = interface.connect(&address, b"", 8).unwrap();
    send(&endpoint, &interface, 1, 1, b"x");
    let _ = next(&interface, event::MESSAGE);
    sys::kill(peer.0.id(), libc::SIGKILL);
    let (mut left, mut failed) = (None, None);
    let start = Instant::now();
    let mut buffer = events::<1>();
    while left.is_none() || failed.is_none() {
        for e in interface.poll(&mut buffer) {
            match e.kind {
                event::PEER_LEFT => left = Some((e.peer, e.status)),
                event::ENDPOINT_FAILED => failed = Some((e.cookie, e.status)),
                other => panic!("event {other}"),
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(left, Some((number, Status::PeerFailed as i32)));
    assert_eq!(failed, Some((8, Status::PeerFailed as i32)));
    assert_eq!(endpoint.short(1, 1, b""), Err(Status::PeerFailed));
}

#[cfg(feature = "test-hooks")]
#[test]
fn sender_killed_before_publishing_a_slot_blocks_no_other_sender() {
    for at in [3, 40, 1000] {
        let provider = Provider::open(&[]).unwrap();
        let domain = provider.domain();
        let interface = domain.interface().unwrap();
        let survivor = Peer::start("stream", &interface.address());
        let (talker, _, _, _) = next(&interface, event::PEER_ARRIVED);
        let mut dying = command("stream", &interface.address());
        let victim = Peer(dying.env("TIELINE_SHM_TEST_DIE_AT", at.to_string()).spawn().unwrap());
        let (mut survivors, mut victims, mut left) = (None, 0, None);
        let start = Instant::now();
        let mut buffer = events::<16>();
        let mut after = 0;
        while after < 10_000 {
            for e in interface.poll(&mut buffer) {
                match e.kind {
                    event::MESSAGE if e.peer == talker => {
                        let expected = survivors.map_or(e.header, |last| last + 1);
                        assert_eq!(e.header, expected);
                        survivors = Some(e.header);
                        after += u64::from(left.is_some());
                    }
                    event::MESSAGE => {
                        assert_eq!(e.header, victims);
                        assert!(data(e).iter().all(|&b| b == 7));
                        victims += 1;
                    }
                    event::PEER_LEFT => left = Some((e.peer, e.status)),
                    _ => {}
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "traffic stopped");
        }
        let (peer, status) = left.unwrap();
        assert!(peer != talker);
        assert_eq!(status, Status::PeerFailed as i32);
        assert!(victims < at, "{victims} messages of {at} slots");
        drop((victim, survivor));
    }
}

#[cfg(not(feature = "test-hooks"))]
#[test]
fn sender_killed_before_publishing_a_slot_blocks_no_other_sender() {
    println!("skipped: needs --features test-hooks");
}

#[test]
fn a_process_of_another_user_is_refused() {
    if !sys::is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let peer = Peer::start("other-user", &interface.address());
    let mut peer = peer;
    let mut buffer = events::<4>();
    let status = loop {
        assert!(interface.poll(&mut buffer).is_empty());
        if let Some(status) = peer.0.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success());
}

#[test]
fn a_process_without_descriptors_gets_errors_and_recovers() {
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let peer = Peer::start("no-descriptors", &interface.address());
    let (_, header, _, bytes) = next(&interface, event::MESSAGE);
    assert_eq!((header, &bytes[..]), (5, &b"after all"[..]));
    assert!(peer.succeeded());
}

#[test]
fn a_receiver_without_descriptors_says_no() {
    assert!(Peer::start("full", &[]).succeeded());
}
