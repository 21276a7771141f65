//! Tables that are made by hand, in a file that is mapped as it is.

use super::*;

const PAGE: u64 = 4096;

fn load(address: u64, memory_len: u64) -> Load {
    Load { address, offset: address, file_len: memory_len, memory_len }
}

#[test]
fn memory_that_becomes_read_only_lies_in_a_segment_or_before_the_next() {
    let loads = [load(0, 0x1000), load(0x4c40, 0x500), load(0x9c40, 0x1570)];
    let fits = |address, len| check_relro(address, len, &loads, PAGE).is_ok();
    assert!(fits(0x9c40, 0x3c0), "the first page of the last segment");
    assert!(fits(0x9c40, 0x2fff - 0xc40 + 0x1000), "what does not fill a page is left as it is");
    assert!(!fits(0x9c40, 0x4000 - 0xc40));
    assert!(!fits(0xdc40, 0x3c0), "behind all segments");
    assert!(!fits(0x9c3f, 0x2fff) && !fits(0x9c40, u64::MAX));
    assert!(fits(0x4c40, 0x5000), "up to the next segment");
    assert!(!fits(0x4c40, 0x63c0), "into the next segment");
    assert!(fits(0xdc40, 0), "nothing");
    let said = check_relro(0xdf40, 960, &loads, PAGE).unwrap_err();
    assert_eq!(said.found, "960 bytes at address 0xdf40, outside of all of them");
}

/// A file of these pieces, each at its offset.
fn file(pieces: &[(usize, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; 1024];
    for (at, bytes) in pieces {
        file[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    file
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}

/// A dynamic section of these entries, at offset 0.
fn dynamic(entries: &[(u64, u64)]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|(tag, value)| [tag.to_ne_bytes(), value.to_ne_bytes()].concat())
        .collect()
}

const HASH: usize = 128;
const VERSIONS: usize = 256;
const NEEDED: usize = 512;
const DEFINED: usize = 768;

/// The check of a file whose symbols have these versions. It needs one file with versions 2 and `needed`, and defines `defined`.
fn said(hash: &[u32], versions: &[u16], needed: u16, defined: Option<u16>) -> String {
    let mut entries =
        vec![(DT_GNU_HASH, HASH as u64), (DT_VERSYM, VERSIONS as u64), (DT_VERNEED, NEEDED as u64)];
    entries.extend(defined.map(|_| (DT_VERDEF, DEFINED as u64)));
    let file_needed = [halves(&[1, 2]), words(&[0, 16, 0])].concat();
    let version = |number, next| [words(&[7]), halves(&[0, number]), words(&[0, next])].concat();
    let needs = [file_needed, version(2, 16), version(needed, 0)].concat();
    // The file itself, and then its version.
    let define = |number, next| [halves(&[1, 0, number, 0]), words(&[7, 0, next])].concat();
    let defines = [define(1, 20), define(defined.unwrap_or(0), 0)].concat();
    let file = file(&[
        (0, &dynamic(&entries)),
        (HASH, &words(hash)),
        (VERSIONS, &halves(versions)),
        (NEEDED, &needs),
        (DEFINED, &defines),
    ]);
    match check_versions(&file[..], &[load(0, 1024)], (0, 128)) {
        Ok(()) => "good".into(),
        Err(Unfit { expected, found }) => format!("{expected}; {found}"),
    }
}

#[test]
fn each_symbol_has_a_version_that_the_file_declares() {
    // Symbols 0 to 2 are needed; 3 to 5 are in two chains.
    let hash = [2, 3, 1, 6, 0, 0, 3, 5, 2, 3, 5];
    let bad = |most: u16, number: u16, symbol: usize| {
        format!(
            "symbols of versions that the file declares, the last of them number {most}; number {number} for symbol {symbol}"
        )
    };
    let of = |versions: &[u16]| said(&hash, versions, 3, None);
    assert_eq!(of(&[0, 2, 3, 1, 1, 1]), "good");
    assert_eq!(of(&[0, 2, HIDDEN | 3, HIDDEN | 1, 1, 1]), "good");
    assert_eq!(of(&[0, 2, 4, 1, 1, 1]), bad(3, 4, 2));
    assert_eq!(of(&[0, 2, 3, 1, 1, 0x2001]), bad(3, 0x2001, 5), "the last of its chain");
    assert_eq!(of(&[0, 2, 3, 1, 1, 1, 9]), "good", "there is no symbol 6");
    assert_eq!(said(&hash, &[0, 2, 5, 1, 1, 1], 5, None), "good");
    assert_eq!(said(&hash, &[0, 2, 3, 4, 1, 1], 3, Some(4)), "good");
    assert_eq!(said(&hash, &[0, 2, 3, 5, 1, 1], 3, Some(4)), bad(4, 5, 3));
    // Without symbols of its own.
    let empty = [1, 3, 1, 6, 0, 0, 0];
    assert_eq!(said(&empty, &[0, 2, 4], 3, None), bad(3, 4, 2));
    assert_eq!(said(&empty, &[0, 2, 3, 4], 3, None), "good");
    // The loader checks what this module cannot read: a chain without an end, and a table outside of the file.
    let endless = [2, 3, 1, 6, 0, 0, 3, 2000, 2, 3, 4];
    assert_eq!(said(&endless, &[9; 6], 3, None), "good");
    let short = file(&[(0, &dynamic(&[(DT_GNU_HASH, HASH as u64), (DT_VERSYM, 4096)]))]);
    assert_eq!(check_versions(&short[..], &[load(0, 1024)], (0, 128)), Ok(()));
}

#[test]
fn the_older_hash_table_says_how_many_symbols_there_are() {
    let entries = [(DT_HASH, HASH as u64), (DT_VERSYM, VERSIONS as u64), (0, 0), (DT_VERSYM, 0)];
    let of = |count: u32| {
        let file = file(&[
            (0, &dynamic(&entries)),
            (HASH, &words(&[1, count])),
            (VERSIONS, &halves(&[0, 1, 1, 2])),
        ]);
        check_versions(&file[..], &[load(0, 1024)], (0, 128)).is_ok()
    };
    assert_eq!((of(3), of(4)), (true, false));
}

/// The highest number of a chain: so many entries of number 2, and one of number `last`, whatever the file's `count` is.
fn last_needed(twos: u64, last: u16, count: u16) -> Option<u16> {
    let entry = |number, next| [words(&[7]), halves(&[0, number]), words(&[0, next])].concat();
    let head = [halves(&[1, count]), words(&[0, 16, 0])].concat();
    let bytes = [head, entry(2, 16).repeat(twos as usize), entry(last, 0)].concat();
    let loads = [load(0, bytes.len() as u64)];
    Memory { bytes: &bytes[..], loads: &loads }.last_needed(0)
}

#[test]
fn a_chain_of_versions_is_followed_to_its_end_within_a_bound() {
    assert_eq!(last_needed(2, 9, 3), Some(9));
    assert_eq!(last_needed(2, 9, 1), Some(9), "the loader does not use the count either");
    assert_eq!(last_needed(MOST - 1, 9, 1), Some(9));
    assert_eq!(last_needed(MOST, 9, 1), None);
}
