//! A worker's goodbye when the process exits: see [`crate::exit`].

use super::Inner;
use crate::exit::{self, Leaves, thread_number};
use std::rc::Rc;
use std::sync::atomic::Ordering;

impl Inner {
    /// Registers the worker with the function that `exit` calls.
    pub(super) fn enter(self: &Rc<Self>) {
        let itself: Rc<dyn Leaves> = self.clone();
        exit::enter(Rc::downgrade(&itself), &self.used_by);
    }

    /// Records the calling thread. Called at intervals, because a worker may move to another thread.
    pub(super) fn note_thread(&self) {
        self.used_by.store(thread_number(), Ordering::Relaxed);
    }

    /// Whether operations are pending or a peer is owed an answer. Also `true` if a signal handler has interrupted a change of
    /// either.
    fn has_unsent(&self) -> bool {
        let (Ok(ops), Ok(_)) = (self.shared.ops.try_borrow(), self.endpoints.try_borrow()) else {
            return true;
        };
        let of_endpoint = self.all_endpoints().iter().any(|endpoint| {
            let open = ops.open_wholes(endpoint.index) + ops.announced_of(endpoint.index);
            endpoint.is_alive() && open + endpoint.queue_len() + endpoint.answers_len() > 0
        });
        of_endpoint || !self.owed.is_empty() || self.has_orphans()
    }
}

impl Leaves for Inner {
    fn leave_at_exit(&self) {
        if !self.closed.get() && self.shared.same_process() && !self.has_unsent() {
            self.leave_now();
        }
    }
}
