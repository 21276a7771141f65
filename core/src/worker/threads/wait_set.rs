//! Waiting for several workers of one thread.

use crate::sys::{ForkGuard, Poller};
use crate::worker::wait::{POLL_NAP, Waited, sleep_on};
use crate::worker::{Worker, WorkerState};
use crate::{Error, Status};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// The name used in error texts.
const NAME: &str = "a set of workers";

/// A set of several workers of one thread, which makes progress on them and waits for them together, through one descriptor.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// # let context = tieline::Context::open()?;
/// let (one, two) = (context.worker()?, context.worker()?);
/// let mut set = tieline::WaitSet::new()?;
/// set.add(&one)?;
/// set.add(&two)?;
/// two.on_message(1, |m| println!("{} bytes", m.payload().len()))?;
/// let there = one.connect(&two.address()?)?;
/// let _ = there.send(1, 0, b"hello")?;
/// set.wait(None)?; // both make progress
/// # Ok(()) }
/// ```
///
/// A worker that is dropped or closed leaves the set by itself.
pub struct WaitSet {
    poller: Poller,
    members: Vec<Member>,
    guard: ForkGuard,
}

struct Member {
    worker: Weak<WorkerState>,
    /// The worker's poller, kept open until it has been removed from the set: the number of a closed descriptor may be reused.
    fd: Rc<Poller>,
}

impl Member {
    /// Returns the worker, unless it has ended.
    fn worker(&self) -> Option<Rc<WorkerState>> {
        self.worker.upgrade().filter(|worker| worker.check_open().is_ok())
    }
}

impl WaitSet {
    /// Makes an empty set.
    ///
    /// # Errors
    /// The system's error if it cannot provide a descriptor.
    pub fn new() -> Result<WaitSet, Error> {
        Ok(WaitSet { poller: Poller::new()?, members: Vec::new(), guard: ForkGuard::new() })
    }

    /// Adds a worker. The application may also make progress on the worker separately, and add it to other sets.
    ///
    /// # Errors
    /// `Invalid` for a worker that is already in the set, and in a forked child; `Closed` for a closed worker. The system's error
    /// if it refuses to watch another descriptor.
    pub fn add(&mut self, worker: &Worker) -> Result<(), Error> {
        self.guard.check(NAME)?;
        worker.inner.check_open()?;
        self.let_go();
        if self.place(worker).is_some() {
            return Err(Error::new(
                Status::Invalid,
                "a worker that joins a set",
                "it is in it already",
                "add it once",
            ));
        }
        let fd = worker.inner.poller.clone();
        self.poller.add(fd.as_raw_fd())?;
        self.members.push(Member { worker: Rc::downgrade(&worker.inner), fd });
        Ok(())
    }

    /// Removes a worker, and returns whether it was in the set.
    pub fn remove(&mut self, worker: &Worker) -> bool {
        let Some(at) = self.place(worker) else { return false };
        let member = self.members.swap_remove(at);
        // In a forked child this would change the parent's set.
        if self.guard.same_process() {
            self.poller.remove(member.fd.as_raw_fd());
        }
        true
    }

    /// Returns the number of workers in the set that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.iter().filter_map(Member::worker).count()
    }

    /// Checks whether the set has no workers, or all of them have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a descriptor for poll(2) or epoll. The descriptor is readable if there may be work for one of the workers, provided
    /// that [`arm`](WaitSet::arm) returned `true` before.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    /// Calls [`Worker::progress`] on every worker, and returns the total number of events.
    pub fn progress(&mut self) -> usize {
        self.workers().map(|worker| worker.progress()).sum()
    }

    /// Prepares a sleep on [`WaitSet::fd`], like [`Worker::arm`]. Returns `true` if the program may sleep, `false` if one of the
    /// workers has work to do first.
    ///
    /// # Errors
    /// The errors of [`Worker::arm`]: the first error of a worker. `Invalid` in a forked child.
    pub fn arm(&mut self) -> Result<bool, Error> {
        self.guard.check(NAME)?;
        self.let_go();
        for worker in self.workers() {
            if !worker.arm_to_wait()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes progress on all workers. If there were no events, the call sleeps until one of the workers may have work, at most
    /// `timeout`, and makes progress again. The result has the same meaning as for [`Worker::wait`].
    ///
    /// If a module of a worker has no descriptor to sleep on, so that [`Worker::wait`] returns an error, the set polls its workers
    /// between naps. A set without workers sleeps until the timeout expires or a signal arrives.
    ///
    /// # Errors
    /// The errors of [`Worker::wait`], except `Unsupported`: the first error of a worker. `Invalid` without a timeout for a set
    /// that has no worker or whose workers have all ended, and in a forked child.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Waited, Error> {
        self.guard.check(NAME)?;
        self.let_go();
        for worker in self.workers() {
            worker.shared.check_no_handler("a wait")?;
            worker.hear_of_service()?;
            worker.look_at_all();
        }
        if self.progress() > 0 {
            return Ok(Waited::Moved);
        }
        let begun = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let roused = match self.arm_all() {
                Ok(false) => Some(true),
                Ok(true) if left.is_none() && self.is_empty() => return Err(nothing_to_wait_for()),
                Ok(true) => Some(self.sleep(left)?),
                // A module without a descriptor is polled repeatedly.
                Err(error) if error.status() == Status::Unsupported => {
                    let nap = left.map_or(POLL_NAP, |left| left.min(POLL_NAP));
                    let _ = self.poller.wait(Some(nap))?;
                    // The workers after this one were not armed.
                    self.workers().for_each(|worker| worker.look_at_all());
                    None
                }
                Err(error) => return Err(error),
            };
            for worker in self.workers() {
                let _ = worker.hear_signal();
            }
            let moved = self.progress() > 0;
            // The flag of every worker is read, because reading resets it.
            let said =
                |any, worker: Rc<WorkerState>| worker.woken.take() | worker.has_completed() | any;
            let any = self.workers().fold(moved, said);
            match roused {
                _ if any => return Ok(Waited::Moved),
                Some(true) => return Ok(Waited::Roused),
                Some(false) => return Ok(Waited::TimeIsUp),
                None if left.is_some_and(|left| left <= POLL_NAP) => return Ok(Waited::TimeIsUp),
                None => {}
            }
        }
    }

    /// Checks whether this thread may sleep. Workers with a pending report prevent the sleep.
    fn arm_all(&self) -> Result<bool, Error> {
        for worker in self.workers() {
            if worker.woken.get() || worker.has_completed() || !worker.arm(None)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps; returns whether an event, rather than the timeout, has ended the sleep.
    fn sleep(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let shown_in = self.workers().filter_map(|worker| worker.show_sleep(false)).max();
        let show = || self.workers().for_each(|worker| worker.show());
        let slept = sleep_on(&self.poller, timeout, shown_in, show);
        self.workers().for_each(|worker| worker.shown.publisher.awakes());
        slept
    }

    #[cfg(test)]
    pub(in crate::worker) fn is_readable(&self) -> bool {
        self.poller.wait(Some(Duration::ZERO)).unwrap()
    }

    fn place(&self, worker: &Worker) -> Option<usize> {
        self.members.iter().position(|one| std::ptr::eq(one.worker.as_ptr(), &*worker.inner))
    }

    fn workers(&self) -> impl Iterator<Item = Rc<WorkerState>> + '_ {
        self.members.iter().filter_map(Member::worker)
    }

    /// Stops watching the workers that have ended.
    fn let_go(&mut self) {
        let poller = &self.poller;
        self.members.retain(|member| {
            let stays = member.worker().is_some();
            if !stays {
                poller.remove(member.fd.as_raw_fd());
            }
            stays
        });
    }
}

#[cold]
fn nothing_to_wait_for() -> Error {
    Error::new(
        Status::Invalid,
        "a set of workers that waits",
        "it has no open worker, so nothing would end the wait",
        "add a worker, or say how long to wait",
    )
}
