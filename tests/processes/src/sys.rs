//! The system calls of the tests, each behind a safe function.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the kernel kill a process when the thread that started it ends.
pub fn die_with_parent(command: &mut Command) {
    let ask = || {
        // SAFETY: passes numbers only.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    let _ = unsafe { command.pre_exec(ask) };
}

/// A clock that all processes share.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until one of the descriptors is readable or closed; `false` after so many milliseconds.
#[must_use]
pub fn readable(descriptors: &[i32], milliseconds: Option<i32>) -> bool {
    let mut list: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: the list is writable for the length given.
    let n = unsafe {
        libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, milliseconds.unwrap_or(-1))
    };
    n > 0
}

/// Reads what is there; 0 at the end.
#[must_use]
pub fn read(descriptor: i32, buffer: &mut [u8]) -> usize {
    // SAFETY: the buffer is writable for the length given.
    let n = unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(n).unwrap_or(0)
}

/// A limit of this process.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Open descriptors.
    Descriptors,
    /// Bytes of address space.
    AddressSpace,
}

impl Limit {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Limit::Descriptors => libc::RLIMIT_NOFILE,
            Limit::AddressSpace => libc::RLIMIT_AS,
        }
    }
}

/// Sets a soft limit, and returns what it was; the hard one bounds it.
#[must_use]
pub fn limit(which: Limit, to: u64) -> u64 {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::getrlimit(which.number(), &mut now) };
    let before = now.rlim_cur;
    now.rlim_cur = to.min(now.rlim_max);
    // SAFETY: the record is readable.
    let _ = unsafe { libc::setrlimit(which.number(), &now) };
    before
}

/// Whether this process may do everything.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: no argument.
    unsafe { libc::geteuid() == 0 }
}

/// Sends a signal to a process of the test's own.
pub fn signal(process: u32, signal: Signal) {
    let number = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
        Signal::Kill => libc::SIGKILL,
    };
    // SAFETY: passes numbers only.
    let _ = unsafe { libc::kill(process as i32, number) };
}

/// What [`signal`] sends.
#[derive(Clone, Copy, Debug)]
pub enum Signal {
    /// Not scheduled from here on.
    Stop,
    /// Goes on.
    Continue,
    /// Ends, without a word to anybody.
    Kill,
}

/// Becomes another user, for good.
#[must_use]
pub fn become_user(user: u32) -> bool {
    // SAFETY: passes numbers only.
    unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(user, user, user) == 0
            && libc::setresuid(user, user, user) == 0
    }
}

/// Stays on one processor.
#[must_use]
pub fn pin(processor: usize) -> bool {
    // SAFETY: the set is a plain bit field, valid when zeroed, and the number is inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

/// The first processor that this process may use.
#[must_use]
pub fn first_processor() -> usize {
    // SAFETY: the set is a plain bit field, valid when zeroed.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let _ = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..1024).find(|&n| libc::CPU_ISSET(n, &set)).unwrap_or(0)
    }
}

/// Runs `child` in a forked child of this single-threaded process and returns what its exit code was;
/// `None` when a signal ended it.
///
/// # Panics
/// When there is no fork.
#[must_use]
pub fn in_forked_child(child: impl FnOnce() -> u8) -> Option<u8> {
    // SAFETY: the callers are processes with one thread, so the child is a whole process.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
        // SAFETY: ends the child at once, without what the parent registered for its own end.
        unsafe { libc::_exit(i32::from(code)) };
    }
    let mut status = 0;
    // SAFETY: the number is writable, and the child is ours.
    let _ = unsafe { libc::waitpid(pid, &mut status, 0) };
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
}

/// A descriptor that becomes readable when `watched` does: the usual way of an event loop.
pub struct Epoll(i32);

impl Epoll {
    /// Watches one descriptor.
    ///
    /// # Panics
    /// When the system refuses.
    #[must_use]
    pub fn over(watched: i32) -> Epoll {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
        // SAFETY: the record lives during the calls.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(
                epoll >= 0 && libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, watched, &mut event) == 0
            );
            Epoll(epoll)
        }
    }

    /// Sleeps until it is readable.
    pub fn wait(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event is given.
        let _ = unsafe { libc::epoll_wait(self.0, &mut event, 1, -1) };
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: made by `over`, closed once.
        let _ = unsafe { libc::close(self.0) };
    }
}
