//! Tests of processes of other users, and of forged addresses.

use tieline_processes::interpreter::{hex, unhex};
use tieline_processes::{Launch, Node, Test, Verdict, forge, named, sys};

pub(crate) const TESTS: &[Test] = named![
    a_process_of_another_user_cannot_attach,
    an_address_with_a_forged_secret_is_refused,
    no_forged_address_disturbs_its_victim,
];

const NOBODY: u32 = 65534;
/// A setting that selects the providers under test; over the network, any process with the address may connect.
const LOCAL: &str = "TIELINE_PROVIDERS=shm,shm-cma";

fn victim_and_friend() -> (Node, Node) {
    let (mut victim, mut friend) = (Node::with("victim", &[LOCAL]), Node::with("friend", &[LOCAL]));
    friend.connect(&mut victim);
    let _ = friend.must("chat victim");
    (victim, friend)
}

fn undisturbed(victim: &mut Node, friend: &mut Node) {
    let pongs = |node: &mut Node| node.must("pongs").parse::<u64>().expect("a number");
    let before = pongs(friend);
    while pongs(friend) < before + 100 {}
    friend.nothing_was_wrong();
    victim.nothing_was_wrong();
}

fn a_process_of_another_user_cannot_attach() -> Verdict {
    if !sys::is_root() {
        return Verdict::Skipped("becoming another user needs root".into());
    }
    let (mut victim, mut friend) = victim_and_friend();
    let mut stranger = Node::bare(Launch::new("stranger", "node"));
    assert_eq!(stranger.must(&format!("become {NOBODY}")), "true");
    let _ = stranger.must(&format!("open {LOCAL}"));
    // The stranger cannot even enter the directory of the victim's socket.
    let address = victim.must("address");
    let refused = stranger.ask(&format!("connect victim {address}")).expect_err("not let in");
    println!("    the stranger is told: {}", refused.text);
    assert!(refused.text.contains("another user"), "{}", refused.text);

    // The victim does not connect to the stranger, even if it gets the stranger's address: root can enter any directory.
    victim.connect(&mut stranger);
    let why = match victim.ask("send stranger 1 0 8") {
        Err(failed) => format!("{} {}", failed.status, failed.text),
        Ok(_) => victim.must("await-error stranger"),
    };
    println!("    the victim is told: {why}");
    assert!(why.contains("user"), "{why}");
    assert_eq!(victim.must("counted"), "0");
    assert_eq!(stranger.must("counted"), "0");
    undisturbed(&mut victim, &mut friend);
    stranger.end();
    victim.end();
    friend.end();
    Verdict::Passed
}

fn an_address_with_a_forged_secret_is_refused() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut forger = Node::with("forger", &[LOCAL]);
    let address = unhex(&victim.must("address"));
    for at in forge::secret(&address) {
        let forged = hex(&forge::flipped(&address, at, 1));
        let _ = forger.must(&format!("connect victim {forged}"));
        let why = match forger.ask("send victim 1 0 8") {
            Err(failed) => failed.text,
            Ok(_) => forger.must("await-error victim"),
        };
        assert!(why.contains("forged"), "byte {at}: {why}");
        let _ = forger.must("disconnect victim");
    }
    assert_eq!(victim.must("counted"), "0");
    // The true address still works.
    forger.connect(&mut victim);
    let _ = forger.must("send victim 1 0 8");
    let _ = forger.must("ping victim");
    assert_eq!(victim.must("counted"), "1");
    undisturbed(&mut victim, &mut friend);
    forger.end();
    victim.end();
    friend.end();
    Verdict::Passed
}

fn no_forged_address_disturbs_its_victim() -> Verdict {
    let (mut victim, mut friend) = victim_and_friend();
    let mut forger = Node::with("forger", &[LOCAL]);
    let address = unhex(&victim.must("address"));
    let (mut refused, mut came) = (0, 0);
    for at in forge::places(&address) {
        let forged = hex(&forge::flipped(&address, at, 0x10));
        let outcome = match forger.ask(&format!("connect victim {forged}")) {
            Ok(_) => forger.ask("send victim 1 0 8"),
            refused => refused,
        };
        match outcome {
            Ok(_) => came += 1,
            Err(failed) => {
                assert_ne!(failed.status, "Again", "byte {at}: {failed:?}");
                assert!(!failed.text.is_empty());
                refused += 1;
            }
        }
        let _ = forger.ask("disconnect victim");
    }
    println!(
        "    {refused} of {} addresses were refused at once, {came} later or not",
        refused + came
    );
    undisturbed(&mut victim, &mut friend);
    forger.end();
    victim.end();
    friend.end();
    Verdict::Passed
}
