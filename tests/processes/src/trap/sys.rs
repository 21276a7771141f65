//! The kernel's side of a trap: userfaultfd, and processes to wait for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

pub(super) const PAGE: usize = 4096;

const API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const MISSING: u64 = 1;
/// The length of a kernel message about an access.
const MESSAGE: usize = 32;

fn last() -> io::Error {
    io::Error::last_os_error()
}

/// The descriptor on which the kernel reports accesses to missing pages.
pub(super) struct Faults {
    fd: OwnedFd,
}

impl Faults {
    pub(super) fn new() -> io::Result<Faults> {
        // SAFETY: the call passes only a flag.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(last());
        }
        // SAFETY: the descriptor has no other owner.
        let faults = Faults { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } };
        faults.call(UFFDIO_API, &mut [API, 0, 0])?;
        Ok(faults)
    }

    fn call<const WORDS: usize>(&self, number: u64, argument: &mut [u64; WORDS]) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the record has the length that the number encodes: 24 or 32 bytes.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), number as _, argument.as_mut_ptr()) };
        if done == 0 { Ok(()) } else { Err(last()) }
    }

    /// Removes the page at this address; accesses to the page are reported afterwards.
    pub(super) fn catch(&self, at: usize) -> io::Result<()> {
        self.call(UFFDIO_REGISTER, &mut [at as u64, PAGE as u64, MISSING, 0])?;
        // SAFETY: the page belongs to the test, which does not need the bytes.
        let gone = unsafe { libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED) };
        if gone == 0 { Ok(()) } else { Err(last()) }
    }

    /// Waits for an access. The accessing thread stops until the page is filled.
    pub(super) fn wait(&self) {
        let mut message = [0u8; MESSAGE];
        // SAFETY: the buffer has the stated length.
        let read =
            || unsafe { libc::read(self.fd.as_raw_fd(), message.as_mut_ptr().cast(), MESSAGE) };
        let mut read = read;
        while read() < 0 && last().kind() == io::ErrorKind::Interrupted {}
    }

    /// Fills the page with zeros, and resumes the thread that has accessed the page.
    pub(super) fn fill(&self, at: usize) {
        let mut asked = [at as u64, PAGE as u64, 0, 0];
        while self
            .call(UFFDIO_ZEROPAGE, &mut asked)
            .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        {
            asked[3] = 0;
        }
    }
}

pub(super) fn process(number: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call passes only numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: the descriptor has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(super) fn wait_for_end(process: &OwnedFd) {
    let mut one = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the call gets the address of one record.
    while unsafe { libc::poll(&raw mut one, 1, -1) } != 1 {}
}

pub(super) fn touch(at: usize) {
    // SAFETY: the byte belongs to the test. The load is atomic, since a copy may write the byte at the same time.
    let _ = unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Ordering::SeqCst);
}
