//! Tests of acknowledged messages and of notifications with bytes between processes, of which one is killed.

use crate::long_messages::pairs;
use tieline_processes::interpreter::{hex, unhex};
use tieline_processes::{Node, Test, Verdict, forge, named};

pub(crate) const TESTS: &[Test] = named![
    sender_survives_death_of_receiver_with_open_delivery_and_notification,
    receiver_survives_death_of_sender_whose_acknowledgement_it_keeps,
    peer_of_messages_1_3_refuses_new_calls_and_errors_name_both_versions,
];

/// The length of a rendezvous message, which a notification follows.
const LEN: usize = 300_000;

fn goes_on(mut survivor: Node) {
    let address = survivor.must("address");
    let _ = survivor.must(&format!("connect itself {address}"));
    let _ = survivor.must("ask-delivery itself return");
    let _ = survivor.must("delivery-end");
    let before = survivor.must("notices");
    let _ = survivor.must("notify itself 9");
    let _ = survivor.must("notify-end");
    let _ = survivor.must("ping itself");
    assert_eq!((&*before, &*survivor.must("notices")), ("", "9"));
    survivor.nothing_was_wrong();
    survivor.end();
}

fn sender_survives_death_of_receiver_with_open_delivery_and_notification() -> Verdict {
    for step in ["unseen", "acknowledgement kept"] {
        for (mut survivor, mut victim) in pairs() {
            if step == "unseen" {
                // The victim makes no progress after this order.
                let _ = victim.must("passive");
            }
            let _ = survivor.must("ask-delivery victim keep");
            let _ = survivor.must(&format!("long victim {LEN} 3"));
            let _ = survivor.must("notify-behind-long victim 4");
            if step != "unseen" {
                let _ = victim.must("acknowledgement");
                let _ = victim.must("long-came");
                assert_eq!(victim.must("notices"), "", "the message was not received");
            }
            let _ = victim.kill();
            for order in ["delivery-end", "notify-end", "long-end"] {
                let failed = survivor.ask(order).expect_err("the receiver is dead");
                assert_eq!(failed.status, "PeerFailed", "{step}, {order}: {failed:?}");
            }
            goes_on(survivor);
        }
    }
    Verdict::Passed
}

fn receiver_survives_death_of_sender_whose_acknowledgement_it_keeps() -> Verdict {
    for learns_first in [false, true] {
        for (mut survivor, mut victim) in pairs() {
            let _ = victim.must("ask-delivery survivor keep");
            let _ = survivor.must("acknowledgement");
            let _ = victim.kill();
            if learns_first {
                // The survivor posts to the dead process until it learns of the death.
                let failed = survivor.ask("ping victim").expect_err("the sender is dead");
                assert_eq!(failed.status, "PeerFailed", "{failed:?}");
            }
            let _ = survivor.must("acknowledge");
            goes_on(survivor);
        }
    }
    Verdict::Passed
}

fn peer_of_messages_1_3_refuses_new_calls_and_errors_name_both_versions() -> Verdict {
    for (mut new, mut old) in pairs() {
        let address = unhex(&old.must("address"));
        let early = forge::with(&address, forge::MESSAGES + 1, 3);
        let _ = new.must(&format!("connect early {}", hex(&early)));
        for error in new.must("new-calls early").split('|') {
            assert!(error.starts_with("Unsupported"), "{error}");
            assert!(error.contains("1.3") && error.contains("1.4"), "{error}");
        }
        let _ = new.must("notify early 5");
        let _ = new.must("notify-end");
        let _ = new.must("ping early");
        assert_eq!(old.must("notices"), "5");
        // The same process as a peer of this version.
        assert!(new.must("new-calls victim").starts_with("accepted|accepted|accepted"));
        new.end();
        old.end();
    }
    Verdict::Passed
}
