//! The move of a worker to another thread together with its objects.

#![allow(unsafe_code)]

use crate::worker::{Worker, WorkerState};
use crate::{Error, Status};
use std::fmt;
use std::ops::{Deref, DerefMut};
use tieline_plugin_api::caps;

/// A worker and all objects that belong to it, in a form that can move between threads. One thread at a time may use the value.
///
/// A worker cannot be sent on its own, because its endpoints, requests and kept messages share its state without a lock. If two
/// threads used two of these objects, both would modify the same words. Moving all of them together is sound. The compiler cannot
/// verify that the value contains all of these objects, hence the contract of [`new`](Movable::new).
///
/// With a `Movable`, all threads of a program can share a `Mutex<Movable<State>>`: each thread makes progress and posts while it
/// holds the lock.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// # let context = tieline::Context::open()?;
/// use std::sync::Mutex;
/// use tieline::{Endpoint, Movable, Worker};
///
/// struct State { worker: Worker, me: Endpoint }
///
/// let worker = context.worker()?;
/// worker.check_movable()?;
/// let me = worker.connect(&worker.address()?)?;
/// // SAFETY: every object of the worker is in here, its handlers hold none, and no clone outlives the lock.
/// let shared = Mutex::new(unsafe { Movable::new(State { worker, me }) });
/// std::thread::scope(|threads| {
///     for id in 0..4 {
///         let shared = &shared;
///         threads.spawn(move || {
///             let state = shared.lock().unwrap();
///             let sent = state.me.send(1, id, b"by turns").unwrap();
///             let _ = state.worker.finish(sent).unwrap();
///         });
///     }
/// });
/// # Ok(()) }
/// ```
///
/// `Movable` is not `Sync`: a reference to the value stays on its thread. Any thread that has the value may drop it.
pub struct Movable<T>(T);

// SAFETY: the caller of `Movable::new` has guaranteed that all objects sharing state with the content move with it, from one thread
// to the next, and that every module in use may move. The library keeps no state of a worker in thread-local storage. The text of a
// provider's last error is there, and is read by the thread whose call failed.
unsafe impl<T> Send for Movable<T> {}

impl<T> Movable<T> {
    /// Wraps a value so that it can move between threads.
    ///
    /// # Safety
    /// As long as the value exists, on every thread, the following holds:
    ///
    /// * [`Worker::check_movable`] has returned `Ok` for every worker in it.
    /// * The value contains every object of each of these workers: the [`Worker`], all clones of its endpoints, all remote keys and
    ///   pointers, requests and counters. The same is true of kept messages, announcements, service requests, service calls and
    ///   name calls. An object taken out through a reference, for example a clone of an endpoint, is put back or dropped before
    ///   another thread gets the value. A [`Waker`](crate::Waker), a [`Remote`](crate::Remote), regions and the context belong to
    ///   no thread and may be outside the value.
    /// * None of these workers is in a [`WaitSet`](crate::WaitSet), unless the set and all of its other workers are in the value,
    ///   too.
    /// * All other content, and all captures of the workers' handlers, packers and remote states, may move as well: they are
    ///   `Send`, or, like an `Rc`, all objects that share them are in the value too. An object bound to a thread, such as a lock
    ///   guard, is not in the value.
    pub unsafe fn new(value: T) -> Movable<T> {
        Movable(value)
    }

    /// Returns the value itself, which stays with the calling thread.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Movable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Movable<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> fmt::Debug for Movable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Movable")
    }
}

impl Worker {
    /// Checks that this worker may move to another thread inside a [`Movable`]. Every module that the worker has open must support
    /// it (`ANY_THREAD`, docs/abi.md); all modules of the providers in this repository do. The result does not change while the
    /// worker is open.
    ///
    /// # Errors
    /// `Unsupported`, with the module that is bound to the thread that opened it; `Invalid` in a forked child.
    pub fn check_movable(&self) -> Result<(), Error> {
        self.inner.shared.check_process("a worker")?;
        match self.inner.bound_to_thread() {
            None => Ok(()),
            Some(path) => Err(Error::new(
                Status::Unsupported,
                "a worker that goes to another thread",
                format!("{path} belongs to the thread that opened it"),
                "leave that provider out, or hand work to the worker's thread (Worker::remote)",
            )),
        }
    }
}

impl WorkerState {
    /// Returns the first module that cannot move.
    fn bound_to_thread(&self) -> Option<String> {
        let mut slots = self.shared.interfaces.iter();
        let slot = slots.find(|slot| slot.attr.caps & caps::ANY_THREAD == 0);
        if let Some(slot) = slot {
            return Some(slot.path.clone());
        }
        let mut connectors = self.wiring.transports.connectors.iter();
        let connector = connectors.find(|slot| slot.caps & caps::ANY_THREAD == 0)?;
        Some(connector.scheme.clone())
    }
}
