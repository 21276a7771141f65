//! The exit of a process while workers are open.
//!
//! To a peer, the kernel's closing of connections looks the same after `exit` and after a kill. So a worker without unsent data
//! says goodbye at exit, as if it had been closed. A worker with unsent data does not, because its peers would take a goodbye for
//! completeness. It tries to send the number of its unsent operations, and the peers report a connection that ended without a
//! goodbye.
//!
//! The exiting thread can access only its own workers: those that it used last, and that no other thread uses now. Their entrances
//! are closed to other threads meanwhile. The workers of other threads are left alone, and so are all workers in a forked child. The exit requests the library's progress threads to end, and waits for a bounded time while they say goodbye for
//! their workers. The exiting thread says goodbye for driven workers under their lock, which it tries to take for a bounded time.

mod entrance;
mod sys;

pub(crate) use entrance::Entrance;
pub(crate) use sys::{enter, enter_thread, forget, forget_thread, thread_number};

use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum time that the exit of the process waits for threads, and the interval of the checks.
const LONGEST: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(200);

/// A worker, as the exit of the process uses it.
pub(crate) trait Leaves {
    /// Says goodbye if no unsent data is lost as a result, and otherwise tries to notify the peers. The process ends afterwards. A
    /// handler of the worker may be running. Returns whether it has said goodbye.
    fn leave_at_exit(&self) -> bool;

    /// Returns the entrance of the worker.
    fn entrance(&self) -> &Entrance;
}

/// A thread of the library, as the exit of the process uses it.
pub(crate) trait Ends: Send + Sync {
    /// Requests the thread to end.
    fn ask(&self);

    /// Checks whether the thread has ended.
    fn has_ended(&self) -> bool;
}

/// Requests threads to end, and waits for a bounded time until they have ended.
fn wait_for(threads: &[Arc<dyn Ends>]) {
    threads.iter().for_each(|thread| thread.ask());
    let until = Instant::now() + LONGEST;
    while threads.iter().any(|thread| !thread.has_ended()) && Instant::now() < until {
        std::thread::sleep(NAP);
    }
}
