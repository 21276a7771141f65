//! Where the slots of a ring lie, and the order in which they are used.

#[cfg(not(loom))]
use super::SLOT;
use super::Slot;
use std::ptr::NonNull;

/// The order of slots in which each one follows its neighbour in memory.
pub(crate) const NEIGHBOURS: u64 = 1;
/// The order in which slot `n` is the `n * SPREAD`-th one in memory. The factor is -1/3 modulo each power of two, so the third slot
/// after one lies directly before it in memory.
///
/// A processor that reads a line may prefetch the line that follows in memory. In this order, the consumer has just read that line.
/// In the order [`NEIGHBOURS`] the producer is about to write it, and must fetch it again: with many stores between two messages, a
/// stream is then half as fast or less (docs/internals.md).
pub(crate) const SPREAD: u64 = u64::MAX / 3;

/// The slots of a ring in their order.
#[derive(Clone, Copy)]
pub(super) struct Places {
    slots: NonNull<Slot>,
    /// The offset of the last slot in memory, in bytes: all bits of an offset of a slot. Under loom: in slots.
    mask: usize,
    /// The distance between successive slots, less the address of the first slot.
    step: usize,
}

impl Places {
    /// The slots from `slots` on, whose number is a power of two, in the order `step`: [`NEIGHBOURS`] or [`SPREAD`].
    #[cfg(not(loom))]
    pub(super) fn of(slots: NonNull<Slot>, count: usize, step: u64) -> Places {
        let step = (step as usize).wrapping_mul(SLOT).wrapping_sub(slots.addr().get());
        Places { slots, mask: (count - 1) * SLOT, step }
    }

    pub(super) fn count(&self) -> u64 {
        #[cfg(not(loom))]
        let last = self.mask / SLOT;
        #[cfg(loom)]
        let last = self.mask;
        last as u64 + 1
    }

    /// Returns the slot after `slot`, and whether it begins a lap.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn after(&self, slot: NonNull<Slot>) -> (NonNull<Slot>, bool) {
        let offset = slot.addr().get().wrapping_add(self.step) & self.mask;
        // SAFETY: the offset is that of a slot of this ring, which lies in one mapping.
        (unsafe { self.slots.byte_add(offset) }, offset == 0)
    }
}

#[cfg(loom)]
impl Places {
    pub(super) fn of(slots: NonNull<Slot>, count: usize, step: u64) -> Places {
        Places { slots, mask: count - 1, step: step as usize }
    }

    pub(super) fn after(&self, slot: NonNull<Slot>) -> (NonNull<Slot>, bool) {
        // SAFETY: both lie in the array of this ring.
        let index = unsafe { slot.offset_from(self.slots) } as usize;
        let following = index.wrapping_add(self.step) & self.mask;
        // SAFETY: the index lies in the ring.
        (unsafe { self.slots.add(following) }, following == 0)
    }
}

#[cfg(all(test, not(loom)))]
impl Places {
    /// Returns the order of the slots.
    pub(super) fn order(&self) -> u64 {
        let is = |step| Places::of(self.slots, self.count() as usize, step).step == self.step;
        if is(SPREAD) { SPREAD } else { NEIGHBOURS }
    }
}
