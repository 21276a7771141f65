//! The record of each peer: its life, and which numbers are used up. Bounded, whatever peers send.

use std::collections::{BTreeMap, BTreeSet};

/// Gaps that are kept between used numbers before the lowest is given up.
const MAX_SPANS: usize = 256;

/// One worker that we have, or had, something with.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerRecord {
    /// Its life; 0: nothing heard yet.
    pub(super) epoch: u64,
    /// By module.
    pub(super) pairs: BTreeMap<Box<str>, Pair>,
    /// Connections it began that are neither claimed nor ready.
    pub(super) early: usize,
}

/// The connections with one peer over one module.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    /// Numbers that some connection has or had here.
    pub(super) used: Numbers,
    /// Live connections that nobody here has claimed.
    pub(super) unclaimed: BTreeSet<u32>,
    /// How many connections are live.
    pub(super) live: usize,
    /// When something last changed, in the order of changes.
    pub(super) touched: u64,
}

/// A set of numbers that is nearly always `1..=highest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Numbers {
    /// Inclusive, rising, with at least one number between two.
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
            // The numbers in the lowest gap count as used from now on: whoever asks with one of them renumbers.
            let (_, last) = self.spans.remove(1);
            self.spans[0].1 = last;
        }
    }

    #[cfg(test)]
    pub(super) fn spans(&self) -> &[(u32, u32)] {
        &self.spans
    }
}
