//! A job barrier during which a worker continues to serve its peers.

use super::Worker;
use crate::{Error, Job};
use std::time::Duration;

impl Worker {
    /// Waits until every process of the job has entered the barrier, by [`Job::barrier`] or this method, and makes progress
    /// meanwhile. Use this method in a process whose memory or answers peers may still need.
    ///
    /// A thread of the job waits for the other processes. The first such barrier starts the thread, which ends with the job.
    ///
    /// # Errors
    /// `Busy` inside a handler; otherwise as for [`Job::barrier`].
    pub fn barrier(&self, job: &Job) -> Result<(), Error> {
        self.inner.shared.check_no_handler("a barrier")?;
        let waker = self.waker()?;
        job.barrier_woken(
            move || waker.wake(),
            |is_over| {
                self.progress_until(is_over);
                Ok(())
            },
        )
    }

    /// Makes progress, and sleeps if possible, until the condition holds. A thread that makes the condition true should wake this
    /// worker ([`Worker::waker`]); otherwise the call notices with a delay. The method must not be called inside a handler or in a
    /// forked child. It makes no progress there, and returns only if something else makes the condition true.
    pub fn progress_until(&self, condition: &dyn Fn() -> bool) {
        while !condition() {
            // A worker that cannot sleep or reports an error still serves its peers.
            if self.wait_until(condition, None).is_err() {
                let _ = self.progress();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
