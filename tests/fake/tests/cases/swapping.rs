//! Tests of atomics over a device that only swaps 64-bit words.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline::{Access, AtomicOp, Status, Width};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::{atomic_op, caps};

fn stage(at_once: bool) -> Stage {
    let swap = 1 << atomic_op::COMPARE_SWAP;
    let device = Lane { atomics: [0, swap, 0, swap], ..Lane::memory("device") };
    let device = device.with(caps::DEVICE_ATOMICS);
    let device = if at_once { device.synchronous() } else { device };
    Stage::with(vec![Lane::messages("am"), device], &[("TIELINE_ATOMICS", "device")])
}

/// Words in which every byte is different, in memory order.
const WORDS: [u64; 4] = [0x1122_3344_5566_7788, 0xf0e0_d0c0_b0a0_9080, 7, u64::MAX];

fn bytes() -> Vec<u8> {
    WORDS.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn after(op: AtomicOp, width: Width, old: u64, n: u64) -> u64 {
    let n = if width == Width::Bits32 { u64::from(n as u32) } else { n };
    let new = match op {
        AtomicOp::Add => old.wrapping_add(n),
        AtomicOp::And => old & n,
        AtomicOp::Or => old | n,
        AtomicOp::Xor => old ^ n,
        AtomicOp::Swap => n,
        AtomicOp::Min => old.min(n),
        AtomicOp::Max => old.max(n),
    };
    if width == Width::Bits32 { u64::from(new as u32) } else { new }
}

const OPS: [AtomicOp; 7] = [
    AtomicOp::Add,
    AtomicOp::And,
    AtomicOp::Or,
    AtomicOp::Xor,
    AtomicOp::Swap,
    AtomicOp::Min,
    AtomicOp::Max,
];

fn word(bytes: &[u8], at: usize, width: Width) -> u64 {
    match width {
        Width::Bits32 => u64::from(u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())),
        Width::Bits64 => u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()),
    }
}

cases! {
    fn atomics_of_all_widths_are_composed_of_swaps_within_their_word() {
        let n = 0x0102_0304_8506_0708;
        for at_once in [false, true] {
            let stage = stage(at_once);
            for (width, len) in [(Width::Bits32, 4), (Width::Bits64, 8)] {
                let (target, key) = stage.target(bytes());
                let mut expected = bytes();
                for (op, fetch) in OPS.iter().flat_map(|op| [(*op, true), (*op, false)]) {
                    for at in (0..expected.len()).step_by(len) {
                        let old = word(&expected, at, width);
                        let posted = match fetch {
                            true => stage.ab.fetch(op, width, &key, at as u64, n),
                            false => stage.ab.atomic(op, width, &key, at as u64, n),
                        };
                        assert_eq!(stage.ended(posted), Ok(if fetch { old } else { 0 }));
                        let new = after(op, width, old, n).to_ne_bytes();
                        expected[at..at + len].copy_from_slice(&new[..len]);
                        let there = target.to_vec(0..expected.len()).unwrap();
                        assert_eq!(there, expected, "{op:?} {width:?} at {at}");
                    }
                }
            }
            stage.assert_no_faults();
        }
    }

    fn a_narrow_compare_and_swap_compares_its_half_and_keeps_the_other() {
        let stage = stage(false);
        let (target, key) = stage.target(bytes());
        for at in [0, 4] {
            let old = word(&bytes(), at, Width::Bits32);
            let at = at as u64;
            let wrong = stage.ab.compare_swap(Width::Bits32, &key, at, old + 1, 5);
            assert_eq!(stage.ended(wrong), Ok(old));
            assert_eq!(target.to_vec(0..32).unwrap(), bytes(), "it was another word");
        }
        let old = word(&bytes(), 4, Width::Bits32);
        let right = stage.ab.compare_swap(Width::Bits32, &key, 4, old, 5);
        assert_eq!(stage.ended(right), Ok(old));
        let mut expected = bytes();
        expected[4..8].copy_from_slice(&5u32.to_ne_bytes());
        assert_eq!(target.to_vec(0..32).unwrap(), expected);
    }

    /// The swap finds a value that another process has stored in between, and the next attempt starts with that value.
    fn a_word_that_changes_between_two_swaps_is_read_again() {
        let stage = stage(false);
        let (target, key) = stage.target(vec![0; 16]);
        stage.world.rule(Rule::every(Slot::Atomic, Act::Hold));
        let first = pending(stage.ab.fetch(AtomicOp::Or, Width::Bits64, &key, 8, 1));
        let second = pending(stage.ab.fetch(AtomicOp::Or, Width::Bits64, &key, 8, 2));
        assert!(stage.until(|| stage.world.operations() > 0));
        stage.world.forget_rules();
        stage.world.release_held();
        let found = [stage.end_of(&first).unwrap(), stage.end_of(&second).unwrap()];
        assert!(found == [Ok(0), Ok(1)] || found == [Ok(2), Ok(0)], "{found:?}");
        assert_eq!(word(&target.to_vec(8..16).unwrap(), 0, Width::Bits64), 3);
        stage.assert_no_faults();
    }

    fn a_swap_that_fails_ends_the_operation_with_its_reason() {
        let stage = stage(false);
        let (target, key) = stage.target(vec![0; 16]);
        stage.world.rule(Rule::next(Slot::Atomic, Act::FailLater(Status::KeyRejected)));
        let failed = stage.ended(stage.ab.fetch(AtomicOp::Add, Width::Bits32, &key, 4, 1));
        assert_eq!(failed.unwrap_err().status(), Status::KeyRejected);
        assert_eq!(target.to_vec(0..16).unwrap(), [0; 16]);
        assert_eq!(stage.a.pending(), 0, "nothing is left of it");
    }

    fn masks_of_a_module_that_promises_no_atomics_are_not_used() {
        let lane = Lane::memory("rma");
        let lane = Lane { caps: lane.caps & !caps::ATOMICS, ..lane };
        for lane in [lane.clone(), lane.synchronous()] {
            let stage = Stage::new(vec![Lane::messages("am"), lane]);
            let (target, key) = stage.target(vec![0; 16]);
            for (fetch, found) in [(true, 0), (false, 0), (true, 10)] {
                let posted = match fetch {
                    true => stage.ab.fetch_add(&key, 8, 5),
                    false => stage.ab.atomic(AtomicOp::Add, Width::Bits64, &key, 8, 5),
                };
                assert_eq!(stage.ended(posted), Ok(found));
            }
            assert_eq!(word(&target.to_vec(8..16).unwrap(), 0, Width::Bits64), 15);
            assert_eq!(stage.world.calls(Slot::Atomic).len(), 0, "by messages");
            assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
            assert_eq!(stage.world.calls(Slot::Put).len(), 1, "it does everything else");
        }
    }

    /// A peer without the right to use atomics needs no key of the device that provides them.
    fn region_without_atomics_has_key_although_atomic_device_gives_none() {
        let stage = stage(false);
        stage.world.rule(Rule::every(Slot::PackKey, Act::Refuse(Status::Unsupported)));
        let atomic = stage.at_b.register_with(vec![0; 8], Access::ALL).unwrap();
        assert_eq!(atomic.remote_key().unwrap_err().status(), Status::Unsupported);
        let plain = Access::READ | Access::WRITE;
        let plain = stage.at_b.register_with(vec![0; 8], plain).unwrap();
        let key = stage.ab.import_key(&plain.remote_key().unwrap()).unwrap();
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0), "by messages");
        assert_eq!(plain.to_vec(0..8).unwrap(), [1; 8]);
    }

    /// The 64-bit word that contains the half word does not lie in the region.
    fn half_a_word_at_the_end_of_a_region_is_refused_with_what_to_do() {
        let stage = stage(false);
        let (target, key) = stage.target(vec![0; 12]);
        let refused = stage.ended(stage.ab.fetch(AtomicOp::Add, Width::Bits32, &key, 8, 1));
        let refused = refused.unwrap_err();
        assert_eq!(refused.status(), Status::Unsupported);
        assert!(refused.to_string().contains("a multiple of 8"), "{refused}");
        assert_eq!(stage.ended(stage.ab.fetch(AtomicOp::Add, Width::Bits32, &key, 4, 1)), Ok(0));
        assert_eq!(word(&target.to_vec(0..8).unwrap(), 4, Width::Bits32), 1);
    }
}
