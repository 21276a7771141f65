//! The few system calls of the core, each behind a safe function.

#![allow(unsafe_code)]

mod buffer;
mod exposed;
mod mapped;

pub(crate) use buffer::OwnedBuffer;
pub(crate) use exposed::{Exposed, Refusal};
pub(crate) use mapped::first_without;

use crate::Error;
use crate::error::Scope;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;
use tieline_plugin_api::process::Mark;
use tieline_plugin_api::{Failure, Status};

/// Returns sixteen random bytes: the id of a context or a worker.
pub(crate) fn random_id() -> Result<[u8; 16], Error> {
    let mut id = [0; 16];
    tieline_net::random(&mut id)
        .map_err(|e| Failure::from_io("random numbers from the kernel", &e))?;
    Ok(id)
}

/// Makes the error of the last system call, with the purpose of the call.
pub(crate) fn last_error(what: &str) -> Error {
    Failure::last_os_error(what).into()
}

/// An epoll instance: the descriptor that `Worker::fd` returns.
pub(crate) struct Poller {
    pub(crate) epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, Error> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(last_error("a descriptor to wait on (epoll_create1)"));
        }
        // SAFETY: the descriptor was just created and nothing else owns it.
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

    /// Stops watching a descriptor. A closed descriptor is not watched, so it need not be removed.
    pub(crate) fn remove(&self, fd: RawFd) {
        // SAFETY: deleting needs no event record.
        let _ = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut())
        };
    }

    /// Sleeps until a descriptor is readable; `false` after the timeout. A signal ends the sleep early.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let mut polled =
            libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().min(1 << 40) as libc::time_t,
            tv_nsec: t.subsec_nanos().into(),
        });
        let at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // epoll_wait supports only milliseconds. SAFETY: the record, and the time if there is one, live during the call; there is
        // no signal mask.
        let n = unsafe { libc::ppoll(&mut polled, 1, at, std::ptr::null()) };
        if n >= 0 {
            return Ok(n > 0);
        }
        if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            return Ok(true);
        }
        Err(last_error("waiting for events (ppoll)"))
    }
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// A descriptor that becomes readable at a set time.
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
        // SAFETY: the descriptor was just created and nothing else owns it.
        Ok(Timer { fd: unsafe { OwnedFd::from_raw_fd(fd) }, set: Cell::new(false) })
    }

    /// Sets the time relative to the current time; `None` stops the timer. The descriptor is not readable before the set time.
    pub(crate) fn set(&self, after: Option<Duration>) -> Result<(), Error> {
        if after.is_none() && !self.set.get() {
            return Ok(());
        }
        self.set.set(after.is_some());
        // A time of zero would stop the timer.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: after.as_secs().min(1 << 40) as libc::time_t,
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        // SAFETY: the record lives during the call; the old value is not requested.
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
        // SAFETY: the descriptor was just created and nothing else owns it.
        Ok(Wakeup { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are readable; a write to a full counter also wakes the sleeper.
        let _ = unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Returns the number of wake-ups since the last call. Afterwards the descriptor is not readable.
    pub(crate) fn take(&self) -> u64 {
        let mut count = 0u64;
        // SAFETY: eight bytes are writable; the descriptor does not block.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
        if read == 8 { count } else { 0 }
    }
}

impl AsRawFd for Wakeup {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A guard that detects whether the calling process is the one that created the guard.
pub(crate) struct ForkGuard(Mark);

impl ForkGuard {
    pub(crate) fn new() -> ForkGuard {
        ForkGuard(Mark::new())
    }

    /// Checks whether the calling process created the guard; `false` in a forked child.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.0.is_here()
    }

    /// Fails in a forked child, which must not use anything of its parent's: shared memory is not mapped there, and descriptors
    /// belong to the parent.
    pub(crate) fn check(&self, what: &str) -> Result<(), Error> {
        if self.same_process() {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            format!("{what} was used in a forked child"),
            "connections and shared memory belong to the process that made them",
            "open a new Context in the child",
        )
        .of(Scope::Context))
    }
}

/// Copies memory that threads of this process, other processes, or devices may read or write meanwhile. The result may mix old and
/// new bytes. The copy uses processor instructions, or atomic loads and stores, so the compiler assumes nothing about the memory.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes.
#[inline]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees the ranges; the direction flag is clear by the calling convention. From 4 KiB on, this
    // instruction is as fast as the C library's copy, but it takes some tens of nanoseconds to start.
    unsafe {
        if len <= SHORT_COPY {
            return copy_short(from, to, len);
        }
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller guarantees the ranges; words are used only if both sides are aligned.
    unsafe {
        use std::sync::atomic::{AtomicU8, Ordering};
        let alike = from as usize % 8 == to as usize % 8;
        let mut at = 0;
        while at < len {
            if alike && (from as usize + at) % 8 == 0 && at + 8 <= len {
                let word = (*from.add(at).cast::<AtomicU64>()).load(Ordering::Relaxed);
                (*to.add(at).cast::<AtomicU64>()).store(word, Ordering::Relaxed);
                at += 8;
            } else {
                let byte = (*from.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed);
                (*to.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
                at += 1;
            }
        }
    }
}

/// The maximum length of a copy that uses single moves.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT_COPY: usize = 512;

/// Copies by moves of 16, 8, 4, 2 and 1 bytes, in order. One move copies each byte, so a reader that has seen a byte arrive may
/// overwrite it immediately.
///
/// # Safety
/// The conditions are those of [`copy_shared`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    macro_rules! copy {
        ($class:ident, $size:literal, $load:literal, $store:literal) => {{
            std::arch::asm!(
                $load, $store,
                from = in(reg) from.add(at), to = in(reg) to.add(at), held = out($class) _,
                options(nostack, preserves_flags)
            );
            at += $size;
        }};
    }
    // SAFETY: the caller guarantees the ranges; no move exceeds `len`.
    unsafe {
        while at < len & !15 {
            copy!(xmm_reg, 16, "movups {held}, [{from}]", "movups [{to}], {held}");
        }
        if len & 8 != 0 {
            copy!(reg, 8, "mov {held:r}, [{from}]", "mov [{to}], {held:r}");
        }
        if len & 4 != 0 {
            copy!(reg, 4, "mov {held:e}, [{from}]", "mov [{to}], {held:e}");
        }
        if len & 2 != 0 {
            copy!(reg, 2, "mov {held:x}, [{from}]", "mov [{to}], {held:x}");
        }
        while at < len {
            copy!(reg_byte, 1, "mov {held}, [{from}]", "mov [{to}], {held}");
        }
    }
}

/// Memory that other processes may read and write at any time. The bytes are accessed by copies and atomics only, and never by a
/// Rust reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span is an address; every access uses copies and atomics that tolerate concurrent writers.
unsafe impl Send for Span {}
// SAFETY: a span is an address; every access uses copies and atomics that tolerate concurrent writers.
unsafe impl Sync for Span {}

impl Span {
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes for as long as the span or a copy of it is used.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Span {
        Span { base, len }
    }

    /// Makes a span of a buffer that the caller keeps alive and does not move.
    #[cfg(test)]
    pub(crate) fn from_owned(buffer: &mut [u8]) -> Span {
        Span { base: buffer.as_mut_ptr(), len: buffer.len() }
    }

    /// Makes a span of words that the caller keeps alive and does not move.
    #[cfg(test)]
    pub(crate) fn from_words(words: &mut [u64]) -> Span {
        Span { base: words.as_mut_ptr().cast(), len: size_of_val(words) }
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of a range of the span, or the error for a range outside.
    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<*mut u8, Status> {
        match offset.checked_add(len) {
            // SAFETY: the offset lies inside the span.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(offset) }),
            _ => Err(Status::OutOfRange),
        }
    }

    /// Returns the span of a range of this span, or the error for a range outside.
    ///
    /// # Safety
    /// The caller uses the part only as long as this span may be used.
    pub(crate) unsafe fn part(&self, offset: usize, len: usize) -> Result<Span, Status> {
        Ok(Span { base: self.range(offset, len)?, len })
    }

    /// Copies out of the span.
    #[inline]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Status> {
        let from = self.range(offset, out.len())?;
        // SAFETY: the range was checked; `out` is writable for its length.
        unsafe { copy_shared(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into the span.
    #[inline]
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<(), Status> {
        let to = self.range(offset, data.len())?;
        // SAFETY: the range was checked.
        unsafe { copy_shared(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Returns an aligned 32-bit word of the span.
    pub(crate) fn word32(&self, offset: usize) -> Result<&AtomicU32, Status> {
        let at = self.range(offset, 4)?;
        if at as usize % 4 != 0 {
            return Err(Status::Misaligned);
        }
        // SAFETY: the word is in range and aligned, and an atomic tolerates concurrent writers.
        Ok(unsafe { &*at.cast() })
    }

    /// Returns an aligned 64-bit word of the span.
    pub(crate) fn word64(&self, offset: usize) -> Result<&AtomicU64, Status> {
        let at = self.range(offset, 8)?;
        if at as usize % 8 != 0 {
            return Err(Status::Misaligned);
        }
        // SAFETY: the word is in range and aligned, and an atomic tolerates concurrent writers.
        Ok(unsafe { &*at.cast() })
    }
}

/// The resource limits of this process.
pub(crate) struct Limits {
    pub(crate) address_space: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
}

/// Returns the resource limits of this process.
pub(crate) fn limits() -> Limits {
    let read = |which| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the record is writable.
        let read = unsafe { libc::getrlimit(which, &mut limit) } == 0;
        (read && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    };
    Limits { address_space: read(libc::RLIMIT_AS), file_bytes: read(libc::RLIMIT_FSIZE) }
}

/// Returns the number of processors on which the calling thread may run.
pub(crate) fn processors_allowed() -> Option<usize> {
    // The mask has bits for more processors than any kernel supports.
    let mut mask = [0u64; 256];
    // SAFETY: the pointer and the size name the local mask; pid 0 is the calling thread.
    let read = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    let count = mask.iter().map(|word| word.count_ones() as usize).sum();
    (read == 0 && count > 0).then_some(count)
}

/// Returns the number of times that the calling thread had to leave its processor to another thread although it was runnable. A
/// yield after which another thread runs counts.
pub(crate) fn switches() -> u64 {
    // SAFETY: a rusage consists of integers, so all-zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// Returns the length of a page.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: no pointer is passed.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Raises the limit of descriptors to the maximum that this process may set. The function never lowers the limit.
#[cfg(test)]
pub(crate) fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is written before it is read.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// Runs `child` in a forked child; `true` if the child succeeded within 20 s.
#[cfg(test)]
pub(crate) fn ends_in_forked_child(child: impl FnOnce()) -> bool {
    // SAFETY: the child only does what a forked child of a multi-threaded program may do, which is the subject of the test.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: the signal ends the child if it hangs; `_exit` skips the parent's exit handlers.
        unsafe {
            let _ = libc::alarm(20);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(i32::from(ended.is_err()));
        }
    }
    let mut status = 0;
    // SAFETY: the pid is that of this process's child, and the status is writable.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Returns the process id, for messages to users.
pub(crate) fn process_id() -> u32 {
    std::process::id()
}

#[cfg(test)]
mod tests;
