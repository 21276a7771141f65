//! Forked children. The C functions are declared by hand, so that the crate needs no dependency.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C" {
    fn fork() -> c_int;
    fn alarm(seconds: c_uint) -> c_uint;
    fn _exit(status: c_int) -> !;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
}

/// Calls `asked` in a forked child, whose only thread is the calling thread. Returns whether `asked` returned true within 20 s.
///
/// # Panics
/// Panics if the fork fails.
#[must_use]
pub fn holds_in_child(asked: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes only calls that are allowed in a forked child of a threaded program, which the test checks.
    let pid = unsafe { fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: the signal ends a child that hangs; `_exit` skips the parent's exit handlers.
        unsafe {
            let _ = alarm(20);
            let held = catch_unwind(AssertUnwindSafe(asked));
            _exit(c_int::from(!held.unwrap_or(false)));
        }
    }
    let mut status = -1;
    // SAFETY: the process is a child of this process, and the status is writable.
    let waited = unsafe { waitpid(pid, &mut status, 0) };
    waited == pid && status == 0
}
