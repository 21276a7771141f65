//! Another process's descriptors, and its address space through its file `/proc/PID/mem`.

use super::{is_forbidden, last};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The address space that a process had when it was opened. A later process with the same number has another one, and so has the
/// process itself after `exec`.
#[derive(Debug)]
pub(crate) struct AddressSpace(OwnedFd);

impl AddressSpace {
    /// Opens the address space of process `pid`, which requires the same right as reading its memory. Returns `None` if the file is
    /// hidden or forbidden.
    pub(crate) fn open(pid: i32) -> Option<AddressSpace> {
        let file = std::fs::File::open(format!("/proc/{pid}/mem"));
        file.ok().map(|file| AddressSpace(file.into()))
    }

    /// Checks whether a process still has this address space. The kernel reports no bytes if none has, and otherwise the failure to
    /// read where nothing is mapped. This is the fastest system call that makes the distinction.
    pub(crate) fn is_in_use(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the call writes at most one byte to `byte`.
        unsafe { libc::pread(self.0.as_raw_fd(), (&raw mut byte).cast(), 1, 0) != 0 }
    }
}

/// Returns a new descriptor for the file that process `pid` has open as `number`. `pidfd_getfd` requires the same right as reading
/// that process's memory.
pub(crate) fn descriptor_of(pid: i32, number: i32) -> io::Result<OwnedFd> {
    let owned = |fd: RawFd| {
        // SAFETY: the descriptor is new, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    // SAFETY: the call takes numbers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let mut error = last();
    if process >= 0 {
        let process = owned(process as RawFd);
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        if fd >= 0 {
            return Ok(owned(fd as RawFd));
        }
        error = last();
    }
    // The calls fail as forbidden before Linux 5.6, or if a filter forbids them.
    if !is_forbidden(&error) {
        return Err(error);
    }
    let path = format!("/proc/{pid}/fd/{number}");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
    file.map(OwnedFd::from).map_err(|_| error)
}
