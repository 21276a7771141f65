//! Small puts and gets by one message, where that is quicker than the lane that leads to the memory: to a peer that has promised to
//! make progress all the time. It may break its promise. So nothing is queued for one of them: what the message lane has no room for
//! now, or what comes while the peer owes answers to many, goes by the lane, and what stands behind it waits for neither.

use super::Inner;
use super::order::way;
use super::post::Transfer;
use super::record::Completion;
use crate::op::{Id, Kind, LocalBuffer};
use crate::proto::emulate::{get_request, put_head};
use crate::proto::id;
use crate::registry::abi::PackBuffer;
use crate::request::{Outcome, Request};
use crate::shared::Unanswered;
use crate::{Error, Status};
use std::rc::Rc;

impl Inner {
    /// Sends what [`Transfer::is_small`] says may go by a message, and what a put tells the peer's worker (`notify`). `None`: nothing was
    /// sent.
    #[inline(never)]
    pub(super) fn post_small(
        &self,
        transfer: &Transfer<'_>,
        notify: Option<u32>,
    ) -> Result<Option<Outcome>, Error> {
        // Opened, the message lane may carry less than its module said, or be another one than was compared.
        if !self.opened_for_small() || !transfer.is_small() {
            return Ok(None);
        }
        if !self.unanswered().is_few(&self.shared.ops.borrow()) {
            return Ok(None);
        }
        let ways = self.ways_posted();
        let sent = match self.may_go(way::EMULATED) {
            true => self.send_small(transfer, notify),
            false => Err(Status::Again),
        };
        match sent {
            Ok(outcome) => Ok(Some(outcome)),
            Err(Status::Again) => {
                self.went_nowhere(ways);
                Ok(None)
            }
            Err(status) => Err(self.message_failed(status)),
        }
    }

    fn send_small(&self, transfer: &Transfer<'_>, notify: Option<u32>) -> Result<Outcome, Status> {
        let kind = if transfer.put { Kind::Put } else { Kind::Get };
        // Then its bytes are free when they are sent; what the target says of it, the next flush says.
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

    /// What the peer's worker has yet to answer, of all endpoints that lead there.
    fn unanswered(&self) -> &Rc<Unanswered> {
        self.unanswered.get_or_init(|| self.shared.unanswered_by(&self.address.entry.worker))
    }
}
