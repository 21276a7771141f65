//! Memory that the application owns, for tests.

#![allow(unsafe_code)]

/// Memory of a test's, registered as an application's own is.
pub(super) fn register_for_tests(context: &crate::Context, memory: &mut [u8]) -> crate::Region {
    // SAFETY: the tests close the region before the memory goes.
    unsafe { context.register_raw(memory.as_mut_ptr(), memory.len(), crate::Access::ALL) }.unwrap()
}
