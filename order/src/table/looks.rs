//! Queries: the operations before a given one, and the state that is published for observers.

use super::{Hot, Kind, List, NONE, NOWHERE, POSTED, Table};
use crate::Id;

/// The oldest operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// The operation's number.
    pub id: Id,
    /// The event for which it waits.
    pub kind: Kind,
    /// The interface of the provider that has the operation.
    pub posted_to: Option<usize>,
}

impl<B> Table<B> {
    /// Returns the oldest open operation of an endpoint. If only rendezvous messages are open, returns the oldest of these.
    pub fn oldest_of(&self, owner: usize) -> Option<Oldest> {
        let first = |lists: &[List]| lists.get(owner).map(|list| list.first);
        let lists = [first(&self.lists), first(&self.apart)];
        let first = lists.into_iter().flatten().find(|first| *first != NONE)?;
        let id = self.slab.at(first as usize)?;
        let hot = self.slab.get(id)?;
        let posted = hot.is(POSTED) && hot.interface() != NOWHERE;
        let posted_to = posted.then(|| usize::from(hot.interface()));
        Some(Oldest { id, kind: hot.kind(), posted_to })
    }

    /// Returns the indices of the endpoints that have open operations.
    pub fn owners_with_open_operations(&self) -> impl Iterator<Item = usize> + '_ {
        let all = 0..self.lists.len().max(self.apart.len());
        all.filter(|owner| self.open_of(*owner) + self.announced_of(*owner) > 0)
    }

    /// Checks whether puts that are not posted to this interface may precede an operation. `None`: checks whether any puts may.
    pub fn other_puts_before(&self, id: Id, interface: Option<usize>) -> bool {
        use Kind::{Copy, Flush, Native, Put, Whole};
        self.before(id).any(|hot| {
            let same = interface.is_some_and(|interface| hot.is_posted_to(interface));
            matches!(hot.kind(), Native | Put | Copy | Flush | Whole) && !same
        })
    }

    /// Checks whether an operation posted to this interface precedes another one.
    pub fn posted_before(&self, id: Id, interface: usize) -> bool {
        self.before(id).any(|hot| hot.is_posted_to(interface))
    }

    /// Returns the open operations before another one, the nearest first.
    fn before(&self, id: Id) -> impl Iterator<Item = &Hot> {
        let before = |hot: &&Hot| self.slab.get(self.slab.at(hot.before as usize)?);
        std::iter::successors(self.slab.get(id), before).skip(1)
    }
}
