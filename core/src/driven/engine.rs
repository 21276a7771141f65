//! The engine of a driven worker: the ordinary worker, the lock around it, and the way in and out of the lock.

use super::changes::Changes;
use super::dispatch::{Dispatch, Ran};
use super::event::Event;
use super::handlers::Handlers;
use super::lock::{Lock, Locked};
use super::parking::Parking;
use super::waiters::{Until, Waiters};
use crate::error::Scope;
use crate::setup::Core;
use crate::shared::Lease;
use crate::sys::ForkGuard;
use crate::worker::{Backoff, Worker};
use crate::{Error, Movable, Status};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state behind the lock.
pub(super) struct Inside {
    /// The worker, until its last handle is dropped.
    worker: Option<Worker>,
    /// The worker's own state, which outlives its handle as it does for an ordinary worker.
    shared: std::rc::Rc<crate::shared::Shared>,
    pub(super) handlers: Handlers,
    pub(super) waiters: Waiters,
    /// Whether a waiting caller drives the worker, so that the progress thread stays aside.
    pub(super) is_driven: bool,
    /// The state of the progress thread.
    pub(super) thread: Thread,
    /// Whether a caller has driven the worker since the progress thread looked.
    pub(super) was_driven: bool,
    /// Whether another thread has posted since the progress thread looked.
    pub(super) was_posted: bool,
    /// Whether the wake-up of a sleep on the descriptor was given and not taken.
    pub(super) is_woken: bool,
    /// Whether the progress thread shall end.
    pub(super) stop: bool,
    pub(super) backoff: Backoff,
}

/// What the progress thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// It runs, and takes the lock again soon.
    Awake,
    /// It sleeps on the worker's descriptor, which is armed, or is about to. Only an event or a wake-up ends the sleep.
    Watching,
    /// It sleeps in the same way, for a short time at most.
    Napping,
    /// It waits to be woken, and watches nothing.
    Aside,
    /// It watches nothing for a short time, and then looks again.
    NappingAside,
    /// It has ended, or was not started.
    Gone,
}

/// The engine of a driven worker. The application's objects and the progress thread share it.
pub(super) struct Engine {
    inside: ManuallyDrop<Lock<Movable<Inside>>>,
    pub(super) dispatch: ManuallyDrop<Arc<Dispatch>>,
    pub(super) parking: Parking,
    pub(super) changes: Changes,
    /// Whether no new operation is accepted.
    is_closed: AtomicBool,
    /// Whether a call of `close` is under way or has ended.
    pub(super) closes: AtomicBool,
    guard: ForkGuard,
}

/// The lock, held by this thread. Its drop wakes whoever has to act on what was done under the lock.
pub(super) struct Entered<'a> {
    engine: &'a Arc<Engine>,
    inside: Locked<'a, Movable<Inside>>,
    purpose: Purpose,
}

/// What a thread does under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// It reads state, waits, or makes progress.
    Looks,
    /// It may have posted something that needs progress.
    Posts,
    /// It is the progress thread, and goes to sleep.
    Sleeps,
}

impl Engine {
    /// Opens the ordinary worker on the calling thread, without the modules that are bound to a thread.
    pub(super) fn open(core: Arc<Core>, lease: Arc<Lease>) -> Result<Arc<Engine>, Error> {
        let backoff = Backoff::new(core.spin.clone());
        let worker = Worker::open_movable(core, lease)?;
        let parking = Parking::new(&worker)?;
        let dispatch = Arc::new(Dispatch::default());
        let inside = Inside {
            shared: worker.inner.shared.clone(),
            handlers: Handlers::new(dispatch.clone()),
            worker: Some(worker),
            waiters: Waiters::default(),
            is_driven: false,
            thread: Thread::Gone,
            was_driven: false,
            was_posted: false,
            is_woken: false,
            stop: false,
            backoff,
        };
        Ok(Arc::new(Engine {
            inside: ManuallyDrop::new(Lock::new(super::abi::movable(inside))),
            dispatch: ManuallyDrop::new(dispatch),
            parking,
            changes: Changes::default(),
            is_closed: AtomicBool::new(false),
            closes: AtomicBool::new(false),
            guard: ForkGuard::new(),
        }))
    }

    /// Takes the lock. Fails in a forked child, and inside a call that this thread makes under the lock.
    #[inline]
    pub(super) fn enter<'a>(self: &'a Arc<Self>) -> Result<Entered<'a>, Error> {
        // In a forked child, a thread that does not exist there may hold the lock.
        if !self.guard.same_process() {
            return Err(self.elsewhere());
        }
        match self.inside.lock() {
            Some(inside) => Ok(Entered { engine: self, inside, purpose: Purpose::Looks }),
            None => Err(nested()),
        }
    }

    /// Takes the lock for a call that may leave something to the progress thread.
    #[inline]
    pub(super) fn enter_to_post<'a>(self: &'a Arc<Self>) -> Result<Entered<'a>, Error> {
        let mut entered = self.enter()?;
        entered.purpose = Purpose::Posts;
        Ok(entered)
    }

    /// Takes the lock like [`enter_to_post`](Engine::enter_to_post), for a call that needs an open worker.
    #[inline]
    pub(super) fn enter_open<'a>(self: &'a Arc<Self>) -> Result<Entered<'a>, Error> {
        if self.is_closed() {
            return Err(self.guard.check("a worker").err().unwrap_or_else(closed));
        }
        self.enter_to_post()
    }

    /// Takes the lock if that needs no wait and the calling thread does not hold it.
    pub(super) fn try_enter<'a>(self: &'a Arc<Self>) -> Option<Entered<'a>> {
        if !self.guard.same_process() {
            return None;
        }
        Some(Entered { engine: self, inside: self.inside.try_lock()?, purpose: Purpose::Looks })
    }

    /// Lets the threads that wait for the lock take it first.
    #[inline]
    pub(super) fn give_way(&self) {
        self.inside.give_way();
    }

    #[cold]
    fn elsewhere(&self) -> Error {
        self.guard.check("a worker").err().unwrap_or_else(nested)
    }

    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.guard.check("a worker")
    }

    pub(super) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Makes later posts fail with `Closed`.
    pub(super) fn refuse_posts(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.seen()
    }

    /// Records a change on which conditions may depend. The caller holds the lock, and checks the waiters afterwards.
    pub(super) fn note_change(&self) {
        self.changes.note();
    }

    /// Records a change on which conditions may depend, and wakes the waits that depend on it. The caller holds no lock.
    pub(super) fn tell_change(self: &Arc<Self>) {
        self.note_change();
        if self.changes.has_watchers() {
            if let Ok(mut entered) = self.enter() {
                entered.check_waiters();
            }
        }
    }

    /// Runs the handlers of waiting events, unless another thread does. The caller holds no lock.
    pub(super) fn dispatch(self: &Arc<Self>) -> Ran {
        let run = |turn: Option<&super::dispatch::Turn>, event: Event| event.run(self, turn);
        self.dispatch.run(run, |was_full| {
            self.tell_change();
            if was_full {
                self.wake_thread();
            }
        })
    }

    /// Wakes the progress thread, unless a caller drives the worker.
    pub(super) fn wake_thread(self: &Arc<Self>) {
        if let Ok(mut entered) = self.enter() {
            entered.wake_thread();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // In a forked child the state may be in the middle of a change.
        if self.guard.same_process() {
            super::abi::drop_engine(&mut self.inside, &mut self.dispatch);
        }
    }
}

impl<'a> Entered<'a> {
    pub(super) fn engine(&self) -> &'a Arc<Engine> {
        self.engine
    }

    pub(super) fn inside(&mut self) -> &mut Inside {
        &mut self.inside
    }

    /// Returns the ordinary worker, unless its last handle was dropped.
    #[inline]
    pub(super) fn worker(&self) -> Result<&Worker, Error> {
        self.inside.worker.as_ref().ok_or_else(closed)
    }

    pub(super) fn take_worker(&mut self) -> Option<Worker> {
        self.inside.worker.take()
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.engine.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Makes progress once, and returns the number of events.
    pub(super) fn progress(&mut self) -> usize {
        let count = self.inside.worker.as_ref().map_or(0, Worker::progress);
        if count > 0 {
            self.engine.note_change();
        }
        count
    }

    /// Wakes the sleeping progress thread if this call leaves work to it. Transports may need a poll after a post, so a thread that
    /// watches without a limit is woken after every post. Then it naps for a while, and posts do not wake it.
    fn note_posted(&mut self) {
        let posts = self.purpose == Purpose::Posts;
        self.inside.was_posted |= posts;
        let watches = self.inside.thread == Thread::Watching;
        if (posts && watches) || self.inside.shared.has_work.get() {
            self.wake_thread();
        }
    }

    /// Checks whether a wait has reached its condition.
    pub(super) fn holds(&self, until: &Until) -> bool {
        self.inside.holds(self.engine, until)
    }

    /// Checks whether a wait on a closed worker has a result. A wait for any change would last forever.
    pub(super) fn outlasts_close(&self, until: &Until) -> bool {
        match until {
            Until::Changed(_) | Until::Happened(_) => false,
            Until::Completed => self.inside.shared.ops.borrow().has_completed(),
            Until::Ended(_) | Until::Counted(_) | Until::Delivered => self.holds(until),
        }
    }

    /// Wakes the parked waiters whose condition holds.
    #[inline]
    pub(super) fn check_waiters(&mut self) {
        if !self.inside.waiters.is_empty() {
            self.check_all();
        }
    }

    #[cold]
    fn check_all(&mut self) {
        let engine = self.engine;
        let mut waiters = std::mem::take(&mut self.inside.waiters);
        waiters.wake(|until| self.inside.holds(engine, until));
        self.inside.waiters = waiters;
    }

    /// Wakes the progress thread, unless a caller drives the worker.
    pub(super) fn wake_thread(&mut self) {
        if !self.inside.is_driven {
            self.wake_thread_anyway();
        }
    }

    pub(super) fn wake_thread_anyway(&mut self) {
        match self.inside.thread {
            Thread::Watching | Thread::Napping => {
                self.engine.parking.wake_watching();
                self.inside.is_woken = true;
            }
            Thread::Aside | Thread::NappingAside => self.engine.parking.wake_aside(),
            Thread::Awake | Thread::Gone => return,
        }
        self.inside.thread = Thread::Awake;
    }

    /// Ends this thread's time as the driver: the progress thread is responsible again. `sleeps`: this thread sleeps until the
    /// progress thread wakes it. If no thread is parked, a progress thread that naps may continue to do so, since the next caller
    /// probably drives soon.
    pub(super) fn hand_over(&mut self, sleeps: bool) {
        self.inside.is_driven = false;
        self.inside.was_driven = true;
        let naps = matches!(self.inside.thread, Thread::Napping | Thread::NappingAside);
        if sleeps || !naps || !self.inside.waiters.is_empty() {
            self.wake_thread();
        }
    }

    /// Leaves the lock for a sleep of the progress thread.
    pub(super) fn leave_to_sleep(mut self, as_what: Thread) {
        self.inside.thread = as_what;
        self.purpose = Purpose::Sleeps;
    }

    /// Prepares the sleep of the progress thread on the worker's descriptor. `false`: there is work to do.
    pub(super) fn arm(&mut self) -> Result<bool, Error> {
        self.inside.worker.as_ref().map_or(Ok(true), |worker| worker.inner.arm_for_thread())
    }
}

impl std::ops::Deref for Entered<'_> {
    type Target = Inside;

    fn deref(&self) -> &Inside {
        &self.inside
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.purpose != Purpose::Sleeps && self.inside.thread != Thread::Awake {
            self.note_posted();
        }
        self.check_waiters();
    }
}

impl Inside {
    fn holds(&self, engine: &Engine, until: &Until) -> bool {
        let ops = &self.shared.ops;
        match until {
            Until::Ended(id) => !ops.borrow().is_open(*id),
            Until::Counted(id) => ops.borrow().counts(*id).open == 0,
            Until::Completed => ops.borrow().has_completed() || engine.is_closed(),
            Until::Changed(seen) => engine.changes() != *seen || engine.is_closed(),
            Until::Happened(seen) => {
                let is_over = engine.changes() != *seen || engine.is_closed();
                is_over || ops.borrow().has_completed()
            }
            Until::Delivered => {
                let worker = self.worker.as_ref();
                engine.dispatch.is_empty()
                    && worker.is_none_or(|worker| !worker.inner.has_undelivered())
            }
        }
    }
}

#[cold]
pub(super) fn closed() -> Error {
    Error::new(
        Status::Closed,
        "the worker is closed",
        "it was closed, or its last handle was dropped",
        "keep the worker as long as its endpoints",
    )
    .of(Scope::Worker)
}

#[cold]
fn nested() -> Error {
    Error::new(
        Status::Busy,
        "a call of a driven worker",
        "this thread is already inside a call that holds the worker's lock",
        "return from that call first",
    )
}
