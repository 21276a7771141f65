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
    let own = std::env::current_exe().and_then(File::open).expect("this program");
    let here = verdict as *const c_void;
    assert_eq!(file_at(here), as_mapped(&own));
    assert!(file_at(here).is_some());
    let other = File::open("/etc/passwd").expect("another file");
    assert_ne!(as_mapped(&other), file_at(here));
    let on_the_heap = Box::new(0u8);
    assert_eq!(file_at(std::ptr::from_ref(&*on_the_heap).cast()), None);
}
