//! Direct access (loads and stores) over xpmem: tests of which processes die with their peer.

use crate::kills::{self, LEN, STEPS, Step, Survivors, held, is_in_use, names_the_failure};
use crate::provider::DIRECT;
use std::os::unix::process::ExitStatusExt;
use tieline_processes::{Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![only_process_in_mid_direct_access_dies_with_its_peer];

fn only_process_in_mid_direct_access_dies_with_its_peer() -> Verdict {
    if let Some(why) = DIRECT.is_missing() {
        return Verdict::Skipped(why);
    }
    let before = DIRECT.held();
    // A pair that communicates in all rounds, and is the peer of every killed process.
    let mut survivors = Survivors::start(&DIRECT);
    survivors.go_on(0);
    let by_survivors = DIRECT.held();
    for (turn, what) in (1..).zip(["put", "get"]) {
        for step in STEPS {
            let victim = |side: &str| start(&format!("{side}-{what}-{step:?}"));
            survivors.accessor_is_killed(victim("accessor"), step, what);
            match step {
                Step::Copying | Step::Closing => dies_with_its_owner(step, what),
                _ => survivors.owner_is_killed(victim("owner"), step, what),
            }
        }
        lives_on_without_its_owner(what);
        survivors.go_on(turn);
        DIRECT.holds_again(by_survivors, what);
    }
    dies_by_a_pointer_to_an_owner_that_is_gone();
    survivors.go_on(3);
    survivors.end();
    DIRECT.holds_again(before, "at the end");
    Verdict::Passed
}

fn start(name: &str) -> Node {
    kills::start(&DIRECT, name)
}

/// Starts an accessor that has attached all of its owner's memory, with all pages present.
fn attached() -> (Node, Node) {
    let (mut accessor, mut owner) = (start("user"), start("gone"));
    let _ = owner.must(&format!("register memory {LEN}"));
    let _ = accessor.must(&format!("register here {LEN}"));
    accessor.connect(&mut owner);
    let _ = accessor.must("ping gone");
    assert_eq!(accessor.import(&mut owner, "memory"), DIRECT.path);
    let _ = accessor.must(&format!("put gone.memory here 0 {LEN} 0"));
    (accessor, owner)
}

fn is_ended_by_sigbus(mut node: Node) {
    let ended = node.peer.ended();
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{} ended with {ended}", node.peer.name);
}

/// The bytes after the position at which the process stops are gone when it continues.
fn dies_with_its_owner(step: Step, what: &str) {
    let (mut accessor, mut owner) = attached();
    held(&mut accessor, &format!("{what} gone.memory {LEN} {}", owner.peer.pid()));
    if step == Step::Closing {
        is_in_use(&mut owner, "memory");
    }
    let _ = owner.kill();
    is_ended_by_sigbus(accessor);
}

/// A process without an access is notified of the death, and later accesses are refused.
fn lives_on_without_its_owner(what: &str) {
    let (mut accessor, mut owner) = attached();
    let _ = owner.kill();
    names_the_failure(&accessor.must("await-error gone"));
    let refused = accessor.ask(&format!("{what} gone.memory here 0 {LEN} 0"));
    let refused = refused.expect_err("its memory has gone");
    names_the_failure(&format!("{} {}", refused.status, refused.text));
    let _ = accessor.must("disconnect gone");
    accessor.end();
}

fn dies_by_a_pointer_to_an_owner_that_is_gone() {
    let (mut accessor, mut owner) = attached();
    let _ = accessor.must("point there gone.memory");
    let _ = accessor.must("store there 8 5");
    assert_eq!(owner.must("word memory 8"), "5");
    let _ = owner.kill();
    names_the_failure(&accessor.must("await-error gone"));
    assert_eq!(accessor.must("error gone").split(' ').next(), Some("PeerFailed"), "it lives");
    accessor.peer.tell("load there 8");
    is_ended_by_sigbus(accessor);
}
