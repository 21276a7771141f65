//! The end of a driven worker: by `close`, or with its last handle.

use super::DrivenWorker;
use super::dispatch::Ran;
use super::engine::Engine;
use super::request::deadline;
use super::thread::Running;
use super::waiters::Until;
use crate::worker::Undelivered;
use crate::{Error, Status};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The part that all clones of a [`DrivenWorker`] share. Its drop ends the worker.
pub(super) struct Owner {
    pub(super) engine: Arc<Engine>,
    thread: Mutex<Option<Running>>,
}

impl Owner {
    pub(super) fn new(engine: Arc<Engine>, thread: Running) -> Owner {
        Owner { engine, thread: Mutex::new(Some(thread)) }
    }

    /// Ends the thread and the worker. No handler runs after the call, except one that makes it.
    pub(super) fn end(&self) {
        let engine = &self.engine;
        if !engine.same_process() {
            // In a forked child there is no such thread, and the worker's state may be in the middle of a change.
            std::mem::forget(self.thread.try_lock().ok().and_then(|mut thread| thread.take()));
            return;
        }
        engine.refuse_posts();
        engine.dispatch.end();
        if let Ok(mut entered) = engine.enter() {
            entered.inside().stop = true;
            entered.wake_thread_anyway();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join();
        }
        engine.dispatch.wait_until_idle();
        let removed = engine.enter().ok().map(|mut entered| {
            // The ordinary worker ends its operations, so the waits for them end as well.
            drop(entered.take_worker());
            engine.note_change();
            entered.inside().handlers.remove_all()
        });
        let events = engine.dispatch.take_events();
        events.into_iter().for_each(|event| event.discard(engine));
        // The application's functions are dropped outside the lock.
        drop(removed);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
    }
}

impl DrivenWorker {
    /// Delivers all operations posted before, and closes the worker, as [`Worker::close`](crate::Worker::close) does. When the call
    /// returns, the progress thread has ended, no handler runs any more, and all waits of other threads have ended.
    ///
    /// Other threads may post until everything is delivered; then their posts fail with `Closed`. Do not hold a lock that a handler
    /// takes: the call waits for a running handler.
    ///
    /// # Errors
    /// [`Undelivered`], with the reason and the losses. `Busy` in a handler, and while another thread closes the worker; the worker
    /// then stays open.
    pub fn close(&self, timeout: Duration) -> Result<(), Undelivered> {
        let engine = self.engine();
        engine.check_process()?;
        engine.dispatch.check_no_handler("closing a worker")?;
        if engine.closes.swap(true, Ordering::AcqRel) {
            return match engine.is_closed() {
                true => Ok(()),
                false => Err(closes_already().into()),
            };
        }
        let deadline = deadline(Some(timeout));
        // Callers that drive, or the progress thread, deliver what is pending while other threads may post. An error means that the
        // context's progress thread has stopped.
        let _ = engine.wait_without_panic(Until::Delivered, deadline);
        engine.refuse_posts();
        let closed = match engine.enter() {
            Ok(entered) => {
                let left = deadline.map_or(Duration::MAX, |deadline| {
                    deadline.saturating_duration_since(Instant::now())
                });
                let closed = entered.worker().map_or(Ok(()), |worker| worker.close(left));
                engine.note_change();
                closed
            }
            Err(error) => Err(error.into()),
        };
        // The messages that arrived during the last part are dispatched as well.
        while engine.dispatch() != Ran::All {
            engine.dispatch.wait_until_idle();
        }
        self.owner.end();
        engine.raise_panic();
        closed
    }
}

#[cold]
fn closes_already() -> Error {
    Error::new(
        Status::Busy,
        "closing a worker",
        "another thread is closing it",
        "let one thread close the worker",
    )
}
