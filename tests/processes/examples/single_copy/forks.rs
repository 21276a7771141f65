//! A fork of either side: its attachments, registrations and imports still belong to the parent and are valid; the child cannot use
//! them.

use crate::kills::settings;
use crate::provider::{CMA, DIRECT, KNEM, SingleCopy, XPMEM, launch, open};
use tieline_processes::{Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    a_fork_on_either_side_of_xpmem_leaves_the_parents_at_work,
    a_fork_on_either_side_of_direct_access_leaves_the_parents_at_work,
    a_fork_on_either_side_of_cma_and_knem_leaves_the_parents_at_work,
];

fn a_fork_on_either_side_of_xpmem_leaves_the_parents_at_work() -> Verdict {
    forks(&XPMEM)
}

fn a_fork_on_either_side_of_direct_access_leaves_the_parents_at_work() -> Verdict {
    forks(&DIRECT)
}

fn a_fork_on_either_side_of_cma_and_knem_leaves_the_parents_at_work() -> Verdict {
    match forks(&CMA) {
        Verdict::Passed => forks(&KNEM),
        skipped @ Verdict::Skipped(_) => skipped,
    }
}

const LEN: usize = 100_000;

struct Pair {
    a: Node,
    b: Node,
}

impl Pair {
    /// Makes puts and gets in both directions, and checks that each transfers the present bytes of the owner.
    fn goes_on(&mut self, seed: usize) {
        let Pair { a, b } = self;
        for turned in [false, true] {
            let (one, other) = if turned { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
            let name = other.peer.name.clone();
            let _ = one.must(&format!("fill here {seed}"));
            let _ = one.must(&format!("put {name}.memory here 0 {LEN} 0"));
            assert_eq!(other.must(&format!("check memory 0 {LEN} {seed} 0")), "same");
            // The owner writes to its own pages after a fork.
            let _ = other.must(&format!("fill memory {}", seed + 1));
            let _ = one.must(&format!("get {name}.memory here 0 {LEN} 0"));
            assert_eq!(one.must(&format!("check here 0 {LEN} {} 0", seed + 1)), "same");
            assert_eq!(one.must(&format!("error {name}")), "alive");
        }
    }
}

fn forks(over: &SingleCopy) -> Verdict {
    if let Some(why) = over.is_missing() {
        return Verdict::Skipped(why);
    }
    let before = over.held();
    let start = |name: &str| open(launch(name), &settings(over));
    let (mut a, mut b) = (start("a"), start("b"));
    for node in [&mut a, &mut b] {
        let _ = (
            node.must(&format!("register memory {LEN}")),
            node.must(&format!("register here {LEN}")),
        );
    }
    a.connect(&mut b);
    b.connect(&mut a);
    let paths = [a.import(&mut b, "memory"), b.import(&mut a, "memory")];
    assert_eq!(paths, [over.path; 2]);
    let mut pair = Pair { a, b };
    pair.goes_on(1);
    let held = over.held();
    for (turn, forks_b) in (1..).zip([false, true]) {
        let seed = 10 * turn;
        pair.goes_on(seed);
        let forker = |pair: &mut Pair, order: &str| {
            let node = if forks_b { &mut pair.b } else { &mut pair.a };
            node.must(order)
        };
        // The child keeps the bytes of the moment of the fork, regardless of later writes by the parent.
        let _ = forker(&mut pair, &format!("fork-aside memory {}", seed + 1));
        pair.goes_on(seed + 2);
        assert_eq!(over.held(), held, "the child has nothing of it, and took nothing away");
        assert_eq!(forker(&mut pair, "fork-joined"), "Some(0)", "the child's bytes are its own");
        pair.goes_on(seed + 4);
        // The child makes every call with the objects it inherited, and drops all of them.
        let (node, other) = match forks_b {
            true => (&mut pair.b, "a"),
            false => (&mut pair.a, "b"),
        };
        node.peer.tell(&format!("fork {other} {other}.memory here"));
        let statuses = node.peer.expect("forked");
        for posted in statuses.split(',').filter(|posted| !posted.starts_with("progress")) {
            assert!(posted.ends_with("=Invalid"), "{statuses}");
        }
        assert_eq!(node.answer().expect("the child ends").text, "Some(0)");
        pair.goes_on(seed + 6);
        // The child opens the device itself.
        let order = format!("fork-anew {} {}", over.path, settings(over));
        assert_eq!(forker(&mut pair, order.trim_end()), "Some(0)");
        pair.goes_on(seed + 8);
        over.holds_again(held, "after the children");
    }
    let Pair { mut a, mut b } = pair;
    for node in [&mut a, &mut b] {
        node.nothing_was_wrong();
    }
    a.end();
    b.end();
    over.holds_again(before, "at the end");
    Verdict::Passed
}
