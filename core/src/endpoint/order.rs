//! The record for flush and fence: the lanes and other routes that operations used.

use std::cell::Cell;

/// The routes of operations, one bit each: memory lanes by rank, and the core's own routes.
pub(super) mod way {
    /// The route of operations emulated over messages.
    pub(crate) const EMULATED: u64 = 1 << 63;
    /// The route of lanes that complete within the call, and of copies that a peer shares.
    pub(crate) const AT_ONCE: u64 = 1 << 62;
    /// The highest lane rank with a bit of its own; lanes from this rank on share the bit.
    const LAST_LANE: usize = 61;

    /// Returns the bit of a lane.
    pub(crate) fn lane(rank: usize) -> u64 {
        1 << rank.min(LAST_LANE)
    }

    /// Returns the ranks of the lanes among these bits.
    pub(crate) fn lanes(bits: u64) -> impl Iterator<Item = usize> {
        (0..=LAST_LANE).filter(move |rank| bits & lane(*rank) != 0)
    }
}

/// The record of recently posted operations, and of the order that they must keep.
#[derive(Default)]
pub(crate) struct Order {
    /// The routes used since the last time that no operation was pending.
    pub(super) posted: Cell<u64>,
    /// The routes of operations before a weak fence. Later operations on another route must not overtake them.
    pub(super) fenced: Cell<u64>,
    /// The lanes with puts that complete locally.
    pub(super) local: Cell<u64>,
    /// The lanes of such puts that a flush covers and has not flushed yet.
    pub(super) covered: Cell<u64>,
}

#[cfg(test)]
mod tests {
    use super::way::{AT_ONCE, EMULATED, lane, lanes};

    #[test]
    fn each_lane_has_a_bit_and_those_beyond_the_last_share_one() {
        assert_eq!([0, 1, 60, 61, 62, 1000].map(lane), [1, 2, 1 << 60, 1 << 61, 1 << 61, 1 << 61]);
        assert_eq!(lanes(0b101 | EMULATED | AT_ONCE).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(lanes(u64::MAX).collect::<Vec<_>>(), (0..62).collect::<Vec<_>>());
        assert_eq!(lanes(EMULATED | AT_ONCE).count(), 0);
    }
}
