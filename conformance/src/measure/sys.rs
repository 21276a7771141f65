//! The memory in use according to the allocator of the C library.

#![allow(unsafe_code)]

/// Returns the bytes in use of all heaps; always 0 if the C library does not report them.
pub(super) fn heap() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call reads counters of the allocator.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }
    #[cfg(not(target_env = "gnu"))]
    {
        0
    }
}
