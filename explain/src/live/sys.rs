//! The system calls of a live file.
#![allow(unsafe_code)]

use crate::Error;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_plugin_api::Failure;

/// Makes the error of the last system call, with the purpose of the call.
fn last_error(what: &str) -> Error {
    Failure::last_os_error(what).into()
}

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

/// A part of the file that is mapped into this process. Other processes may write it at any time, so it is accessed by atomic words
/// only.
pub(super) struct Mapped {
    base: NonNull<AtomicU64>,
    /// The number of words.
    count: usize,
    /// The number of words that are mapped before them, because a mapping begins with a page of the kernel.
    before: usize,
}

// SAFETY: the range belongs to this object, and every access is atomic.
unsafe impl Send for Mapped {}
// SAFETY: the reason for `Send` applies.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `len` bytes from `at`; both are multiples of 4096.
    pub(super) fn new(fd: &impl AsRawFd, at: usize, len: usize) -> Result<Mapped, Error> {
        Mapped::in_pages(fd, at, len, kernel_page())
    }

    /// Maps these bytes, and those before them in the same page.
    fn in_pages(fd: &impl AsRawFd, at: usize, len: usize, page: usize) -> Result<Mapped, Error> {
        let before = at % page;
        // SAFETY: a new mapping does not affect existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                before + len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                (at - before) as libc::off_t,
            )
        };
        match NonNull::new(base.cast::<AtomicU64>()) {
            Some(first) if first.as_ptr().cast() != libc::MAP_FAILED => {
                // SAFETY: the offset lies inside the mapping.
                let base = unsafe { first.byte_add(before) };
                Ok(Mapped { base, count: len / 8, before: before / 8 })
            }
            _ => Err(last_error("a mapping of a memory file")),
        }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range stays mapped until drop, and the file cannot shrink. An atomic tolerates concurrent writers.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }

    /// Returns the word at an offset, which is a multiple of 8. An offset beyond the mapping selects a word that nobody reads.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        self.words().get(at / 8).unwrap_or(&NOWHERE)
    }

    /// Writes bytes at an offset that is a multiple of 8, as far as the mapping reaches. The last word is filled up with zeros.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let words = self.words().iter().skip(at / 8);
        for (word, bytes) in words.zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `in_pages` mapped the words and those before them, and they are unmapped once.
        let _ = unsafe {
            let first = self.base.as_ptr().sub(self.before);
            libc::munmap(first.cast(), (self.before + self.count) * 8)
        };
    }
}

/// Returns the size of the kernel's pages: 4, 16 or 64 KiB on 64-bit Arm. A mapping begins at a multiple of it.
fn kernel_page() -> usize {
    // SAFETY: the call takes a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Allocates memory for a range of the file, so that a later access cannot fail.
pub(super) fn reserve(fd: &impl AsRawFd, at: usize, len: usize) -> Result<(), Error> {
    // SAFETY: the descriptor is open, and no pointer is passed.
    let done =
        unsafe { libc::fallocate(fd.as_raw_fd(), 0, at as libc::off_t, len as libc::off_t) == 0 };
    if done { Ok(()) } else { Err(last_error("memory for a memory file (fallocate)")) }
}

/// Returns the monotonic clock of the host in ns. All processes of one time namespace see the same clock.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(rest.unwrap_or(0))
}

/// Returns the calling thread's number.
pub fn thread_id() -> u32 {
    // SAFETY: no pointer is passed.
    u32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_begins_at_its_offset_with_kernel_pages_of_any_size() {
        const LEN: usize = 192 << 10;
        let file = memory_file(c"test", LEN).unwrap();
        let whole = Mapped::new(&file, 0, LEN).unwrap();
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for at in [0, 4 << 10, 68 << 10] {
                let part = Mapped::in_pages(&file, at, 64 << 10, page).unwrap();
                let last = (64 << 10) - 8;
                part.word(0).store(page as u64, Ordering::Relaxed);
                part.word(last).store(at as u64 + 1, Ordering::Relaxed);
                let seen = [at, at + last].map(|at| whole.word(at).load(Ordering::Relaxed));
                assert_eq!(seen, [page as u64, at as u64 + 1], "pages of {page}, from {at}");
                part.word(last + 8).store(7, Ordering::Relaxed);
                assert_ne!(whole.word(at + last + 8).load(Ordering::Relaxed), 7, "beyond the end");
            }
        }
    }
}
