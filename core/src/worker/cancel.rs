//! Operations that who posted them does not want any more.

use super::Worker;
use crate::request::Request;
use crate::{Error, PostError, Status};
use tieline_plugin_api::caps;

impl Worker {
    /// Takes an operation back. `Ok`: it has ended, or progress ends it soon: as `Canceled` where nothing of it has happened, else as
    /// it would have. A message or operation that still waits in its endpoint's queue has ended when this returns, and its
    /// memory is free; one that a transport has is the transport's to take back, and a message that was announced its receiver's: as
    /// `Canceled` it ends unless the receiver has begun to take it. No flush tells of what was taken back.
    ///
    /// # Errors
    /// [`PostError::Correct`] with `Unsupported`, and words, where it can no more be taken back: part of it may be done, it is with the
    /// peer, or its module never gives anything back. So it is with what goes over several lanes, in parts, or with a notification
    /// behind it, from the start. It goes on as if nothing had been asked.
    pub fn cancel(&self, request: &Request) -> Result<(), PostError> {
        self.inner.check_owner(&request.shared)?;
        let (shared, id) = (&self.inner.shared, request.id);
        let Some(owner) = shared.ops.borrow().owner(id) else { return Ok(()) };
        let (has_parts, posted) = {
            let ops = shared.ops.borrow();
            (!ops.parts_of(id).is_empty(), ops.posted_at(id))
        };
        if has_parts {
            return Err(goes_on("it goes over several lanes or in several parts").into());
        }
        let endpoint = self.inner.endpoint_at(owner);
        // What goes to a peer's service worker may wait behind a fence of who goes there.
        let user = endpoint.as_ref().and_then(|endpoint| endpoint.user());
        let mut queues = endpoint.iter().chain(&user);
        if let Some(endpoint) = queues.find(|endpoint| endpoint.could_leave_out(id)) {
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
            return Err(goes_on("it has begun, and is with the peer or waits for what is").into());
        };
        let slot = &shared.interfaces[interface];
        if slot.attr.caps & caps::CANCEL == 0 {
            return Err(goes_on(&format!("{} has it, and gives nothing back", slot.path)).into());
        }
        let Some(endpoint) = endpoint else {
            return Err(goes_on("its endpoint was dropped, and it goes on without").into());
        };
        match endpoint.ask_to_cancel(id, interface) {
            Ok(()) => {
                shared.ops.borrow_mut().want_back(id);
                Ok(())
            }
            // Its end is on the way here.
            Err(Status::Invalid) => Ok(()),
            Err(status) => Err(goes_on(&format!("{} says: {}", slot.path, status.text())).into()),
        }
    }
}

#[cold]
fn goes_on(why: &str) -> Error {
    Error::new(
        Status::Unsupported,
        "an operation cannot be taken back any more",
        why,
        "wait for it",
    )
}
