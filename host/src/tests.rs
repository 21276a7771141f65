//! Tests of the steps before any code of a file runs: the ELF reader under fuzzing, the note, the search. Tests that need whole
//! provider files are in `tests/bad-providers`, through the public interface.

use super::elf::{self, Bytes};
use super::*;
use proptest::prelude::*;
use std::sync::Mutex;
use tieline_plugin_api::abi::{ABI_MAJOR, ABI_MINOR, Declared, NoteDesc, Set};
use tieline_plugin_api::note_flags;

/// Returns a real shared object of this machine: the smallest one that this process has loaded.
fn real_file() -> &'static [u8] {
    static FILE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    FILE.get_or_init(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
        let objects = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let objects = objects.filter(|path| path.contains(".so"));
        let smallest =
            objects.min_by_key(|path| std::fs::metadata(path).map_or(u64::MAX, |m| m.len()));
        std::fs::read(smallest.expect("a shared object")).expect("its file")
    })
}

/// Checks a note that lies in the file of this name.
fn check_named(desc: Option<&[u8]>, in_file: &str) -> Result<Identity, Refusal> {
    check_note(desc, Some(in_file))
}

/// A slice that records the length of the reader's largest single read.
struct Watched<'a> {
    bytes: &'a [u8],
    most: Mutex<usize>,
}

impl Bytes for Watched<'_> {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let mut most = self.most.lock().unwrap();
        *most = (*most).max(out.len());
        Bytes::read(self.bytes, offset, out)
    }
}

/// Reads the file and checks that the reader's single allocations are bounded for any contents.
fn read_within_bounds(bytes: &[u8]) -> Result<elf::Image, Unfit> {
    let watched = Watched { bytes, most: Mutex::new(0) };
    let image = elf::read(&watched);
    assert!(*watched.most.lock().unwrap() <= 64 * 1024);
    image
}

#[test]
fn a_whole_file_is_read() {
    assert!(read_within_bounds(real_file()).is_ok());
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let file = real_file();
    let all = file.len();
    for end in
        [0, 1, 4, 16, 63, 64, 100, 500, 4096, all / 10, all / 2, all * 9 / 10, all - 4096, all - 1]
    {
        let unfit = read_within_bounds(&file[..end]).err().expect("a refusal");
        assert!(!unfit.found.is_empty() && !unfit.expected.is_empty(), "cut at {end}");
    }
}

#[test]
fn a_file_for_another_machine_is_refused_by_the_machines_names() {
    let mut file = real_file()[..].to_vec();
    let other: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    file[18..20].copy_from_slice(&other.to_ne_bytes());
    let unfit = read_within_bounds(&file).err().expect("a refusal");
    assert!(unfit.expected.starts_with("a file for ") && unfit.found.starts_with("a file for "));
}

/// Returns the offset of the section headers.
fn section_headers(file: &[u8]) -> usize {
    u64::from_ne_bytes(file[40..48].try_into().unwrap()) as usize
}

/// Numbers that are too large for the header are in the first section header.
#[test]
fn extended_numbers_of_sections_are_read_where_they_stand() {
    let mut file = real_file().to_vec();
    let first = section_headers(&file);
    let number = |at: usize, file: &[u8]| u16::from_ne_bytes([file[at], file[at + 1]]);
    let (sections, names) = (number(60, &file), number(62, &file));
    assert!(sections > 1 && names > 0, "it has sections");
    file[60..62].copy_from_slice(&[0, 0]);
    let set = |file: &mut Vec<u8>, count: u64| {
        file[first + 32..first + 40].copy_from_slice(&count.to_ne_bytes());
    };
    set(&mut file, u64::from(sections));
    assert!(read_within_bounds(&file).is_ok());
    // This is the largest number of headers that fits into the file.
    let room = (file.len() - first) / 64;
    set(&mut file, room as u64 + 1);
    let unfit = read_within_bounds(&file).err().expect("they do not end in the file");
    assert!(unfit.expected.contains("section headers"), "{}", unfit.expected);
    set(&mut file, 1 << 40);
    let unfit = read_within_bounds(&file).err().expect("there are too many");
    assert!(unfit.expected.starts_with("at most ") && unfit.found.ends_with(" sections"));
    set(&mut file, u64::from(sections));
    file[62..64].copy_from_slice(&[0xff, 0xff]);
    file[first + 40..first + 44].copy_from_slice(&u32::from(names).to_ne_bytes());
    assert!(read_within_bounds(&file).is_ok());
    let cut_off = file.len() as u64 - 63;
    file[40..48].copy_from_slice(&cut_off.to_ne_bytes());
    let unfit = read_within_bounds(&file).err().expect("the first one is cut off");
    assert!(unfit.expected.contains("section headers"), "{}", unfit.expected);
}

#[test]
fn section_count_is_ignored_without_section_headers() {
    let mut file = real_file().to_vec();
    file[40..48].copy_from_slice(&[0; 8]);
    for sections in [0u16, 40, 0xffff] {
        file[60..62].copy_from_slice(&sections.to_ne_bytes());
        assert!(read_within_bounds(&file).is_ok(), "{sections}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn random_bytes_never_hurt_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = read_within_bounds(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_good_header_never_hurt_the_reader(
        bytes in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let mut file = real_file()[..64].to_vec();
        file.extend(bytes);
        let _ = read_within_bounds(&file);
    }

    #[test]
    fn random_descriptors_never_hurt_the_identity_check(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        prop_assert!(check_named(Some(&bytes), "any").is_err());
    }

    #[test]
    fn a_spoilt_descriptor_is_a_refusal_or_a_sound_identity(
        at in 0..size_of::<NoteDesc>(), value in any::<u8>(),
    ) {
        let mut bytes = note_needing(b"/dev/none:/sys/none", b"there is none").to_vec();
        bytes[at] = value;
        if let Ok(identity) = check_named(Some(&bytes), "shm_cma") {
            prop_assert_eq!(&identity.name, "shm-cma");
            assert_sound(&identity);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn random_paths_and_reasons_are_a_refusal_or_sound(
        len in 70..400_u16,
        tail in proptest::collection::vec(prop_oneof![Just(0_u8), Just(b'/'), Just(b':'), any::<u8>()], 0..320),
    ) {
        let mut bytes = good_note().to_vec();
        bytes.extend(tail);
        bytes[..2].copy_from_slice(&len.to_ne_bytes());
        if let Ok(identity) = check_named(Some(&bytes), "shm_cma") {
            assert_sound(&identity);
        }
    }

    #[test]
    fn a_spoilt_real_file_never_hurts_the_reader(
        changes in proptest::collection::vec((0usize..2000, any::<u8>()), 1..20),
        // The section headers lie at the end of the file.
        late_changes in proptest::collection::vec((0usize..4000, any::<u8>()), 0..20),
    ) {
        let mut file = real_file().to_vec();
        for (at, value) in changes {
            file[at] = value;
        }
        let all = file.len();
        for (at, value) in late_changes {
            file[all - 1 - at] = value;
        }
        let _ = read_within_bounds(&file);
    }
}

/// Checks the parts of an identity that reports show, or that lead to a look-up in the file system.
fn assert_sound(identity: &Identity) {
    assert!(identity.needs.iter().all(|path| path.is_absolute()), "{identity:?}");
    assert!(identity.reason.chars().all(tieline_explain::is_plain), "{identity:?}");
    assert_eq!(identity.needs.is_empty(), identity.reason.is_empty(), "{identity:?}");
}

/// A note of ABI 1.0, without paths.
fn good_note() -> [u8; 76] {
    let mut bytes = [0; 76];
    for (at, value) in [(0, 76), (2, 1), (4, 1)] {
        bytes[at..at + 2].copy_from_slice(&u16::to_ne_bytes(value));
    }
    bytes[12..19].copy_from_slice(b"shm-cma");
    bytes[44..49].copy_from_slice(b"1.2.3");
    bytes
}

fn note_with(at: usize, value: u16) -> [u8; 76] {
    let mut bytes = good_note();
    bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// A note that requires one of these paths.
fn note_needing(paths: &[u8], reason: &[u8]) -> [u8; size_of::<NoteDesc>()] {
    let mut bytes = [0; size_of::<NoteDesc>()];
    bytes[..76].copy_from_slice(&good_note());
    bytes[..2].copy_from_slice(&(size_of::<NoteDesc>() as u16).to_ne_bytes());
    bytes[76..76 + paths.len()].copy_from_slice(paths);
    bytes[140..140 + reason.len()].copy_from_slice(reason);
    bytes
}

#[test]
fn a_good_note_gives_name_and_version() {
    let identity = check_named(Some(&good_note()), "shm_cma").expect("an identity");
    assert_eq!(
        (identity.name.as_str(), identity.version.to_string().as_str()),
        ("shm-cma", "1.2.3")
    );
}

#[test]
fn a_file_without_a_note_is_refused() {
    assert_eq!(check_named(None, "x").unwrap_err().0, "note");
}

#[test]
fn another_major_is_refused_with_both_numbers() {
    let (phase, unfit) = check_named(Some(&note_with(4, 2)), "shm_cma").unwrap_err();
    assert_eq!((phase, unfit.found.as_str()), ("abi", "provider ABI 2.0"));
    assert!(unfit.expected.contains("1.x"));
}

#[test]
fn a_newer_minor_is_accepted_unless_it_needs_a_newer_core() {
    assert_eq!(check_named(Some(&note_with(6, 99)), "shm_cma").unwrap().abi_minor, 99);
    assert_eq!(check_named(Some(&note_with(8, 99)), "shm_cma").unwrap_err().0, "abi");
}

#[test]
fn a_rust_provider_that_aborts_on_panic_is_known_by_its_flags() {
    let aborts = |flags| check_named(Some(&note_with(10, flags)), "shm_cma").unwrap().aborts;
    assert!(aborts(note_flags::RUST));
    assert!(!aborts(note_flags::RUST | note_flags::UNWIND));
    assert!(!aborts(0), "a provider in C does not panic");
}

#[test]
fn the_name_in_the_note_is_the_one_in_the_files_name() {
    let (phase, unfit) = check_named(Some(&good_note()), "verbs").unwrap_err();
    assert_eq!((phase, unfit.found.as_str()), ("note", "`shm-cma` in the note"));
    assert!(check_named(Some(&good_note()), "shm-cma").is_ok());
}

#[test]
fn a_name_or_version_that_fills_its_place_was_too_long_for_it() {
    let mut long = good_note();
    long[12..44].copy_from_slice(&[b'n'; 32]);
    let (phase, unfit) = check_named(Some(&long), &"n".repeat(32)).unwrap_err();
    assert_eq!(phase, "note");
    assert!(unfit.expected.ends_with("of at most 31 bytes"), "{}", unfit.expected);
    long[43] = 0;
    assert!(check_named(Some(&long), &"n".repeat(31)).is_ok());
    let mut long = good_note();
    long[44..76].copy_from_slice(b"1.2.3-0123456789.0123456789.0123");
    assert_eq!(check_named(Some(&long), "shm_cma").unwrap_err().0, "note");
}

#[test]
fn a_longer_note_of_a_later_minor_is_read_as_far_as_it_is_known() {
    let mut longer = [0xff; 100];
    longer[..76].copy_from_slice(&good_note());
    longer[..2].copy_from_slice(&100u16.to_ne_bytes());
    assert_eq!(check_named(Some(&longer), "shm_cma").unwrap().name, "shm-cma");
    longer[..2].copy_from_slice(&75u16.to_ne_bytes());
    let (phase, unfit) = check_named(Some(&longer), "shm_cma").unwrap_err();
    assert_eq!((phase, &unfit.found[..]), ("note", "one that says 75 in a note of 100 bytes"));
}

#[test]
fn provider_lacks_its_device_if_none_of_its_paths_exists() {
    let missing = |paths: &str| {
        let identity = check_named(Some(&note_needing(paths.as_bytes(), b"no device")), "shm_cma");
        identity.expect("an identity").missing().map(str::to_owned)
    };
    let why = Some("no device".to_owned());
    assert_eq!(missing(""), None, "nothing is required");
    assert_eq!(missing("/dev/null"), None);
    assert_eq!(missing("/nowhere/at/all"), why);
    assert_eq!(missing("/dev/null/below-a-device"), why, "no directory leads there");
    assert_eq!(missing("/nowhere:/nowhere/else"), why);
    assert_eq!(missing("/nowhere:/dev/null"), None, "one of them is enough");
    let link = std::env::temp_dir().join(format!("tieline-needs-{}", std::process::id()));
    std::os::unix::fs::symlink("/nowhere", &link).unwrap();
    let of_link = missing(link.to_str().unwrap());
    std::fs::remove_file(&link).unwrap();
    assert_eq!(of_link, why, "a link to nothing leads to no device");
    // The loop of links is an error other than absence, so the file decides.
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let of_loop = missing(link.to_str().unwrap());
    std::fs::remove_file(&link).unwrap();
    assert_eq!(of_loop, None);
}

#[test]
fn note_without_the_whole_part_for_paths_requires_nothing() {
    let whole = note_needing(b"/nowhere", b"no device");
    let identity = check_named(Some(&good_note()), "shm_cma").unwrap();
    assert_eq!((identity.needs.len(), identity.missing()), (0, None));
    for len in [76, 77, 140, size_of::<NoteDesc>() - 1] {
        // Both a note that ends early and a record that states an earlier end.
        let mut stated = whole;
        stated[..2].copy_from_slice(&(len as u16).to_ne_bytes());
        for bytes in [&stated[..len], &stated[..]] {
            let identity = check_named(Some(bytes), "shm_cma").unwrap();
            assert_eq!(identity.missing(), None, "{len}");
        }
    }
    // A later minor's record is longer.
    let mut longer = whole.to_vec();
    longer.extend([0xff; 40]);
    let len = longer.len() as u16;
    longer[..2].copy_from_slice(&len.to_ne_bytes());
    assert_eq!(check_named(Some(&longer), "shm_cma").unwrap().missing(), Some("no device"));
}

/// Tests every refusal of paths and of a reason, word for word.
#[test]
fn refusal_of_paths_names_expected_and_found() {
    let said = |paths: &[u8], reason: &[u8]| match check_named(
        Some(&note_needing(paths, reason)),
        "shm_cma",
    ) {
        Ok(identity) => format!("{:?} {}", identity.needs, identity.reason),
        Err((phase, Unfit { expected, found })) => format!("{phase}: {expected}; {found}"),
    };
    assert_eq!(said(b"/a:/b", b"no a"), r#"["/a", "/b"] no a"#);
    assert_eq!(said(b"", b"no a"), "[] ", "a reason without paths has no effect");
    let absolute = |found: &str| {
        format!("note: absolute paths of at most 63 bytes, with `:` between; `{found}`")
    };
    for (odd, found) in [
        (&b"dev/knem"[..], "dev/knem"),
        (b"../dev/knem", "../dev/knem"),
        (b"/a:b", "/a:b"),
        (b":/a", ":/a"),
        (b"/a:", "/a:"),
        (b"/a\0/b", "/a\\x00/b"),
        (b"/a\n", "/a\\n"),
        (b"/\xff", "/\\xff"),
        (b"/\xe2\x80\xae", "/\\xe2\\x80\\xae"),
    ] {
        assert_eq!(said(odd, b"none"), absolute(found));
    }
    assert!(said(&[b'/'; 63], b"none").starts_with(r#"["///"#));
    assert_eq!(said(&[b'/'; 64], b"none"), absolute(&"/".repeat(64)));
    let reason =
        |found: &str| format!("note: a reason of 1 to 191 bytes beside the paths; `{found}`");
    for (odd, found) in [
        (&b""[..], ""),
        (b"  ", "  "),
        (b"a\x1b[2J", "a\\x1b[2J"),
        (b"a\0b", "a\\x00b"),
        (b"\xff", "\\xff"),
    ] {
        assert_eq!(said(b"/a", odd), reason(found));
    }
    assert!(said(b"/a", &[b'x'; 191]).ends_with("xx"));
    assert_eq!(said(b"/a", &[b'x'; 192]), reason(&"x".repeat(192)));
}

/// Tests every refusal of a note, word for word.
#[test]
fn refusal_of_note_names_expected_and_found() {
    let said = |note: &[u8], in_file: &str| match check_named(Some(note), in_file) {
        Ok(identity) => format!("{} {}", identity.name, identity.version),
        Err((phase, Unfit { expected, found })) => format!("{phase}: {expected}; {found}"),
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut note = good_note();
        note[at..at + bytes.len()].copy_from_slice(bytes);
        said(&note, "shm_cma")
    };
    let number = |at: usize, value: u16| with(at, &value.to_ne_bytes());
    assert_eq!(said(&good_note(), "shm_cma"), "shm-cma 1.2.3");
    assert_eq!(said(&[0; 11], "x"), "note: a record of 76 bytes; 11 bytes");
    let length = "note: a record of 76 bytes or more; one that says";
    assert_eq!(said(&[0; 12], "x"), format!("{length} 0 in a note of 12 bytes"));
    assert_eq!(number(0, 77), format!("{length} 77 in a note of 76 bytes"));
    assert_eq!(number(0, 75), format!("{length} 75 in a note of 76 bytes"));
    assert_eq!(number(2, 2), "note: note revision 1; revision 2");
    let core = format!("{ABI_MAJOR}.{ABI_MINOR}");
    let major = format!("abi: provider ABI 1.x (the core speaks {core}); provider ABI 0.0");
    assert_eq!(number(4, 0), major);
    assert_eq!(number(8, ABI_MINOR), "shm-cma 1.2.3");
    let newer = format!(
        "abi: a provider that works with a core of provider ABI {core}; one that needs 1.{} or newer",
        ABI_MINOR + 1
    );
    assert_eq!(number(8, ABI_MINOR + 1), newer);
    let name = |name: &[u8]| {
        format!("note: a name of a-z, 0-9 and `-`, of at most 31 bytes; `{}`", name.escape_ascii())
    };
    for odd in
        [&b"Shm-cma"[..], b"-hm-cma", b"0hm-cma", b"shm_cma", b"shm-cmA", b"shm cma", b"\xffhm-cma"]
    {
        assert_eq!(with(12, odd), name(odd));
    }
    assert_eq!(with(12, &[0; 7]), name(b""));
    assert_eq!(
        with(43, b"x").split(';').next(),
        Some(&name(b"")[..name(b"").len() - 4]),
        "not padded"
    );
    let mut oob = good_note();
    oob[12..19].copy_from_slice(b"oob\0\0\0\0");
    assert_eq!(
        said(&oob, "oob"),
        "note: a name that no module of the core has; `oob`, which is the application's own datagrams"
    );
    assert_eq!(
        with(12, b"s2m-0-a"),
        "note: the name in the file's name, `shm_cma`; `s2m-0-a` in the note"
    );
    assert_eq!(with(44, b"1.2-3"), "note: a version such as 1.2.0; `1.2-3`");
    assert_eq!(with(75, b"x"), "note: a version such as 1.2.0; `(not text)`");
}

#[test]
fn only_provider_files_are_looked_at() {
    assert_eq!(identity::name_in_file("libtieline_shm_cma.so"), Some("shm_cma"));
    for other in
        ["libtieline.so", "libtieline_.so", "libtieline_shm.so.1", "tieline_shm.so", "a.so"]
    {
        assert_eq!(identity::name_in_file(other), None);
    }
}

#[test]
fn a_directory_that_is_not_there_is_recorded_and_the_search_goes_on() {
    let (_, records) = SearchPath::named(Some("/nowhere/at/all:/nowhere/else"))
        .candidates(&Trust::current_process());
    assert_eq!(records.len(), 2);
}

/// The check of all settings, which follows the search, refuses such a value.
#[test]
fn a_relative_directory_is_not_searched() {
    assert_eq!(SearchPath::named(Some("here:/a:./b::../c:/d")).looked(), "/a:/d");
}

struct Unset;
impl Settings for Unset {
    fn get(&self, _: &str) -> Option<Set> {
        None
    }
    fn all(&self) -> Vec<(String, Set)> {
        Vec::new()
    }
    fn declared(&self, _: &str, _: &Declared) {}
}

#[test]
fn built_in_provider_without_device_repeats_no_record_of_its_file() {
    let wanted = |_: &str, _: &semver::Version| Ok(());
    let mut search = Search {
        providers: Vec::new(),
        records: Vec::new(),
        settings: Arc::new(Unset),
        log: Arc::default(),
        wanted: &wanted,
    };
    let mut consider = |version: &str, origin: Origin, found: &str| {
        let version = semver::Version::parse(version).unwrap();
        let (expected, found) = ("its device".to_string(), found.to_string());
        search.consider("shm-cma", &version, origin, || {
            Err((load::NO_DEVICE, Unfit { expected, found }))
        });
        search.records.len()
    };
    assert_eq!(consider("0.2.0", Origin::File("/a.so".into()), "no call"), 1);
    assert_eq!(consider("0.2.0", Origin::BuiltIn, "no call"), 1);
    // Another version may have another reason, and a second file shows where it lies.
    assert_eq!(consider("0.3.0", Origin::BuiltIn, "no call"), 2);
    assert_eq!(consider("0.2.0", Origin::BuiltIn, "another reason"), 3);
    assert_eq!(consider("0.2.0", Origin::File("/b.so".into()), "no call"), 4);
}
