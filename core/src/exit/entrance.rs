//! The entrance of a worker: the marks by which calls detect a forked child, a running progress call and the exit of the process.

use super::{NAP, thread_number};
use crate::error::Scope;
use crate::{Error, Status};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tieline_plugin_api::process::{Gate, Mark};

/// The number of naps in which the exit waits for the end of another thread's call.
const TRIES: u32 = 10;

/// The entrance of a worker. One thread at a time uses the worker; the exiting thread may read the entrance meanwhile.
pub(crate) struct Entrance {
    /// The process of the worker. It is withdrawn while the exit of the process uses the worker.
    gate: Gate,
    /// Whether a progress call is running, and possibly a handler inside it.
    in_progress: AtomicBool,
    /// The number of the thread that last used the worker, as far as it was noted.
    thread: AtomicUsize,
    /// Whether threads have changed.
    has_moved: AtomicBool,
}

impl Entrance {
    pub(crate) fn new() -> Entrance {
        Entrance {
            gate: Gate::new(),
            in_progress: AtomicBool::new(false),
            thread: AtomicUsize::new(thread_number()),
            has_moved: AtomicBool::new(false),
        }
    }

    /// Checks whether this process opened the worker, and its exit does not use the worker.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.gate.is_here()
    }

    /// Fails while the exit of the process uses the worker, and afterwards if several threads have used it.
    pub(crate) fn check(&self, what: &str) -> Result<(), Error> {
        if self.is_open() {
            return Ok(());
        }
        Err(Error::new(
            Status::Closed,
            format!("a call of {what}"),
            "the process exits, and has said goodbye to the peers of this worker",
            "end the threads that use a worker before the process exits",
        )
        .of(Scope::Worker))
    }

    /// Notes the calling thread.
    pub(crate) fn note_thread(&self) {
        let here = thread_number();
        if self.thread.load(Ordering::Relaxed) != here {
            self.thread.store(here, Ordering::Relaxed);
            self.has_moved.store(true, Ordering::Relaxed);
        }
    }

    /// Checks whether a progress call is running.
    #[inline]
    pub(crate) fn is_in_progress(&self) -> bool {
        self.in_progress.load(Ordering::Relaxed)
    }

    /// Notes the start of a progress call. `false`: one is running.
    #[inline]
    pub(crate) fn begin_progress(&self) -> bool {
        let is_running = self.is_in_progress();
        self.in_progress.store(true, Ordering::Relaxed);
        !is_running
    }

    /// Notes the end of the progress call.
    #[inline]
    pub(crate) fn end_progress(&self) {
        self.in_progress.store(false, Ordering::Relaxed);
    }

    /// Closes the entrance to all other threads, for the exit in thread `here`. `None`: another thread used the worker last, or is
    /// inside it.
    pub(super) fn shut_out_others(&self, here: usize) -> Option<Mark> {
        let is_mine = || self.thread.load(Ordering::Relaxed) == here;
        if !is_mine() {
            return None;
        }
        let mark = self.gate.withdraw();
        // A worker that has stayed in one thread has no other thread inside it: its progress call, if any, is this thread's own.
        if !self.has_moved.load(Ordering::Relaxed) {
            return Some(mark);
        }
        // A thread that passed the gate before has begun its progress call when the first nap is over.
        for _ in 0..TRIES {
            std::thread::sleep(NAP);
            if !self.is_in_progress() && is_mine() {
                return Some(mark);
            }
        }
        self.open_again(mark, false);
        None
    }

    /// Ends what [`shut_out_others`](Entrance::shut_out_others) began. If the worker has said goodbye, its interfaces must not be
    /// polled any more, so other threads stay out. Functions that this thread runs later in the exit may close the worker.
    pub(super) fn open_again(&self, mark: Mark, has_left: bool) {
        if !has_left || !self.has_moved.load(Ordering::Relaxed) {
            self.gate.restore(mark);
        }
    }

    /// Keeps all threads out from now on, because the worker has said goodbye.
    pub(crate) fn close(&self) {
        let _ = self.gate.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_uses_worker_only_if_this_thread_used_it_last_and_alone() {
        let (entrance, here) = (Entrance::new(), thread_number());
        let mark = entrance.shut_out_others(here).unwrap();
        let refused = entrance.check("a worker").unwrap_err();
        assert!(refused.why().contains("the process exits"), "{refused}");
        entrance.open_again(mark, true);
        assert!(entrance.check("a worker").is_ok());
        // Only this thread has used the worker, so the running call is its own: it exits in a handler.
        assert!(entrance.begin_progress() && !entrance.begin_progress());
        let mark = entrance.shut_out_others(here).unwrap();
        entrance.open_again(mark, true);
        std::thread::scope(|scope| drop(scope.spawn(|| entrance.note_thread())));
        assert!(entrance.shut_out_others(here).is_none(), "another thread used it last");
        entrance.note_thread();
        assert!(entrance.shut_out_others(here).is_none(), "the other thread may be inside");
        assert!(entrance.is_open());
        entrance.end_progress();
        let mark = entrance.shut_out_others(here).unwrap();
        entrance.open_again(mark, false);
        assert!(entrance.is_open());
        let mark = entrance.shut_out_others(here).unwrap();
        entrance.open_again(mark, true);
        assert!(!entrance.is_open(), "the other thread must not poll again");
    }
}
