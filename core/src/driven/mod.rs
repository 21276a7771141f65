//! Driven workers: workers with a progress thread, which any thread may use.
//!
//! A driven worker is an ordinary worker behind one lock. Every call takes the lock for its own duration. A wait holds no lock
//! while it spins or sleeps. The progress thread sleeps on the worker's descriptor, and makes progress if there is something to do.
//! A caller that waits makes progress itself if nobody else does: the thread then stays aside.
//!
//! Handlers run outside the lock, one at a time, in order. The call that makes progress copies each message, or keeps the
//! transport's buffer, and appends it to a list (`dispatch.rs`). The thread that has the dispatch turn runs the handlers: the
//! progress thread, or a thread that waits.
//!
//! The ordinary worker does not know of all this, and costs nothing more. `abi.rs` states why its objects may be used by several
//! threads.

mod abi;
mod changes;
mod close;
mod dispatch;
mod endpoint;
mod engine;
mod event;
mod handlers;
mod list;
mod lock;
mod message;
mod parking;
mod request;
#[cfg(test)]
mod tests;
mod thread;
mod wait;
mod waiters;

#[doc(hidden)]
pub use abi::LockedWorker;
pub use endpoint::{DrivenEndpoint, DrivenKey, DrivenKeyLookup};
pub use list::{DrivenAfter, DrivenDescriptor, DrivenList};
pub use message::{
    DrivenAcknowledgement, DrivenKept, DrivenMessage, DrivenNotReceived, DrivenRendezvous,
};
pub use request::{DrivenCompleted, DrivenCounter, DrivenCounts, DrivenOutcome, DrivenRequest};

use crate::endpoint::Endpoint;
use crate::interface::PeerId;
use crate::region::{NotClosed, Region};
use crate::setup::Core;
use crate::shared::Lease;
use crate::worker::{Counters, Worker};
use crate::{ConnectError, Error, Status};
use abi::Belonging;
use close::Owner;
use engine::Engine;
use request::deadline;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use thread::Running;
use waiters::Until;

/// The interval at which a closing region is tried again: the drop of a handle is no event of the worker.
const REGION_NAP: Duration = Duration::from_millis(1);

/// A worker with a progress thread. Any thread may use it and its objects at the same time. Clones share one worker.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// # let context = tieline::Context::open()?;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::Arc;
///
/// let worker = context.driven_worker()?;
/// let sum = Arc::new(AtomicU64::new(0));
/// let total = sum.clone();
/// worker.on_message(7, move |message| _ = total.fetch_add(message.header(), Ordering::Relaxed))?;
/// let me = worker.connect(&worker.address()?)?;
/// std::thread::scope(|threads| {
///     for n in 1..=4 {
///         let me = &me;
///         threads.spawn(move || me.send(7, n, b"from any thread").unwrap().wait(None).unwrap());
///     }
/// });
/// worker.wait_until(|| sum.load(Ordering::Relaxed) == 10, None)?;
/// # Ok(()) }
/// ```
///
/// # Handlers
///
/// Handlers are `Send`. They run one at a time, outside the worker's lock, on the progress thread or on a thread that waits for
/// something of this worker. They never run on a thread that only posts. A handler may make every call that does not wait. Calls
/// that wait return `Busy` in a handler, because the next handler would have to wait for this one. Other threads may post and wait
/// while a handler runs. If about 4,000 events wait for a slow handler, the worker receives nothing more until some were
/// dispatched.
///
/// A panic of a handler counts its event as dispatched. The panic unwinds through a call that waits: that of the thread that ran
/// the handler, or the next one of any thread. If several handlers panic before that, the first panic is raised.
///
/// # Waits
///
/// A wait that finds nobody driving the worker makes progress on its own thread: it spins, yields, and then leaves the worker to the
/// progress thread and sleeps, as the waits of an ordinary worker do (`TIELINE_SPIN`). Other waits sleep until the driving thread
/// finds their condition true. An idle driven worker uses no processor time.
///
/// # In a forked child
///
/// The progress thread does not exist in a child. Every call fails with `Invalid`, and drops have no effect: the objects are leaked,
/// because another thread of the parent may have been in the middle of a change.
///
/// # Closing and dropping
///
/// [`close`](DrivenWorker::close) delivers what was posted and ends the thread. Dropping the last clone ends the worker as dropping
/// an ordinary [`Worker`] does, and waits for a running handler; in a handler, it does not wait. Endpoints, keys and requests that
/// outlive the worker are unusable. A handler that holds a clone of its own worker keeps the worker open until `close` is called.
#[derive(Clone)]
pub struct DrivenWorker {
    owner: Arc<Owner>,
}

impl DrivenWorker {
    /// Opens a worker and starts its thread.
    pub(crate) fn open(core: Arc<Core>, lease: Arc<Lease>) -> Result<DrivenWorker, Error> {
        let engine = Engine::open(core, lease)?;
        let thread = Running::start(&engine)?;
        Ok(DrivenWorker { owner: Arc::new(Owner::new(engine, thread)) })
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.owner.engine
    }

    /// Returns this worker's address; see [`Worker::address`].
    ///
    /// # Errors
    /// The errors of [`Worker::address`].
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.engine().enter_open()?.worker()?.address()
    }

    /// Returns an endpoint to the worker with this address; see [`Worker::connect`].
    ///
    /// # Errors
    /// The errors of [`Worker::connect`].
    pub fn connect(&self, address: &[u8]) -> Result<DrivenEndpoint, ConnectError> {
        self.endpoint(|worker| worker.connect(address))
    }

    /// Returns an endpoint to a peer that has sent messages to this worker; see [`Worker::endpoint_to`].
    ///
    /// # Errors
    /// The errors of [`Worker::endpoint_to`].
    pub fn endpoint_to(&self, peer: PeerId) -> Result<DrivenEndpoint, ConnectError> {
        self.endpoint(|worker| worker.endpoint_to(peer))
    }

    fn endpoint(
        &self,
        make: impl FnOnce(&Worker) -> Result<Endpoint, ConnectError>,
    ) -> Result<DrivenEndpoint, ConnectError> {
        let entered = self.engine().enter_open()?;
        let endpoint = make(entered.worker()?)?;
        Ok(DrivenEndpoint::new(Belonging::new(&entered, endpoint)))
    }

    /// Returns an endpoint to `peer` that the application holds and that has not failed; see [`Worker::known_endpoint`].
    #[must_use]
    pub fn known_endpoint(&self, peer: PeerId) -> Option<DrivenEndpoint> {
        let entered = self.engine().enter().ok()?;
        let endpoint = entered.worker().ok()?.known_endpoint(peer)?;
        Some(DrivenEndpoint::new(Belonging::new(&entered, endpoint)))
    }

    /// Returns the worker's short name; see [`Worker::name`].
    ///
    /// # Errors
    /// The errors of [`Worker::name`].
    pub fn name(&self) -> Result<crate::WorkerName, Error> {
        self.engine().enter_open()?.worker()?.name()
    }

    /// Waits until `condition` holds, at most `timeout`; `false` if the time is up.
    ///
    /// The condition runs on this thread, outside the lock, and may make calls of the worker that do not wait. It is evaluated
    /// after every handler and after every event of the worker. If the condition becomes true without an event, the call notices at
    /// the end of a nap of at most 10 ms, or immediately after [`notify`](DrivenWorker::notify).
    ///
    /// # Errors
    /// `Busy` in a handler; `Closed` after the worker was closed; `Invalid` in a forked child. The reason why the context's progress
    /// thread has stopped, once per worker.
    pub fn wait_until(
        &self,
        mut condition: impl FnMut() -> bool,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        let engine = self.engine();
        engine.dispatch.check_no_handler("a wait")?;
        let deadline = deadline(timeout);
        loop {
            let seen = engine.changes();
            if condition() {
                return Ok(true);
            }
            if !engine.wait(Until::Changed(seen), deadline)? {
                return Ok(condition());
            }
        }
    }

    /// Makes the threads in [`wait_until`](DrivenWorker::wait_until) evaluate their conditions. Call it after a change that is no
    /// event of the worker.
    pub fn notify(&self) {
        if self.engine().same_process() {
            self.engine().tell_change();
        }
    }

    /// Closes a region, and waits until it is not in use any more or `timeout` expires; see [`Worker::close_region`].
    ///
    /// # Errors
    /// The errors of [`Region::close`]. Inside a handler the call does not wait.
    pub fn close_region(&self, region: Region, timeout: Duration) -> Result<(), NotClosed> {
        let (engine, until) = (self.engine(), deadline(Some(timeout)));
        let mut open = region;
        loop {
            match open.close() {
                Err(not) if not.error.status() == Status::Busy => {
                    let nap = deadline(Some(REGION_NAP)).min(until);
                    let waited = engine.wait(Until::Changed(engine.changes()), nap);
                    let is_over = until.is_some_and(|until| until <= std::time::Instant::now());
                    if waited.is_err() || is_over {
                        return Err(not);
                    }
                    open = not.region;
                }
                ended => return ended,
            }
        }
    }

    /// Returns the worker's counters of events; see [`Worker::counters`].
    ///
    /// # Errors
    /// `Closed` after the last handle was dropped; `Invalid` in a forked child.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.engine().enter()?.worker()?.counters())
    }

    /// Returns the number of pending operations; see [`Worker::pending`].
    ///
    /// # Errors
    /// The errors of [`DrivenWorker::counters`].
    pub fn pending(&self) -> Result<usize, Error> {
        Ok(self.engine().enter()?.worker()?.pending())
    }
}

impl fmt::Debug for DrivenWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrivenWorker")
    }
}

/// Checks at compile time that any thread may use these objects.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<DrivenWorker>();
    any_thread::<DrivenEndpoint>();
    any_thread::<DrivenKey>();
    any_thread::<DrivenList>();
    any_thread::<DrivenKept>();
    any_thread::<DrivenRendezvous>();
    any_thread::<DrivenAcknowledgement>();
};
