//! Memory of several kinds, references to its pages, and forks.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) const PAGE: usize = 4096;

/// The kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Private and anonymous, like a heap.
    Anonymous,
    /// A private mapping of a memory file, like the initialized data of a program.
    PrivateFile,
    /// A shared memory file.
    Shared,
}

/// Pages of this process.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
}

impl Memory {
    pub(crate) fn of(kind: Kind, pages: usize) -> Memory {
        let len = pages * PAGE;
        let fd = (kind != Kind::Anonymous).then(|| memory_file(len));
        let flags = match kind {
            Kind::Anonymous => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            Kind::PrivateFile => libc::MAP_PRIVATE,
            Kind::Shared => libc::MAP_SHARED,
        };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let fd = fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: the call makes a new mapping at an address of the system's choice.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), len, rights, flags, fd, 0) };
        assert!(base != libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
        Memory { base: base.cast(), len }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Stores `byte` in every byte of the memory.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: the mapping has this length, is writable, and no reference into it exists.
        unsafe { core::ptr::write_bytes(self.base, byte, self.len) };
    }

    /// Makes the memory read-only.
    pub(crate) fn make_read_only(&self) {
        // SAFETY: the mapping belongs to this test.
        let done = unsafe { libc::mprotect(self.base.cast(), self.len, libc::PROT_READ) };
        assert_eq!(done, 0, "mprotect: {}", Error::last_os_error());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `of` made the mapping, and no reference into it exists.
        let _ = unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

fn memory_file(len: usize) -> OwnedFd {
    // SAFETY: the name is NUL-terminated; nothing else owns the descriptor.
    unsafe {
        let fd = libc::memfd_create(c"memory".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "memfd_create: {}", Error::last_os_error());
        assert_eq!(libc::ftruncate(fd, len as i64), 0, "ftruncate: {}", Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Plain references to the current pages of a mapping.
pub(crate) struct Reference {
    pages: File,
    len: usize,
}

impl Reference {
    pub(crate) fn to(memory: &Memory) -> Reference {
        let mut ends = [0; 2];
        // SAFETY: the array has room for two descriptors, which nothing else owns. The pages stay with the pipe as long as the pipe
        // references them.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "a pipe");
            let (pages, end) = (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]));
            let all = libc::iovec { iov_base: memory.base.cast(), iov_len: memory.len };
            let taken = libc::vmsplice(end.as_raw_fd(), &raw const all, 1, 0);
            assert_eq!(taken, memory.len as isize, "vmsplice: {}", Error::last_os_error());
            Reference { pages, len: memory.len }
        }
    }

    /// Returns the bytes of the referenced pages.
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.pages.read_exact(&mut bytes).unwrap();
        bytes
    }
}

/// A forked child, which does nothing until it is dropped.
pub(crate) struct Child(libc::pid_t);

impl Child {
    pub(crate) fn fork() -> Child {
        // SAFETY: the child calls nothing that could need a lock of another thread.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", Error::last_os_error());
        if pid == 0 {
            // SAFETY: the child calls nothing that could need a lock of another thread. The kernel ends the child with the thread
            // that made it, if not before.
            unsafe {
                let _ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    let _ = libc::pause();
                }
            }
        }
        Child(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child belongs to this test, and nothing else reaps it.
        unsafe {
            let _ = libc::kill(self.0, libc::SIGKILL);
            let _ = libc::waitpid(self.0, core::ptr::null_mut(), 0);
        }
    }
}
