//! Endpoints over which messages of a module carry datagrams of wire-up: one for each peer, as many as are of use.

use std::collections::HashMap;
use std::hash::Hash;

/// What is open, by where it leads. It is bounded: one that is gone is made again when it is needed, and a datagram that
/// is lost with it is sent again.
pub(super) struct Carried<P, E> {
    open: HashMap<P, (u64, E)>,
    most: usize,
    next: u64,
}

impl<P: Eq + Hash + Copy, E: Copy> Carried<P, E> {
    /// None yet, and `most` at a time; the first has the cookie `first`.
    pub(super) fn new(most: usize, first: u64) -> Carried<P, E> {
        Carried { open: HashMap::new(), most, next: first }
    }

    pub(super) fn get(&self, path: &P) -> Option<E> {
        self.open.get(path).map(|(_, endpoint)| *endpoint)
    }

    /// A cookie for the next one.
    pub(super) fn cookie(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Takes one in. What comes back had to make room, and is to be closed.
    #[must_use]
    pub(super) fn insert(&mut self, path: P, cookie: u64, endpoint: E) -> Option<E> {
        let oldest = || self.open.iter().min_by_key(|(_, (cookie, _))| *cookie).map(|(p, _)| *p);
        let goes = if self.open.len() >= self.most { oldest() } else { None };
        let gone = goes.and_then(|path| self.remove(&path));
        let _ = self.open.insert(path, (cookie, endpoint));
        gone
    }

    /// Takes one out, to be closed.
    #[must_use]
    pub(super) fn remove(&mut self, path: &P) -> Option<E> {
        self.open.remove(path).map(|(_, endpoint)| endpoint)
    }

    /// The same by its cookie.
    #[must_use]
    pub(super) fn failed(&mut self, cookie: u64) -> Option<E> {
        let path = self.open.iter().find(|(_, (known, _))| *known == cookie).map(|(p, _)| *p)?;
        self.remove(&path)
    }

    /// Changes what is open.
    pub(super) fn change(&mut self, mut change: impl FnMut(&P, &mut E)) {
        self.open.iter_mut().for_each(|(path, (_, endpoint))| change(path, endpoint));
    }

    /// All of them.
    #[must_use]
    pub(super) fn take(&mut self) -> Vec<E> {
        self.open.drain().map(|(_, (_, endpoint))| endpoint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_come_and_go_leave_a_bounded_number_of_endpoints_behind() {
        let mut carried = Carried::new(3, 100);
        let mut closed = Vec::new();
        for peer in 0..1000u32 {
            let cookie = carried.cookie();
            closed.extend(carried.insert(peer, cookie, peer));
            assert_eq!(carried.get(&peer), Some(peer));
        }
        assert_eq!(closed, (0..997).collect::<Vec<_>>(), "the oldest goes first");
        assert_eq!(carried.failed(1098), Some(998));
        assert_eq!((carried.failed(1098), carried.get(&998)), (None, None));
        assert_eq!(carried.remove(&997), Some(997));
        assert_eq!((carried.take(), carried.get(&999)), (vec![999], None));
    }
}
