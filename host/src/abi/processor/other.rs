//! Processors without instructions of their own here, and Miri.

pub(super) use super::call_as_it_is as call;

/// # Safety
/// As [`copy_shared`](super::copy_shared).
#[inline]
pub(super) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees the ranges; words are used only if both sides are aligned.
    unsafe {
        use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
        let alike = from as usize % 8 == to as usize % 8;
        let mut at = 0;
        while at < len {
            if alike && (from as usize + at) % 8 == 0 && at + 8 <= len {
                let word = (*from.add(at).cast::<AtomicU64>()).load(Ordering::Relaxed);
                (*to.add(at).cast::<AtomicU64>()).store(word, Ordering::Relaxed);
                at += 8;
            } else {
                let byte = (*from.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed);
                (*to.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
                at += 1;
            }
        }
    }
}
