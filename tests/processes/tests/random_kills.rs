//! Processes are killed at random moments of a mixed workload.

use tieline_processes::node::{milliseconds, nothing_leaks};
use tieline_processes::random::spin;
use tieline_processes::{Launch, Node, Random, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    two_survivors_continue_after_two_hundred_random_kills,
    a_sender_killed_between_writing_and_publishing_a_slot_stalls_nobody,
];

const KILLS: usize = 200;

/// Makes a random operation of a survivor with a victim. Each operation ends quickly, or with the victim's death.
fn work(random: &mut Random, victim: &str) -> String {
    let large = 32 << 20;
    match random.below(7) {
        0 => format!("stream {victim} 1000000000 8"),
        1 => format!("stream {victim} 1000000000 3000"),
        2 => format!("repeat put {victim}.shared"),
        3 => format!("repeat put {victim}.plain"),
        4 => format!("repeat get {victim}.plain"),
        5 => format!("repeat atomic {victim}.shared"),
        _ => format!("put {victim}.plain here 0 {large} 0"),
    }
}

fn two_survivors_continue_after_two_hundred_random_kills() -> Verdict {
    let mut random = Random::for_this_run();
    let mut survivors = [Node::start("left"), Node::start("right")];
    let [left, right] = &mut survivors;
    left.connect(right);
    let _ = left.must("chat right");
    for node in &mut survivors {
        let _ = node.must(&format!("register here {}", 32 << 20));
    }
    let mut slowest: f64 = 0.0;
    let mut early = Vec::new();
    let mut pongs = 0;
    for round in 0..KILLS {
        let name = format!("victim{round}");
        let mut victim = Node::start(&name);
        let _ = victim.must("alloc shared 65536");
        let _ = victim.must(&format!("register plain {}", 32 << 20));
        let during_setup = random.below(5) == 0;
        let killed = if during_setup {
            // The victim is killed while the survivors connect.
            let address = victim.must("address");
            for node in &mut survivors {
                let _ = node.must(&format!("connect {name} {address}"));
                node.peer.tell(&format!("stream {name} 1000000000 8"));
            }
            spin(random.below(3_000));
            victim.kill()
        } else {
            for node in &mut survivors {
                node.connect(&mut victim);
                let _ = node.import(&mut victim, "shared");
                let _ = node.import(&mut victim, "plain");
                // An import may fall back to messages; the operations are the same.
                victim.connect(node);
            }
            for node in &mut survivors {
                node.peer.tell(&work(&mut random, &name));
            }
            match random.below(3) {
                0 => victim.peer.tell("stream left 1000000000 100"),
                1 => victim.peer.tell("passive"),
                _ => {}
            }
            spin(random.below(20_000));
            victim.kill()
        };
        for node in &mut survivors {
            let failed = match node.answer() {
                Err(failed) => failed,
                // A single put may have completed before the kill.
                Ok(_) => match node.try_ask(&format!("stream {name} 1000000000 8")) {
                    Err(failed) => failed,
                    Ok(done) => panic!("{}: {done:?}", node.peer.name),
                },
            };
            assert_eq!(failed.status, "PeerFailed", "round {round}: {failed:?}");
            slowest = slowest.max(milliseconds(killed, failed.at));
            let refused = node.ask(&format!("send {name} 1 0 8")).expect_err("it is gone");
            assert_eq!(refused.status, "PeerFailed", "round {round}: {refused:?}");
            let _ = node.must(&format!("disconnect {name}"));
            assert_eq!(node.must("wrong"), "");
            // At most the one request of the exchange that is in flight may be pending.
            assert!(node.must("pending").parse::<u64>().expect("a number") <= 1);
        }
        // The survivors' own traffic continued.
        let now = |survivors: &mut [Node; 2]| -> u64 {
            survivors[0].must("pongs").parse().expect("a number")
        };
        let before = pongs;
        while pongs <= before {
            pongs = now(&mut survivors);
        }
        if round == 40 {
            early = Node::footprints(&mut survivors);
        }
    }
    let late = Node::footprints(&mut survivors);
    println!("    slowest failure: {slowest:.1} ms after the kill (promised: 1000)");
    println!(
        "    descriptors and KiB of the survivors after 40 kills {early:?}, after 200 {late:?}"
    );
    assert!(slowest < tieline_processes::BOUND_MS);
    nothing_leaks(&early, &late);
    for node in survivors {
        node.end();
    }
    Verdict::Passed
}

fn a_sender_killed_between_writing_and_publishing_a_slot_stalls_nobody() -> Verdict {
    if !shm_has_the_hook() {
        return Verdict::Skipped("shm was built without the feature test-hooks".into());
    }
    // The victim is killed in the cold ring, during the switch to the fast box, and in the fast box, with small and large messages.
    for (at, len) in [(3, 8), (17, 8), (500, 8), (3, 3000), (500, 3000)] {
        let mut survivor = Node::start("survivor");
        let mut other = Node::start("other");
        other.connect(&mut survivor);
        let _ = other.must("chat survivor");
        let doomed = Launch::new("victim", "node").env("TIELINE_SHM_TEST_DIE_AT", at);
        let mut victim = Node::open(doomed, &[]);
        victim.connect(&mut survivor);
        survivor.peer.tell("failures 1");
        victim.peer.tell(&format!("stream survivor 1000000000 {len}"));
        let noticed = survivor.answer().expect("on_peer_failure is called");
        assert!(noticed.text.ends_with("PeerFailed"), "{}", noticed.text);
        survivor.nothing_was_wrong();
        let counted: u64 = survivor.must("counted").parse().expect("a number");
        assert!(counted < at, "{counted} messages came, and slot {at} was not published");
        let pongs = |node: &mut Node| node.must("pongs").parse::<u64>().expect("a number");
        let before = pongs(&mut other);
        while pongs(&mut other) < before + 100 {}
        other.nothing_was_wrong();
        other.end();
        survivor.end();
    }
    Verdict::Passed
}

/// Checks whether the test hook is built in: a process that should die at its third slot then does so.
fn shm_has_the_hook() -> bool {
    let mut survivor = Node::start("survivor");
    let doomed = Launch::new("trial", "node").env("TIELINE_SHM_TEST_DIE_AT", 3);
    let mut trial = Node::open(doomed, &[]);
    trial.connect(&mut survivor);
    trial.peer.tell("stream survivor 10 8");
    trial.peer.hear_or_end().is_none()
}
