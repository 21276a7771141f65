//! What moves to another thread with all that belongs to it.

#![allow(unsafe_code)]

use crate::worker::{Inner, Worker};
use crate::{Error, Status};
use std::fmt;
use std::ops::{Deref, DerefMut};
use tieline_plugin_api::caps;

/// A worker and everything that belongs to it, in a form that goes from thread to thread: one thread has it at a time.
///
/// A worker cannot be sent, since its endpoints, requests and kept messages share its state without a lock: were one of them used by
/// a thread and another by a second one, both would change the same words. What is sound is to move all of them together. No
/// compiler sees that nothing stays behind, hence the promise of [`new`](Movable::new). What it buys: `Mutex<Movable<State>>` can be
/// shared by all threads of a program, each of which makes progress and posts while it has the lock.
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
/// // SAFETY: all of the worker's is in here, its handlers have none of it, and nobody keeps what is taken out under the lock.
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
/// It is not `Sync`: a reference to it stays with its thread. It may be dropped by any thread that has it.
pub struct Movable<T>(T);

// SAFETY: who made it has promised that all that shares state with what is in it moves with it, from one thread to the next, and
// that every module in use may move (`Movable::new`). No part of the library keeps anything in thread-local storage but the words of
// a provider's last error, which are asked for by the thread that the call failed on.
unsafe impl<T> Send for Movable<T> {}

impl<T> Movable<T> {
    /// Makes it movable.
    ///
    /// # Safety
    /// As long as the value exists, whatever thread has it:
    ///
    /// * [`Worker::check_movable`] has said `Ok` of every worker in it.
    /// * Of each of these workers everything is in it: the [`Worker`], all clones of its endpoints, all remote keys and pointers,
    ///   requests, counters, kept and announced messages, requests and calls of services. What is taken out through a reference, a clone of an
    ///   endpoint for example, is put back or dropped before another thread gets the value. A [`Waker`](crate::Waker), a
    ///   [`Remote`](crate::Remote), regions and the context belong to no thread and may be anywhere.
    /// * None of them is in a [`WaitSet`](crate::WaitSet), unless the set and all its other workers are in it, too.
    /// * What else is in it, and what the workers' handlers, packers and states of remotes have captured, may move as well: it is `Send`, or, like
    ///   an `Rc`, all that shares it is in here too. What belongs to a thread, such as a lock's guard, is not in it.
    pub unsafe fn new(value: T) -> Movable<T> {
        Movable(value)
    }

    /// The value itself, which stays with the thread that asks.
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
    /// Whether this worker may be moved to another thread, inside of a [`Movable`]: every module that it has open says so of itself
    /// (`ANY_THREAD`, docs/abi.md), as all of this library's do. It does not change while the worker is open.
    ///
    /// # Errors
    /// `Unsupported`, with the module that belongs to the thread that opened it; `Invalid` in a forked child.
    pub fn check_movable(&self) -> Result<(), Error> {
        self.inner.shared.core.check_process("a worker")?;
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

impl Inner {
    /// The first module that cannot move.
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
