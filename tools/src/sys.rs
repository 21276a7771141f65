//! The system calls for which the standard library has no safe function.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero is a valid cpu_set_t: the type is an array of integers.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the code above has checked that `cpu` is inside the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer and the size are those of the local set; pid 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })
}

/// Returns the number of times that this process had to leave a processor although it could have continued.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: the record contains integers and may be all zeros; the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        let _ = libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// Returns the width of text output: the terminal's width, or the value of `COLUMNS` if there is no terminal, at most 100.
pub(crate) fn width() -> usize {
    // SAFETY: the record contains integers and may be all zeros; the call fills it, or fails.
    let columns = unsafe {
        let mut size: libc::winsize = zeroed();
        let done = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        if done == 0 { usize::from(size.ws_col) } else { 0 }
    };
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    Some(columns).filter(|columns| *columns > 0).or_else(said).unwrap_or(100).clamp(40, 100)
}

/// Returns the number of ticks of the kernel's clock in a second, in which `/proc/stat` counts.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: the call passes no pointer.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1)
}

/// Prepares the program that `command` will start: it ends with this process, has no signal blocked, and has the limit of open
/// files with which this process was started. If `cpu` is given, the program is pinned to that processor.
pub(crate) fn tie(command: &mut Command, cpu: Option<usize>) {
    let parent = std::process::id();
    let files = GIVEN.get().copied();
    let before_exec = move || {
        // SAFETY: PR_SET_PDEATHSIG takes a signal number by value and touches no memory.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // SAFETY: getppid cannot fail and touches no memory.
        if unsafe { libc::getppid() } as u32 != parent {
            return Err(io::ErrorKind::BrokenPipe.into()); // the parent ended before the line above
        }
        // Signals that this process blocks for `Signals` would stay blocked in the program. SAFETY: all-zero is the empty set on
        // Linux, and the old mask is not requested.
        let failed = unsafe {
            let none: libc::sigset_t = zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
        };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        if let Some(limit) = &files {
            // SAFETY: the pointer is that of a value that the closure owns.
            check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) })?;
        }
        cpu.map_or(Ok(()), pin)
    };
    // SAFETY: the closure runs between fork and exec: it makes five system calls and neither allocates nor
    // locks (the errors that it can return are made without allocation).
    let _ = unsafe { command.pre_exec(before_exec) };
}

/// The limit of open files with which this process was started.
static GIVEN: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises this process's limit of open files to the maximum: a launcher needs some files for each rank. Programs that it starts
/// keep the earlier limit.
pub(crate) fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is that of a local variable.
    if check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }).is_ok() {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: the pointer is that of a local variable.
        if check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) }).is_ok() {
            let _ = GIVEN.set(limit);
        }
    }
}

pub(crate) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: the call takes numbers by value and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dead {
    /// A child with this number has ended and was not reaped.
    Pid(u32),
    None,
    NoChild,
}

/// Returns a child that has ended, without reaping it.
pub(crate) fn next_dead() -> Dead {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is that of a local variable.
    match check(unsafe { libc::waitid(libc::P_ALL, 0, &mut info, options) }) {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Dead::NoChild,
        Err(_) => Dead::None,
        // SAFETY: waitid fills this member, and leaves it 0 if no child has ended.
        Ok(()) => match unsafe { info.si_pid() } {
            0 => Dead::None,
            pid => Dead::Pid(pid as u32),
        },
    }
}

pub(crate) fn collect(pid: u32) {
    // SAFETY: the call requests no status; the pid is that of one child.
    let _ = unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
}

pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the call passes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    check(flags)?;
    // SAFETY: the call passes no pointer.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

pub(crate) fn kill(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: kill touches no memory of this process; `pid` is positive and therefore identifies one process.
    check(unsafe { libc::kill(pid, signal) })
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) number: i32,
    /// Whether the terminal sent the signal: then every process of the foreground group has received it too.
    pub(crate) from_terminal: bool,
}

/// Signals that are read from a descriptor. The signals are blocked for this thread and for the threads that it starts.
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Redirects these signals and SIGCHLD to a descriptor. The caller must not have started any thread. A signal that the parent
    /// made this process ignore stays ignored (`nohup`, a shell's background job), except SIGCHLD, because the launcher needs the
    /// ends of its children.
    pub(crate) fn take(numbers: &[i32]) -> io::Result<Signals> {
        // SAFETY: all-zero is a valid sigaction: no handler (SIG_DFL), no flags, the empty set.
        let usual: libc::sigaction = unsafe { zeroed() };
        // SAFETY: the pointer is that of a local variable, and the old action is not requested.
        check(unsafe { libc::sigaction(libc::SIGCHLD, &usual, std::ptr::null_mut()) })?;
        let numbers = numbers.iter().filter(|number| !is_ignored(**number)).chain(&[libc::SIGCHLD]);

        // SAFETY: all-zero is a valid sigset_t, and sigemptyset initialises it as the empty set.
        let mut set: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: `set` is a valid local set.
        let _ = unsafe { libc::sigemptyset(&mut set) };
        for &number in numbers {
            // SAFETY: `set` is valid; the call refuses a number that is no signal.
            check(unsafe { libc::sigaddset(&mut set, number) })?;
        }
        // SAFETY: `set` is a valid local set, and the old mask is not requested.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: -1 requests a new descriptor, and `set` is valid.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(fd)?;
        // SAFETY: `fd` is new and has no other owner.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the next signal that has arrived, if there is one.
    pub(crate) fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, into a local variable of that size.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read != size as isize {
            return None;
        }
        // SAFETY: the returned length shows that the whole record was written.
        let info = unsafe { info.assume_init() };
        // SI_KERNEL means that no process sent the signal, so the terminal did.
        Some(Signal { number: info.ssi_signo as i32, from_terminal: info.ssi_code == 0x80 })
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid sigaction.
    let mut now: libc::sigaction = unsafe { zeroed() };
    // SAFETY: the call changes no action, and the pointer is that of a local variable.
    let asked = check(unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) });
    asked.is_ok() && now.sa_sigaction == libc::SIG_IGN
}

/// Waits until one of the descriptors is readable or the time limit has passed; returns which descriptors are readable.
pub(crate) fn wait_readable(fds: &[RawFd], timeout_ms: i32) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the pointer and the count are those of the local vector.
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
