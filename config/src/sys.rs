//! The one system call of this crate: the user of the process.

#![allow(unsafe_code)]

/// The effective user.
pub fn effective_uid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}
