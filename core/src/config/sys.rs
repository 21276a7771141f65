//! The one question to the system: does this process run with more rights than its user?

#![allow(unsafe_code)]

/// Whether the kernel marked this process as one that must not trust its environment (set-uid, set-gid
/// or file capabilities).
pub(crate) fn runs_with_raised_rights() -> bool {
    // SAFETY: `getauxval` takes a number, reads the process's own auxiliary vector and has no other
    // requirement; an unknown number gives 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
