//! Bounds on what waits.

use crate::cases;
use crate::stage::{Stage, posts_until_again};
use tieline::{Endpoint, Error, Outcome, Region, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

/// More than any bound of 16 KiB allows.
const MANY: usize = 4_000;

type Post = fn(&Endpoint, &Region, &RemoteKey) -> Result<Outcome, Error>;

const POSTS: [(&str, Slot, Post); 6] = [
    ("put", Slot::Put, |ab, local, key| ab.put(local, 0..8, key, 0)),
    ("put_bytes", Slot::Put, |ab, _, key| ab.put_bytes(&[1; 8], key, 0)),
    ("get", Slot::Get, |ab, local, key| ab.get(local, 0..8, key, 0)),
    ("atomic", Slot::Atomic, |ab, _, key| ab.fetch_add(key, 0, 1)),
    ("send", Slot::Short, |ab, _, _| ab.send(5, 0, b"12345678")),
    ("flush", Slot::Flush, |ab, _, _| ab.flush()),
];

/// Posted into `act` without end, each kind is `Again` at some time, and ends well when there is room.
fn again_at_the_bound(act: Act) {
    for (name, slot, post) in POSTS {
        if act == Act::Hold && slot == Slot::Short {
            continue;
        }
        let stage = Stage::with(vec![Lane::whole("all")], &[("TIELINE_QUEUE_BYTES", "16k")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        if slot == Slot::Flush {
            // Something to wait for.
            stage.world.hold(Slot::Put);
            drop(stage.ab.put(&local, 0..8, &key, 0).unwrap());
        }
        stage.world.rule(Rule::every(slot, act));
        let (taken, requests) = posts_until_again(MANY, || post(&stage.ab, &local, &key));
        assert!(taken.is_some(), "{MANY} times {name} and never Again ({act:?})");
        stage.world.forget_rules();
        stage.world.release_held();
        for request in &requests {
            let ended = stage.end_of(request).expect("an end when there is room");
            assert!(ended.is_ok(), "{name}: {ended:?}");
        }
        drop(requests);
        assert!(
            post(&stage.ab, &local, &key).is_ok(),
            "{name}: no room after everything has ended"
        );
        stage.assert_no_faults();
    }
}

cases! {
    fn what_waits_for_room_in_a_provider_is_bounded() {
        again_at_the_bound(Act::Refuse(Status::Again));
    }

    fn what_a_provider_has_is_bounded() {
        again_at_the_bound(Act::Hold);
    }

    fn questions_to_a_peer_that_does_not_answer_are_bounded() {
        let posts: [(&str, Post); 5] = [
            ("put_bytes", |ab, _, key| ab.put_bytes(&[1; 8], key, 0)),
            ("put", |ab, local, key| ab.put(local, 0..8, key, 0)),
            ("get", |ab, local, key| ab.get(local, 0..8, key, 0)),
            ("atomic", |ab, _, key| ab.fetch_add(key, 0, 1)),
            ("flush_messages", |ab, _, _| ab.flush_messages()),
        ];
        for (name, post) in posts {
            let stage = Stage::with(vec![Lane::messages("am")], &[("TIELINE_QUEUE_BYTES", "16k")]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            let (taken, requests) = posts_until_again(MANY, || post(&stage.ab, &local, &key));
            assert!(taken.is_some(), "{MANY} times {name} and never Again");
            for request in &requests {
                let ended = stage.end_of(request).expect("an end when the peer answers");
                assert!(ended.is_ok(), "{name}: {ended:?}");
            }
        }
    }
}
