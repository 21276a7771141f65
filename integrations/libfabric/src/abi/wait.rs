//! Sleeping: descriptors on which applications wait, and the thread of a domain with automatic progress.

use crate::domain::Domain;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest sleep while something is to be done that no descriptor announces.
const NAP: Duration = Duration::from_millis(1);
/// The longest sleep of a thread.
const LONG: Duration = Duration::from_secs(1);

/// A descriptor on which an application waits: it is readable if one of the added descriptors is, or after [`Waiter::wake`].
#[derive(Debug)]
pub(crate) struct Waiter {
    epoll: OwnedFd,
    event: OwnedFd,
    armed: AtomicBool,
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just made the descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Waiter {
    pub(crate) fn open() -> io::Result<Waiter> {
        // SAFETY: the calls involve no memory.
        let (epoll, event) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
            )
        };
        let waiter = Waiter { epoll, event, armed: AtomicBool::new(false) };
        waiter.add(waiter.event.as_raw_fd())?;
        Ok(waiter)
    }

    /// Adds a descriptor. Closing it removes it.
    pub(crate) fn add(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the record is valid for the call.
        let code = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)
        };
        let error = io::Error::last_os_error();
        // An endpoint is bound to the same queue for sends and for receives.
        if code == 0 || error.raw_os_error() == Some(libc::EEXIST) { Ok(()) } else { Err(error) }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Makes the descriptor readable if somebody may sleep on it.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.armed.swap(false, Ordering::AcqRel) {
            let one = 1u64;
            // SAFETY: the number is valid for the call.
            let _ = unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Prepares a sleep: forgets earlier calls of [`Waiter::wake`].
    pub(crate) fn arm(&self) {
        let mut count = 0u64;
        // SAFETY: the number has room for what is read.
        let _ = unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
        self.armed.store(true, Ordering::Release);
    }

    /// Sleeps until the descriptor is readable, at most for a time.
    pub(crate) fn sleep(&self, most: Duration) {
        sleep_on(&[self.descriptor()], most);
    }
}

/// Ends the sleep of a thread.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        // SAFETY: the call involves no memory.
        let event = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        Ok(Bell { event, rung: AtomicBool::new(false) })
    }

    /// The descriptor is readable from now on.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        let one = 1u64;
        // SAFETY: the number is valid for the call.
        let _ = unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    pub(crate) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// Sleeps until one of the descriptors is readable, at most for a time.
pub(crate) fn sleep_on(fds: &[RawFd], most: Duration) {
    let of = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = fds.iter().map(of).collect();
    let time = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: most.subsec_nanos().into(),
    };
    // SAFETY: the list has as many records; the time is valid for the call.
    let _ = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &raw const time,
            core::ptr::null(),
        )
    };
}

/// Prepares the workers of a domain for a sleep. Returns their descriptors and the longest sleep; `None`: there is work.
pub(crate) fn prepare(domain: &Domain) -> Option<(Vec<RawFd>, Duration)> {
    // Another thread may take the events of a shared domain, and this one would not learn of it.
    let mut most = if domain.choices.is_shared || domain.choices.auto { NAP } else { LONG };
    let mut fds = Vec::new();
    for ep in domain.eps.borrow().iter() {
        match ep.worker.arm() {
            Ok(true) => fds.push(ep.worker.fd()),
            Ok(false) => return None,
            // A module that cannot wait is polled.
            Err(_) => most = NAP,
        }
        if ep.is_busy() {
            most = NAP;
        }
    }
    Some((fds, most))
}

/// The address of a domain, for its own thread.
struct Whose(*const Domain);

// SAFETY: the thread uses the domain only under the domain's lock, and ends before the domain does.
unsafe impl Send for Whose {}

/// The thread that makes progress on a domain while no caller does.
pub(crate) struct Driver {
    bell: Arc<Bell>,
    thread: std::cell::RefCell<Option<JoinHandle<()>>>,
}

impl Driver {
    pub(crate) fn start(domain: &Rc<Domain>) -> io::Result<Driver> {
        let bell = Arc::new(Bell::new()?);
        let (whose, ring) = (Whose(Rc::as_ptr(domain)), bell.clone());
        let thread = std::thread::Builder::new()
            .name("tieline-fi".into())
            .spawn(move || drive(&whose, &ring))?;
        Ok(Driver { bell, thread: std::cell::RefCell::new(Some(thread)) })
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is in the domain's flag.
            let _ = thread.join();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

fn drive(whose: &Whose, bell: &Bell) {
    // SAFETY: the domain outlives the thread, which `Driver::stop` joins.
    let domain = unsafe { &*whose.0 };
    let mut seen = 0;
    while !bell.has_rung() {
        let guard = domain.gate.enter();
        if domain.poisoned.get() {
            return;
        }
        let (mut fds, mut most) = (Vec::new(), NAP);
        // Callers that make progress themselves are left alone.
        if domain.calls.get() == seen {
            let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                domain.progress();
                prepare(domain)
            }));
            match moved {
                Ok(Some(prepared)) => (fds, most) = (prepared.0, prepared.1.max(NAP)),
                Ok(None) => most = Duration::ZERO,
                Err(_) => domain.poisoned.set(true),
            }
        }
        seen = domain.calls.get();
        drop(guard);
        fds.push(bell.descriptor());
        if most > Duration::ZERO {
            sleep_on(&fds, most);
        }
    }
}
