//! Small puts and gets sent as one message, if that is faster than the lane to the memory: to a peer that has promised continuous
//! progress. The peer may break its promise, so no small operation is queued. If the message lane does not accept the message, or
//! many small operations are unanswered, the operation uses the lane to the memory.

use super::EndpointState;
use super::post::Transfer;
use super::record::Completion;
use crate::mem::local::LocalBuffer;
use crate::op::{Id, Kind, way};
use crate::proto::emulate::{get_request, put_head};
use crate::proto::id;
use crate::registry::abi::PackBuffer;
use crate::request::{Outcome, Request};
use crate::shared::Unanswered;
use crate::{Error, Status};
use std::rc::Rc;

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
        let asked = match ends_here {
            true if !self.has_room(0) => return Err(Status::Again),
            true => self.shared.ops.borrow_mut().open_late(self.index, kind)?,
            false => self.open(kind)?,
        };
        let sent = match transfer.put {
            true => self.send_small_put(transfer, asked, notify),
            false => self.send_small_get(transfer, asked),
        };
        if let Err(status) = sent {
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

    fn send_small_put(
        &self,
        transfer: &Transfer<'_>,
        asked: Id,
        notify: Option<u32>,
    ) -> Result<(), Status> {
        let head = put_head(&transfer.key.inner.target(transfer.offset), notify);
        let message = if notify.is_some() { id::PUT_NOTIFY } else { id::PUT };
        let pack = |out: &mut PackBuffer<'_>| {
            out.put(&head)?;
            transfer.local.pack(transfer.at, transfer.len, out)
        };
        self.pack_now(message, asked.raw(), head.len() + transfer.len, pack)
    }

    fn send_small_get(&self, transfer: &Transfer<'_>, asked: Id) -> Result<(), Status> {
        let &Transfer { at, len, key, offset, .. } = transfer;
        let memory = self.hold_memory(transfer)?;
        let local_buffer = LocalBuffer { memory, offset: at, len, missing: len };
        self.shared.ops.borrow_mut().set_local_buffer(asked, local_buffer);
        let bytes = get_request(&key.inner.target(offset), len as u64);
        self.message_now(id::GET, asked.raw(), &bytes)
    }

    /// Returns the record of the small operations that the peer's worker has not answered, shared by all endpoints to that worker.
    fn unanswered(&self) -> &Rc<Unanswered> {
        self.unanswered.get_or_init(|| self.shared.unanswered_by(&self.address.entry.worker))
    }
}
