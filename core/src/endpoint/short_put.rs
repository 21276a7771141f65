//! Short puts to a module that consumes their bytes within the call (`max_short_put` of the provider ABI). The core neither copies
//! the bytes nor holds memory. No operation waits for a put that completes locally; the next flush asks the lane for its result.

use super::EndpointState;
use super::fast_path::FastPath;
use super::key::RemoteKey;
use super::record::{Completion, rma_op};
use crate::region::Access;
use crate::request::{Outcome, Request};
use tieline_order::Id;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, PENDING};

impl FastPath {
    /// Checks whether a put of this length uses the short path. If the key does not grant writing, no put does. An empty put wraps
    /// around and is never short.
    #[inline]
    pub(super) fn is_short(&self, len: usize) -> bool {
        len.wrapping_sub(1) < self.short_puts.get()
    }
}

impl EndpointState {
    /// Posts one short put.
    ///
    /// # Errors
    /// The status of a module that did not accept the put, or `OK` if no module was called; the slow path determines the
    /// reason.
    pub(super) fn post_short(
        &self,
        key: &RemoteKey,
        from: *mut u8,
        len: usize,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, i32> {
        let fast = &key.inner.fast;
        if fast.asks.get() {
            key.inner.resolve_now_and_then();
            // The lane may have called the application meanwhile.
            if !fast.is_short(len) {
                return Err(OK);
            }
        }
        let way = fast.way.get();
        let access = (Access::WRITE, offset, len);
        self.admit(self.may_try_memory(), &key.inner, None, access, Some(way)).map_err(|_| OK)?;
        let iov = Iov::new(from, len);
        if completion == Completion::Local {
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Local);
            // A module that returns `PENDING` breaks its promise, but has accepted the put.
            return match fast.put(&op) {
                OK | PENDING => {
                    self.order.note_posted(way);
                    self.order.note_local(way);
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
                self.order.note_posted(way);
                Ok(Outcome::Pending(Request::new(self.shared.clone(), id)))
            }
            code => self.not_pending(id, code),
        }
    }

    /// Returns the outcome of an operation that is already complete or was not accepted.
    #[cold]
    pub(super) fn not_pending(&self, id: Id, code: i32) -> Result<Outcome, i32> {
        self.shared.with_ops(|ops| ops.withdraw(id));
        if code == OK { Ok(Outcome::Done(0)) } else { Err(code) }
    }
}
