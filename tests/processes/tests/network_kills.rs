//! Processes are killed at random moments while they connect and communicate over the network.

use tieline_processes::hosts::NETWORK;
use tieline_processes::interpreter::MIXED_REGION;
use tieline_processes::node::{milliseconds, nothing_leaks};
use tieline_processes::random::spin;
use tieline_processes::{Hosts, Node, Random, Test, Verdict, named, or_skip};

pub(crate) const TESTS: &[Test] =
    named![a_hundred_random_kills_on_another_host_leave_two_survivors_at_work];

const KILLS: usize = 100;

fn a_hundred_random_kills_on_another_host_leave_two_survivors_at_work() -> Verdict {
    let hosts = or_skip!(Hosts::many(3));
    let mut random = Random::for_this_run();
    let mut survivors = [hosts[0].node("left", &[NETWORK]), hosts[1].node("right", &[NETWORK])];
    let [left, right] = &mut survivors;
    left.connect(right);
    let _ = left.must("chat right");
    for node in &mut survivors {
        let _ = node.must(&format!("register here {MIXED_REGION}"));
    }
    let (mut slowest, mut pongs, mut early): (f64, u64, Vec<(u64, u64)>) = (0.0, 0, Vec::new());
    for round in 0..KILLS {
        let name = format!("victim{round}");
        let mut victim = hosts[2].node(&name, &[NETWORK]);
        let during_setup = random.below(2) == 0;
        if during_setup {
            let address = victim.must("address");
            for node in &mut survivors {
                let _ = node.must(&format!("connect {name} {address}"));
                let left = node.must("address");
                // Half of the connections cross.
                if random.below(2) == 0 {
                    let _ = victim.must(&format!("connect {} {left}", node.peer.name));
                    victim.peer.tell(&format!("exact {} 1 8", node.peer.name));
                }
            }
            for node in &mut survivors {
                node.peer.tell(&format!("exact {name} 1000000000 8"));
            }
            spin(random.below(8_000));
        } else {
            for node in &mut survivors {
                let own = node.peer.name.clone();
                let _ = victim.must(&format!("register {own} {MIXED_REGION}"));
                node.connect(&mut victim);
                let _ = node.import(&mut victim, &own);
                victim.connect(node);
            }
            for node in &mut survivors {
                let order = match random.below(4) {
                    0 => format!("exact {name} 1000000000 8"),
                    1 => format!("exact {name} 1000000000 30000"),
                    _ => format!("mixed {name} {} 1000000000", node.peer.name),
                };
                node.peer.tell(&order);
            }
            match random.below(3) {
                0 => victim.peer.tell("exact left 1000000000 100"),
                1 => victim.peer.tell("passive"),
                _ => {}
            }
            spin(random.below(20_000));
        }
        let killed = victim.kill();
        for node in &mut survivors {
            let failed = node.answer().expect_err("the victim was killed");
            assert_eq!(failed.status, "PeerFailed", "round {round}: {failed:?}");
            slowest = slowest.max(milliseconds(killed, failed.at));
            let refused = node.ask(&format!("send {name} 1 0 8")).expect_err("it is gone");
            assert_eq!(refused.status, "PeerFailed", "round {round}: {refused:?}");
            let _ = node.must(&format!("disconnect {name}"));
            node.nothing_was_wrong();
        }
        // The survivors' own traffic continued.
        let before = pongs;
        while pongs <= before {
            pongs = survivors[0].must("pongs").parse().expect("a number");
        }
        if round == 20 {
            early = Node::footprints(&mut survivors);
        }
    }
    let late = Node::footprints(&mut survivors);
    println!("    slowest failure: {slowest:.1} ms after the kill");
    println!("    descriptors and KiB after 20 kills {early:?}, after {KILLS} {late:?}");
    assert!(slowest < tieline_processes::BOUND_MS);
    nothing_leaks(&early, &late);
    for node in survivors {
        node.end();
    }
    Verdict::Passed
}
