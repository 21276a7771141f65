//! Tests of rendezvous messages (`Rendezvous`) between processes, of which one is killed.

use tieline_processes::{Launch, Node, Test, Verdict, named};
use tieline_testing::built;

pub(crate) const TESTS: &[Test] = named![
    long_messages_are_taken_refused_and_taken_back_between_processes,
    sender_of_long_message_survives_death_of_receiver_at_every_step,
    receiver_of_long_message_survives_death_of_sender_at_every_step,
];

/// A length that exceeds the message size of every lane, and suffices for a kill in the middle.
const LEN: usize = 64 << 20;

const SHM: &str = "TIELINE_PROVIDERS=shm,shm-cma";
const EMULATED: &str = "TIELINE_PROVIDERS=shm";
const TCP: &str = "TIELINE_PROVIDERS=tcp,tcp-connect";

/// Starts two connected processes over each of the transports.
pub(crate) fn pairs() -> impl Iterator<Item = (Node, Node)> {
    let folder = built::folder(&built::TCP);
    if let Err(reason) = &folder {
        println!("    skipped: over tcp: {reason}");
    }
    let over = if folder.is_ok() { &[SHM, EMULATED, TCP][..] } else { &[SHM, EMULATED] };
    over.iter().map(move |providers| {
        let node = |name: &str| {
            let mut launch = Launch::new(name, "node");
            if let Ok(folder) = &folder {
                launch = launch.env("TIELINE_PROVIDER_PATH", folder.display());
            }
            Node::open(launch, &[providers, "TIELINE_TCP_INTERFACES=127.0.0.0/8"])
        };
        let (mut survivor, mut victim) = (node("survivor"), node("victim"));
        survivor.connect(&mut victim);
        victim.connect(&mut survivor);
        (survivor, victim)
    })
}

fn goes_on(mut survivor: Node) {
    let address = survivor.must("address");
    let _ = survivor.must(&format!("connect itself {address}"));
    let _ = survivor.must("long itself 300000 5");
    assert_eq!(survivor.must("long-came"), "300000");
    assert_eq!(survivor.must("long-take"), "true");
    let _ = survivor.must("long-end");
    survivor.nothing_was_wrong();
    survivor.end();
}

fn long_messages_are_taken_refused_and_taken_back_between_processes() -> Verdict {
    for (mut a, mut b) in pairs() {
        for len in [300_000, LEN] {
            let _ = a.must(&format!("long victim {len} 3"));
            a.peer.tell("long-end");
            assert_eq!(b.must("long-came"), len.to_string());
            assert_eq!(b.must("long-take"), "true");
            let _ = a.answer().expect("it was taken");
        }
        let _ = a.must("long victim 300000 4");
        a.peer.tell("long-end");
        let _ = b.must("long-came");
        let _ = b.must("long-refuse");
        assert_eq!(a.answer().expect_err("it was refused").status, "Unsupported");
        let _ = a.must("long victim 300000 5");
        let _ = b.must("long-came");
        let _ = a.must("long-cancel");
        a.peer.tell("long-end");
        let _ = b.must("ping survivor");
        assert_eq!(a.answer().expect_err("it was taken back").status, "Canceled");
        assert_eq!(b.ask("long-take").expect_err("it is the sender's again").status, "Canceled");
        a.end();
        b.end();
    }
    Verdict::Passed
}

fn sender_of_long_message_survives_death_of_receiver_at_every_step() -> Verdict {
    for step in ["unseen", "announced", "taken in part", "refused"] {
        for (mut survivor, mut victim) in pairs() {
            if step == "unseen" {
                // The victim makes no progress after this order.
                let _ = victim.must("passive");
            }
            let _ = survivor.must(&format!("long victim {LEN} 3"));
            survivor.peer.tell("long-end");
            match step {
                "unseen" => {}
                "announced" => _ = victim.must("long-came"),
                "refused" => {
                    let _ = victim.must("long-came");
                    victim.peer.tell("long-refuse");
                }
                _ => {
                    let _ = victim.must("long-came");
                    victim.peer.tell("long-take aloud");
                    let _ = victim.peer.expect("streaming");
                }
            }
            let _ = victim.kill();
            match survivor.answer() {
                Err(failed) => {
                    let told = ["PeerFailed", "Unsupported"].contains(&failed.status.as_str());
                    assert!(told, "{step}: {failed:?}");
                }
                // The receive ended before the kill.
                Ok(_) => assert_eq!(step, "taken in part"),
            }
            goes_on(survivor);
        }
    }
    Verdict::Passed
}

fn receiver_of_long_message_survives_death_of_sender_at_every_step() -> Verdict {
    for step in ["announced", "taken in part"] {
        for (mut survivor, mut victim) in pairs() {
            let _ = victim.must(&format!("long survivor {LEN} 3"));
            victim.peer.tell("long-end");
            assert_eq!(survivor.must("long-came"), LEN.to_string());
            if step == "announced" {
                let _ = victim.kill();
                let failed = survivor.ask("long-take").expect_err("nobody has it any more");
                println!("    {step}: {}", failed.status);
            } else {
                survivor.peer.tell("long-take aloud");
                let _ = survivor.peer.expect("streaming");
                let _ = victim.kill();
                match survivor.answer() {
                    Err(failed) => println!("    {step}: {}", failed.status),
                    // The receive ended before the kill.
                    Ok(whole) => assert_eq!(whole.text, "true"),
                }
            }
            goes_on(survivor);
        }
    }
    Verdict::Passed
}
