//! A fork, and a pipe on which the child waits.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

/// A forked child that stands still until it is told to go on.
#[derive(Debug)]
pub struct Aside {
    pid: libc::pid_t,
    /// It goes on when nobody has this end any more.
    told: OwnedFd,
}

impl Aside {
    /// Forks one off this single-threaded process; when it is told, it does `then` and ends with that code.
    ///
    /// # Panics
    /// When there is no fork.
    #[must_use]
    pub fn fork(then: impl FnOnce() -> u8) -> Aside {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which nobody else owns then.
        let (hears, told) = unsafe {
            assert!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) == 0, "a pipe");
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // SAFETY: the callers are processes with one thread, so the child is a whole process.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            drop(told);
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = File::from(hears).read(&mut [0]);
                then()
            }));
            // SAFETY: ends the child at once, without what the parent registered for its own end.
            unsafe { libc::_exit(i32::from(code.unwrap_or(99))) };
        }
        Aside { pid, told }
    }

    /// Tells it, and returns its exit code; `None` when a signal ended it.
    #[must_use]
    pub fn join(self) -> Option<u8> {
        drop(self.told);
        let mut status = 0;
        // SAFETY: the number is writable, and the child is ours.
        let _ = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
    }
}
