//! Whether this process has more rights than whoever started it.

#![allow(unsafe_code)]

use std::ffi::c_ulong;

const AT_SECURE: c_ulong = 23;

unsafe extern "C" {
    /// glibc's and musl's, and it cannot fail: an unknown kind is 0.
    safe fn getauxval(kind: c_ulong) -> c_ulong;
}

/// Whether the kernel started this program with rights that its user has not (set-uid, set-gid, file capabilities), so that
/// nothing which the user wrote may choose what the program runs, reads or makes. The environment is such a thing: of it,
/// under raised rights, no variable is believed that names code, a file or a directory. The core keeps those among the
/// variables that begin with `TIELINE_` from providers; a provider that looks at others asks this first.
///
/// A program that was started without raised rights and took or dropped some since is none: its environment is that of
/// whoever may do so. From any thread.
#[must_use]
pub fn raised_rights() -> bool {
    getauxval(AT_SECURE) != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_ordinary_process_has_no_raised_rights() {
        assert!(!super::raised_rights());
    }
}
