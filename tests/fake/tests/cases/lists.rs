//! Tests of lists over lanes that take many descriptors with one call and complete them later.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline::{Close, Descriptor, Region, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps;

/// The length of each descriptor.
const LEN: usize = 16;
/// The number of descriptors that one call of the played provider takes.
const EACH: usize = 3;

fn stage() -> Stage {
    let memory = Lane::memory("rma").with(caps::RMA_LIST);
    Stage::new(vec![Lane::messages("am"), memory])
}

/// Makes `count` descriptors; the last one is the first one in the target.
fn list<'a>(local: &'a Region, key: &'a RemoteKey, count: usize) -> Vec<Descriptor<'a>> {
    let one = |n: usize| {
        let range = n * LEN..(n + 1) * LEN;
        Descriptor::new(local, range, key, ((count - 1 - n) * LEN) as u64)
    };
    (0..count).map(one).collect()
}

fn calls(stage: &Stage, slot: Slot) -> usize {
    stage.world.calls(slot).len()
}

cases! {
    fn list_is_one_call_and_one_completion_for_many_descriptors() {
        for prepared in [false, true] {
            let stage = stage();
            let bytes: Vec<u8> = (0..8 * LEN).map(|at| at as u8).collect();
            let (target, key) = stage.target(vec![0; 8 * LEN]);
            let (local, back) = (stage.local(bytes.clone()), stage.local(vec![0; 8 * LEN]));
            let before = stage.world.calls(Slot::Put).len();
            let put = match prepared {
                true => {
                    let ready = stage.ab.prepare_put_list(&list(&local, &key, 8)).unwrap();
                    let again = pending(stage.ab.post_list(&ready));
                    assert_eq!(stage.end_of(&again), Some(Ok(0)));
                    stage.ab.post_list(&ready)
                }
                false => stage.ab.put_list(&list(&local, &key, 8)),
            };
            let put = pending(put);
            assert_eq!(stage.a.pending(), 1 + 8_usize.div_ceil(EACH), "the list, and each call");
            assert_eq!(stage.end_of(&put), Some(Ok(0)));
            let posts = 1 + usize::from(prepared);
            assert_eq!(calls(&stage, Slot::Put) - before, posts * 8_usize.div_ceil(EACH));
            let mirrored: Vec<u8> = bytes.chunks(LEN).rev().flatten().copied().collect();
            assert_eq!(target.to_vec(0..8 * LEN).unwrap(), mirrored);
            assert_eq!(stage.ended(stage.ab.get_list(&list(&back, &key, 8))), Ok(0));
            assert_eq!(back.to_vec(0..8 * LEN).unwrap(), bytes);
            assert_eq!(calls(&stage, Slot::Get), 8_usize.div_ceil(EACH));
            stage.assert_no_faults();
        }
    }

    fn failed_descriptor_is_named_and_those_before_it_have_succeeded() {
        for (skip, first) in [(0, 0), (1, EACH), (2, 2 * EACH)] {
            let stage = stage();
            let (target, key) = stage.target(vec![0; 9 * LEN]);
            let local = stage.local(vec![7; 9 * LEN]);
            let fails = Rule::next(Slot::Put, Act::FailLater(Status::OutOfRange));
            stage.world.rule(Rule { skip, ..fails });
            let error = stage.ended(stage.ab.put_list(&list(&local, &key, 9))).unwrap_err();
            assert_eq!(error.status(), Status::OutOfRange);
            let index = error.index().expect("a descriptor failed");
            assert!((first..first + EACH).contains(&index), "{index} of the call from {first} on");
            for before in 0..index {
                let at = (8 - before) * LEN;
                assert_eq!(target.to_vec(at..at + LEN).unwrap(), [7; LEN], "{before}");
            }
            let failed = (8 - index) * LEN;
            assert_eq!(target.to_vec(failed..failed + LEN).unwrap(), [0; LEN]);
            stage.assert_no_faults();
        }
    }

    fn refused_call_queues_the_rest_one_by_one_in_order() {
        let stage = stage();
        let (target, key) = stage.target(vec![0; 8 * LEN]);
        let local = stage.local(vec![5; 8 * LEN]);
        let again = Rule { times: 4, ..Rule::next(Slot::Put, Act::Refuse(Status::Again)) };
        stage.world.rule(Rule { skip: 1, ..again });
        let put = pending(stage.ab.put_list(&list(&local, &key, 8)));
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        assert_eq!(target.to_vec(0..8 * LEN).unwrap(), [5; 8 * LEN]);
        stage.assert_no_faults();
    }

    fn list_holds_its_regions_until_it_has_ended() {
        let stage = stage();
        let (target, key) = stage.target(vec![0; 4 * LEN]);
        let (one, two) = (stage.local(vec![1; 4 * LEN]), stage.local(vec![2; 4 * LEN]));
        stage.world.hold(Slot::Put);
        let both = [list(&one, &key, 4), list(&two, &key, 4)].concat();
        let parts = [both[0], both[5], both[2]];
        let put = pending(stage.ab.put_list(&parts));
        let [one, two] = [one, two].map(|region| {
            let not = region.close().unwrap_err();
            assert_eq!(not.error.status(), Status::Busy);
            not.region
        });
        // A flush and a fence treat the list like single puts.
        stage.ab.fence().unwrap();
        let flush = pending(stage.ab.flush());
        stage.settle();
        assert_eq!((stage.a.test(&put), stage.a.test(&flush)), (None, None));
        stage.world.release_held();
        assert_eq!((stage.end_of(&flush), stage.a.test(&put)), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(target.to_vec(3 * LEN..4 * LEN).unwrap(), [1; LEN]);
        assert_eq!(target.to_vec(2 * LEN..3 * LEN).unwrap(), [2; LEN]);
        assert!(one.close().is_ok() && two.close().is_ok());
        stage.assert_no_faults();
    }

    fn failure_of_the_endpoint_ends_the_list_with_its_first_descriptor() {
        for closes in [false, true] {
            let stage = stage();
            let (_target, key) = stage.target(vec![0; 4 * LEN]);
            let local = stage.local(vec![1; 4 * LEN]);
            stage.world.hold(Slot::Put);
            let put = pending(stage.ab.put_list(&list(&local, &key, 3)));
            match closes {
                true => drop(stage.ab.close(Close::Cancel).unwrap()),
                false => {
                    let (from, to) = (stage.world.interface(1, "rma"), stage.world.interface(0, "rma"));
                    stage.world.break_endpoints(to, from, Status::PeerFailed, "it died");
                }
            }
            let error = stage.end_of(&put).unwrap().unwrap_err();
            assert_eq!(error.index(), Some(0));
            stage.world.release_held();
            stage.settle();
            stage.assert_no_faults();
        }
    }
}
