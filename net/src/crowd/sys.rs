//! The limit of descriptors, for tests with crowds.

#![allow(unsafe_code)]

/// Raises the limit of descriptors to the maximum that this process may set. The function never lowers the limit.
pub(crate) fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is writable, then read.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}
