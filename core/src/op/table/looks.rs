//! What is shown of the table to who asks from outside.

use super::{Kind, NONE, NOWHERE, POSTED, Table};
use crate::op::Id;

/// The oldest operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oldest {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    /// The interface whose provider has it.
    pub(crate) posted_to: Option<usize>,
}

impl Table {
    /// The oldest open operation of an endpoint.
    pub(crate) fn oldest_of(&self, owner: usize) -> Option<Oldest> {
        let first = self.lists.get(owner)?.first;
        if first == NONE {
            return None;
        }
        let id = self.slab.at(first as usize)?;
        let hot = self.slab.get(id)?;
        let posted = hot.is(POSTED) && hot.interface() != NOWHERE;
        let posted_to = posted.then(|| usize::from(hot.interface()));
        Some(Oldest { id, kind: hot.kind(), posted_to })
    }

    /// Tracked operations that have ended and that nobody has taken.
    pub(crate) fn untaken(&self) -> usize {
        self.completed.len()
    }
}
