//! Tests of names, of the listener that answers for them, and of lookups.

use crate::listener::{NameService, settings};
use crate::lookup::{Lookup, MOST, whole};
use crate::name::{FORMAT, HEAD, V4, WorkerName};
use crate::{Error, Status};
use proptest::prelude::*;
use std::time::{Duration, Instant};
use tieline_net::{Contact, ListenAddress, Settings};

pub(super) const WORKER: [u8; 16] = [7; 16];

fn contact(addresses: &[(&str, u16)]) -> Contact {
    let at = |(ip, port): &(&str, u16)| ListenAddress {
        ip: ip.parse().unwrap(),
        prefix: 8,
        port: *port,
        speed_mbps: 0,
    };
    let addresses = addresses.iter().map(at).collect();
    Contact { boot_id: [1; 16], net_namespace: 2, cookie: [3; 16], target: [4; 16], addresses }
}

fn listed(name: &WorkerName) -> Vec<String> {
    name.addresses().iter().map(|at| format!("{} {}", at.ip, at.port)).collect()
}

/// Returns the worker's address in these tests: a mark, the worker's id, and more.
pub(super) fn address_of(worker: [u8; 16]) -> Vec<u8> {
    [&b"at"[..], &worker, &[8; 300]].concat()
}

/// Reads an address that [`address_of`] has made.
pub(super) fn parse(bytes: &[u8]) -> Result<([u8; 16], Vec<u8>), Error> {
    let id = bytes.strip_prefix(b"at").and_then(|rest| rest.first_chunk::<16>());
    let id = id.ok_or_else(|| Error::from_status(Status::BadData))?;
    Ok((*id, bytes.to_vec()))
}

pub(super) fn loopback(secret: &str) -> Settings {
    settings(secret.into(), "127.0.0.0/8", "0").unwrap()
}

/// Requests an address until there is an answer, while the responder is polled.
fn ask(service: &NameService, name: &WorkerName, settings: &Settings) -> Result<Vec<u8>, Error> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut lookup = Lookup::start(name, settings, deadline)?;
    loop {
        service.poll(|| None);
        if let Some(answer) = lookup.advance(Instant::now(), parse) {
            assert!(lookup.advance(Instant::now(), parse).is_none(), "it answers once");
            return answer;
        }
        std::thread::yield_now();
    }
}

#[test]
fn name_prefers_far_reaching_addresses_and_fits_48_bytes() {
    let many =
        [("127.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 2), ("10.0.0.3", 2), ("10.0.0.4", 2)];
    let name = WorkerName::new(&contact(&many), &WORKER);
    assert_eq!(listed(&name), ["10.0.0.1 2", "10.0.0.2 2", "10.0.0.3 2"]);
    assert_eq!(name.as_bytes().len(), 48);
    // The bridge of a container host reports a speed but leads to no other host; a listener offers it last.
    let mut bridges =
        contact(&[("10.0.0.1", 2), ("172.17.0.1", 3), ("172.18.0.1", 3), ("172.19.0.1", 3)]);
    bridges.addresses[1..].iter_mut().for_each(|bridge| bridge.speed_mbps = 10_000);
    assert_eq!(listed(&WorkerName::new(&bridges, &WORKER))[0], "10.0.0.1 2");
    let both = WorkerName::new(&contact(&[("fd00::1", 9), ("::1", 9)]), &WORKER);
    assert_eq!((listed(&both), both.as_bytes().len()), (vec!["fd00::1 9".to_string()], 48));
    let mixed = WorkerName::new(&contact(&[("10.0.0.1", 8), ("fd00::1", 9)]), &WORKER);
    assert_eq!(listed(&mixed), ["10.0.0.1 8"]);
    let local = WorkerName::new(&contact(&[("127.0.0.1", 1)]), &WORKER);
    assert_eq!((listed(&local), local.as_bytes().len()), (vec!["127.0.0.1 1".to_string()], 36));
}

#[test]
fn a_name_survives_its_bytes_and_no_other_length() {
    let name = WorkerName::new(&contact(&[("10.0.0.1", 2), ("10.0.0.2", 3)]), &WORKER);
    let bytes = name.as_bytes().to_vec();
    assert_eq!(WorkerName::from_bytes(&bytes).unwrap(), name);
    let padded = [&bytes[..], &[0; 80]].concat();
    assert_eq!(WorkerName::from_bytes(&padded).unwrap(), name);
    assert!(WorkerName::from_bytes(&[&bytes[..], &[1]].concat()).is_err());
    for end in 0..bytes.len() {
        assert!(WorkerName::from_bytes(&bytes[..end]).is_err(), "{end}");
    }
    let (mut later, mut empty) = (bytes.clone(), bytes);
    later[0] = 2;
    let error = WorkerName::from_bytes(&later).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert!(error.why().contains("format 2, and this library reads format 1"), "{error}");
    empty[1] = 0;
    assert_eq!(WorkerName::from_bytes(&empty).unwrap_err().status(), Status::BadData);
    assert_eq!(format!("{name:?}"), "WorkerName(10.0.0.1:2, 10.0.0.2:3)", "no proof in a log");
}

#[test]
fn name_resolves_to_address_and_lookup_leaves_nothing() {
    let settings = loopback("");
    let service = NameService::open(&settings).unwrap();
    let name = service.publish(&WORKER, address_of(WORKER));
    for _ in 0..3 {
        let address = ask(&service, &name, &settings).unwrap();
        assert_eq!(address, address_of(WORKER));
    }
    assert_eq!(service.mailbox.hub().counters().accepted, 3);
    let other = service.publish(&[9; 16], address_of([9; 16]));
    assert_eq!(ask(&service, &other, &settings).unwrap(), address_of([9; 16]));
    assert!(!service.forget(&WORKER), "another one is there");
    let gone = ask(&service, &name, &settings).unwrap_err();
    assert_eq!(gone.status(), Status::PeerFailed);
    assert!(gone.why().contains("no such worker"), "{gone}");
}

#[test]
fn lookup_with_wrong_proof_or_secret_gets_no_answer() {
    let settings = loopback("one");
    let service = NameService::open(&settings).unwrap();
    let name = service.publish(&WORKER, address_of(WORKER));
    let mut forged = name;
    forged.bytes[5] ^= 1;
    let (one, two) = (&settings, &loopback("two"));
    for (name, settings, status) in
        [(&forged, one, Status::PeerFailed), (&name, two, Status::Permission)]
    {
        let refused = ask(&service, name, settings).unwrap_err();
        assert_eq!(refused.status(), status, "{refused}");
    }
    assert_eq!(service.mailbox.hub().counters().accepted, 0);
    assert!(ask(&service, &name, &settings).is_ok());
}

#[test]
fn answer_with_address_of_other_worker_is_refused() {
    let settings = loopback("");
    let service = NameService::open(&settings).unwrap();
    for lie in [address_of([9; 16]), vec![1; 100]] {
        let name = service.publish(&WORKER, lie);
        let refused = ask(&service, &name, &settings).unwrap_err();
        assert_eq!(refused.status(), Status::BadData, "{refused}");
        assert!(refused.to_string().contains("127.0.0.1:"), "it says who was asked: {refused}");
        assert!(!refused.fix().is_empty(), "{refused}");
    }
}

/// For example, a rank has restarted on the same ports.
#[test]
fn other_process_at_port_of_name_is_not_reported_as_wrong_secret() {
    for secret in ["", "one"] {
        let settings = loopback(secret);
        let (before, after) = [(); 2].map(|()| NameService::open(&settings).unwrap()).into();
        let mut name = before.publish(&WORKER, address_of(WORKER));
        let other = after.publish(&WORKER, address_of(WORKER));
        name.bytes[HEAD..].copy_from_slice(&other.bytes[HEAD..]);
        let refused = ask(&after, &name, &settings).unwrap_err();
        assert_eq!(refused.status(), Status::PeerFailed, "{refused}");
        assert!(refused.why().contains("its process has been replaced"), "{refused}");
        assert!(!refused.to_string().contains("TIELINE_SECRET"), "{refused}");
    }
}

#[test]
fn lookup_returns_current_address_of_worker() {
    let settings = loopback("");
    let service = NameService::open(&settings).unwrap();
    let name = service.publish(&WORKER, vec![1; 100]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut lookup = Lookup::start(&name, &settings, deadline).unwrap();
    let told = loop {
        service.poll(|| Some((WORKER, address_of(WORKER))));
        if let Some(answer) = lookup.advance(Instant::now(), parse) {
            break answer.unwrap();
        }
        std::thread::yield_now();
    };
    assert_eq!(told, address_of(WORKER));
}

#[test]
fn a_listener_that_is_gone_is_named_with_its_address() {
    let settings = loopback("");
    let service = NameService::open(&settings).unwrap();
    let name = service.publish(&WORKER, address_of(WORKER));
    drop(service);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut lookup = Lookup::start(&name, &settings, deadline).unwrap();
    let refused = loop {
        if let Some(answer) = lookup.advance(Instant::now(), parse) {
            break answer.unwrap_err();
        }
        std::thread::yield_now();
    };
    assert_eq!(refused.status(), Status::PeerFailed, "{refused}");
    assert!(refused.to_string().contains("127.0.0.1:"), "{refused}");
}

#[test]
fn an_answer_is_whole_or_none_and_of_a_bounded_length() {
    let answer = [&3u32.to_le_bytes()[..], b"abc"].concat();
    for end in 0..answer.len() {
        assert!(whole(&answer[..end]).is_none(), "{end}");
    }
    assert_eq!(whole(&answer).unwrap().unwrap(), b"abc");
    let long = (MOST as u32 + 1).to_le_bytes();
    assert!(whole(&long).unwrap().unwrap_err().contains("none is so long"));
}

#[test]
fn a_name_has_an_address_and_an_answer_may_be_so_long() {
    let name = |counts: u8, len: usize| {
        let mut bytes = vec![9; len];
        (bytes[0], bytes[1]) = (FORMAT, counts);
        WorkerName::from_bytes(&bytes).map_err(|error| error.why().to_owned())
    };
    let none = |len: usize| Err(format!("no such number of addresses ({len} bytes)"));
    assert_eq!(name(0, HEAD).map(|_| ()), none(HEAD));
    assert_eq!(name(3, HEAD + 3 * V4).map(|name| name.as_bytes().len()), Ok(48));
    assert_eq!(name(4, HEAD + 4 * V4).map(|_| ()), none(HEAD + 4 * V4));
    assert_eq!(
        name(1, HEAD + V4 - 1).map(|_| ()),
        Err(format!("it is cut off ({} bytes)", HEAD + V4 - 1))
    );
    let most = [&(MOST as u32).to_le_bytes()[..], &vec![7; MOST]].concat();
    assert_eq!(whole(&most).unwrap().unwrap().len(), MOST);
}

proptest! {
    #[test]
    fn any_bytes_are_a_name_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60), counts in 0u8..64) {
        let mut bytes = bytes;
        if let [format, at, ..] = &mut bytes[..] {
            (*format, *at) = (FORMAT, counts);
        }
        if let Ok(name) = WorkerName::from_bytes(&bytes) {
            prop_assert!(name.as_bytes().len() <= 48);
            prop_assert!(bytes.starts_with(name.as_bytes()));
            prop_assert!(!name.addresses().is_empty());
            let _ = name.contact();
        }
    }
}
