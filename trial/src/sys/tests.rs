//! Tests of children that answer, crash, hang and exit, and of the descriptors that they have.

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the attempt in both kinds of children, with a pidfd and as on a kernel that has none.
fn outcomes(attempt: impl Fn(Say)) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for share in [Share::Nothing, Share::Descriptors] {
        for open in [pidfd_open, |_| None] {
            outcomes.push(run(share, PATIENCE, &attempt, open).expect("a child"));
        }
    }
    outcomes
}

#[track_caller]
fn expect(outcomes: &[Outcome], said: &[u8], end: End) {
    for outcome in outcomes {
        assert_eq!(outcome, &Outcome { said: said.to_vec(), end });
    }
}

#[test]
fn child_says_bytes_and_its_end_is_known() {
    expect(&outcomes(|say| say.say(b"yes")), b"yes", End::Exited(0));
    expect(&outcomes(|say| say.end(b"done")), b"done", End::Exited(0));
    expect(&outcomes(|_| panic!("in the child")), b"", End::Exited(101));
    // SAFETY: the child ends, as the test wants it.
    expect(&outcomes(|_| unsafe { libc::_exit(3) }), b"", End::Exited(3));
}

#[test]
fn signal_that_ends_a_child_is_named_behind_its_answer() {
    let raise = |signal| {
        move |say: Say| {
            say.say(b"L");
            // SAFETY: the signal ends the child at most.
            let _ = unsafe { libc::raise(signal) };
        }
    };
    for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGKILL, libc::SIGTERM] {
        expect(&outcomes(raise(signal)), b"L", End::Killed(signal));
    }
    // Rust programs ignore SIGPIPE.
    expect(&outcomes(raise(libc::SIGPIPE)), b"L", End::Exited(0));
}

#[test]
fn signal_handlers_answer_stands_if_status_was_collected_elsewhere() {
    let named = outcome(b"L\0\x0b".to_vec(), End::Gone);
    assert_eq!(named, Outcome { said: b"L".to_vec(), end: End::Killed(11) });
    let none = outcome(b"L".to_vec(), End::Gone);
    assert_eq!(none, Outcome { said: b"L".to_vec(), end: End::Gone });
}

#[test]
fn child_that_hangs_is_killed_at_the_limit() {
    for open in [pidfd_open, |_| None] {
        let hang = |say: Say| {
            say.say(b"L");
            loop {
                std::thread::park();
            }
        };
        let ended = run(Share::Nothing, Duration::from_millis(200), hang, open).expect("a child");
        assert_eq!(ended.end, End::TimedOut);
    }
}

#[test]
fn only_a_child_that_shares_descriptors_has_those_of_this_process() {
    let file = std::fs::File::open("/dev/null").expect("a file");
    // The number is above those that a child itself opens.
    // SAFETY: the call makes a new descriptor of an open one.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 300) };
    // SAFETY: the descriptor is new and has no other owner.
    let _owned = unsafe { OwnedFd::from_raw_fd(high) };
    for (share, has) in [(Share::Nothing, b"n"), (Share::Descriptors, b"y")] {
        let outcome = in_child(share, PATIENCE, |say| {
            // SAFETY: the call takes only numbers.
            let open = unsafe { libc::fcntl(high, libc::F_GETFD) } >= 0;
            say.say(if open { b"y" } else { b"n" });
        });
        assert_eq!(outcome.expect("a child").said, has, "{share:?}");
    }
}
