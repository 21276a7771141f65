//! The possible settings of SIGCHLD in an application.
#![allow(unsafe_code)] // signal actions

use std::ffi::c_int;

/// An application's handling of its children.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnChild {
    Default,
    Ignore,
    /// A handler that reaps every child immediately.
    CollectAll,
}

extern "C" fn collect_all(_: c_int) {
    // SAFETY: waitpid is async-signal-safe.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

pub(crate) fn set(way: OnChild) {
    let action = match way {
        OnChild::Default => libc::SIG_DFL,
        OnChild::Ignore => libc::SIG_IGN,
        OnChild::CollectAll => collect_all as extern "C" fn(c_int) as libc::sighandler_t,
    };
    // SAFETY: this program has one test; nothing else waits for children meanwhile.
    assert_ne!(unsafe { libc::signal(libc::SIGCHLD, action) }, libc::SIG_ERR);
}

/// Whether this process has a child, alive or dead.
pub(crate) fn has_child() -> bool {
    // SAFETY: only queries; a reaped child is not needed by any other code.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) >= 0 }
}
