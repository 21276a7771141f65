//! The one question to the system: whose process is this?

#![allow(unsafe_code)]

/// The effective user.
pub fn effective_uid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}
