//! Puts and gets of one range that a module completes later, without a choice. One lane carries the whole range, the queue is
//! empty, and no better lane may be found.

use super::EndpointState;
use super::post::Transfer;
use super::record::{Completion, rma_op};
use crate::mem::local::{LocalBuffer, Memory};
use crate::request::{Outcome, Request};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, PENDING};

impl EndpointState {
    /// Posts one put or get. The operation holds its memory from before the module is called until it has ended. `FOLLOWED`: another
    /// operation on the same lane follows immediately.
    ///
    /// # Errors
    /// The status of a module that did not accept the operation, or `OK` if no module was called; the slow path determines
    /// the reason.
    pub(super) fn post_direct<const FOLLOWED: bool>(
        &self,
        transfer: &Transfer<'_>,
    ) -> Result<Outcome, i32> {
        let &Transfer { put, local, at, len, key, offset, completion } = transfer;
        let fast = &key.inner.fast;
        if fast.asks.get() {
            key.inner.resolve_now_and_then();
        }
        // An empty transfer wraps around to the largest number.
        if len.wrapping_sub(1) >= fast.direct[usize::from(!put)].get() || transfer.is_small() {
            return Err(OK);
        }
        let way = fast.way.get();
        let access = (transfer.needed(), offset, len);
        let open = self.may_try_memory();
        self.admit(open, &key.inner, local.region(), access, Some(way)).map_err(|_| OK)?;
        // Memory in pieces has no address of its own, so it takes the slow path.
        let memory = self.hold_memory(transfer).map_err(|_| OK)?;
        let interface = fast.interface.get();
        let mut iov = Iov::new(memory.at(at, len).map_err(|_| OK)?, len);
        if let Memory::Region(region) = &memory {
            iov.region = self.registration(fast.caps.get(), interface, region);
        }
        let held = LocalBuffer::held(memory, at, len);
        let opened = self.shared.ops.borrow_mut().open_held(self.index, interface, held);
        // The caller has a handle of this memory, so releasing it here runs no code of the application.
        let id = opened.map_err(|_| OK)?;
        let op = rma_op(&iov, fast.key.get(), offset, id.raw(), completion).followed(FOLLOWED);
        let code = if put { fast.put(&op) } else { fast.get(&op) };
        if code != PENDING && code != OK {
            return self.not_pending(id, code);
        }
        self.order.note_posted(way);
        if completion == Completion::Local {
            self.order.note_local(way);
        }
        match code {
            PENDING => Ok(Outcome::Pending(Request::new(self.shared.clone(), id))),
            code => self.not_pending(id, code),
        }
    }
}
