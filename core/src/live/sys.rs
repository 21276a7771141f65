//! The system calls of a live file.
#![allow(unsafe_code)]

use crate::Error;
use crate::sys::{Span, last_error};
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Makes a memory file of this length, to which no memory is allocated yet. The file can grow but not shrink, so no mapping of it
/// is truncated.
pub(super) fn memory_file(name: &CStr, len: usize) -> Result<OwnedFd, Error> {
    // SAFETY: the name is zero-terminated.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(last_error("a memory file (memfd_create)"));
    }
    // SAFETY: nothing else owns the descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open, and no pointer is passed.
    let sized = unsafe {
        libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) == 0
            && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
    };
    if sized { Ok(fd) } else { Err(last_error("the length of a memory file")) }
}

/// Checks whether a file is a memory file that cannot shrink.
pub(super) fn is_sealed(file: &File) -> bool {
    // SAFETY: the descriptor is open, and no pointer is passed.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// A part of the file that is mapped into this process.
pub(super) struct Mapped {
    span: Span,
}

impl Mapped {
    /// Maps `len` bytes from `at`; both are multiples of the page size.
    pub(super) fn new(fd: &impl AsRawFd, at: usize, len: usize) -> Result<Mapped, Error> {
        // SAFETY: a new mapping does not affect existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                at as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_error("a mapping of a memory file"));
        }
        // SAFETY: the range stays mapped until drop; the file cannot shrink.
        Ok(Mapped { span: unsafe { Span::new(base.cast(), len) } })
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and it is unmapped once.
        let _ = unsafe { libc::munmap(self.span.base().cast(), self.span.len()) };
    }
}

/// Allocates memory for a range of the file, so that a later access cannot fail.
pub(super) fn reserve(fd: &impl AsRawFd, at: usize, len: usize) -> Result<(), Error> {
    // SAFETY: the descriptor is open, and no pointer is passed.
    let done =
        unsafe { libc::fallocate(fd.as_raw_fd(), 0, at as libc::off_t, len as libc::off_t) == 0 };
    if done { Ok(()) } else { Err(last_error("memory for a memory file (fallocate)")) }
}

/// Returns the time since the host started in ns, the same for all its processes.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(rest.unwrap_or(0))
}

/// Returns the calling thread's number.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no pointer is passed.
    u32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(0)
}
