//! Tests of the parser with byte strings from files, every truncation and flipped bit of valid ones, and random ones.

use super::*;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// Returns one message of each kind.
fn good() -> [(&'static str, Vec<u8>); 5] {
    [
        ("ask", encode(1, &Message::Ask { service: "store", private: b"7" })),
        ("accepted", encode(1, &Message::Accepted { private: b"yes" })),
        ("rejected", encode(1, &Message::Rejected { private: b"" })),
        ("refused", encode(1, &Message::Refused { text: "no" })),
        ("cancel", encode(1, &Message::Cancel)),
    ]
}

/// Parses a byte string, and checks that a valid message is encoded again to the same bytes.
fn feed(bytes: &[u8]) {
    if let Ok((1, token, Some(message))) = parse(bytes) {
        assert_eq!(encode(token, &message), bytes);
    }
    let mut services = Services::new(ServiceLimits::default());
    services.listen("store", 1, ()).unwrap();
    let _ = services.receive(0, [1; 16], bytes);
    assert!(services.open().0 <= 1);
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/corpus")
}

#[test]
fn kept_byte_strings_do_no_harm() {
    let mut files = 0;
    for entry in std::fs::read_dir(corpus()).unwrap() {
        feed(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > good().len(), "the corpus has {files} files");
}

/// Messages of this version stay readable: the code encodes the same bytes as the files contain.
#[test]
fn the_bytes_of_a_message_do_not_change() {
    for (name, bytes) in good() {
        assert_eq!(std::fs::read(corpus().join(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn every_truncation_is_refused_and_every_flipped_bit_does_no_harm() {
    for (name, bytes) in good() {
        for len in 0..bytes.len() {
            feed(&bytes[..len]);
            assert!(parse(&bytes[..len]).is_err(), "{name} to {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            feed(&bytes);
        }
        let longer = [&bytes[..], b"x"].concat();
        feed(&longer);
        assert!(parse(&longer).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        feed(&bytes);
        feed(&[&b"TS\x01"[..], &bytes].concat());
    }

    #[test]
    fn good_messages_with_random_changes_do_no_harm(
        which in 0..good().len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        more in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = good()[which].1.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        feed(&bytes);
        feed(&[&bytes[..], &more].concat());
    }
}
