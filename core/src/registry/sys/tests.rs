//! Children that load the C library, and the words of their answers.

use super::*;

/// The C library, which every process can load. Nothing in it is called.
fn trial(path: &CStr, symbol: &CStr) -> [Trial; 2] {
    let limit = Duration::from_secs(60);
    // With a pidfd, and as on a kernel that has none.
    [pidfd_open, |_| None].map(|open| try_with(path, symbol, None, limit, open).expect("a child"))
}

#[test]
fn a_library_with_the_symbol_is_loaded() {
    assert_eq!(trial(c"libc.so.6", c"malloc"), [Trial::Ran, Trial::Ran]);
}

#[test]
fn a_library_without_the_symbol_is_told_from_one_that_cannot_be_loaded() {
    let none = trial(c"libc.so.6", c"tieline_provider_v1");
    assert_eq!(none, [Trial::NoSymbol, Trial::NoSymbol]);
    for refused in trial(c"/nowhere/libtieline_x.so", c"x") {
        let Trial::Refused(why) = refused else { panic!("{refused:?}") };
        assert!(why.contains("/nowhere/libtieline_x.so"), "{why}");
    }
}

#[test]
fn a_symbol_of_another_object_is_told_from_one_of_the_library() {
    // The mathematical library depends on the C library.
    let foreign = trial(c"libm.so.6", c"malloc");
    assert_eq!(foreign, [Trial::ForeignSymbol, Trial::ForeignSymbol]);
}

/// In a child, the only load in progress is the one below.
#[test]
fn a_trial_during_a_load_of_its_process_uses_no_loader() {
    assert!(tieline_testing::holds_in_child(|| {
        let _load = super::super::load::begin();
        trial(c"libc.so.6", c"malloc") == [Trial::Disturbed, Trial::Disturbed]
    }));
}

#[test]
fn the_answer_the_status_and_the_lack_of_both_are_told_apart() {
    use Step::{Ending, Loading, Opening, Starting};
    for (answer, status, trial) in [
        (&b"S\x0b"[..], Collected::Gone, Trial::Killed(Loading, 11)),
        (b"LS\x0b", Collected::Gone, Trial::Killed(Starting, 11)),
        (b"", Collected::Killed(9), Trial::Killed(Loading, 9)),
        (b"L", Collected::Killed(9), Trial::Killed(Starting, 9)),
        (b"", Collected::Exited(4), Trial::Exited(Loading, 4)),
        (b"", Collected::Exited(0), Trial::Exited(Loading, 0)),
        (b"L", Collected::Exited(0), Trial::Exited(Starting, 0)),
        (b"", Collected::Gone, Trial::Vanished(Loading)),
        (b"L", Collected::Gone, Trial::Vanished(Starting)),
        (b"LDS\x0b", Collected::Gone, Trial::Killed(Opening, 11)),
        (b"LBs", Collected::Exited(0), Trial::Broke(Starting, Broke::Stack)),
        (b"LDBm", Collected::Gone, Trial::Broke(Opening, Broke::Memory)),
        (b"LDQBr", Collected::Exited(0), Trial::Broke(Ending, Broke::Registers)),
        (b"LDBx", Collected::Exited(0), Trial::Exited(Opening, 0)),
        (b"LDQR", Collected::Exited(0), Trial::Ran),
        (b"W", Collected::Exited(0), Trial::Disturbed),
        (b"LQS\x0b", Collected::Gone, Trial::Killed(Ending, 11)),
        (b"LQ", Collected::Exited(0), Trial::Exited(Ending, 0)),
        (b"LQR", Collected::Exited(0), Trial::Ran),
        (b"LQR", Collected::Gone, Trial::Ran),
        (b"LQR", Collected::Killed(6), Trial::Killed(Ending, 6)),
        (b"LR", Collected::Exited(0), Trial::Exited(Starting, 0)),
        (b"R", Collected::Exited(0), Trial::Exited(Loading, 0)),
    ] {
        assert_eq!(verdict(answer, &status), trial, "{answer:?}");
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
