//! Memory owned by the application, for tests.

#![allow(unsafe_code)]

/// Registers memory of a test like memory that an application owns.
pub(super) fn register_for_tests(context: &crate::Context, memory: &mut [u8]) -> crate::Region {
    // SAFETY: the tests close the region before the memory is freed.
    unsafe { context.register_raw(memory.as_mut_ptr(), memory.len(), crate::Access::ALL) }.unwrap()
}
