//! The system calls that the standard library has no safe name for.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs the calling thread on one processor only.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero is a valid cpu_set_t: it is an array of integers.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` lies inside the set: checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer and the size name the local set; pid 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })
}

/// Makes the program that `command` will start end with this process, with no signal blocked, and pins it if a
/// processor is given.
pub(crate) fn tie(command: &mut Command, cpu: Option<usize>) {
    let parent = std::process::id();
    let before_exec = move || {
        // SAFETY: PR_SET_PDEATHSIG takes a signal number by value and touches no memory.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // SAFETY: getppid cannot fail and touches no memory.
        if unsafe { libc::getppid() } as u32 != parent {
            return Err(io::ErrorKind::BrokenPipe.into()); // the parent ended before the line above
        }
        // What a Signals of this process blocks would stay blocked in the program.
        // SAFETY: all-zero is the empty set on Linux, and the old mask is not asked for.
        let failed = unsafe {
            let none: libc::sigset_t = zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
        };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        cpu.map_or(Ok(()), pin)
    };
    // SAFETY: the closure runs between fork and exec: it makes four system calls and neither allocates nor
    // locks (the errors that it can return are made without allocation).
    let _ = unsafe { command.pre_exec(before_exec) };
}

/// Sends a signal to one process.
pub(crate) fn kill(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: kill touches no memory of ours; `pid` is positive and so names one process.
    check(unsafe { libc::kill(pid, signal) })
}

/// A signal that a [`Signals`] handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) number: i32,
    /// The terminal sent it: every process of the foreground group has it already.
    pub(crate) from_terminal: bool,
}

/// Signals as a descriptor: blocked for this thread and those it starts, and read when it suits.
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Takes these signals over. To be called before any thread is started.
    pub(crate) fn take(numbers: &[i32]) -> io::Result<Signals> {
        // SAFETY: all-zero is a valid sigset_t, and sigemptyset makes it the empty set all the same.
        let mut set: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: `set` is a local, valid set.
        let _ = unsafe { libc::sigemptyset(&mut set) };
        for &number in numbers {
            // SAFETY: as above; a number that is no signal is refused by the call.
            check(unsafe { libc::sigaddset(&mut set, number) })?;
        }
        // SAFETY: `set` is a local, valid set, and the old mask is not asked for.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: -1 asks for a new descriptor; `set` is valid.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(fd)?;
        // SAFETY: `fd` is new and owned by nobody else.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that has arrived, if any.
    pub(crate) fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, into a local of that size.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read != size as isize {
            return None;
        }
        // SAFETY: all of it was written, as the length says.
        let info = unsafe { info.assume_init() };
        // SI_KERNEL: no process sent it, so the terminal did.
        Some(Signal { number: info.ssi_signo as i32, from_terminal: info.ssi_code == 0x80 })
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until one of the descriptors can be read or the time is over; says which can.
pub(crate) fn wait_readable(fds: &[RawFd], timeout_ms: i32) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the pointer and the count name the local vector.
    let ready =
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
    match check(ready) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(polled.iter().map(|p| p.revents != 0).collect()),
    }
}

fn check(outcome: i32) -> io::Result<()> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
