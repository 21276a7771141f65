//! The few system calls of the core, each behind a safe function.

#![allow(unsafe_code)]

use crate::Error;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tieline_plugin_api::Status;

/// Sixteen random bytes: the number of a context or a worker.
pub(crate) fn random_id() -> Result<[u8; 16], Error> {
    let mut id = [0u8; 16];
    let mut filled = 0;
    while filled < id.len() {
        // SAFETY: the buffer is writable for the length given.
        let n = unsafe { libc::getrandom(id[filled..].as_mut_ptr().cast(), id.len() - filled, 0) };
        match usize::try_from(n) {
            Ok(n) => filled += n,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(last_error("random numbers from the kernel")),
        }
    }
    Ok(id)
}

/// The failure of the last system call, with what was being asked for.
pub(crate) fn last_error(what: &str) -> Error {
    tieline_plugin_api::Failure::last_os_error(what).into()
}

/// An epoll instance: what `Worker::fd` hands out.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, Error> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(last_error("a descriptor to wait on (epoll_create1)"));
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        Ok(Poller { epoll: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Watches a descriptor for readability.
    pub(crate) fn add(&self, fd: RawFd) -> Result<(), Error> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the event record lives during the call.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if result < 0 { Err(last_error("watching a descriptor (epoll_ctl)")) } else { Ok(()) }
    }

    /// Sleeps until something is readable; `false` when the time is up. A signal ends the sleep early.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let ms = match timeout {
            None => -1,
            // Rounded up, so that a short sleep is not a spin.
            Some(t) => i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
        };
        // SAFETY: room for four events is given.
        let n = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, ms)
        };
        if n >= 0 {
            return Ok(n > 0);
        }
        if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            return Ok(true);
        }
        Err(last_error("waiting for events (epoll_wait)"))
    }
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// A descriptor that becomes readable at a time.
pub(crate) struct Timer {
    fd: OwnedFd,
    set: Cell<bool>,
}

impl Timer {
    pub(crate) fn new() -> Result<Timer, Error> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(last_error("a timer (timerfd_create)"));
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        Ok(Timer { fd: unsafe { OwnedFd::from_raw_fd(fd) }, set: Cell::new(false) })
    }

    /// Sets it to the time from now; `None` stops it. It is not readable until then.
    pub(crate) fn set(&self, after: Option<Duration>) -> Result<(), Error> {
        if after.is_none() && !self.set.get() {
            return Ok(());
        }
        self.set.set(after.is_some());
        // A time of zero would stop it.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: after.as_secs().min(1 << 40) as libc::time_t,
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        // SAFETY: the record lives during the call; the old value is not asked for.
        let result =
            unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
        if result < 0 { Err(last_error("a timer (timerfd_settime)")) } else { Ok(()) }
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A descriptor that another thread can make readable.
pub(crate) struct Wakeup {
    fd: OwnedFd,
}

impl Wakeup {
    pub(crate) fn new() -> Result<Wakeup, Error> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(last_error("a descriptor to wake a thread with (eventfd)"));
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        Ok(Wakeup { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes; a full counter is as good as a wake-up.
        let _ = unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

impl AsRawFd for Wakeup {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Says whether this process is still the one that made it: a page that the kernel wipes in a forked child.
pub(crate) struct ForkGuard {
    page: *mut AtomicU32,
}

// SAFETY: the page is only read after construction.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

const GUARD_LEN: usize = 4096;

impl ForkGuard {
    pub(crate) fn new() -> Result<ForkGuard, Error> {
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                GUARD_LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(last_error("a page of memory"));
        }
        // SAFETY: the page is ours and page-aligned. A kernel without this advice (before 4.14) only loses the check.
        unsafe {
            let _ = libc::madvise(page, GUARD_LEN, libc::MADV_WIPEONFORK);
            (*page.cast::<AtomicU32>()).store(1, Ordering::Relaxed);
        }
        Ok(ForkGuard { page: page.cast() })
    }

    /// `false` in a forked child.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        // SAFETY: the page stays mapped until drop.
        unsafe { (*self.page).load(Ordering::Relaxed) != 0 }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once.
        let _ = unsafe { libc::munmap(self.page.cast(), GUARD_LEN) };
    }
}

/// Memory that other processes may read and write at any time: never a Rust reference to its bytes, only copies and atomics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span is an address; every access goes through copies and atomics that tolerate concurrent writers.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes for as long as the span or a copy is used.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Span {
        Span { base, len }
    }

    /// The span of memory that a domain provided and keeps until it is deregistered.
    pub(crate) fn of_region(base: *mut u8, len: usize) -> Span {
        Span { base, len }
    }

    /// The span of a buffer that the caller keeps alive and does not move.
    #[cfg(test)]
    pub(crate) fn of_owned(buffer: &mut [u8]) -> Span {
        Span { base: buffer.as_mut_ptr(), len: buffer.len() }
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of a range inside, or why it is none.
    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<*mut u8, Status> {
        match offset.checked_add(len) {
            // SAFETY: the offset lies inside the span.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(offset) }),
            _ => Err(Status::OutOfRange),
        }
    }

    /// Copies out of the span.
    #[inline]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Status> {
        let from = self.range(offset, out.len())?;
        // SAFETY: the range was checked; `out` is a distinct Rust buffer.
        unsafe { std::ptr::copy(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies to a place that is writable for `len` bytes, such as a transport's buffer.
    #[inline]
    pub(crate) fn read_to(&self, offset: usize, out: *mut u8, len: usize) -> Result<(), Status> {
        let from = self.range(offset, len)?;
        // SAFETY: the range was checked; the caller got `out` from a packer with at least `len` bytes.
        unsafe { std::ptr::copy(from, out, len) };
        Ok(())
    }

    /// Copies into the span.
    #[inline]
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<(), Status> {
        let to = self.range(offset, data.len())?;
        // SAFETY: the range was checked.
        unsafe { std::ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// An aligned 32-bit word of the span.
    pub(crate) fn word32(&self, offset: usize) -> Result<&AtomicU32, Status> {
        let at = self.range(offset, 4)?;
        if at as usize % 4 != 0 {
            return Err(Status::Misaligned);
        }
        // SAFETY: in range, aligned, and an atomic tolerates concurrent writers.
        Ok(unsafe { &*at.cast() })
    }

    /// An aligned 64-bit word of the span.
    pub(crate) fn word64(&self, offset: usize) -> Result<&AtomicU64, Status> {
        let at = self.range(offset, 8)?;
        if at as usize % 8 != 0 {
            return Err(Status::Misaligned);
        }
        // SAFETY: in range, aligned, and an atomic tolerates concurrent writers.
        Ok(unsafe { &*at.cast() })
    }
}

/// A heap buffer that peers may write to: held as an address, so that no Rust reference claims it alone.
pub(crate) struct OwnedBuffer {
    span: Span,
}

impl OwnedBuffer {
    pub(crate) fn new(buffer: Box<[u8]>) -> OwnedBuffer {
        let len = buffer.len();
        let base = Box::into_raw(buffer).cast::<u8>();
        OwnedBuffer { span: Span { base, len } }
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        let raw = std::ptr::slice_from_raw_parts_mut(self.span.base, self.span.len);
        // SAFETY: made from a box of this length by `new`; dropped once, after deregistration.
        drop(unsafe { Box::from_raw(raw) });
    }
}

/// Copies a slice to a transport's buffer that has room for it.
#[inline]
pub(crate) fn copy_to(data: &[u8], out: *mut u8) {
    // SAFETY: the caller got `out` from a packer with at least `data.len()` bytes.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), out, data.len()) };
}

/// A transport's buffer as a slice for the application to write. Providers hand out initialised memory.
pub(crate) fn buffer_at<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: by the ABI a packer's buffer is initialised and ours alone for the length of the call.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// The process's number, for messages to people.
pub(crate) fn process_id() -> u32 {
    std::process::id()
}

#[cfg(test)]
pub(crate) fn span_for_tests(base: *mut u8, len: usize) -> Span {
    Span { base, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_refuses_ranges_outside_and_wrapping_ones() {
        let mut memory = vec![0u8; 64];
        let span = Span::of_owned(&mut memory);
        assert_eq!(span.write(60, b"abcd"), Ok(()));
        assert_eq!(span.write(61, b"abcd"), Err(Status::OutOfRange));
        assert_eq!(span.write(usize::MAX, b"abcd"), Err(Status::OutOfRange));
        let mut out = [0; 4];
        assert_eq!(span.read(60, &mut out), Ok(()));
        assert_eq!(&out, b"abcd");
        assert!(span.word64(57).is_err());
    }

    #[test]
    fn a_wakeup_ends_a_wait() {
        let poller = Poller::new().unwrap();
        let wakeup = Wakeup::new().unwrap();
        poller.add(wakeup.as_raw_fd()).unwrap();
        assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
        wakeup.wake();
        assert!(poller.wait(None).unwrap());
    }
}
