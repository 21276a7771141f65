//! Tests of files that are refused before their code runs.

mod common;

use common::{assert_refused, assert_the_rest_works, is_found, open, open_with, refusal, verdicts};
use std::fs;
use tieline::Context;
use tieline::explain::Verdict;
use tieline_bad_providers::Directory;

#[test]
fn a_truncated_file_is_refused_before_dlopen() {
    let directory = Directory::new();
    let whole = fs::read(directory.compile("good", &[])).unwrap();
    let all = whole.len();
    let cuts = [40, 64, 600, all / 4, all / 2, all * 9 / 10, all - 1];
    for (n, cut) in cuts.into_iter().enumerate() {
        let _ = directory.write(&format!("cut{n}"), &whole[..cut]);
    }
    let context = open(&[&directory]);
    for n in 0..cuts.len() {
        assert_refused(&context, &format!("cut{n}"), "elf", "", "a truncated file of");
    }
    assert!(is_found(&context, "good"));
}

#[test]
fn damaged_file_is_refused_unless_left_out_and_the_next_of_its_name_used() {
    let (first, second) = (Directory::new(), Directory::new());
    let mut damaged = fs::read(second.compile("good", &[])).unwrap();
    // The first section after the empty one claims more bytes than the file has.
    let sections = u64::from_ne_bytes(damaged[40..48].try_into().unwrap()) as usize;
    damaged[sections + 64 + 32..sections + 64 + 40].fill(0x7f);
    let _ = first.write("good", &damaged);
    match verdicts(&open(&[&first, &second]), "good").as_slice() {
        [Verdict::Refused { phase, found, .. }, Verdict::Found { .. }, ..] => {
            assert!(phase == "elf" && found.starts_with("a truncated file of"), "{phase} {found}");
        }
        other => panic!("{other:?}"),
    }
    let left_out = open_with(&[&first], &[("TIELINE_PROVIDERS", "^good")]);
    let verdicts = verdicts(&left_out, "good");
    assert!(matches!(verdicts[..], [Verdict::Filtered { .. }]), "{verdicts:?}");
}

#[test]
fn file_that_leads_the_loader_astray_is_refused_before_dlopen() {
    const RELRO: u64 = 0x6474_e552;
    const VERSIONS: u64 = 0x6fff_ffff;
    let directory = Directory::new();
    let whole = fs::read(directory.compile("good", &[])).unwrap();
    let number = |at: usize, len: usize| {
        whole[at..at + len].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)) as usize
    };
    // The headers of segments are 56 bytes long, those of sections 64.
    let mut segments = (0..number(56, 2)).map(|n| number(32, 8) + n * 56);
    let mut sections = (0..number(60, 2)).map(|n| number(40, 8) + n * 64);
    if cfg!(target_endian = "big") {
        return println!("skipped: the numbers of the file are little-endian");
    }
    let Some(relro) = segments.find(|at| number(*at, 4) as u64 == RELRO) else {
        return println!("skipped: nothing becomes read-only in files of this compiler");
    };
    let mut moved = whole.clone();
    moved[relro + 18] ^= 0x10;
    let _ = directory.write("moved", &moved);
    let Some(versions) = sections.find(|at| number(*at + 4, 4) as u64 == VERSIONS) else {
        return println!("skipped: symbols have no versions in files of this compiler");
    };
    let mut odd = whole.clone();
    odd[number(versions + 24, 8) + 3] ^= 0x20;
    let _ = directory.write("odd", &odd);
    let context = open(&[&directory]);
    let expected = "becomes read-only within a loadable segment";
    assert_refused(&context, "moved", "elf", expected, "outside of all of them");
    assert_refused(
        &context,
        "odd",
        "elf",
        "symbols of versions that the file declares",
        "symbol 1",
    );
    assert!(is_found(&context, "good"));
}

#[test]
fn an_empty_file_and_a_text_file_are_refused() {
    let directory = Directory::new();
    let _ = directory.write("empty", b"");
    let _ = directory.write("text", b"#!/bin/sh\necho this is no provider\n");
    let context = open(&[&directory]);
    assert_refused(&context, "empty", "elf", "an ELF shared object", "0 bytes");
    assert_refused(&context, "text", "elf", "an ELF shared object", "no ELF header");
}

#[test]
fn a_file_for_another_machine_is_refused() {
    let directory = Directory::new();
    let mut file = fs::read(directory.compile("good", &[])).unwrap();
    let other: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    file[18..20].copy_from_slice(&other.to_ne_bytes());
    let _ = directory.write("foreign", &file);
    assert_refused(&open(&[&directory]), "foreign", "elf", "a file for ", "a file for ");
}

#[test]
fn a_file_without_a_note_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("nameless", &["NO_NOTE"]);
    assert_refused(&open(&[&directory]), "nameless", "note", "a note of owner `tieline`", "none");
}

#[test]
fn a_note_of_another_major_is_refused_with_both_numbers() {
    let directory = Directory::new();
    let _ = directory.compile("major", &["MAJOR=2"]);
    assert_refused(&open(&[&directory]), "major", "abi", "provider ABI 1.x", "provider ABI 2.1");
}

#[test]
fn a_provider_that_needs_a_newer_core_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("newer", &["LEAST_CORE_MINOR=9"]);
    assert_refused(&open(&[&directory]), "newer", "abi", "a core of provider ABI 1.", "needs 1.9");
}

/// The file ends every process that loads it.
#[test]
fn file_without_its_device_is_loaded_only_if_a_setting_names_it() {
    let directory = Directory::new();
    let reason = r#"REASON="there is no device""#;
    let crash = "CONSTRUCTOR=raise(SIGSEGV)";
    let _ = directory.compile("absent", &[r#"NEEDS="/nowhere/at/all:/nowhere""#, reason, crash]);
    let _ = directory.compile("present", &[r#"NEEDS="/nowhere/at/all:/dev/null""#, reason]);
    let context = open(&[&directory]);
    match verdicts(&context, "absent").as_slice() {
        [Verdict::NotUsed { because }] => {
            assert!(because.starts_with("there is no device; version 1.0.0, /"), "{because}");
        }
        other => panic!("{other:?}"),
    }
    assert!(is_found(&context, "present"));
    assert_the_rest_works(&context);
    for setting in [("TIELINE_PROVIDERS", "absent,shm"), ("TIELINE_ABSENT_LEVEL", "3")] {
        let named = open_with(&[&directory], &[setting]);
        assert_refused(&named, "absent", "probe", "run to their end", "was killed by SIGSEGV");
    }
    let path = directory.path().display().to_string();
    let all =
        Context::builder().set("TIELINE_PROVIDER_PATH", &path).set("TIELINE_PROBE", "nocache");
    let all = all.load_all_providers(true).open().expect("a context");
    assert_refused(&all, "absent", "probe", "run to their end", "was killed by SIGSEGV");
}

#[test]
fn note_with_relative_path_or_without_a_reason_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("relative", &[r#"NEEDS="dev/null""#, r#"REASON="none""#]);
    let _ = directory.compile("silent", &[r#"NEEDS="/dev/null""#]);
    let context = open(&[&directory]);
    assert_refused(&context, "relative", "note", "absolute paths of at most", "`dev/null`");
    assert_refused(&context, "silent", "note", "a reason of 1 to 191 bytes", "``");
}

#[test]
fn a_note_with_another_name_than_the_files_is_refused() {
    let directory = Directory::new();
    let made = directory.compile("good", &[]);
    fs::rename(made, directory.file("renamed")).unwrap();
    assert_refused(&open(&[&directory]), "renamed", "note", "`renamed`", "`good` in the note");
}

#[test]
fn a_provider_with_the_name_of_the_applications_datagrams_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("oob", &[]);
    assert_refused(&open(&[&directory]), "oob", "note", "no module of the core", "`oob`");
}

#[test]
fn a_name_that_is_longer_than_a_note_has_room_for_is_refused() {
    let directory = Directory::new();
    let mut file = fs::read(directory.compile("good", &[])).unwrap();
    let owner = file.windows(8).position(|bytes| bytes == b"tieline\0").expect("a note");
    let (desc, name) = (owner + 8, "n".repeat(32));
    file[desc + 12..desc + 44].copy_from_slice(name.as_bytes());
    let _ = directory.write(&name, &file);
    assert_refused(&open(&[&directory]), &name, "note", "of at most 31 bytes", "`nnnnnnnn");
}

#[test]
fn a_note_that_ends_early_is_refused() {
    let directory = Directory::new();
    let mut file = fs::read(directory.compile("good", &[])).unwrap();
    let owner = file.windows(8).position(|bytes| bytes == b"tieline\0").expect("a note");
    file[owner + 8..owner + 10].copy_from_slice(&44u16.to_ne_bytes());
    let _ = directory.write("good", &file);
    let found = "one that says 44 in a note of 332 bytes";
    assert_refused(&open(&[&directory]), "good", "note", "a record of 76 bytes or more", found);
}

#[test]
fn a_version_that_is_none_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("version", &["VERSION=\"newest\""]);
    assert_refused(&open(&[&directory]), "version", "note", "a version such as", "`newest`");
}

#[test]
fn a_note_whose_segment_was_lost_is_found_by_its_sections_name() {
    let directory = Directory::new();
    let mut file = fs::read(directory.compile("good", &[])).unwrap();
    let at = |file: &[u8], at: usize| u16::from_ne_bytes([file[at], file[at + 1]]) as usize;
    let (first, count) = (usize::from(file[32]), at(&file, 56));
    for n in 0..count {
        let header = first + n * 56;
        if file[header..header + 4] == 4u32.to_ne_bytes() {
            file[header..header + 4].copy_from_slice(&0u32.to_ne_bytes()); // PT_NOTE -> PT_NULL
        }
    }
    let _ = directory.write("good", &file);
    assert!(is_found(&open(&[&directory]), "good"));
}

#[test]
fn a_file_that_everybody_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let file = directory.compile("open", &[]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_refused(
        &open(&[&directory]),
        "open",
        "permissions",
        "not world-writable",
        "world-writable",
    );
}

#[test]
fn a_directory_with_a_providers_name_is_refused() {
    let directory = Directory::new();
    fs::create_dir(directory.file("folder")).unwrap();
    assert_refused(&open(&[&directory]), "folder", "permissions", "a regular file", "");
}

#[test]
fn every_refusal_names_the_file() {
    let directory = Directory::new();
    let file = directory.write("text", b"text");
    let found = refusal(&open(&[&directory]), "text").2;
    assert!(found.contains(&file.display().to_string()), "{found}");
}
