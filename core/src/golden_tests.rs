//! Bytes written by other versions, kept as files: bytes that were readable once stay readable, and the output changes only with
//! its version. A new minor version adds a file and changes none.

use crate::Status;
use crate::address::{Candidate, Location, Scheme, Via, WorkerAddress, WorkerEntry};
use crate::mem::key::KeyRecord;
use crate::region::Access;
use crate::wire::{Writer, seal};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

macro_rules! golden {
    ($name:literal) => {
        bytes(include_str!(concat!("golden/", $name, ".hex")))
    };
}

fn address() -> WorkerAddress {
    let entry = |n| WorkerEntry {
        worker: [n; 16],
        candidates: vec![Candidate {
            provider: "shm".into(),
            domain: "shm".into(),
            module: "ring".into(),
            priority: 50,
            address: vec![1, 2, 3],
        }],
        schemes: vec![
            Scheme {
                name: "tcp-connect/stream".into(),
                via: Via::Connector(vec![4]),
                serves: vec![(0, 3)],
            },
            Scheme { name: "shm/ring".into(), via: Via::Candidate(0), serves: vec![(0, -2)] },
        ],
    };
    WorkerAddress {
        context: [1; 16],
        messages: (1, 0),
        location: Location {
            boot_id: [2; 16],
            pid_namespace: 3,
            net_namespace: 4,
            pid: 5,
            host: "node7".into(),
        },
        entry: entry(6),
        service: Some(entry(7)),
        polls_often: true,
        name: vec![1, 1, 8, 9].into(),
    }
}

/// Returns the address of the second minor version, which had no name.
fn second_address() -> WorkerAddress {
    WorkerAddress { name: Box::default(), ..address() }
}

/// Returns the address of the first minor version, which had no promises.
fn first_address() -> WorkerAddress {
    WorkerAddress { polls_often: false, ..second_address() }
}

fn key() -> KeyRecord {
    KeyRecord {
        context: [7; 16],
        region: 3,
        generation: 9,
        len: 4096,
        access: Access::READ | Access::ATOMIC,
        parts: vec![("shm".into(), "shm".into(), vec![1, 2, 3])],
        device_atomics: Some(0),
        address: Some(0x1122_3344_5566_7788),
    }
}

/// Returns the key of the first minor version, which had no address.
fn first_key() -> KeyRecord {
    KeyRecord { address: None, ..key() }
}

#[test]
fn addresses_and_keys_are_written_as_they_always_were() {
    assert_eq!(address().pack().unwrap(), golden!("address-1.2"));
    assert_eq!(key().pack().unwrap(), golden!("key-1.1"));
}

#[test]
fn addresses_and_keys_of_every_minor_are_read() {
    assert_eq!(WorkerAddress::parse(&golden!("address-1.0")).unwrap(), first_address());
    assert_eq!(WorkerAddress::parse(&golden!("address-1.1")).unwrap(), second_address());
    assert_eq!(WorkerAddress::parse(&golden!("address-1.2")).unwrap(), address());
    assert_eq!(KeyRecord::parse(&golden!("key-1.0")).unwrap(), first_key());
    assert_eq!(KeyRecord::parse(&golden!("key-1.1")).unwrap(), key());
    // An older reader ignores bytes that a later minor version adds at the end; the first such byte holds the promises of version
    // 1.1.
    let newer = WorkerAddress { messages: (1, 4), ..second_address() };
    assert_eq!(WorkerAddress::parse(&golden!("address-1.9")).unwrap(), newer);
    assert_eq!(KeyRecord::parse(&golden!("key-1.9")).unwrap(), first_key());
}

#[test]
fn another_major_is_refused_in_words_that_name_both_versions() {
    let address = WorkerAddress::parse(&golden!("address-2.0")).unwrap_err();
    let key = KeyRecord::parse(&golden!("key-2.0")).unwrap_err();
    let messages = WorkerAddress::parse(&golden!("address-1.0-messages-2.3")).unwrap_err();
    for (error, theirs, ours) in
        [(address, "2.0", "1.x"), (key, "2.0", "1.x"), (messages, "2.3", "1.x")]
    {
        assert_eq!(error.status(), Status::Unsupported, "{error}");
        assert!(error.why().contains(theirs) && error.why().contains(ours), "{error}");
    }
}

#[test]
fn a_tail_is_no_part_of_a_record_of_our_own_minor() {
    let (address, key) = (golden!("address-1.9"), golden!("key-1.9"));
    for (golden, head, minor) in
        [(&address, *b"TLA", 0), (&address, *b"TLA", 1), (&key, *b"TLK", 0)]
    {
        let mut w = Writer::default();
        let _ = w.raw(&head).raw(&[1, minor]).raw(&golden[5..golden.len() - 4]);
        let bytes = seal(w);
        let error = match head[2] {
            b'A' => WorkerAddress::parse(&bytes).unwrap_err(),
            _ => KeyRecord::parse(&bytes).unwrap_err(),
        };
        assert!(error.why().contains("after its end"), "{error}");
    }
}

#[test]
fn an_address_without_the_promises_that_its_minor_has_is_damaged() {
    let whole = golden!("address-1.1");
    let mut w = Writer::default();
    let _ = w.raw(&whole[..whole.len() - 5]);
    let error = WorkerAddress::parse(&seal(w)).unwrap_err();
    assert!(error.why().contains("cut off"), "{error}");
}

#[test]
fn a_name_is_bounded_and_nothing_follows_it() {
    let whole = golden!("address-1.2");
    let end = whole.len() - 4;
    for (kept, tail, words) in [
        (end - 1, &[][..], "cut off"),
        (end, &[0], "after its end"),
        (end - 5, &[49; 50], "malformed"),
    ] {
        let mut w = Writer::default();
        let _ = w.raw(&whole[..kept]).raw(tail);
        let error = WorkerAddress::parse(&seal(w)).unwrap_err();
        assert!(error.why().contains(words), "{error}");
    }
}

#[test]
fn a_promise_that_a_later_minor_adds_is_no_promise_of_ours() {
    let mut bytes = golden!("address-1.1");
    let at = bytes.len() - 5;
    bytes[at] = 0xfe;
    let mut w = Writer::default();
    let _ = w.raw(&bytes[..=at]);
    assert_eq!(WorkerAddress::parse(&seal(w)).unwrap(), first_address());
}
