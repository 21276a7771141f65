//! Tests of puts and gets of blocks at equal distances.

use crate::cases;
use crate::stage::{Stage, pending};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tieline::{Blocks, PostError, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

const BYTES: usize = 4096;

fn bytes(salt: usize) -> Vec<u8> {
    (0..BYTES).map(|at| ((at * 7 + salt) % 251) as u8).collect()
}

fn lanes() -> Vec<Vec<Lane>> {
    let with = |lane: Lane| vec![Lane::messages("am"), lane];
    vec![
        vec![Lane::messages("am")],
        with(Lane::memory("rma").late(3)),
        with(Lane::memory("rma").synchronous()),
        with(Lane { max_iov: 2, max_put: 48, max_get: 48, ..Lane::memory("rma").late(2) }),
    ]
}

/// Generates two shapes of the same number of bytes, each of which fits into a region.
fn shapes() -> impl Strategy<Value = (Blocks, Blocks)> {
    let blocks = |len: usize| {
        let cuts: Vec<usize> = (1..=len).filter(|cut| len % cut == 0 && len / cut <= 64).collect();
        (proptest::sample::select(cuts), 0..24usize, 0..64u64).prop_map(
            move |(block, gap, offset)| Blocks {
                offset,
                block,
                stride: block + gap,
                count: len / block,
            },
        )
    };
    (1..=360usize).prop_flat_map(move |len| (blocks(len), blocks(len)))
}

fn places(blocks: Blocks) -> impl Iterator<Item = usize> {
    (0..blocks.count).flat_map(move |number| {
        let begin = blocks.offset as usize + number * blocks.stride;
        begin..begin + blocks.block
    })
}

fn copied(from: &[u8], at: Blocks, mut to: Vec<u8>, there: Blocks) -> Vec<u8> {
    for (from_at, to_at) in places(at).zip(places(there)) {
        to[to_at] = from[from_at];
    }
    to
}

cases! {
    fn blocks_arrive_as_in_bytewise_copy_on_every_route() {
        for lanes in lanes() {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(bytes(1));
            let local = stage.local(bytes(100));
            let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
            runner.run(&shapes(), |(here, there)| {
                let (before, far) = (local.to_vec(0..BYTES).unwrap(), target.to_vec(0..BYTES).unwrap());
                prop_assert_eq!(stage.ended(stage.ab.put_strided(&local, here, &key, there)), Ok(0));
                let now = target.to_vec(0..BYTES).unwrap();
                prop_assert_eq!(&now, &copied(&before, here, far, there));
                prop_assert_eq!(&local.to_vec(0..BYTES).unwrap(), &before);
                // The blocks are copied back in another shape.
                let other = Blocks { offset: there.offset + 3, ..there };
                prop_assert_eq!(stage.ended(stage.ab.get_strided(&local, here, &key, other)), Ok(0));
                prop_assert_eq!(&local.to_vec(0..BYTES).unwrap(), &copied(&now, other, before, here));
                prop_assert_eq!(&target.to_vec(0..BYTES).unwrap(), &now);
                prop_assert_eq!(stage.a.pending(), 0);
                Ok(())
            }).unwrap();
            stage.assert_no_faults();
        }
    }

    fn invalid_or_unequal_blocks_are_refused_before_any_post() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").synchronous()]);
        let (target, key) = stage.target(vec![0; BYTES]);
        let local = stage.local(bytes(0));
        let inside = Blocks { offset: 0, block: 8, stride: 16, count: 4 };
        let refused = [
            (Blocks { offset: BYTES as u64 - 55, ..inside }, inside, Status::OutOfRange),
            (inside, Blocks { offset: BYTES as u64 - 55, ..inside }, Status::OutOfRange),
            (Blocks { stride: usize::MAX, ..inside }, inside, Status::OutOfRange),
            (inside, Blocks { stride: usize::MAX, ..inside }, Status::OutOfRange),
            (Blocks { offset: u64::MAX, ..inside }, inside, Status::OutOfRange),
            (inside, Blocks { offset: u64::MAX, ..inside }, Status::OutOfRange),
            (inside, Blocks { count: 5, ..inside }, Status::Invalid),
            (Blocks { block: usize::MAX, ..inside }, inside, Status::Invalid),
            (Blocks { block: usize::MAX, ..inside }, Blocks { block: usize::MAX, ..inside }, Status::OutOfRange),
        ];
        for (here, there, status) in refused {
            for posted in [stage.ab.put_strided(&local, here, &key, there), stage.ab.get_strided(&local, here, &key, there)] {
                let error = posted.map(drop).unwrap_err();
                assert_eq!(error.status(), status, "{here:?} {there:?}");
                let said = error.to_string();
                assert!(said.starts_with("bytes ") || said.contains(" blocks of ") || status == Status::Invalid, "{said}");
            }
        }
        assert_eq!((target.to_vec(0..BYTES).unwrap(), local.to_vec(0..BYTES).unwrap()), (vec![0; BYTES], bytes(0)));
        let edge = Blocks { offset: BYTES as u64 - 56, ..inside };
        assert_eq!(stage.ended(stage.ab.put_strided(&local, edge, &key, edge)), Ok(0));
        assert_eq!(target.to_vec(BYTES - 8..BYTES).unwrap(), bytes(0)[BYTES - 8..]);
        let nothing = Blocks { block: 0, ..inside };
        assert_eq!(stage.ended(stage.ab.put_strided(&local, nothing, &key, Blocks::run(7, 0))), Ok(0));
        assert_eq!(nothing.ranges(0..0).count(), 0);
        // In 64-bit arithmetic the third block would begin at the offset of the first.
        let around = Blocks { offset: 0, block: 1, stride: 1 << 63, count: 3 };
        assert_eq!(around.ranges(0..3).count(), 0);
    }

    fn runs_beyond_operation_bound_are_refused_or_wait_for_earlier_ones() {
        let lane = Lane::memory("rma");
        let stage = Stage::with(vec![Lane::messages("am"), lane], &[("TIELINE_QUEUE_BYTES", "1024")]);
        let (_target, key) = stage.target(vec![0; BYTES]);
        let local = stage.local(bytes(0));
        let runs = |count| Blocks { offset: 0, block: 8, stride: 16, count };
        // At most 16 operations may be pending, one of which represents the whole transfer.
        let refused = stage.ab.put_strided(&local, runs(16), &key, runs(16)).unwrap_err();
        assert!(matches!(&refused, PostError::Correct(error) if error.status() == Status::TooLarge), "{refused:?}");
        stage.world.hold(Slot::Put);
        let first = pending(stage.ab.put_strided(&local, runs(10), &key, runs(10)));
        let full = stage.ab.put_strided(&local, runs(10), &key, runs(10)).unwrap_err();
        assert!(matches!(full, PostError::Retry(_)), "{full:?}");
        stage.world.forget_rules();
        stage.world.release_held();
        assert!(stage.until(|| stage.a.test(&first).is_some()));
        assert_eq!(stage.ended(stage.ab.put_strided(&local, runs(15), &key, runs(15))), Ok(0));
    }

    fn runs_beyond_counter_of_one_operation_are_refused() {
        let stage = Stage::with(vec![Lane::messages("am"), Lane::memory("rma")], &[("TIELINE_QUEUE_BYTES", "8m")]);
        let (_target, key) = stage.target(vec![0; 1 << 17]);
        let local = stage.local(vec![1; 1 << 17]);
        let runs = |count| Blocks { offset: 0, block: 1, stride: 2, count };
        stage.world.hold(Slot::Put);
        let refused = stage.ab.put_strided(&local, runs(65_535), &key, runs(65_535)).unwrap_err();
        assert!(matches!(&refused, PostError::Correct(error) if error.status() == Status::TooLarge), "{refused:?}");
        assert_eq!(stage.a.pending(), 0, "nothing was posted");
        stage.world.forget_rules();
    }

    fn local_blocks_beyond_list_length_are_refused_for_single_remote_run() {
        const MOST: usize = 1 << 20;
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").synchronous()]);
        let (_target, key) = stage.target(vec![0; MOST + 1]);
        let local = stage.local(bytes(0));
        let again = Blocks { offset: 0, block: 1, stride: 0, count: MOST + 1 };
        let run = Blocks::run(0, MOST + 1);
        for posted in [stage.ab.put_strided(&local, again, &key, run), stage.ab.get_strided(&local, again, &key, run)] {
            assert!(matches!(&posted, Err(PostError::Correct(error)) if error.status() == Status::TooLarge), "{posted:?}");
        }
        assert_eq!(stage.world.calls(Slot::Put), []);
    }

    fn failure_of_blocks_before_refused_one_is_reported_by_flush() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").on_other_provider()]);
        let (_target, key) = stage.target(vec![0; BYTES]);
        let local = stage.local(bytes(0));
        let runs = Blocks { offset: 0, block: 8, stride: 16, count: 4 };
        stage.world.rule(Rule { times: 2, ..Rule::every(Slot::Put, Act::Hold) });
        stage.world.rule(Rule::next(Slot::Put, Act::Panic));
        let refused = stage.ab.put_strided(&local, runs, &key, runs).unwrap_err();
        assert_eq!(refused.status(), Status::ProviderFailed);
        assert_eq!(stage.a.pending(), 0, "two have failed with it");
        let flushed = stage.ab.flush();
        assert!(stage.ended(flushed).is_err());
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "it is told once");
    }

    fn failed_block_fails_the_transfer_and_not_the_next_flush() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").late(2)]);
        let (_target, key) = stage.target(vec![0; BYTES]);
        let local = stage.local(bytes(0));
        let runs = Blocks { offset: 0, block: 8, stride: 16, count: 4 };
        stage.settle();
        stage.world.rule(Rule { skip: 2, ..Rule::next(Slot::Put, Act::FailLater(Status::OutOfRange)) });
        let put = stage.ab.put_strided(&local, runs, &key, runs);
        assert_eq!(stage.ended(put).map_err(|error| error.status()), Err(Status::OutOfRange));
        let flushed = stage.ab.flush();
        assert_eq!(stage.ended(flushed), Ok(0), "it was told");
    }
}
