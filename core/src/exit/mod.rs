//! A process that exits while workers are open.
//!
//! To a peer, the kernel's closing of connections looks the same after `exit` and after a kill. So a worker with nothing unsent
//! says goodbye at exit, as if it had been closed. A worker with unsent data does not, because its peers would take a goodbye for
//! completeness. They report a connection that ended without a goodbye.
//!
//! Only the exiting thread can access its workers. A worker that another thread used last is left alone, and so is everything in a
//! forked child. The library's own threads are asked to end, which says goodbye for their workers.

mod sys;

pub(crate) use sys::{enter, enter_thread, forget, forget_thread, thread_number};

use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the exit of the process waits for threads, and the interval of the checks.
const LONGEST: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(200);

/// A worker.
pub(crate) trait Leaves {
    /// Says goodbye if no data is lost by it. The process ends afterwards, possibly from within a handler.
    fn leave_at_exit(&self);
}

/// A thread of the library.
pub(crate) trait Ends: Send + Sync {
    /// Asks it to end.
    fn ask(&self);

    /// Whether it has ended.
    fn has_ended(&self) -> bool;
}

/// Asks threads to end and waits for a bounded time until they have.
fn wait_for(threads: &[Arc<dyn Ends>]) {
    threads.iter().for_each(|thread| thread.ask());
    let until = Instant::now() + LONGEST;
    while threads.iter().any(|thread| !thread.has_ended()) && Instant::now() < until {
        std::thread::sleep(NAP);
    }
}
