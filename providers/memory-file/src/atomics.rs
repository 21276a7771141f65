//! The processor's atomics on shared words.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::atomic_op;

macro_rules! apply {
    ($name:ident, $atomic:ty, $int:ty) => {
        /// Executes an atomic on the word, and returns the word's previous value. The caller has checked operation and width.
        #[inline]
        pub fn $name(word: &$atomic, op: &Atomic) -> $int {
            let operand = op.operand as $int;
            match op.op {
                atomic_op::ADD => word.fetch_add(operand, Ordering::AcqRel),
                atomic_op::AND => word.fetch_and(operand, Ordering::AcqRel),
                atomic_op::OR => word.fetch_or(operand, Ordering::AcqRel),
                atomic_op::XOR => word.fetch_xor(operand, Ordering::AcqRel),
                atomic_op::SWAP => word.swap(operand, Ordering::AcqRel),
                atomic_op::MIN => word.fetch_min(operand, Ordering::AcqRel),
                atomic_op::MAX => word.fetch_max(operand, Ordering::AcqRel),
                _ => {
                    let (compare, success) = (op.compare as $int, Ordering::AcqRel);
                    match word.compare_exchange(compare, operand, success, Ordering::Acquire) {
                        Ok(before) | Err(before) => before,
                    }
                }
            }
        }
    };
}
apply!(apply64, AtomicU64, u64);
apply!(apply32, AtomicU32, u32);
