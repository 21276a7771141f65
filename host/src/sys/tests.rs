//! Tests of trials of the C library, of the answers of the children, and of the names of mapped files.

use super::*;

/// The C library, which every process can load. Nothing in it is called.
fn trial(path: &CStr, symbol: &CStr) -> Trial {
    try_with(path, symbol, None, Duration::from_secs(60)).expect("a child")
}

#[test]
fn a_library_with_the_symbol_is_loaded() {
    assert_eq!(trial(c"libc.so.6", c"malloc"), Trial::Ran);
}

#[test]
fn a_library_without_the_symbol_is_told_from_one_that_cannot_be_loaded() {
    let none = trial(c"libc.so.6", c"tieline_provider_v1");
    assert_eq!(none, Trial::NoSymbol);
    let refused = trial(c"/nowhere/libtieline_x.so", c"x");
    let Trial::Refused(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains("/nowhere/libtieline_x.so"), "{why}");
}

#[test]
fn a_symbol_of_another_object_is_told_from_one_of_the_library() {
    // The mathematical library depends on the C library.
    let foreign = trial(c"libm.so.6", c"malloc");
    assert_eq!(foreign, Trial::ForeignSymbol);
}

/// In a child, the only load in progress is the one below.
#[test]
fn a_trial_during_a_load_of_its_process_uses_no_loader() {
    assert!(tieline_testing::holds_in_child(|| {
        let _load = crate::loads::begin();
        trial(c"libc.so.6", c"malloc") == Trial::Disturbed
    }));
}

#[test]
fn the_answer_the_status_and_the_lack_of_both_are_told_apart() {
    use Step::{Ending, Loading, Opening, Starting};
    for (answer, status, trial) in [
        (&b""[..], End::Killed(11), Trial::Killed(Loading, 11)),
        (b"L", End::Killed(11), Trial::Killed(Starting, 11)),
        (b"", End::Killed(9), Trial::Killed(Loading, 9)),
        (b"L", End::Killed(9), Trial::Killed(Starting, 9)),
        (b"", End::Exited(4), Trial::Exited(Loading, 4)),
        (b"", End::Exited(0), Trial::Exited(Loading, 0)),
        (b"L", End::Exited(0), Trial::Exited(Starting, 0)),
        (b"", End::Gone, Trial::Vanished(Loading)),
        (b"L", End::Gone, Trial::Vanished(Starting)),
        (b"LD", End::Killed(11), Trial::Killed(Opening, 11)),
        (b"LBs", End::Exited(0), Trial::Broke(Starting, Broke::Stack)),
        (b"LDBm", End::Gone, Trial::Broke(Opening, Broke::Memory)),
        (b"LDQBr", End::Exited(0), Trial::Broke(Ending, Broke::Registers)),
        (b"LDBx", End::Exited(0), Trial::Exited(Opening, 0)),
        (b"LDQR", End::Exited(0), Trial::Ran),
        (b"W", End::Exited(0), Trial::Disturbed),
        (b"LQ", End::Killed(11), Trial::Killed(Ending, 11)),
        (b"LQ", End::Exited(0), Trial::Exited(Ending, 0)),
        (b"LQR", End::Exited(0), Trial::Ran),
        (b"LQR", End::Gone, Trial::Ran),
        (b"LQR", End::Killed(6), Trial::Killed(Ending, 6)),
        (b"LD", End::TimedOut, Trial::TimedOut(Opening)),
        (b"LDQR", End::TimedOut, Trial::TimedOut(Ending)),
        (b"LR", End::Exited(0), Trial::Exited(Starting, 0)),
        (b"R", End::Exited(0), Trial::Exited(Loading, 0)),
    ] {
        assert_eq!(verdict(answer, status), trial, "{answer:?}");
    }
}

#[test]
fn a_mapping_names_its_file_as_a_descriptor_of_that_file_does() {
    let maps = Mappings::default();
    let compare = |file: &File, address| maps.compare(file, &file.metadata().unwrap(), address);
    let own = std::env::current_exe().and_then(File::open).expect("this program");
    let here = verdict as *const c_void;
    let (own_is, here_is) = compare(&own, here).expect("both files");
    assert_eq!(own_is, here_is);
    let other = File::open("/etc/passwd").expect("another file");
    let (other_is, here_is) = compare(&other, here).expect("both files");
    assert_ne!(other_is, here_is);
    // On some file systems stat has other numbers than the mappings. The file itself is mapped then.
    let by_others = maps.compare(&own, &other.metadata().unwrap(), here);
    assert_eq!(by_others, Some((own_is, here_is)));
    let on_the_heap = Box::new(0u8);
    assert_eq!(compare(&own, std::ptr::from_ref(&*on_the_heap).cast()), None);
    assert_eq!(compare(&File::open("/proc/self").unwrap(), here), None, "it has no pages");
}

#[test]
fn a_device_number_is_split_as_the_c_library_does_it() {
    for (major, minor) in [(0, 0), (8, 1), (0xfff, 0xff), (0x1234_5678, 0x9abc_def0), (u32::MAX, 7)]
    {
        assert_eq!(major_and_minor(libc::makedev(major, minor)), (major, minor));
    }
}

/// In a child, no other thread changes the mappings.
#[test]
fn query_of_the_kernel_and_its_text_name_the_same_files() {
    assert!(tieline_testing::holds_in_child(|| {
        let maps = File::open("/proc/self/maps").unwrap();
        let own = (verdict as *const c_void).addr();
        if let Err(error) = query(&maps, own) {
            println!("skipped: this kernel has no such query: {error}");
            return true;
        }
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
        let mut files = 0;
        for address in text.lines().filter_map(start).chain([own, 8, usize::MAX]) {
            let [by_text] = from_text(&maps, [address]).unwrap();
            assert_eq!(query(&maps, address).unwrap(), by_text, "{address:#x}");
            files += usize::from(by_text.is_some());
        }
        // Another file has no such query, so the text is read.
        assert!(query(&File::open("/proc/self/stat").unwrap(), own).is_err());
        files > 3
    }));
}

/// A source that returns a few bytes with each read.
struct Slowly<'a>(&'a [u8], usize);

impl io::Read for Slowly<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.1.min(out.len()).min(self.0.len());
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

#[test]
fn mappings_are_found_however_the_kernel_splits_them() {
    let path = "p".repeat(40_000);
    let text = format!(
        "1000-2000 r--p 00000000 fe:00 17   /a\n2000-3000 rw-p 00000000 00:00 0 \n3000-4000 r-xp 0 fe:01 18 /{path}\n\
         malformed\n-\n4000 r--p\n5000-6000 r--p 0 fe:01\n7000-8000 r--p 0 fe:02 19"
    );
    for len in [1, 7, 100, 4096, 100_000] {
        let mut wanted =
            [0x1000, 0x1fff, 0x2000, 0x3fff, 0x4000, 0x5000, 0x7000].map(|at| (at, None));
        find(Slowly(text.as_bytes(), len), &mut wanted).unwrap();
        let files = wanted.map(|(_, file)| file.map_or(String::new(), |file| file.to_string()));
        let name = |device| format!("device and inode {device}");
        let [a, b, c] = ["fe:00 17", "fe:01 18", "fe:02 19"].map(name);
        assert_eq!(files, [&a, &a, "", &b, "", "", &c], "{len}");
    }
    let mut first = [(0x1000, None)];
    let mut maps = Slowly(text.as_bytes(), 100);
    find(&mut maps, &mut first).unwrap();
    assert_eq!(
        maps.0.len(),
        text.len() - 100,
        "nothing is read behind the last one that is wanted"
    );
}
