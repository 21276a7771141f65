//! The descriptors that wake a sleeping interface, and random bytes.

#![allow(unsafe_code)]

use core::ptr;
use core::time::Duration;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use tieline_plugin_api::{Failure, Status};

fn owned(fd: i32, what: &str) -> Result<OwnedFd, Failure> {
    if fd < 0 {
        return Err(Failure::last_os_error(what));
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An owned epoll descriptor.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, Failure> {
        // SAFETY: the call involves no memory.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1").map(Epoll)
    }

    /// Adds `fd`, which wakes the sleeper when readable. The caller owns `fd` and keeps it open while the sleeper may sleep.
    pub(crate) fn add(&self, fd: RawFd) -> Result<(), Failure> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the epoll descriptor is live, and the record is filled.
        let code =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if code < 0 { Err(Failure::last_os_error("epoll_ctl")) } else { Ok(()) }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Resets the count of an eventfd or of a timer.
fn take(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    // SAFETY: the descriptor does not block; eight bytes of room.
    let _ = unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
}

/// An eventfd that another thread can signal.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Bell, Failure> {
        // SAFETY: the call involves no memory.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")
            .map(Bell)
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    pub(crate) fn silence(&self) {
        take(&self.0);
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A timer that makes its descriptor readable at every interval.
pub(crate) struct Ticker(OwnedFd);

impl Ticker {
    pub(crate) fn new() -> Result<Ticker, Failure> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call involves no memory.
        owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) }, "timerfd_create")
            .map(Ticker)
    }

    /// Sets the timer to tick every `interval`, or stops the timer with `None`.
    pub(crate) fn every(&self, interval: Option<Duration>) {
        let time =
            interval.map_or(libc::timespec { tv_sec: 0, tv_nsec: 0 }, |interval| libc::timespec {
                tv_sec: interval.as_secs() as libc::time_t,
                tv_nsec: libc::c_long::from(interval.subsec_nanos()),
            });
        let spec = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer is live, and the record is filled; the old setting is not requested.
        let _ = unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const spec, ptr::null_mut())
        };
    }

    pub(crate) fn silence(&self) {
        take(&self.0);
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Fills `bytes` with random bytes.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Failure> {
    // SAFETY: the buffer has room for the requested number of bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        Ok(())
    } else {
        Err(Failure::new(Status::Io, "the kernel has no random numbers"))
    }
}
