//! System calls of the core and the memory that peers access, behind safe functions wherever possible.

#![allow(unsafe_code)]

mod buffer;
mod exposed;
mod mapped;

pub(crate) use buffer::OwnedBuffer;
pub(crate) use exposed::{Exposed, Refusal};
pub(crate) use mapped::first_without;
pub(crate) use tieline_host::{Span, page_bytes};

use crate::Error;
use crate::error::Scope;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;
use tieline_plugin_api::process::Mark;
use tieline_plugin_api::{Failure, Status};

/// Returns sixteen random bytes: the id of a worker.
pub(crate) fn random_id() -> Result<[u8; 16], Error> {
    let [id] = random_ids()?;
    Ok(id)
}

/// Returns ids of sixteen random bytes each, for example those of a context and its first worker.
pub(crate) fn random_ids<const N: usize>() -> Result<[[u8; 16]; N], Error> {
    let mut ids = [[0; 16]; N];
    tieline_net::random(ids.as_flattened_mut())
        .map_err(|e| Failure::from_io("random numbers from the kernel", &e))?;
    Ok(ids)
}

/// Returns the time by a clock that is cheap to read and advances every few milliseconds. Its origin is arbitrary.
pub(crate) fn coarse_clock() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record outlives the call. The clock exists on every Linux, so the call cannot fail.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
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

    /// Makes a second descriptor of the same poller.
    pub(crate) fn second(&self) -> Result<Poller, Error> {
        let epoll = self.epoll.try_clone();
        let failed = |error| Failure::from_io("a second descriptor to wait on (fcntl)", &error);
        Ok(Poller { epoll: epoll.map_err(failed)? })
    }

    /// Watches a descriptor for readability.
    pub(crate) fn add(&self, fd: RawFd) -> Result<(), Error> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the event record lives during the call.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if result < 0 { Err(last_error("watching a descriptor (epoll_ctl)")) } else { Ok(()) }
    }

    /// Stops watching a descriptor. A descriptor that was closed, with all its duplicates, need not be removed.
    pub(crate) fn remove(&self, fd: RawFd) {
        // SAFETY: deleting needs no event record.
        let _ = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut())
        };
    }

    /// Watches all of these descriptors, or none.
    pub(crate) fn add_all(&self, fds: &[RawFd]) -> Result<(), Error> {
        let added = fds.iter().try_for_each(|fd| self.add(*fd));
        if added.is_err() {
            self.remove_all(fds);
        }
        added
    }

    /// Stops watching these descriptors.
    pub(crate) fn remove_all(&self, fds: &[RawFd]) {
        fds.iter().for_each(|fd| self.remove(*fd));
    }

    /// Sleeps until a descriptor is readable; `false` after the timeout. A signal ends the sleep early, with `true`.
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

    /// Returns the number of wake-ups since the last call. Afterwards the descriptor is not readable until the next wake-up.
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
    #[inline]
    pub(crate) fn check(&self, what: &str) -> Result<(), Error> {
        if self.same_process() { Ok(()) } else { Err(used_in_child(what)) }
    }
}

#[cold]
fn used_in_child(what: &str) -> Error {
    Error::new(
        Status::Invalid,
        format!("{what} was used in a forked child"),
        "connections and shared memory belong to the process that made them",
        "open a new Context in the child",
    )
    .of(Scope::Context)
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
    // The mask has bits for 16,384 processors.
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

/// Runs `child` in a forked child; `true` if the child succeeded within 20 s.
#[cfg(test)]
pub(crate) fn ends_in_forked_child(child: impl FnOnce()) -> bool {
    tieline_testing::holds_in_child(|| {
        child();
        true
    })
}

#[cfg(test)]
mod tests;
