//! What the report that is written while it is made (`TIELINE_REPORT`) has of an endpoint: its lanes at their first use, and its end.

use super::{Inner, Owner};
use crate::Error;

impl Inner {
    /// What leads to the peer, once it has been opened, and why nothing better does.
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

    /// How it has ended. A peer that closes its connection in good order has failed only for what is still under way.
    pub(super) fn tell_of_failure(&self, error: &Error) {
        let Some(journal) = self.journal() else { return };
        let is_missed = self.queue_len() > 0 || self.shared.ops.borrow().open_of(self.index) > 0;
        if error.status() != crate::Status::Closed || is_missed {
            journal.tell_of_failure(Some(self.address.entry.worker), &error.to_string());
        }
    }

    /// What would serve the peer and does not, each with the reason; first what is missing here.
    pub(super) fn hindrances(&self) -> Vec<String> {
        self.route.hindrances(&self.shared.core, &self.address)
    }

    /// What was composed for the peer, in a line.
    pub(super) fn path(&self) -> String {
        format!("{{message {}, {}}}", self.message_path(), self.route.composed)
    }

    /// Who writes what becomes of it: the library's own endpoints lead where an application's do.
    fn journal(&self) -> Option<&crate::journal::Journal> {
        let is_told = self.owner == Owner::Application && !self.handed_over.get();
        self.shared.core.journal().filter(|_| is_told).map(|journal| &**journal)
    }
}
