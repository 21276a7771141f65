//! The system call of this crate: the user of the process.

#![allow(unsafe_code)]

/// Returns the effective user of the process.
pub fn effective_uid() -> u32 {
    // SAFETY: `geteuid` has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}
