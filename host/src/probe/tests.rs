//! Tests of the setting, of the repetition of disturbed trials, and of the text of a failed trial.

use super::*;

#[test]
fn the_setting_is_read_in_all_its_spellings() {
    for off in ["off", "OFF", "0", "no", "false", "False"] {
        assert_eq!(Mode::parse(Some(off)), Mode::Off, "{off}");
    }
    assert_eq!(Mode::parse(Some("NoCache")), Mode::NoCache);
    for on in [None, Some("on"), Some("1"), Some("")] {
        assert_eq!(Mode::parse(on), Mode::On, "{on:?}");
    }
}

#[test]
fn a_disturbed_trial_is_repeated_and_gives_up_after_a_bounded_number() {
    let nowhere = Path::new("/nowhere/libtieline_x.so");
    let trials = std::cell::Cell::new(0);
    let after = |disturbed: usize| {
        trials.set(0);
        undisturbed(nowhere, || {
            trials.set(trials.get() + 1);
            Ok(if trials.get() > disturbed { Trial::Ran } else { Trial::Disturbed })
        })
    };
    assert_eq!((after(3).ok(), trials.get()), (Some(Trial::Ran), 4));
    assert_eq!((after(usize::MAX).is_err(), trials.get()), (true, MOST_TRIALS));
}

#[test]
fn failed_trial_has_its_text() {
    let said = |trial| fault(Ok(trial)).map(|fault| fault.unwrap_or_else(|| "nothing".into()));
    let (loading, starting) =
        ("a child process that loaded it", "a child process that called its entry function");
    assert_eq!(said(Trial::Ran).as_deref(), Some("nothing"));
    let killed = format!("{loading} was killed by SIGSEGV (signal 11)");
    assert_eq!(said(Trial::Killed(Step::Loading, libc::SIGSEGV)), Some(killed));
    let late = format!("{starting} did not come back within 5 s and was killed");
    assert_eq!(said(Trial::TimedOut(Step::Starting)), Some(late));
    let exited = format!("{starting} exited with status 3");
    assert_eq!(said(Trial::Exited(Step::Starting, 3)), Some(exited));
    let vanished = format!("{loading} ended without an answer");
    assert_eq!(said(Trial::Vanished(Step::Loading)), Some(vanished));
    // A refusal of the loader has its own words and is not cached. Without a child nothing is known.
    let of_loader =
        |trial| refusal_of_loader(&Ok(trial)).map(|(phase, unfit)| (phase, unfit.found));
    for (trial, phase, found) in [
        (Trial::Refused("no file".into()), "dlopen", "no file"),
        (Trial::NoSymbol, "symbol", "no such symbol"),
        (
            Trial::ForeignSymbol,
            "symbol",
            "one that belongs to another object that the file depends on",
        ),
    ] {
        assert_eq!(said(trial.clone()), None);
        assert_eq!(of_loader(trial), Some((phase, found.to_owned())));
    }
    assert_eq!((said(Trial::Disturbed), of_loader(Trial::Disturbed)), (None, None));
    assert_eq!(of_loader(Trial::Ran), None);
    assert_eq!(fault(Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory))), None);

    let names = [
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGSYS, "SIGSYS"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    for (signal, name) in names {
        assert_eq!(signal_name(signal), format!("{name} (signal {signal})"));
    }
    assert_eq!(signal_name(libc::SIGHUP), "signal 1");
}

#[test]
fn a_refusal_says_whether_it_was_remembered() {
    let refused = |answer: &Answer, remembered| {
        let (phase, unfit) = told(answer, remembered).err()?;
        Some(format!("{phase}: {}; {}", unfit.expected, unfit.found))
    };
    let no = Answer { fault: Some("it was killed".into()), at: 7 };
    let expected = "probe: a file whose constructors, functions and finalizers run to their end; it was killed";
    assert_eq!(refused(&no, false).as_deref(), Some(expected));
    let remembered = format!("{expected} (remembered; TIELINE_PROBE=nocache tries again)");
    assert_eq!(refused(&no, true), Some(remembered));
    assert_eq!(refused(&Answer { fault: None, at: 7 }, true), None);
}
