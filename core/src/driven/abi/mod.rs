//! Objects of a driven worker outside its lock.
//!
//! The ordinary worker behind a driven one shares its state with its endpoints, keys, requests and messages by `Rc` and `Cell`,
//! without atomic instructions. Every access to such an object must therefore happen under the worker's lock, and this includes its
//! clone and its drop. The types of the application never contain such an object itself. They contain a [`Belonging`], which gives
//! access only to the holder of the lock.
//!
//! | the object leaves the lock as | it is used and dropped |
//! |---|---|
//! | [`Belonging`] in an endpoint, key, request, counter, prepared list, rendezvous message, acknowledgement or lent payload | under the lock of its own engine |
//! | [`Carried`] in an event that waits for dispatch | becomes a [`Belonging`] of the engine whose list contains the event |
//! | [`Handler`], a function of the application | called by the one thread that has the dispatch turn; dropped outside the lock |
//!
//! In a forked child none of these objects is dropped: another thread of the parent may have been in the middle of a change.

#![allow(unsafe_code)]

mod ordinary;
mod raw;

#[doc(hidden)]
pub use ordinary::LockedWorker;

use super::dispatch::{Dispatch, Turn};
use super::engine::{Engine, Entered, Inside};
use super::lock::Lock;
use crate::{Error, Movable, Status};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// An object of the worker behind `engine`, for use under that engine's lock.
pub(super) struct Belonging<T> {
    engine: Arc<Engine>,
    value: ManuallyDrop<T>,
}

// SAFETY: the object is made, read and dropped under the lock of `engine` alone, so no two threads access its shared state at the
// same time, and the lock orders their accesses. Everything that shares state with the object is behind the same lock. The worker
// has only modules that any thread may call (`ANY_THREAD`), and the library keeps no state of a worker in thread-local storage.
unsafe impl<T> Send for Belonging<T> {}
// SAFETY: a shared reference gives access to the object only with a proof of the lock.
unsafe impl<T> Sync for Belonging<T> {}

impl<T> Belonging<T> {
    /// Takes an object of the worker whose lock `entered` proves.
    pub(super) fn new(entered: &Entered<'_>, value: T) -> Belonging<T> {
        Belonging { engine: entered.engine().clone(), value: ManuallyDrop::new(value) }
    }

    /// Returns the engine to which the object belongs.
    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Takes the lock, for a call that uses the object.
    pub(super) fn enter(&self) -> Result<Held<'_, T>, Error> {
        Ok(Held { entered: self.engine.enter()?, value: &self.value })
    }

    /// Takes the lock, for a call that may leave something to the progress thread.
    pub(super) fn enter_to_post(&self) -> Result<Held<'_, T>, Error> {
        Ok(Held { entered: self.engine.enter_to_post()?, value: &self.value })
    }

    /// Returns the object to a holder of its engine's lock.
    pub(super) fn under<'a>(&'a self, entered: &'a Entered<'_>) -> Result<&'a T, Error> {
        match Arc::ptr_eq(&self.engine, entered.engine()) {
            true => Ok(&self.value),
            false => Err(another_workers()),
        }
    }

    /// Uses up the object under the lock. An error returns the object.
    pub(super) fn consume<R>(
        self,
        with: impl FnOnce(&mut Entered<'_>, T) -> Result<R, T>,
    ) -> Result<R, (Belonging<T>, Option<Error>)> {
        let engine = self.engine.clone();
        let mut entered = match engine.enter_to_post() {
            Ok(entered) => entered,
            Err(error) => return Err((self, Some(error))),
        };
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the value and the owner of the engine are each taken out once.
        let (value, own) = unsafe {
            (ManuallyDrop::take(&mut this.value), std::ptr::read(&raw const this.engine))
        };
        let result = with(&mut entered, value);
        let result = result.map_err(|value| (Belonging::new(&entered, value), None));
        drop(entered);
        drop(own);
        result
    }
}

impl<T> Drop for Belonging<T> {
    fn drop(&mut self) {
        // Without the lock the object stays as it is: in a forked child, and inside a call that this thread makes under the lock.
        if let Ok(_entered) = self.engine.enter_to_post() {
            // SAFETY: this is the only drop, and the lock is held.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl Belonging<crate::message::KeptMessage> {
    /// Returns the payload, which needs no lock: the transport does not touch a lent buffer until it is released, and reading the
    /// payload touches nothing else.
    pub(super) fn bytes(&self) -> &[u8] {
        self.value.payload()
    }
}

/// An object together with the lock under which it is used.
pub(super) struct Held<'a, T> {
    pub(super) entered: Entered<'a>,
    value: &'a T,
}

impl<T> std::ops::Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

/// An object of the worker in an event that waits for dispatch.
pub(super) struct Carried<T>(ManuallyDrop<T>);

// SAFETY: the object is put in and taken out under the worker's lock; see `Belonging`.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    /// Takes an object inside a progress call, and thus under the lock. If the event is never dispatched, the object is leaked
    /// unless [`drop_under`](Carried::drop_under) is called.
    pub(super) fn new(value: T) -> Carried<T> {
        Carried(ManuallyDrop::new(value))
    }

    /// Makes the object belong to the engine whose list contained the event.
    pub(super) fn belonging(self, engine: &Arc<Engine>) -> Belonging<T> {
        Belonging { engine: engine.clone(), value: self.0 }
    }

    /// Drops the object under the lock.
    pub(super) fn drop_under(self, engine: &Arc<Engine>) {
        drop(self.belonging(engine));
    }
}

/// A function of the application that one thread at a time calls: the one that has the dispatch turn.
pub(super) struct Handler<F: ?Sized>(F);

// SAFETY: only `get` gives a shared reference to the function, and its caller has the dispatch turn of the engine. One thread has
// the turn at a time, and a lock orders its holders: `dispatch.rs` makes the only `Turn`. Any thread may drop the function, because it is `Send`.
unsafe impl<F: ?Sized + Send> Sync for Handler<F> {}

impl<F: Send> Handler<F> {
    pub(super) fn new(function: F) -> Handler<F> {
        Handler(function)
    }
}

impl<F: ?Sized> Handler<F> {
    /// Returns the function to the thread that has the dispatch turn.
    pub(super) fn get(&self, _turn: &Turn) -> &F {
        &self.0
    }
}

/// Makes the state behind the lock movable between the threads that take the lock.
pub(super) fn movable(inside: Inside) -> Movable<Inside> {
    // SAFETY: `Worker::open_movable` opens only modules that may move. All other objects of the worker are `Belonging` and `Carried`
    // values, which are used under the same lock. The worker is in no set, since no reference to it leaves the lock. Its handlers
    // are those of `handlers.rs`, which capture what is in the state, and the dispatch list.
    unsafe { Movable::new(inside) }
}

/// Drops the state of an engine that no object or thread refers to any more.
pub(super) fn drop_engine(
    inside: &mut ManuallyDrop<Lock<Movable<Inside>>>,
    dispatch: &mut ManuallyDrop<Arc<Dispatch>>,
) {
    // SAFETY: the drop of the engine, which happens once, is the only caller, and uses neither value afterwards.
    unsafe {
        ManuallyDrop::drop(inside);
        ManuallyDrop::drop(dispatch);
    }
}

#[cold]
pub(super) fn another_workers() -> Error {
    Error::new(
        Status::Invalid,
        "an object of another worker",
        "only the worker that it was made on knows it",
        "use it with that worker",
    )
}
