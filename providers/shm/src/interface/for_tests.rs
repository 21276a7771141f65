//! What tests read and change of an interface.

use super::*;

impl RingInterface {
    pub(crate) fn ring_all_bells(&self, word: usize) {
        if let Some((_, page)) = &self.state.borrow().doorbell {
            page.word(word * 8).unwrap().store(u64::MAX, Ordering::Release);
        }
    }

    pub(crate) fn fast_boxes(&self) -> u64 {
        self.shared.fast_boxes.get()
    }

    /// Returns the number of channels that polls drain without a bell.
    pub(crate) fn looked_at(&self) -> usize {
        self.state.borrow().direct.len()
    }

    /// Returns the number of connections on which nothing has arrived yet.
    pub(crate) fn silent(&self) -> usize {
        self.state.borrow().handshakes.iter().flatten().count()
    }

    /// Checks whether the next poll checks sockets and notices regardless of the time.
    pub(crate) fn attends(&self) -> bool {
        self.shared.due.is_called()
    }

    /// Returns the number of words that the core may compare instead of polling.
    pub(crate) fn listed_words(&self) -> usize {
        self.shared.due.watch.words().len()
    }

    /// Closes the spare descriptor, as if the process had no free descriptor. Returns whether there was one.
    pub(crate) fn lose_spare(&self) -> bool {
        self.state.borrow_mut().spare.take().is_some()
    }

    /// Marks all bells except `count` as taken. Returns the first free bell.
    pub(crate) fn leave_bells(&self, count: usize) -> u64 {
        self.state.borrow_mut().inbound.resize_with(MAX_INBOUND - count, || None);
        (MAX_INBOUND - count) as u64
    }

    /// Checks whether no connection is accepted until a later maintenance.
    pub(crate) fn accepts_nobody(&self) -> bool {
        self.state.borrow().accept_paused
    }
}
