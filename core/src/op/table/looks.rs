//! What is shown of the table to who asks from outside.

use super::{Kind, List, NONE, NOWHERE, POSTED, Table};
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
    /// The oldest open operation of an endpoint; where all that is open are announced messages, the first of these.
    pub(crate) fn oldest_of(&self, owner: usize) -> Option<Oldest> {
        let first = |lists: &[List]| lists.get(owner).map(|list| list.first);
        let lists = [first(&self.lists), first(&self.apart)];
        let first = lists.into_iter().flatten().find(|first| *first != NONE)?;
        let id = self.slab.at(first as usize)?;
        let hot = self.slab.get(id)?;
        let posted = hot.is(POSTED) && hot.interface() != NOWHERE;
        let posted_to = posted.then(|| usize::from(hot.interface()));
        Some(Oldest { id, kind: hot.kind(), posted_to })
    }

    /// The endpoints that have something open, by their indices.
    pub(crate) fn who_waits(&self) -> impl Iterator<Item = usize> + '_ {
        let all = 0..self.lists.len().max(self.apart.len());
        all.filter(|owner| self.open_of(*owner) + self.announced_of(*owner) > 0)
    }

    /// Tracked operations that have ended and that nobody has taken.
    pub(crate) fn untaken(&self) -> usize {
        self.completed.len()
    }
}
