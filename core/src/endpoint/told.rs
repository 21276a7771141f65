//! An endpoint's entries in the live report (`TIELINE_REPORT`): its lanes when the first one is opened, and its end. Also the
//! composition and the hindrances for the peer, as text.

use super::{EndpointState, Owner};
use crate::Error;

impl EndpointState {
    /// Reports the composition for the peer after the first lane was opened, and the modules that could serve the peer but do not.
    #[cold]
    pub(super) fn tell_of_lanes(&self) {
        let Some(journal) = self.journal() else { return };
        let mut line = format!("to {}: {}", self.address.label(), self.path());
        let not = self.hindrances();
        if !not.is_empty() {
            line.push_str("; not: ");
            line.push_str(&not.join("; "));
        }
        journal.tell_of_peer(self.address.entry.worker, &line);
    }

    /// Reports the end of the endpoint, and its cause. The end of a connection that the peer closes in good order is reported only
    /// if operations were open or queued.
    pub(super) fn tell_of_failure(&self, error: &Error) {
        let Some(journal) = self.journal() else { return };
        let is_missed = self.waiting_len() > 0 || self.shared.ops.borrow().open_of(self.index) > 0;
        if error.status() != crate::Status::Closed || is_missed {
            journal.tell_of_failure(Some(self.address.entry.worker), &error.to_string());
        }
    }

    /// Lists the modules that could serve the peer and do not, each with the reason; modules missing on this side precede the
    /// others.
    pub(super) fn hindrances(&self) -> Vec<String> {
        self.route.hindrances(&self.shared.core, &self.address)
    }

    /// Returns the composition for the peer, in one line.
    pub(super) fn path(&self) -> String {
        format!("{{message {}, {}}}", self.message_path(), self.route.composed)
    }

    /// Returns the journal for entries about this endpoint. `None` without a live report, and for endpoints that the application does
    /// not own.
    fn journal(&self) -> Option<&tieline_explain::journal::Journal> {
        let is_told = self.owner == Owner::Application;
        self.shared.core.journal().filter(|_| is_told).map(|journal| &**journal)
    }
}
