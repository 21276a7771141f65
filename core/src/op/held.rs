//! Memory of operations that have ended for whoever posted them while a provider may still touch it: their endpoint
//! failed, was dropped, or lost the interface that they were posted to; or the provider itself said that nobody knows how they ended.
//!
//! It is let go when the provider says how the operation ended, but for that it does not know, or when everything is closed that the operation may have
//! gone through: from then on, by the binary interface, the provider touches nothing of it.

use super::{Id, LocalBuffer};

/// An interface as a slot has it, in eight bits of which 255 says that it is posted nowhere: those from 254 on share a number.
pub(super) fn narrow(interface: usize) -> usize {
    interface.min(254)
}

/// An operation that has ended for whoever posted it, and not for the provider.
pub(crate) struct Unfinished {
    pub(super) id: Id,
    /// Where it was posted.
    pub(super) interface: usize,
    /// `None`: it has no memory of ours.
    #[allow(dead_code)] // held for its drop
    pub(super) local_buffer: Option<LocalBuffer>,
}

impl Unfinished {
    /// Its number.
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// Where it was posted.
    pub(crate) fn interface(&self) -> usize {
        self.interface
    }
}

/// An endpoint of a provider's that an operation may have gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// A circuit of the worker's, by its number.
    Circuit(u64),
    /// The lanes of an endpoint, by the endpoint's id (not an operation's).
    Endpoint(Id),
    /// A provider that broke: nothing of it is closed one by one. The memory stays until all of this is dropped, with the
    /// worker's interfaces.
    Interface,
}

/// All such memory of a worker; see `Shared::hold`.
#[derive(Default)]
pub(crate) struct Held {
    all: Vec<(Unfinished, Vec<Through>)>,
}

impl Held {
    /// Keeps what `op` uses until everything of `through` is closed.
    pub(crate) fn keep(&mut self, op: Unfinished, through: Vec<Through>) {
        self.all.push((op, through));
    }

    /// The provider of this interface broke: closing says nothing about it any more.
    pub(crate) fn broke(&mut self, interface: usize) {
        let posted_there = |op: &Unfinished| op.interface == narrow(interface);
        for (_, through) in self.all.iter_mut().filter(|(op, _)| posted_there(op)) {
            *through = vec![Through::Interface];
        }
    }

    /// A provider says how something ended that was posted to this interface. `None`: it has nothing of that number.
    pub(crate) fn completed(&mut self, cookie: u64, interface: usize) -> Option<Unfinished> {
        let ended =
            |(op, _): &(Unfinished, _)| op.id.raw() == cookie && op.interface == narrow(interface);
        let at = self.all.iter().position(ended)?;
        Some(self.all.swap_remove(at).0)
    }

    /// Whether it has something of that number, posted to this interface.
    pub(crate) fn has(&self, cookie: u64, interface: usize) -> bool {
        let posted = |op: &Unfinished| op.id.raw() == cookie && op.interface == narrow(interface);
        self.all.iter().any(|(op, _)| posted(op))
    }

    /// This is closed. What comes back is free, to be let go when nothing is borrowed.
    #[must_use]
    pub(crate) fn closed(&mut self, what: Through) -> Vec<Unfinished> {
        for (_, through) in &mut self.all {
            through.retain(|one| *one != what);
        }
        let (free, kept) =
            std::mem::take(&mut self.all).into_iter().partition(|(_, through)| through.is_empty());
        self.all = kept;
        let free: Vec<(Unfinished, Vec<Through>)> = free;
        free.into_iter().map(|(op, _)| op).collect()
    }
}
