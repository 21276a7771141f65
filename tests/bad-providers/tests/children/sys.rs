//! What an application may do with SIGCHLD.
#![allow(unsafe_code)] // signal actions

use std::ffi::c_int;

/// An application's way with its children.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnChild {
    Default,
    Ignore,
    /// A handler that collects every child at once.
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
    // SAFETY: asks, and collects nothing that anybody needs.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) >= 0 }
}
