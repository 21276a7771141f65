//! Progress: the worker's, and that of operations which wait for something.

use crate::endpoint::Ep;
use crate::ops::Work;

impl Ep {
    /// Makes progress.
    #[inline]
    pub(crate) fn progress(&self) {
        let _ = self.worker.progress();
        if !self.ops.borrow().is_empty() {
            let _ =
                self.worker.take_completed(usize::MAX, |user, result| self.completed(user, result));
        }
        if self.todo.get() {
            self.work();
        }
    }

    fn has_work(&self) -> bool {
        !(self.again.borrow().is_empty()
            && self.closing.borrow().is_empty()
            && self.resolving.borrow().is_empty()
            && self.requests.borrow().is_empty()
            && self.blocked.borrow().is_empty())
            || self.has_held()
    }

    #[cold]
    fn work(&self) {
        self.resolve();
        self.answer_keys();
        for address in self.blocked.take() {
            self.send_waiting(address);
        }
        self.retry();
        for index in self.closing.take() {
            let op = self.ops.borrow_mut().take(index);
            if let Some(op) = op {
                self.close_op(op);
            }
        }
        self.serve_held();
        self.todo.set(self.has_work());
    }

    /// Tries the operations again that wait for room, a peer or a key, in order.
    fn retry(&self) {
        let again = self.again.take();
        let mut blocked = Vec::new();
        for index in again {
            let Some(mut op) = self.ops.borrow_mut().take(index) else { continue };
            match std::mem::replace(&mut op.work, Work::Nothing) {
                Work::Receive(rendezvous) => self.receive_long(op, rendezvous),
                Work::Rma(rma) => self.retry_rma(op, rma, &mut blocked),
                Work::Notice(rma) => self.send_notice(op, rma),
                work @ (Work::Send(_) | Work::Counted | Work::Nothing) => op.work = work,
            }
        }
    }

    /// Checks whether the endpoint waits for something that no descriptor announces.
    pub(crate) fn is_busy(&self) -> bool {
        self.todo.get()
    }
}
