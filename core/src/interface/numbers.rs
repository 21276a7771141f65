//! A map from an interface's peer numbers, which its provider assigns, to the worker's peer numbers.
//!
//! Most providers assign consecutive numbers, so an index into a list finds a sender. Other providers use existing numbers, such as
//! those of queue pairs. Numbers far beyond the list's end are kept in a tree, so that a very large number does not extend the
//! list.

use std::collections::BTreeMap;

/// The number that stands for no peer.
const NOBODY: u32 = u32::MAX;

/// The maximum number of entries that one number adds to the list.
const CLOSE: usize = 65_536;

/// The map from the provider's number of a peer to the worker's number.
#[derive(Default)]
pub(super) struct Numbers {
    close: Vec<u32>,
    /// The numbers that lie beyond the list.
    far: BTreeMap<u64, u32>,
}

impl Numbers {
    /// Returns the worker's number of a peer; `u32::MAX`: the number is unknown.
    #[inline]
    pub(super) fn peer(&self, number: u64) -> u32 {
        match self.close.get(number as usize) {
            Some(peer) => *peer,
            None => self.far_peer(number),
        }
    }

    #[cold]
    fn far_peer(&self, number: u64) -> u32 {
        self.far.get(&number).copied().unwrap_or(NOBODY)
    }

    /// Assigns a number to a peer of the worker. Returns the peer to which the number belonged before; `u32::MAX`: none.
    pub(super) fn note(&mut self, number: u64, peer: u32) -> u32 {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        if index >= self.close.len().saturating_add(CLOSE) {
            return self.far.insert(number, peer).unwrap_or(NOBODY);
        }
        if self.close.len() <= index {
            self.close.resize(index + 1, NOBODY);
            let beyond = self.far.split_off(&(number + 1));
            for (number, peer) in std::mem::replace(&mut self.far, beyond) {
                self.close[number as usize] = peer;
            }
        }
        std::mem::replace(&mut self.close[index], peer)
    }

    /// Removes a number of a peer. Returns the peer to which the number belonged; `u32::MAX`: none.
    pub(super) fn forget(&mut self, number: u64) -> u32 {
        match self.close.get_mut(number as usize) {
            Some(peer) => std::mem::replace(peer, NOBODY),
            None => self.far.remove(&number).unwrap_or(NOBODY),
        }
    }

    /// Returns the provider's numbers of a peer of the worker.
    pub(super) fn of(&self, peer: u32) -> Vec<u64> {
        let close = (0..).zip(self.close.iter().copied());
        let far = self.far.iter().map(|(number, peer)| (*number, *peer));
        close.chain(far).filter(|(_, known)| *known == peer).map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wild_number_means_a_peer_and_costs_no_more_than_a_close_one() {
        let mut numbers = Numbers::default();
        for (peer, number) in [(1, 0), (2, u64::MAX), (3, 1 << 40), (4, 70_000)] {
            assert_eq!(numbers.note(number, peer), NOBODY);
            assert_eq!(numbers.peer(number), peer);
            assert_eq!(numbers.of(peer), [number]);
        }
        assert_eq!(numbers.note(1 << 40, 5), 3, "its number is somebody else's now");
        assert_eq!(numbers.peer(1), NOBODY);
        assert!(numbers.close.len() < 70_000);
        assert_eq!(numbers.forget(1 << 40), 5);
        assert_eq!(numbers.forget(0), 1);
        assert_eq!(numbers.peer(0), NOBODY);
        assert_eq!(numbers.peer(1 << 40), NOBODY);
        assert_eq!(numbers.far.len(), 2);
    }

    #[test]
    fn a_far_number_that_the_list_reaches_later_means_the_same_peer() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.note(70_000, 1), NOBODY);
        assert_eq!(numbers.note(60_000, 2), NOBODY);
        assert_eq!(numbers.note(80_000, 3), NOBODY);
        assert!(numbers.far.is_empty());
        assert_eq!([60_000, 70_000, 80_000].map(|number| numbers.peer(number)), [2, 1, 3]);
        assert_eq!(numbers.note(70_000, 4), 1);
        assert_eq!(numbers.of(4), [70_000]);
    }

    #[test]
    fn the_list_is_made_longer_up_to_a_bound_beyond_what_is_known() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.note(CLOSE as u64, 1), NOBODY);
        assert_eq!((numbers.close.len(), numbers.far.len()), (0, 1));
        assert_eq!(numbers.note(CLOSE as u64 - 1, 2), NOBODY);
        assert_eq!((numbers.close.len(), numbers.far.len()), (CLOSE, 1));
        assert_eq!(numbers.note(CLOSE as u64, 3), 1, "it is the same peer as before");
        assert_eq!((numbers.close.len(), numbers.far.len()), (CLOSE + 1, 0));
    }
}
