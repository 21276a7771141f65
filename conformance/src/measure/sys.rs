//! What the allocator of the C library has given out.

#![allow(unsafe_code)]

/// Bytes in use of all heaps; always 0 where the C library does not say.
pub(super) fn heap() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: reads counters of the allocator.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }
    #[cfg(not(target_env = "gnu"))]
    {
        0
    }
}
