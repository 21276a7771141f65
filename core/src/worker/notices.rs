//! The notifications of a worker's endpoints whose operations have not ended.

use super::WorkerState;
use crate::Error;
use crate::endpoint::notice::Notice;
use std::cell::RefCell;
use std::collections::HashMap;
use tieline_order::Id;

/// The waiting notifications, by the number of their gate. They hold endpoints, which hold the worker.
pub(super) type Notices = RefCell<HashMap<Id, Notice>>;

impl WorkerState {
    pub(crate) fn keep_notice(&self, gate: Id, notice: Notice) {
        let _ = self.notices.borrow_mut().insert(gate, notice);
    }

    pub(crate) fn take_notice(&self, gate: Id) -> Option<Notice> {
        self.notices.borrow_mut().remove(&gate)
    }

    /// Sends the notification whose gate has ended. `false`: no notification has this gate.
    pub(super) fn end_notice(&self, gate: Id) -> bool {
        let Some(notice) = self.take_notice(gate) else { return false };
        let result = self.shared.ops.borrow_mut().take(gate);
        notice.release(result.unwrap_or_else(|| Err(crate::Status::Closed.into())));
        true
    }

    /// Makes the waiting notifications of an endpoint fail that has lost locally completed puts.
    pub(crate) fn spoil_notices(&self, endpoint: usize, error: &Error) {
        let notices = self.notices.borrow();
        let own = notices.iter().filter(|(_, notice)| notice.endpoint.index == endpoint);
        own.for_each(|(gate, notice)| notice.spoil(*gate, error));
    }
}
