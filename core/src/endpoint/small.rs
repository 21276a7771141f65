//! Small puts and gets sent as one message, if that is faster than the lane to the memory: to a peer that has promised continuous
//! progress. The peer may break its promise, so no small operation is queued. If the message lane does not accept the message, or
//! many small operations are unanswered, the operation uses the lane to the memory.

use super::EndpointState;
use super::post::Transfer;
use super::queued::NativeOp;
use super::record::Completion;
use crate::request::{Outcome, Request};
use crate::shared::Unanswered;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_order::{Kind, way};

impl EndpointState {
    /// Sends an operation that [`Transfer::is_small`] permits, with the notification of a put (`notify`). `None`: nothing was sent.
    #[inline(never)]
    pub(super) fn post_small(
        &self,
        transfer: &Transfer<'_>,
        notify: Option<u32>,
    ) -> Result<Option<Outcome>, Error> {
        // The opened message lane may have smaller limits than its module stated, or may not be the lane that was compared.
        if !self.opened_for_small() || !transfer.is_small() {
            return Ok(None);
        }
        if !self.unanswered().is_few(&self.shared.ops.borrow()) {
            return Ok(None);
        }
        let ways = self.order.posted();
        let sent = match self.may_go(way::EMULATED) {
            true => self.send_small(transfer, notify),
            false => Err(Status::Again),
        };
        match sent {
            Ok(outcome) => Ok(Some(outcome)),
            Err(Status::Again) => {
                self.order.restore_posted(ways);
                Ok(None)
            }
            Err(status) => Err(self.message_failed(status)),
        }
    }

    fn send_small(&self, transfer: &Transfer<'_>, notify: Option<u32>) -> Result<Outcome, Status> {
        let kind = if transfer.put { Kind::Put } else { Kind::Get };
        // The put's bytes are free when they have been sent; flushes wait for the target's answer.
        let ends_here = transfer.put && matches!(transfer.completion, Completion::Local);
        let memory = self.hold_memory(transfer)?;
        let asked = match ends_here {
            true if !self.has_room(0) => return Err(Status::Again),
            true => self.shared.ops.borrow_mut().open_late(self.index, kind)?,
            false => self.open(kind)?,
        };
        let mut op = NativeOp { notify, ..transfer.part(memory, asked, 0, 0..transfer.len) };
        self.by_messages(&mut op, asked);
        if let Err(status) = self.send_by_messages(&mut op, asked) {
            self.shared.with_ops(|ops| ops.withdraw(asked));
            return Err(status);
        }
        self.unanswered().add(asked);
        self.count(|counters| counters.emulated += 1);
        match ends_here {
            true => Ok(Outcome::Done(0)),
            false => Ok(Outcome::Pending(Request::new(self.shared.clone(), asked))),
        }
    }

    /// Returns the record of the small operations that the peer's worker has not answered, shared by all endpoints to that worker.
    fn unanswered(&self) -> &Rc<Unanswered> {
        self.unanswered.get_or_init(|| self.shared.unanswered_by(&self.address.entry.worker))
    }
}
