//! Memory of operations that have ended for the caller while a provider may still access it.
//!
//! Such an operation has lost its endpoint (failed or dropped), its circuit or the interface to which it was posted, or the
//! provider reported that its outcome is unknown. A rendezvous message whose endpoint has ended is another one: its receiver may read
//! the memory until it has answered.
//!
//! The memory is released when the provider reports the outcome of the operation. The memory is also released when every endpoint
//! and circuit that the operation may have used is closed: the ABI forbids any access by the provider after that. If the outcome is
//! unknown, the provider reports nothing more. If the provider failed, neither event releases the memory, which stays until this
//! table is dropped.

use super::Id;

/// Converts an interface number to the eight bits of a slot. 255 means "not posted"; interfaces from 254 on share the number 254.
#[inline]
pub(crate) fn narrow(interface: usize) -> usize {
    interface.min(254)
}

/// An operation that has ended for its caller and whose memory a provider may still access.
pub struct Unfinished<B> {
    pub(crate) id: Id,
    /// The interface to which the operation was posted.
    pub(crate) interface: usize,
    /// The local memory; `None`: the operation uses no memory that the core holds.
    #[allow(dead_code)] // held for its drop
    pub(crate) local_buffer: Option<B>,
}

impl<B> Unfinished<B> {
    /// Returns the operation's number.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Returns the interface to which the operation was posted.
    pub fn interface(&self) -> usize {
        self.interface
    }
}

/// A provider's endpoint that an operation may have used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// A circuit of the worker, by its number.
    Circuit(u64),
    /// The lanes of an endpoint, by the id of the endpoint (not of an operation).
    Endpoint(Id),
    /// An interface of a failed provider, whose endpoints are not closed one by one. The memory stays until this table is dropped
    /// together with the worker's interfaces.
    Interface,
}

/// The held memory of one worker.
pub struct Held<B> {
    all: Vec<(Unfinished<B>, Vec<Through>)>,
}

impl<B> Default for Held<B> {
    fn default() -> Held<B> {
        Held { all: Vec::new() }
    }
}

impl<B> Held<B> {
    /// Keeps the memory of `op` until the provider reports its outcome or everything in `through` is closed.
    pub fn keep(&mut self, op: Unfinished<B>, through: Vec<Through>) {
        self.all.push((op, through));
    }

    /// Handles the failure of the provider of this interface. Closing an endpoint does not release the memory of the operations
    /// that were held for this interface before.
    pub fn broke(&mut self, interface: usize) {
        let posted_there = |op: &Unfinished<B>| op.interface == narrow(interface);
        for (_, through) in self.all.iter_mut().filter(|(op, _)| posted_there(op)) {
            *through = vec![Through::Interface];
        }
    }

    /// Takes an operation whose outcome a provider reports at this interface. `None`: the table has no operation with that number.
    pub fn completed(&mut self, cookie: u64, interface: usize) -> Option<Unfinished<B>> {
        let ended = |(op, _): &(Unfinished<B>, _)| {
            op.id.raw() == cookie && op.interface == narrow(interface)
        };
        let at = self.all.iter().position(ended)?;
        Some(self.all.swap_remove(at).0)
    }

    /// Returns the number of held operations.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Takes the memory of a rendezvous message whose receiver has answered over this circuit.
    pub fn answered(&mut self, id: Id, over: Through) -> Option<Unfinished<B>> {
        let is_it =
            |(op, through): &(Unfinished<B>, Vec<_>)| op.id == id && through.contains(&over);
        let at = self.all.iter().position(is_it)?;
        Some(self.all.swap_remove(at).0)
    }

    /// Checks whether the table has an operation with that number that was posted to this interface.
    pub fn has(&self, cookie: u64, interface: usize) -> bool {
        let posted =
            |op: &Unfinished<B>| op.id.raw() == cookie && op.interface == narrow(interface);
        self.all.iter().any(|(op, _)| posted(op))
    }

    /// Handles the closing of `what`. Returns the memory that is free; the caller drops it while nothing is borrowed.
    #[must_use]
    pub fn closed(&mut self, what: Through) -> Vec<Unfinished<B>> {
        for (_, through) in &mut self.all {
            through.retain(|one| *one != what);
        }
        let (free, kept) =
            std::mem::take(&mut self.all).into_iter().partition(|(_, through)| through.is_empty());
        self.all = kept;
        let free: Vec<(Unfinished<B>, Vec<Through>)> = free;
        free.into_iter().map(|(op, _)| op).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withdrawn_message_keeps_its_memory_until_its_circuit_answers() {
        let mut table = crate::Table::new(10);
        let [first, second] = [7, 8].map(|memory| table.open_announced(0, memory).unwrap());
        assert!(table.leave_memory(first, 3, |memory| *memory != 7).is_none());
        let mut held = Held::default();
        for id in [first, second] {
            let memory = table.leave_memory(id, 3, |_| true).unwrap();
            held.keep(memory, vec![Through::Circuit(5)]);
        }
        let taken = |op: Option<Unfinished<i32>>| op.and_then(|op| op.local_buffer);
        assert_eq!((held.count(), taken(held.answered(first, Through::Circuit(6)))), (2, None));
        assert_eq!(taken(held.answered(first, Through::Circuit(5))), Some(7));
        assert_eq!(taken(held.answered(first, Through::Circuit(5))), None);
        let closed: Vec<_> = held.closed(Through::Circuit(5)).into_iter().collect();
        assert_eq!(closed.into_iter().map(|op| taken(Some(op))).collect::<Vec<_>>(), [Some(8)]);
    }
}
