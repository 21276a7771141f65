//! Canceling operations: an operation that has not begun is removed from the queue; for an operation that a provider has, the
//! provider is called. `announce.rs` withdraws rendezvous messages.

use super::EndpointState;
use super::backlog::Backlog;
use super::queued::QueuedOp;
use crate::proto::id;
use crate::{Error, Status};
use tieline_order::Id;

impl QueuedOp {
    /// Checks whether this queue entry is operation `id` and has not begun, regardless of the lane for which it waits. A
    /// notification is posted after its put, so neither it nor a put with a notification is removed.
    fn could_be_left_out(&self, id: Id) -> bool {
        match self {
            QueuedOp::FlushLanes { .. } | QueuedOp::Notify { .. } => false,
            // This message already withdraws the operation.
            QueuedOp::Message { id: id::WITHDRAW, .. } => false,
            QueuedOp::Native(op) => {
                op.request == id && op.posted == 0 && !op.begun && op.notify.is_none()
            }
            QueuedOp::Atomic(op) => op.request == id && op.posted_swap.is_none(),
            op => op.request() == Some(id),
        }
    }
}

impl EndpointState {
    /// Checks whether an operation waits in this queue and has not begun.
    pub(crate) fn could_leave_out(&self, id: Id) -> bool {
        let waits = |queue: &Backlog| queue.entries().iter().any(|op| op.could_be_left_out(id));
        waits(&self.queue) || waits(&self.requests)
    }

    /// Removes a queued operation, which ends as canceled.
    pub(crate) fn leave_out(&self, id: Id) {
        let take = |queue: &Backlog| queue.remove(|op| op.could_be_left_out(id));
        let Some(op) = take(&self.queue).or_else(|| take(&self.requests)) else { return };
        let error = Error::new(
            Status::Canceled,
            format!("an operation for {}", self.name()),
            "it was removed from the queue before it had begun",
            "",
        );
        self.shared.with_ops(|ops| {
            if let Some(unsaid) = op.unsaid() {
                ops.withdraw(unsaid);
            }
            ops.cancel(id, error);
        });
    }

    /// Requests the cancellation of an operation from the provider of this interface, on the endpoints that the operation may have
    /// used, until one of them has it. `Invalid`: the provider does not have the operation any more.
    pub(crate) fn ask_to_cancel(&self, id: Id, interface: usize) -> Result<(), Status> {
        let mut raws = Vec::new();
        self.each_way(|one| raws.extend(one.lanes.over(interface).map(|lane| lane.raw)));
        let mut result = Err(Status::Invalid);
        for raw in raws {
            let code = raw.cancel(id.raw());
            self.shared.interfaces[interface].provider.heard(code);
            result = if code < 0 { Err(Status::from_code(code)) } else { Ok(()) };
            if result != Err(Status::Invalid) {
                break;
            }
        }
        result
    }
}
