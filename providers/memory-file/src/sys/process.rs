//! Other processes: whether they are alive, and their address spaces.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::last;

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

/// A process of this host, distinguished from a later process with the same number.
#[derive(Debug)]
pub struct Process {
    pub(super) pid: i32,
    /// The process's descriptor; `None` if the kernel (before Linux 5.3) or a filter refuses it.
    pub(super) descriptor: Option<OwnedFd>,
}

impl Process {
    /// Returns the current process with this number. The caller checks afterwards that it is the intended process.
    #[must_use]
    pub fn open(pid: i32) -> Process {
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        // SAFETY: the descriptor is new, and nothing else owns it.
        let descriptor = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
        Process { pid, descriptor }
    }

    /// Checks whether the process has not ended. Without a descriptor, a later process with its number counts too.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Some(descriptor) = &self.descriptor else {
            // SAFETY: signal 0 is not delivered.
            let there = unsafe { libc::kill(self.pid, 0) } == 0;
            return there || last().raw_os_error() == Some(libc::EPERM);
        };
        let mut wish =
            libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the call takes one record and does not wait.
        unsafe { libc::poll(&mut wish, 1, 0) <= 0 }
    }
}
