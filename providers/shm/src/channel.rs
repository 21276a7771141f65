//! A channel's memory, and the code words that both ends agree on.

use std::sync::atomic::AtomicU64;

use crate::ring::{Layout, SLOT};
use crate::sys::{Mapping, PAGE};

/// Written by the receiver: how many slots it has consumed.
pub(crate) const TAIL: usize = 128;
/// Written by the receiver, beside the tail: the answer to the last request for a fast box.
pub(crate) const VERDICT: usize = 136;
/// Written by the receiver before it sleeps, cleared by the sender that wakes it.
pub(crate) const SLEEPING: usize = 256;
/// Written by the sender before it sleeps for want of room, cleared by the receiver that wakes it.
pub(crate) const WAITING: usize = 0;
/// Slots of the cold ring.
const COLD_SLOTS: usize = 32;
/// The cold ring: it shares one page with the words above.
pub(crate) const COLD: Layout = Layout { slots: 512, count: COLD_SLOTS, tail: TAIL };
const _: () = assert!(COLD.slots + COLD_SLOTS * SLOT <= PAGE);

/// The fast box of a channel: from the second page on.
pub(crate) const fn fast(size: usize) -> Layout {
    Layout { slots: PAGE, count: size / SLOT, tail: TAIL }
}

/// The length of a channel's memory file.
pub(crate) const fn memory_len(fastbox: usize) -> usize {
    PAGE + fastbox.next_multiple_of(PAGE)
}

/// What a slot is.
pub(crate) mod kind {
    /// A message whose payload lies in the slot.
    pub(crate) const INLINE: u8 = 1;
    /// A message whose payload lies in the pool: words 1 and 2 are {segment, length}, offset.
    pub(crate) const POOLED: u8 = 2;
    /// From here on the sender rings the doorbell.
    pub(crate) const BELL_ON: u8 = 3;
    /// The sender asks for a fast box; the header is the number of the request.
    pub(crate) const WANT_FAST: u8 = 4;
    /// The sender goes on in the fast box.
    pub(crate) const SWITCH: u8 = 5;
    /// A put has been written before this; the header is its word.
    pub(crate) const NOTIFIED: u8 = 6;
}

/// The verdict's words: `request << 2 | answer`.
pub(crate) const GRANTED: u64 = 1;
/// Not now.
pub(crate) const REFUSED: u64 = 2;

/// A word of the control page, which every channel mapping holds.
#[inline(always)]
pub(crate) fn word(map: &Mapping, offset: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    map.word(offset).unwrap_or(&NOWHERE)
}
