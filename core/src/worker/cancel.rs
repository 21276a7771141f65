//! Canceling operations.

use super::Worker;
use crate::request::Request;
use crate::{Error, PostError, Status};
use tieline_order::Id;
use tieline_plugin_api::caps;

impl Worker {
    /// Cancels an operation. `Ok`: the operation has ended, or its transport or receiver was asked to end it, and later progress
    /// ends it. The operation ends as `Canceled` if no part of it was executed, otherwise normally.
    ///
    /// With the exceptions below, an operation that is still in its endpoint's queue and has not begun has ended when this call
    /// returns, and its memory is free. If a transport holds the operation, the transport decides. A rendezvous message ends as
    /// `Canceled` unless its receiver has begun to receive it or has refused it. A flush does not report canceled operations.
    ///
    /// # Errors
    /// [`PostError::Correct`] with `Unsupported` and a reason if the operation cannot be canceled; it then continues unchanged. An
    /// operation cannot be canceled if part of it may be complete, if the peer has it, or if its module does not support canceling.
    /// The same is true of an operation that a module holds and whose endpoint was dropped. Operations over several lanes or in
    /// several parts, and queued puts with a notification, cannot be canceled either. [`PostError::Correct`] with `Invalid` for a
    /// request of another worker, and in a forked child.
    pub fn cancel(&self, request: &Request) -> Result<(), PostError> {
        self.inner.check_owner(&request.shared)?;
        self.cancel_operation(request.id)
    }

    /// Cancels the operation with the number that [`Request::number`] returned, like [`Worker::cancel`]. The request may have been
    /// dropped, for example after [`Worker::track`] or [`Worker::count`].
    ///
    /// # Errors
    /// The errors of [`Worker::cancel`]. A number of an operation that has ended, or of none, is no error.
    pub fn cancel_by_number(&self, number: u64) -> Result<(), PostError> {
        self.inner.shared.check_process("a worker")?;
        Id::from_raw(number).map_or(Ok(()), |id| self.cancel_operation(id))
    }

    fn cancel_operation(&self, id: Id) -> Result<(), PostError> {
        let shared = &self.inner.shared;
        let Some(owner) = shared.ops.borrow().owner(id) else { return Ok(()) };
        let (has_parts, posted) = {
            let ops = shared.ops.borrow();
            (!ops.parts_of(id).is_empty(), ops.posted_at(id))
        };
        if has_parts {
            return Err(goes_on("it goes over several lanes or in several parts").into());
        }
        let endpoint = self.inner.endpoint_at(owner);
        if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| endpoint.could_leave_out(id)) {
            endpoint.leave_out(id);
            return Ok(());
        }
        if shared.ops.borrow().is_announced(id) {
            if let Some(endpoint) = endpoint {
                endpoint.withdraw_announced(id);
            }
            return Ok(());
        }
        let Some(interface) = posted.filter(|at| *at < shared.interfaces.len()) else {
            return Err(goes_on(
                "it has begun: it is with the peer, or waits for an operation that is",
            )
            .into());
        };
        let slot = &shared.interfaces[interface];
        if slot.attr.caps & caps::CANCEL == 0 {
            return Err(
                goes_on(&format!("{} has it, and does not support canceling", slot.path)).into()
            );
        }
        let Some(endpoint) = endpoint else {
            return Err(goes_on(
                "its endpoint was dropped, and the operation continues without it",
            )
            .into());
        };
        match endpoint.ask_to_cancel(id, interface) {
            Ok(()) => {
                shared.ops.borrow_mut().want_back(id);
                Ok(())
            }
            // The provider has already completed the operation.
            Err(Status::Invalid) => Ok(()),
            Err(status) => Err(goes_on(&format!("{} says: {}", slot.path, status.text())).into()),
        }
    }
}

#[cold]
fn goes_on(why: &str) -> Error {
    Error::new(Status::Unsupported, "an operation can no longer be canceled", why, "wait for it")
}
