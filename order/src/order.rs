//! The record for flush and fence: the lanes and other routes that an endpoint's operations used.

use crate::admission::{Asked, Refused};
use std::cell::Cell;

/// The routes of operations, one bit each: memory lanes by rank, and the core's own routes.
pub mod way {
    /// The route of operations emulated over messages.
    pub const EMULATED: u64 = 1 << 63;
    /// The route of lanes that complete within the call, and of copies that a peer shares.
    pub const AT_ONCE: u64 = 1 << 62;
    /// The highest lane rank with a bit of its own; lanes from this rank on share the bit.
    pub const LAST_LANE: usize = 61;

    /// Returns the bit of a lane.
    #[inline]
    #[must_use]
    pub fn lane(rank: usize) -> u64 {
        1 << rank.min(LAST_LANE)
    }

    /// Returns the ranks of the lanes among these bits; [`LAST_LANE`] stands for itself and all higher ranks.
    pub fn lanes(bits: u64) -> impl Iterator<Item = usize> {
        (0..=LAST_LANE).filter(move |rank| bits & lane(*rank) != 0)
    }
}

/// The record of an endpoint's recently posted operations, and of the order that they must keep.
#[derive(Debug, Default)]
pub struct Order {
    /// The routes of the posted operations that the next fence has to take into account.
    posted: Cell<u64>,
    /// The lane of the operations before a weak fence; 0: none. Later operations on another route must not overtake them.
    fenced: Cell<u64>,
    /// The lanes with locally completed puts that no flush covers yet.
    local: Cell<u64>,
    /// The lanes with locally completed puts that a flush covers and has not flushed yet.
    covered: Cell<u64>,
}

/// The way in which a fence keeps the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// No earlier operation could be overtaken.
    Free,
    /// All earlier operations are on the lane of this rank, which may be able to keep the order.
    Lane(usize),
    /// Later operations have to wait for the earlier ones.
    Strong,
}

impl Order {
    /// Decides whether an operation may be posted over this route. With no route, the decision ignores fences: the operation is
    /// queued if it has to wait.
    ///
    /// # Errors
    /// The first condition that is not met.
    #[inline(always)] // every put over a device passes this check
    pub fn admit(&self, asked: &Asked, way: Option<u64>) -> Result<(), Refused> {
        if !asked.own_memory {
            return Err(Refused::Memory);
        }
        if !asked.open {
            return Err(Refused::Endpoint);
        }
        if !asked.own_key {
            return Err(Refused::Key);
        }
        asked.grant.check(asked.right, asked.offset, asked.len)?;
        if way.is_none_or(|way| self.passes(way)) { Ok(()) } else { Err(Refused::Fence) }
    }

    /// Checks whether operations over these routes cannot overtake those before a weak fence.
    #[inline]
    pub fn passes(&self, ways: u64) -> bool {
        let fenced = self.fenced.get();
        fenced == 0 || fenced == ways
    }

    /// Records that an operation was posted over these routes.
    #[inline]
    pub fn note_posted(&self, ways: u64) {
        self.posted.set(self.posted.get() | ways);
    }

    /// Records that a put that completes locally was posted over these lanes, so that a flush includes them.
    #[inline]
    pub fn note_local(&self, lanes: u64) {
        self.local.set(self.local.get() | lanes);
    }

    /// Returns the routes that fences take into account.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted.get()
    }

    /// Restores an earlier value of `posted`, because the operation noted since does not use its route.
    #[inline]
    pub fn restore_posted(&self, before: u64) {
        self.posted.set(before);
    }

    /// Returns the route on which an earlier weak fence relies; 0: none.
    #[inline]
    pub fn fenced(&self) -> u64 {
        self.fenced.get()
    }

    /// Returns the lanes with locally completed puts that no flush covers.
    #[inline]
    pub fn local(&self) -> u64 {
        self.local.get()
    }

    /// Returns the lanes that have to be flushed before all locally completed puts are at the target.
    #[inline]
    pub fn unflushed(&self) -> u64 {
        self.local.get() | self.covered.get()
    }

    /// Begins a flush. Returns the lanes that it has to flush.
    #[inline]
    pub fn cover(&self) -> u64 {
        let covered = self.covered.get() | self.local.replace(0);
        self.covered.set(covered);
        covered
    }

    /// Records that a flush of these lanes covers all operations posted so far.
    #[inline]
    pub fn flushed(&self, lanes: u64) {
        for noted in [&self.local, &self.covered] {
            noted.set(noted.get() & !lanes);
        }
    }

    /// Forgets the routes of operations that have arrived, or for which later ones wait.
    #[inline]
    pub fn clear(&self) {
        self.posted.set(0);
        self.fenced.set(0);
    }

    /// Checks whether all operations that may not have arrived used this route.
    #[inline]
    pub fn is_only(&self, way: u64) -> bool {
        (self.posted.get() | self.fenced.get() | self.unflushed()) & !way == 0
    }

    /// Decides how a fence keeps the order of operations in flight. `queued`: whether operations wait in the queue.
    pub fn fence(&self, queued: bool) -> Fence {
        let before = self.posted.get() | self.fenced.get();
        let mut lanes = way::lanes(before);
        match (before, lanes.next(), lanes.next()) {
            _ if queued => Fence::Strong,
            (0, ..) => Fence::Free,
            (_, Some(rank), None) if before == way::lane(rank) => Fence::Lane(rank),
            _ => Fence::Strong,
        }
    }

    /// Records that the lane of this rank keeps the order of all operations before the fence.
    #[inline]
    pub fn rely_on(&self, rank: usize) {
        self.fenced.set(way::lane(rank));
    }
}

#[cfg(test)]
mod tests {
    use super::way::{AT_ONCE, EMULATED, lane, lanes};
    use super::*;

    #[test]
    fn each_lane_has_a_bit_and_those_beyond_the_last_share_one() {
        assert_eq!([0, 1, 60, 61, 62, 1000].map(lane), [1, 2, 1 << 60, 1 << 61, 1 << 61, 1 << 61]);
        assert_eq!(lanes(0b101 | EMULATED | AT_ONCE).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(lanes(u64::MAX).collect::<Vec<_>>(), (0..62).collect::<Vec<_>>());
        assert_eq!(lanes(EMULATED | AT_ONCE).count(), 0);
    }

    #[test]
    fn fence_relies_on_a_lane_only_if_every_operation_used_it() {
        let order = Order::default();
        assert_eq!([false, true].map(|queued| order.fence(queued)), [Fence::Free, Fence::Strong]);
        order.note_posted(lane(3));
        assert_eq!(
            [false, true].map(|queued| order.fence(queued)),
            [Fence::Lane(3), Fence::Strong]
        );
        order.rely_on(3);
        assert_eq!((order.fenced(), order.passes(lane(3))), (lane(3), true));
        assert!(![lane(2), lane(3) | lane(2), EMULATED].iter().any(|ways| order.passes(*ways)));
        let before = order.posted();
        for other in [lane(2), EMULATED, AT_ONCE] {
            order.note_posted(other);
            assert_eq!((order.fence(false), order.is_only(lane(3))), (Fence::Strong, false));
            order.restore_posted(before);
            assert!(order.is_only(lane(3)));
        }
        order.clear();
        assert!(order.fence(false) == Fence::Free && order.passes(EMULATED));
    }

    #[test]
    fn locally_completed_puts_are_unflushed_until_their_lane_is_flushed() {
        let order = Order::default();
        order.note_local(lane(1) | lane(2));
        assert_eq!((order.cover(), order.local()), (0b110, 0), "the flush covers them");
        order.note_local(lane(2));
        assert_eq!((order.unflushed(), order.local()), (0b110, 0b100));
        assert!(!order.is_only(lane(2)));
        order.flushed(lane(1));
        assert!(order.is_only(lane(2)));
        order.flushed(lane(2));
        assert_eq!((order.unflushed(), order.cover()), (0, 0));
    }
}
