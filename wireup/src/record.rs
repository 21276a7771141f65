//! The record of each peer: its epoch and its used numbers. The record's size is bounded for any messages of the peer.

use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of spans of used numbers; beyond it the lowest gap is closed.
const MAX_SPANS: usize = 256;

/// One worker with current or past connections.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerRecord {
    /// The peer's epoch; 0 if it is not known yet.
    pub(super) epoch: u64,
    /// The connections by module.
    pub(super) pairs: BTreeMap<Box<str>, Pair>,
    /// The number of connections that the peer began and that are neither claimed nor ready.
    pub(super) early: usize,
}

/// The connections with one peer over one module.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    /// The numbers of current and past connections.
    pub(super) used: Numbers,
    /// The live connections that the local side has not claimed.
    pub(super) unclaimed: BTreeSet<u32>,
    /// The number of live connections.
    pub(super) live: usize,
    /// The count of changes when this pair last changed.
    pub(super) touched: u64,
}

/// A set of numbers, stored as spans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Numbers {
    /// The spans of numbers: inclusive, ascending, with a gap of at least one number between two spans.
    spans: Vec<(u32, u32)>,
}

impl Numbers {
    pub(super) fn highest(&self) -> u32 {
        self.spans.last().map_or(0, |(_, last)| *last)
    }

    pub(super) fn contains(&self, n: u32) -> bool {
        let at = self.spans.partition_point(|(_, last)| *last < n);
        self.spans.get(at).is_some_and(|(first, _)| *first <= n)
    }

    pub(super) fn insert(&mut self, n: u32) {
        let at = self.spans.partition_point(|(_, last)| *last < n);
        if self.spans.get(at).is_some_and(|(first, _)| *first <= n) {
            return;
        }
        let joins_left = at > 0 && self.spans[at - 1].1 + 1 == n;
        let joins_right = self.spans.get(at).is_some_and(|(first, _)| n + 1 == *first);
        match (joins_left, joins_right) {
            (true, true) => {
                self.spans[at - 1].1 = self.spans[at].1;
                let _ = self.spans.remove(at);
            }
            (true, false) => self.spans[at - 1].1 = n,
            (false, true) => self.spans[at].0 = n,
            (false, false) => self.spans.insert(at, (n, n)),
        }
        if self.spans.len() > MAX_SPANS {
            // From this point on the numbers in the lowest gap count as used: a request with one of them is renumbered.
            let (_, last) = self.spans.remove(1);
            self.spans[0].1 = last;
        }
    }

    #[cfg(test)]
    pub(super) fn spans(&self) -> &[(u32, u32)] {
        &self.spans
    }
}
