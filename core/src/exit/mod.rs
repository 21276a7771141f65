//! A process that exits while workers are open.
//!
//! The kernel closes the connections of a process that has called `exit` and of one that was killed alike. So peers are told: a worker
//! that has nothing unsent says goodbye, as if it had been closed. One with something unsent says nothing, since its peers would take
//! that for a promise, and they report a connection that ended without a goodbye.
//!
//! Only the thread that exits can touch its workers. A worker that another thread used last is left alone, and so is everything in a
//! forked child. Threads of the library's own are asked to end, which says goodbye for their workers.

mod sys;

pub(crate) use sys::{enter, enter_thread, forget, forget_thread, thread_number};

use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an exit of the process waits for threads, and how often it looks.
const LONGEST: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(200);

/// A worker.
pub(crate) trait Leaves {
    /// Says goodbye where nothing would be lost by it. The process ends behind this, also out of a handler.
    fn leave_at_exit(&self);
}

/// A thread of the library's own.
pub(crate) trait Ends: Send + Sync {
    /// Asks it to end.
    fn ask(&self);

    /// Whether it has ended.
    fn has_ended(&self) -> bool;
}

/// Asks threads to end, and waits a bounded time until they have.
fn wait_for(threads: &[Arc<dyn Ends>]) {
    threads.iter().for_each(|thread| thread.ask());
    let until = Instant::now() + LONGEST;
    while threads.iter().any(|thread| !thread.has_ended()) && Instant::now() < until {
        std::thread::sleep(NAP);
    }
}
