//! Tests that kill a process at the steps of a single copy, on either side.

use crate::provider::{CMA, KNEM, SingleCopy, XPMEM, launch, open};
use tieline_processes::node::nothing_leaks;
use tieline_processes::{Node, Test, Verdict, named, sys};

pub(crate) const TESTS: &[Test] = named![
    kills_in_copies_by_knem_leave_survivors_and_nothing_pinned,
    kills_in_copies_by_xpmem_leave_survivors_and_nothing_attached,
    kills_at_every_step_of_copies_by_cma_leave_survivors_at_work,
];

fn kills_in_copies_by_knem_leave_survivors_and_nothing_pinned() -> Verdict {
    kills(&KNEM, ROUNDS)
}

fn kills_in_copies_by_xpmem_leave_survivors_and_nothing_attached() -> Verdict {
    kills(&XPMEM, ROUNDS)
}

fn kills_at_every_step_of_copies_by_cma_leave_survivors_at_work() -> Verdict {
    kills(&CMA, 3)
}

/// The number of rounds over the kernel modules, with 11 kills in each. `cargo xtask lab kills --repeat 5` makes 330 kills of each
/// kind.
const ROUNDS: usize = 6;

pub(crate) const LEN: usize = 64 << 10;

/// The step that both processes have reached when one of them is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The owner has registered its memory.
    Registered,
    /// The owner has made the key.
    Packed,
    /// The accessor has imported the key, and has copied nothing yet.
    Imported,
    /// The accessor has stopped in the middle of a copy.
    Copying,
    /// The accessor has stopped in the middle of a copy, and the owner got `Busy` when it tried to close its memory.
    Closing,
}

pub(crate) const STEPS: [Step; 5] =
    [Step::Registered, Step::Packed, Step::Imported, Step::Copying, Step::Closing];

/// The survivors: one process copies from and to memory of the other, and the two exchange messages.
pub(crate) struct Survivors<'a> {
    over: &'a SingleCopy,
    pub(crate) accessor: Node,
    pub(crate) owner: Node,
    /// The number of failures that were reported to the owner.
    told: usize,
}

impl<'a> Survivors<'a> {
    pub(crate) fn start(over: &'a SingleCopy) -> Survivors<'a> {
        let (mut accessor, mut owner) = (start(over, "accessor"), start(over, "owner"));
        accessor.connect(&mut owner);
        let _ = owner.must(&format!("register kept {LEN}"));
        let _ = accessor.must(&format!("register here {LEN}"));
        let _ = accessor.must(&format!("register back {LEN}"));
        assert_eq!(accessor.import(&mut owner, "kept"), over.path);
        let _ = accessor.must("chat owner");
        Survivors { over, accessor, owner, told: 0 }
    }

    pub(crate) fn end(self) {
        self.accessor.end();
        self.owner.end();
    }

    fn footprints(&mut self) -> Vec<(u64, u64)> {
        vec![self.accessor.footprint(), self.owner.footprint()]
    }

    pub(crate) fn go_on(&mut self, seed: usize) {
        let pongs = |node: &mut Node| node.must("pongs").parse::<u64>().expect("a number");
        let before = pongs(&mut self.accessor);
        let _ = self.accessor.must(&format!("fill here {seed}"));
        let _ = self.accessor.must(&format!("put owner.kept here 0 {LEN} 0"));
        assert_eq!(self.owner.must(&format!("check kept 0 {LEN} {seed} 0")), "same");
        let _ = self.accessor.must(&format!("get owner.kept back 0 {LEN} 0"));
        assert_eq!(self.accessor.must(&format!("check back 0 {LEN} {seed} 0")), "same");
        assert_eq!(self.accessor.must("path owner.kept"), self.over.path);
        while pongs(&mut self.accessor) <= before {}
        self.accessor.nothing_was_wrong();
        self.owner.nothing_was_wrong();
    }

    pub(crate) fn owner_is_killed(&mut self, mut victim: Node, step: Step, what: &str) {
        let name = victim.peer.name.clone();
        let _ = victim.must(&format!("register memory {LEN}"));
        self.accessor.connect(&mut victim);
        let _ = self.accessor.must(&format!("send {name} 1 0 8"));
        let mut key = None;
        match step {
            Step::Registered => {}
            Step::Packed => key = Some(victim.must("key memory")),
            Step::Imported | Step::Copying | Step::Closing => {
                assert_eq!(self.accessor.import(&mut victim, "memory"), self.over.path);
            }
        }
        if matches!(step, Step::Copying | Step::Closing) {
            let process = victim.peer.pid();
            held(&mut self.accessor, &format!("{what} {name}.memory {LEN} {process}"));
        }
        if step == Step::Closing {
            is_in_use(&mut victim, "memory");
        }
        let _ = victim.kill();
        if matches!(step, Step::Copying | Step::Closing) {
            // All bytes may have been copied before the memory was gone; the next operation then fails.
            if let Err(failed) = self.accessor.answer() {
                // An owner that has begun to close its memory has revoked the key. An accessor that checks the key before each part
                // gets that error.
                let revoked = step == Step::Closing && failed.status == "KeyRejected";
                if !revoked {
                    names_the_failure(&format!("{} {}", failed.status, failed.text));
                }
            }
        }
        if let Some(key) = key {
            // The key refers to memory that is gone, and so is the owner that could have reported this.
            if self.accessor.ask(&format!("import {name} memory {key}")).is_ok() {
                self.is_refused(&name);
            }
        }
        if step == Step::Imported {
            self.is_refused(&name);
        }
        names_the_failure(&self.accessor.must(&format!("await-error {name}")));
        let _ = self.accessor.must(&format!("disconnect {name}"));
    }

    fn busy_owner_is_killed(&mut self, mut victim: Node, turns: usize) {
        let name = victim.peer.name.clone();
        self.accessor.connect(&mut victim);
        let _ = self.accessor.must(&format!("send {name} 1 0 8"));
        victim.peer.tell(&format!("churn {LEN}"));
        (0..=turns).for_each(|_| victim.streams());
        let _ = victim.kill();
        names_the_failure(&self.accessor.must(&format!("await-error {name}")));
        let _ = self.accessor.must(&format!("disconnect {name}"));
    }

    fn is_refused(&mut self, name: &str) {
        let order = format!("put {name}.memory here 0 {LEN} 0");
        let failed = self.accessor.ask(&order).expect_err("its memory has gone");
        names_the_failure(&format!("{} {}", failed.status, failed.text));
    }

    pub(crate) fn accessor_is_killed(&mut self, mut victim: Node, step: Step, what: &str) {
        let owner = &mut self.owner;
        let _ = owner.must(&format!("register memory {LEN}"));
        victim.connect(owner);
        let _ = victim.must("ping owner");
        if step == Step::Packed {
            let _ = owner.must("key memory");
        }
        if matches!(step, Step::Imported | Step::Copying | Step::Closing) {
            assert_eq!(victim.import(owner, "memory"), self.over.path);
        }
        if matches!(step, Step::Copying | Step::Closing) {
            let process = owner.peer.pid();
            held(&mut victim, &format!("{what} owner.memory {LEN} {process}"));
        }
        if step == Step::Closing {
            is_in_use(owner, "memory");
        }
        let _ = victim.kill();
        self.told += 1;
        let told = owner.must(&format!("failures {}", self.told));
        assert!(told.ends_with("PeerFailed"), "{told}");
        let _ = owner.must("close memory");
    }
}

pub(crate) fn start(over: &SingleCopy, name: &str) -> Node {
    open(launch(name), &settings(over))
}

pub(crate) fn settings(over: &SingleCopy) -> String {
    format!("TIELINE_PROVIDERS=shm,{} {}", over.name, over.settings)
}

/// Starts a copy, and waits until the copy has reached the middle.
pub(crate) fn held(node: &mut Node, copy: &str) {
    node.peer.tell(&format!("held {copy}"));
    let _ = node.peer.expect("inside");
}

pub(crate) fn is_in_use(owner: &mut Node, region: &str) {
    let failed = owner.ask(&format!("close {region}")).expect_err("a peer is in it");
    assert_eq!(failed.status, "Busy");
    assert!(failed.text.contains("a peer is in the middle of a copy"), "{}", failed.text);
}

pub(crate) fn names_the_failure(said: &str) {
    assert!(said.starts_with("PeerFailed ") && said.contains("peer"), "{said}");
}

fn kills(over: &SingleCopy, rounds: usize) -> Verdict {
    if let Some(why) = over.is_missing() {
        return Verdict::Skipped(why);
    }
    let held_before = over.held();
    let mut survivors = Survivors::start(over);
    survivors.go_on(0);
    let held_by_survivors = over.held();
    let began = sys::now_ns();
    let (mut kills, mut early) = (0, Vec::new());
    for round in 0..rounds {
        let what = if round % 2 == 0 { "put" } else { "get" };
        // All processes of a round start at the same time.
        let names = (0..=2 * STEPS.len()).map(|n| format!("victim{round}-{n}"));
        let mut victims: Vec<Node> = names.map(|name| Node::bare(launch(&name))).collect();
        for victim in &mut victims {
            victim.peer.tell(&format!("open {}", settings(over)));
        }
        let mut victims = victims.into_iter();
        let mut next = || {
            let mut victim = victims.next().expect("one for each kill");
            let _ = victim.answer().expect("opening a context");
            victim
        };
        for step in STEPS {
            survivors.owner_is_killed(next(), step, what);
            survivors.accessor_is_killed(next(), step, what);
            kills += 2;
            assert_eq!(survivors.accessor.must("error owner"), "alive", "{step:?}");
        }
        survivors.busy_owner_is_killed(next(), round % 5);
        kills += 1;
        survivors.go_on(round + 1);
        over.holds_again(held_by_survivors, &format!("round {round}"));
        if round == 1 {
            early = survivors.footprints();
        }
    }
    let late = survivors.footprints();
    nothing_leaks(&early, &late);
    let seconds = tieline_processes::node::milliseconds_since(began) / 1e3;
    println!("    {kills} kills in {seconds:.1} s; descriptors and KiB {early:?}, then {late:?}");
    survivors.end();
    over.holds_again(held_before, "at the end");
    Verdict::Passed
}
