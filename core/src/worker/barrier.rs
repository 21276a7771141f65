//! A barrier of a job in which a worker goes on serving its peers.

use super::Worker;
use crate::{Error, Job};
use std::time::Duration;

impl Worker {
    /// Returns when every process of the job has called [`Job::barrier`] or this, and makes progress meanwhile: for a process
    /// that peers may still need something of. It sleeps while there is nothing to do. A thread of the job waits for the others: the
    /// first such barrier starts it, and it ends with the job.
    ///
    /// # Errors
    /// `Busy` inside a handler; else as [`Job::barrier`].
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

    /// Makes progress, and sleeps where that is possible, until the condition holds, of which somebody wakes this worker.
    pub fn progress_until(&self, condition: &dyn Fn() -> bool) {
        while !condition() {
            // What cannot sleep, or has something to complain of, still serves its peers.
            if self.wait_until(condition, None).is_err() {
                let _ = self.progress();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
