//! The record for flush and fence: the lanes and other routes that operations used.

use std::cell::Cell;

/// The routes of operations, one bit each: memory lanes by rank, and the core's own routes.
pub(super) mod way {
    /// Emulated over messages.
    pub(crate) const EMULATED: u64 = 1 << 63;
    /// Lanes that complete within the call, and copies that a peer shares.
    pub(crate) const AT_ONCE: u64 = 1 << 62;
    /// Lanes beyond this rank share one bit.
    const LAST_LANE: usize = 61;

    /// The bit of a lane.
    pub(crate) fn lane(rank: usize) -> u64 {
        1 << rank.min(LAST_LANE)
    }

    /// The lanes among these bits.
    pub(crate) fn lanes(bits: u64) -> impl Iterator<Item = usize> {
        (0..=LAST_LANE).filter(move |rank| bits & lane(*rank) != 0)
    }
}

/// The recently posted operations, and the order that they must keep.
#[derive(Default)]
pub(crate) struct Order {
    /// Routes used since no operation was pending.
    pub(super) posted: Cell<u64>,
    /// Routes of operations before a weak fence. Later operations on another route must not overtake them.
    pub(super) fenced: Cell<u64>,
    /// Lanes with puts that complete locally.
    pub(super) local: Cell<u64>,
    /// The same lanes covered by a flush that has not asked them yet.
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
