//! A process that exits while workers are open.
//!
//! The kernel closes the connections of a process that has called `exit` and of one that was killed alike. So peers are told: a worker
//! that has nothing unsent says goodbye, as if it had been closed. One with something unsent says nothing, since its peers would take
//! that for a promise, and they report a connection that ended without a goodbye.
//!
//! Only the thread that exits can touch its workers. A worker that another thread used last is left alone, and so is everything in a
//! forked child.

mod sys;

pub(super) use sys::{enter, forget, thread_number};
pub(crate) use sys::{enter_service, forget_service};

use super::Inner;
use std::sync::atomic::Ordering;

impl Inner {
    /// The calling thread uses this worker: looked at now and then, since a worker may move to another thread.
    pub(super) fn note_thread(&self) {
        self.used_by.store(thread_number(), Ordering::Relaxed);
    }

    /// Says goodbye where nothing would be lost by it. The process ends behind this, also out of a handler.
    fn leave_at_exit(&self) {
        if !self.closed.get() && self.shared.same_process() && !self.has_unsent() {
            self.leave_now();
        }
    }

    /// Whether something was posted that has not ended, or something is owed to a peer.
    fn has_unsent(&self) -> bool {
        let ops = self.shared.ops.borrow();
        let of_endpoint = self.all_endpoints().iter().any(|endpoint| {
            let open = ops.open_wholes(endpoint.index) + ops.announced_of(endpoint.index);
            endpoint.is_alive() && open + endpoint.queue_len() + endpoint.answers_len() > 0
        });
        of_endpoint || !self.owed.is_empty() || self.has_orphans()
    }
}
