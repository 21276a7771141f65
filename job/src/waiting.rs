//! The thread that waits in barriers while the process makes progress or sleeps. The first such barrier starts the thread, and the
//! thread ends with the job.

use super::{Deadline, Exchange};
use crate::{Error, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A function that the waiting thread calls when a barrier is over.
pub(super) type Wake = Box<dyn FnOnce() + Send>;

/// The waiting thread of one job; `None` until a barrier needs it.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Option<Thread>>);

struct Thread {
    /// The process that started the thread: a forked child does not have the threads of its parent.
    process: u32,
    asks: Sender<Ask>,
    handle: JoinHandle<()>,
}

struct Ask {
    length: Duration,
    over: Arc<Over>,
    wake: Wake,
}

/// The state of one barrier, and its result.
#[derive(Default)]
pub(super) struct Over {
    is: AtomicBool,
    outcome: Mutex<Option<Result<(), Error>>>,
    came: Condvar,
}

impl Over {
    /// Checks whether the barrier is over.
    pub(super) fn is(&self) -> bool {
        self.is.load(Ordering::Acquire)
    }

    fn locked(&self) -> MutexGuard<'_, Option<Result<(), Error>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, outcome: Result<(), Error>) {
        *self.locked() = Some(outcome);
        self.is.store(true, Ordering::Release);
        self.came.notify_all();
    }

    /// Sleeps until the barrier is over.
    fn outcome(&self) -> Result<(), Error> {
        let mut outcome = self.locked();
        loop {
            match &*outcome {
                Some(outcome) => return outcome.clone(),
                None => outcome = self.came.wait(outcome).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A barrier in progress. Dropping this value waits for the end of the barrier.
pub(super) struct Barrier(Arc<Over>);

impl Barrier {
    /// Checks whether the barrier is over.
    pub(super) fn is_over(&self) -> bool {
        self.0.is()
    }

    /// Waits for the end of the barrier.
    pub(super) fn met(self) -> Result<(), Error> {
        self.0.outcome()
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        let _ = self.0.outcome();
    }
}

impl Waiting {
    /// Passes a barrier to the thread.
    pub(super) fn begin(
        &self,
        exchange: &Arc<dyn Exchange>,
        length: Duration,
        wake: Wake,
    ) -> Result<Barrier, Error> {
        let over = Arc::new(Over::default());
        let mut ask = Ask { length, over: over.clone(), wake };
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*thread {
            if known.process == std::process::id() {
                match known.asks.send(ask) {
                    Ok(()) => return Ok(Barrier(over)),
                    Err(unsent) => ask = unsent.0,
                }
            }
        }
        if let Some(gone) = thread.take() {
            gone.leave();
        }
        let (asks, asked) = channel::<Ask>();
        let exchange = exchange.clone();
        let handle = std::thread::Builder::new()
            .name("tieline-barrier".into())
            .spawn(move || {
                for Ask { length, over, wake } in asked {
                    let met = || exchange.allgather(&[], &Deadline::new(length)).map(drop);
                    let met = catch_unwind(AssertUnwindSafe(met));
                    over.tell(met.unwrap_or_else(|_| Err(Error::from_status(Status::Io))));
                    let _ = catch_unwind(AssertUnwindSafe(wake));
                }
            })
            .map_err(|e| {
                let why = format!("no thread to wait with: {e}");
                Error::new(Status::NoMemory, "a barrier", why, "raise the limit of threads")
            })?;
        // The thread receives until the sender is dropped.
        let _ = asks.send(ask);
        *thread = Some(Thread { process: std::process::id(), asks, handle });
        Ok(Barrier(over))
    }
}

impl Thread {
    /// Ends the thread, if it belongs to this process.
    fn leave(self) {
        let Thread { process, asks, handle } = self;
        if process != std::process::id() {
            std::mem::forget((asks, handle));
            return;
        }
        drop(asks);
        let _ = handle.join();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let thread = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.leave();
        }
    }
}
