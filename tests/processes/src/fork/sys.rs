//! A fork, and a pipe on which the child waits.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A forked child that waits until it is released.
#[derive(Debug)]
pub struct Aside {
    pid: libc::pid_t,
    /// The parent's end of the pipe: the child continues when every copy of it is closed.
    told: OwnedFd,
}

impl Aside {
    /// Forks a child off this single-threaded process. When the child is released, it runs `then` and exits with the returned code.
    ///
    /// # Panics
    /// Panics if the fork fails.
    #[must_use]
    pub fn fork(then: impl FnOnce() -> u8) -> Aside {
        let mut ends = [0; 2];
        // SAFETY: the array has space for two descriptors, which have no other owner.
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
            // SAFETY: the call ends the child immediately, without the exit handlers that the parent registered.
            unsafe { libc::_exit(i32::from(code.unwrap_or(99))) };
        }
        Aside { pid, told }
    }

    /// Releases the child, and returns its exit code; `None` if a signal ended it.
    #[must_use]
    pub fn join(self) -> Option<u8> {
        drop(self.told);
        let mut status = 0;
        // SAFETY: the status is writable, and the child belongs to this process.
        let _ = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
    }
}

/// A forked child with a connection to its parent.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    /// The parent's end of the connection.
    pub line: UnixStream,
}

/// The way in which a child ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The child ends immediately, by `_exit`.
    AtOnce,
    /// The child ends by `exit`, with all exit handlers, including those of its parent.
    InOrder,
}

impl Child {
    /// Forks a child, from any thread. The child runs `then` with its own end of the connection. The kernel ends the child after a
    /// minute.
    ///
    /// # Panics
    /// Panics if the fork fails.
    #[must_use]
    pub fn fork(end: End, then: impl FnOnce(&UnixStream) -> u8) -> Child {
        let (line, childs) = UnixStream::pair().expect("a pair of sockets");
        // SAFETY: the child makes only calls that are allowed in a forked child of a threaded program, which the test checks.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            drop(line);
            // SAFETY: the call passes only a number.
            let _ = unsafe { libc::alarm(60) };
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| then(&childs)));
            let code = i32::from(code.unwrap_or(99));
            match end {
                // SAFETY: the call ends the child without the exit handlers that the parent registered.
                End::AtOnce => unsafe { libc::_exit(code) },
                // SAFETY: this is the only thread of the child.
                End::InOrder => unsafe { libc::exit(code) },
            }
        }
        Child { pid, line }
    }

    /// Waits for the child's end and returns its exit code; `None` if a signal ended the child.
    #[must_use]
    pub fn join(self) -> Option<u8> {
        let mut status = 0;
        // SAFETY: the status is writable, and the child belongs to this process.
        let _ = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
    }
}
