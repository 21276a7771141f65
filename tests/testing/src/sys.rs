//! Forked children. The C functions are declared by hand, so that the crate needs no dependency.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C" {
    fn fork() -> c_int;
    fn alarm(seconds: c_uint) -> c_uint;
    fn _exit(status: c_int) -> !;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn pause() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
}

const SIGKILL: c_int = 9;

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

/// A forked child that does nothing, and holds copies of all descriptors of this process until the value is dropped.
#[derive(Debug)]
pub struct Copies(c_int);

impl Copies {
    /// Forks the child.
    ///
    /// # Panics
    /// Panics if the fork fails.
    #[must_use]
    pub fn hold() -> Copies {
        // SAFETY: the child makes only system calls.
        let pid = unsafe { fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: the signal of the alarm ends the child if the parent does not.
            unsafe {
                let _ = alarm(60);
                loop {
                    let _ = pause();
                }
            }
        }
        Copies(pid)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let mut status = -1;
        // SAFETY: the process is a child of this process whose status is not collected, and the status is writable.
        unsafe {
            let _ = (kill(self.0, SIGKILL), waitpid(self.0, &mut status, 0));
        }
    }
}
