//! Another process's address space, through its file `/proc/PID/mem`.

use std::os::fd::{AsRawFd, OwnedFd};

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
