//! The settings of SIGCHLD that an application may have.
#![allow(unsafe_code)] // signal actions

use std::ffi::c_int;

#[derive(Clone, Copy, Debug)]
pub(crate) enum OnChild {
    Default,
    Ignore,
    /// The application has a handler that reaps every child immediately.
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
    // SAFETY: this program has one test; no other code waits for children during the test.
    assert_ne!(unsafe { libc::signal(libc::SIGCHLD, action) }, libc::SIG_ERR);
}

pub(crate) fn has_child() -> bool {
    // SAFETY: the call only queries the state; no other code needs a child that it reaps.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) >= 0 }
}
