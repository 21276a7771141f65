//! Tests of the parsers with byte strings from files, every truncation and flipped bit of valid ones, and random ones.

use super::world::{MODULE, World, id};
use crate::message::{
    Body, Header, MAX_ADDRESS, MAX_IDENTITY, Parsed, encode, encode_version, parse,
};
use crate::{Limits, ReasonKind};
use proptest::prelude::*;
use std::path::Path;

/// Returns one message of each kind.
fn good() -> Vec<(&'static str, Vec<u8>)> {
    let header =
        Header { from: id(1), to: id(0), from_epoch: 5, to_epoch: 1, module: MODULE, n: 1 };
    let first = Header { to_epoch: 0, ..header.clone() };
    let (identity, address) = (&b"host:4711"[..], &b"port 1234"[..]);
    let reject = Body::Reject { kind: ReasonKind::Busy, next: 2, text: "später" };
    vec![
        ("request", encode(&first, &Body::Request { identity, address })),
        ("request-known", encode(&header, &Body::Request { identity, address })),
        ("request-empty", encode(&header, &Body::Request { identity: b"", address: b"" })),
        ("request-version-2", encode_version(2, &header, &Body::Request { identity, address })),
        ("reply", encode(&header, &Body::Reply { identity, address, bound_to: 3 })),
        ("ready", encode(&header, &Body::Ready { mine: 3, yours: 4 })),
        ("reject", encode(&header, &reject)),
        ("reject-version-2", encode_version(2, &header, &reject)),
        ("duplicate", encode(&header, &Body::Duplicate { ready: true })),
    ]
}

/// Checks that a byte string is accepted or refused, and that a valid message is encoded again to the same bytes.
fn feed(bytes: &[u8]) {
    if let Ok(Parsed::Message(header, body)) = parse(bytes) {
        assert_eq!(encode(&header, &body), bytes);
    }
    // This side has sent a request, so that answers have an effect, and it listens.
    let mut world = World::new(2, &Limits::default());
    world.connect(0, 1);
    let machine = &mut world.sides[0].machine;
    let _ = machine.receive(0, bytes);
    while let Some(action) = machine.take_action() {
        drop(action);
    }
    assert!(machine.len() <= 2);
}

#[test]
fn kept_byte_strings_do_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/corpus");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        feed(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= good().len(), "the corpus has {files} files");
}

/// Messages of this version stay readable: the code encodes the same bytes as the files contain.
#[test]
fn the_bytes_of_a_message_do_not_change() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/corpus");
    for (name, bytes) in good() {
        let kept = std::fs::read(folder.join(name)).unwrap();
        assert_eq!(kept, bytes, "{name}");
    }
}

#[test]
fn every_truncation_is_refused_and_every_flipped_bit_does_no_harm() {
    for (name, bytes) in good() {
        for len in 0..bytes.len() {
            feed(&bytes[..len]);
            // Only the beginning of another version is read.
            assert!(parse(&bytes[..len]).is_err() || name.contains("version"), "{name} to {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            feed(&bytes);
        }
        let longer = [&bytes[..], b"x"].concat();
        feed(&longer);
        assert!(name.contains("version") || parse(&longer).is_err());
    }
}

#[test]
fn too_long_identity_or_address_is_malformed() {
    let header =
        Header { from: id(1), to: id(0), from_epoch: 5, to_epoch: 0, module: MODULE, n: 1 };
    for (identity, address, fits) in [
        (MAX_IDENTITY, MAX_ADDRESS, true),
        (MAX_IDENTITY + 1, 0, false),
        (0, MAX_ADDRESS + 1, false),
    ] {
        let (identity, address) = (vec![1; identity], vec![2; address]);
        let body = Body::Request { identity: &identity, address: &address };
        assert_eq!(parse(&encode(&header, &body)).is_ok(), fits);
    }
    let none = Header { n: 0, ..header.clone() };
    assert!(parse(&encode(&none, &Body::Request { identity: b"", address: b"" })).is_err());
    let long = "ü".repeat(200);
    let reject = Body::Reject { kind: ReasonKind::Closed, next: 1, text: &long };
    let bytes = encode(&header, &reject);
    let Ok(Parsed::Message(_, Body::Reject { text, .. })) = parse(&bytes) else { panic!() };
    assert_eq!(text, "ü".repeat(127), "words are cut between characters");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        feed(&bytes);
        for beginning in [b"TW\x01", b"TW\x02"] {
            feed(&[&beginning[..], &bytes].concat());
        }
    }

    #[test]
    fn good_messages_with_random_changes_do_no_harm(
        which in 0..good().len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        more in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = good()[which].1.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        feed(&bytes);
        let cut = cut.index(bytes.len());
        feed(&[&bytes[..cut], &more, &bytes[cut..]].concat());
    }
}
