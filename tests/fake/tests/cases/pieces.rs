//! Tests of puts and gets of several pieces of local memory.

use crate::cases;
use crate::stage::{Stage, pending};
use std::ops::Range;
use tieline::{Outcome, PostError, Region, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

/// Returns bytes in which no two neighbours are equal.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A function that changes the properties of a lane.
type Manner = fn(Lane) -> Lane;

const MANNERS: [Manner; 2] = [|lane| lane.late(3), Lane::synchronous];

/// Returns ranges of two regions in alternation, so that no two successive pieces are adjacent in memory.
fn woven<'a>(two: &'a [Region; 2], lens: &[usize]) -> Vec<(&'a Region, Range<usize>)> {
    let mut at = [5, 900];
    let piece = |(which, len): (usize, &usize)| {
        let from = at[which % 2];
        at[which % 2] += len + 3;
        (&two[which % 2], from..from + len)
    };
    lens.iter().enumerate().map(piece).collect()
}

fn held(pieces: &[(&Region, Range<usize>)]) -> Vec<u8> {
    pieces.iter().flat_map(|(region, range)| region.to_vec(range.clone()).unwrap()).collect()
}

fn post(
    stage: &Stage,
    slot: Slot,
    pieces: &[(&Region, Range<usize>)],
    key: &RemoteKey,
    offset: u64,
) -> Result<Outcome, PostError> {
    match slot {
        Slot::Put => stage.ab.put_pieces(pieces, key, offset),
        _ => stage.ab.get_pieces(pieces, key, offset),
    }
}

fn two(stage: &Stage) -> [Region; 2] {
    [stage.local(bytes(2000)), stage.local(bytes(2001).into_iter().rev().collect())]
}

cases! {
    fn pieces_lie_one_behind_the_other_at_the_target_whatever_carries_them() {
        let lens = [7, 0, 100, 1, 33, 250, 0, 64, 9, 17];
        let len: usize = lens.iter().sum();
        let messages = || vec![Lane::messages("am")];
        let with = |lane: Lane| vec![Lane::messages("am"), lane];
        let memory = |max_iov, max| Lane { max_iov, max_put: max, max_get: max, ..Lane::memory("rma") };
        let mut shapes: Vec<(Vec<Lane>, Option<usize>)> = vec![(messages(), None)];
        for manner in MANNERS {
            // Eight of the pieces are not empty.
            for (max_iov, max, calls) in [(16, 0, Some(1)), (8, 0, Some(1)), (3, 0, Some(3)), (1, 0, Some(8)), (16, 97, None), (2, 60, None)] {
                shapes.push((with(manner(memory(max_iov, max))), calls));
            }
        }
        for (lanes, calls) in shapes {
            for slot in [Slot::Put, Slot::Get] {
                let stage = Stage::new(lanes.clone());
                let (target, key) = stage.target(bytes(700).into_iter().rev().collect());
                let before = target.to_vec(0..700).unwrap();
                let regions = two(&stage);
                let around: Vec<Vec<u8>> = regions.iter().map(|r| r.to_vec(0..2000).unwrap()).collect();
                let pieces = woven(&regions, &lens);
                assert_eq!(stage.ended(post(&stage, slot, &pieces, &key, 40)), Ok(0));
                let now = target.to_vec(0..700).unwrap();
                assert_eq!(now[40..40 + len], held(&pieces));
                assert_eq!((&now[..40], &now[40 + len..]), (&before[..40], &before[40 + len..]));
                if slot == Slot::Get {
                    assert_eq!(now, before);
                    for (region, before) in regions.iter().zip(&around) {
                        let now = region.to_vec(0..2000).unwrap();
                        let own = |at: usize| pieces.iter().any(|(r, range)| std::ptr::eq(*r, region) && range.contains(&at));
                        assert!((0..2000).all(|at| own(at) || now[at] == before[at]), "bytes beside a piece");
                    }
                }
                if let Some(calls) = calls {
                    // The core does not repeat the call of the fast path.
                    assert_eq!(stage.world.calls(slot).len(), calls, "{lanes:?}");
                }
                stage.assert_no_faults();
            }
        }
    }

    fn every_piece_carries_its_region_to_a_module_that_wants_to_know() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").late(2)]);
        let (_target, key) = stage.target(vec![0; 64]);
        let regions = two(&stage);
        let put = pending(stage.ab.put_pieces(&woven(&regions, &[8, 9, 10]), &key, 0));
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        assert_eq!(stage.world.named(), 3);
        stage.assert_no_faults();
    }

    fn pieces_of_no_bytes_are_none() {
        for manner in MANNERS {
            let stage = Stage::new(vec![Lane::messages("am"), manner(Lane::memory("rma"))]);
            let (_target, key) = stage.target(vec![0; 64]);
            let regions = two(&stage);
            assert_eq!(stage.ended(stage.ab.put_pieces(&[], &key, 0)), Ok(0));
            assert_eq!(stage.ended(stage.ab.get_pieces(&woven(&regions, &[0, 0]), &key, 64)), Ok(0));
            assert_eq!(stage.ab.get_pieces(&[], &key, 65).unwrap_err().status(), Status::OutOfRange);
            assert!(stage.world.calls(Slot::Put).is_empty() && stage.world.calls(Slot::Get).is_empty());
            // A list with one non-empty piece is an ordinary put.
            assert_eq!(stage.ended(stage.ab.put_pieces(&woven(&regions, &[0, 7, 0]), &key, 0)), Ok(0));
            assert_eq!(stage.world.calls(Slot::Put).len(), 1);
            stage.assert_no_faults();
        }
    }

    fn pieces_outside_of_a_region_and_of_another_context_are_refused() {
        for manner in MANNERS {
            let stage = Stage::new(vec![Lane::messages("am"), manner(Lane::memory("rma"))]);
            let (_target, key) = stage.target(vec![0; 64]);
            let [local, other] = two(&stage);
            let foreign = stage.at_b.register(vec![0; 64]).unwrap();
            #[allow(clippy::reversed_empty_ranges)] // the refused ranges
            let wrong = [
                (vec![(&local, 0..8), (&other, 1999..2010)], 0, Status::OutOfRange),
                (vec![(&local, 0..8), (&other, 9..8)], 0, Status::OutOfRange),
                (vec![(&local, 0..8), (&other, usize::MAX..usize::MAX)], 0, Status::OutOfRange),
                (vec![(&local, 0..40), (&other, 0..25)], 0, Status::OutOfRange),
                (vec![(&local, 0..4), (&other, 0..4)], 57, Status::OutOfRange),
                (vec![(&local, 0..4), (&other, 0..4)], u64::MAX, Status::OutOfRange),
                (vec![(&local, 0..4), (&foreign, 0..4)], 0, Status::Invalid),
            ];
            for (pieces, offset, status) in wrong {
                for slot in [Slot::Put, Slot::Get] {
                    let refused = post(&stage, slot, &pieces, &key, offset).unwrap_err();
                    assert_eq!(refused.status(), status, "{pieces:?} to {offset}");
                }
            }
            let asked = [stage.world.calls(Slot::Put), stage.world.calls(Slot::Get)].concat();
            assert!(asked.iter().all(|call| call.cookie == 0), "more than the fast path was asked");
            stage.assert_no_faults();
        }
    }

    /// Each byte has one of the values that were requested for its place, and no other memory is written.
    fn get_into_overlapping_pieces_leaves_one_of_the_requested_bytes() {
        for manner in MANNERS {
            let lane = Lane { max_iov: 1, ..manner(Lane::memory("rma")) };
            let stage = Stage::new(vec![Lane::messages("am"), lane]);
            let (_target, key) = stage.target((0..64).collect());
            let local = stage.local(vec![0xee; 40]);
            let get = stage.ab.get_pieces(&[(&local, 4..20), (&local, 12..28)], &key, 0);
            assert_eq!(stage.ended(get), Ok(0));
            let got = local.to_vec(0..40).unwrap();
            let expected = |at: usize| match at {
                4..12 => vec![at - 4],
                12..20 => vec![at - 4, at - 12 + 16],
                20..28 => vec![at - 12 + 16],
                _ => vec![0xee],
            };
            for (at, byte) in got.iter().enumerate() {
                assert!(expected(at).contains(&usize::from(*byte)), "byte {at} is {byte}");
            }
            stage.assert_no_faults();
        }
    }

    fn rails_cut_across_pieces() {
        const LONG: usize = 1 << 20;
        let lane = |name, priority| {
            Lane { priority, module: "port", max_iov: 2, ..Lane::memory(name) }.late(2)
        };
        for slot in [Slot::Put, Slot::Get] {
            let stage = Stage::new(vec![Lane::messages("am"), lane("a", 9), lane("b", 1)]);
            let (target, key) = stage.target(bytes(LONG));
            let local = stage.local(bytes(LONG + 7).into_iter().rev().collect());
            let ends = [0, 100, LONG / 3, LONG / 2 + 5, LONG / 2 + 6, LONG - 1, LONG];
            // The pieces are in reverse order, so that they do not form one range.
            let pieces: Vec<_> = ends.windows(2).rev().map(|ends| (&local, ends[0]..ends[1])).collect();
            assert_eq!(stage.ended(post(&stage, slot, &pieces, &key, 0)), Ok(0));
            assert!(target.to_vec(0..LONG).unwrap() == held(&pieces));
            let lanes: Vec<usize> = stage.world.calls(slot).iter().map(|call| call.interface).collect();
            assert!(lanes.iter().any(|lane| *lane != lanes[0]), "all of it went over one lane");
            stage.assert_no_faults();
        }
    }

    /// The list is rebuilt after a lane has completed a part of it, and after a lane has returned `Again`.
    fn pieces_that_are_declined_or_wait_for_room_go_on_where_they_were() {
        for manner in MANNERS {
            for slot in [Slot::Put, Slot::Get] {
                let lane = |name, priority| Lane { priority, max_iov: 2, ..manner(Lane::memory(name)) };
                let stage = Stage::new(vec![Lane::messages("am"), lane("a", 9), lane("b", 1)]);
                let (target, key) = stage.target(bytes(600).into_iter().rev().collect());
                let regions = two(&stage);
                let pieces = woven(&regions, &[11, 22, 33, 44, 55, 66, 77]);
                stage.world.rule(Rule { skip: 1, ..Rule::every(slot, Act::Refuse(Status::Declined)).on("a") });
                stage.world.rule(Rule { times: 2, ..Rule::every(slot, Act::Refuse(Status::Again)).on("b") });
                assert_eq!(stage.ended(post(&stage, slot, &pieces, &key, 100)), Ok(0));
                assert_eq!(target.to_vec(100..408).unwrap(), held(&pieces));
                let done = |lane| {
                    let at = stage.world.interface(0, lane);
                    let calls = stage.world.calls(slot);
                    calls.iter().filter(|c| c.interface == at && !c.refused).map(|c| c.len).collect::<Vec<_>>()
                };
                assert_eq!((done("a"), done("b")), (vec![33], vec![77, 121, 77]));
                stage.assert_no_faults();
            }
        }
    }

    /// A queued operation keeps its regions, and the size of its list counts towards the bound.
    fn pieces_that_wait_keep_their_regions_and_take_room_in_the_queue() {
        let lane = Lane::memory("rma").late(2);
        let stage = Stage::with(vec![Lane::messages("am"), lane], &[("TIELINE_QUEUE_BYTES", "4096")]);
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)));
        let (target, key) = stage.target(vec![0; 2000]);
        let regions = two(&stage);
        let lens = [1; 50];
        let (posted, requests) = crate::stage::posts_until_again(100, || {
            stage.ab.put_pieces(&woven(&regions, &lens), &key, 0)
        });
        assert!(posted.is_some_and(|posted| (1..20).contains(&posted)), "{posted:?}");
        let expected = held(&woven(&regions, &lens));
        drop(regions);
        stage.world.forget_rules();
        for request in requests {
            assert_eq!(stage.end_of(&request), Some(Ok(0)));
        }
        assert_eq!(target.to_vec(0..50).unwrap(), expected);
        stage.assert_no_faults();
    }

    fn a_transfer_whose_lane_ends_before_all_of_it_is_posted_ends_alone() {
        for has_another in [false, true] {
            let a = Lane { priority: 9, max_put: 100, ..Lane::memory("a").over_circuits() };
            let mut lanes = vec![Lane::messages("am"), a];
            lanes.extend(has_another.then(|| Lane::memory("b")));
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 1000]);
            assert!(stage.until(|| !key.is_settling()));
            assert_eq!(&*key.path(), "fake:a/a");
            stage.world.rule(Rule { times: 3, ..Rule::every(Slot::Put, Act::Hold).on("a") });
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a"));
            let put = pending(stage.ab.put(&stage.local(vec![1; 1000]), 0..1000, &key, 0));
            let message = stage.ab.send(5, 0, b"goes on");
            assert_eq!(stage.world.operations(), 3);
            stage.world.forget_rules();
            let (from, to) = (stage.world.interface(0, "a"), stage.world.interface(1, "a"));
            stage.world.break_endpoints(from, to, Status::PeerFailed, "the cable is cut");
            let ended = stage.end_of(&put).expect("its lane has ended").unwrap_err();
            assert_eq!((ended.status(), ended.why()), (Status::PeerFailed, "the cable is cut"));
            assert!(stage.ab.error().is_none(), "messages go elsewhere: {:?}", stage.ab.error());
            assert_eq!(stage.ended(message), Ok(0));
            assert_eq!(stage.ended(stage.ab.put_bytes(&[2; 8], &key, 0)), Ok(0));
            assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
            stage.assert_no_faults();
        }
    }

    fn transfer_queued_for_last_lane_falls_back_to_messages_at_its_end() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("a")]);
        let (target, key) = stage.target(vec![0; 8]);
        stage.world.rule(Rule::next(Slot::Put, Act::Refuse(Status::Again)));
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::PeerFailed)));
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
        assert_eq!(target.to_vec(0..8).unwrap(), [1; 8]);
        assert!(stage.ab.error().is_none());
        stage.assert_no_faults();
    }
}
