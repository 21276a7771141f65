//! Memory owned by the application, for tests.

#![allow(unsafe_code)]

/// Registers a test's memory as memory that the application owns.
pub(super) fn register_for_tests(context: &crate::Context, memory: &mut [u8]) -> crate::Region {
    // SAFETY: the tests close the region before the memory is freed.
    unsafe { context.register_raw(memory.as_mut_ptr(), memory.len(), crate::Access::ALL) }.unwrap()
}
