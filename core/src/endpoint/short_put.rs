//! Short puts to a module that takes their bytes while it is called (`max_short_put` of the provider ABI): none are copied here, no memory is
//! held, and of one that completes locally nothing is left to wait for. What becomes of that the next flush asks the lane.

use super::Inner;
use super::fast_path::FastPath;
use super::key::RemoteKey;
use super::record::{Completion, rma_op};
use crate::op::Id;
use crate::request::{Outcome, Request};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, PENDING};

impl FastPath {
    /// Whether a put of this length goes this way, which none does where the key gives no right to write. One of no bytes is longer than any
    /// here.
    #[inline]
    pub(super) fn is_short(&self, len: usize) -> bool {
        len.wrapping_sub(1) < self.short_puts.get()
    }
}

impl Inner {
    /// Posts one, over a key of this endpoint's, where nothing is queued before it.
    ///
    /// # Errors
    /// What the module answered that did not take it, or `OK` where it was not asked: the long way says why.
    pub(super) fn post_short(
        &self,
        key: &RemoteKey,
        from: *mut u8,
        len: usize,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, i32> {
        let (fast, record) = (&key.inner.fast, &key.inner.record);
        if fast.asks.get() {
            key.inner.resolve_now_and_then();
            // The application may have been called.
            if !self.may_post_memory() || !fast.is_short(len) {
                return Err(OK);
            }
        }
        let way = fast.way.get();
        let fenced = self.order.fenced.get();
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= record.len);
        if !inside || fenced != 0 && fenced != way {
            return Err(OK);
        }
        let iov = Iov::new(from, len);
        if completion == Completion::Local {
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Local);
            // A module that says that it is pending breaks its promise. It has it all the same.
            return match fast.put(&op) {
                OK | PENDING => {
                    self.note_posted(way);
                    self.order.local.set(self.order.local.get() | way);
                    Ok(Outcome::Done(0))
                }
                code => Err(code),
            };
        }
        let opened = self.shared.ops.borrow_mut().open_plain(self.index, fast.interface.get());
        let id = opened.map_err(|_| OK)?;
        let op = rma_op(&iov, fast.key.get(), offset, id.raw(), Completion::Remote);
        match fast.put(&op) {
            PENDING => {
                self.note_posted(way);
                Ok(Outcome::Pending(Request::new(self.shared.clone(), id)))
            }
            code => self.not_pending(id, code),
        }
    }

    /// It is over already, or was not taken.
    #[cold]
    pub(super) fn not_pending(&self, id: Id, code: i32) -> Result<Outcome, i32> {
        self.shared.with_ops(|ops| ops.withdraw(id));
        if code == OK { Ok(Outcome::Done(0)) } else { Err(code) }
    }
}
