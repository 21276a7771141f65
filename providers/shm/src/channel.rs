//! A channel's memory, and the codes that both ends use.

use std::sync::atomic::AtomicU64;

use crate::ring::{Layout, SLOT};
use crate::sys::{Mapping, PAGE};

/// Written by the receiver: the number of consumed slots.
pub(crate) const TAIL: usize = 128;
/// Written by the receiver, next to the tail: the answer to the last request for a fast box.
pub(crate) const VERDICT: usize = 136;
/// Written by the receiver before it sleeps, cleared by the sender that wakes it.
pub(crate) const SLEEPING: usize = 256;
/// Written by the sender before it sleeps for lack of room, cleared by the receiver that wakes it.
pub(crate) const WAITING: usize = 0;
/// Slots of the cold ring.
const COLD_SLOTS: usize = 32;
/// The cold ring: it shares one page with the words above.
pub(crate) const COLD: Layout = Layout { slots: 512, count: COLD_SLOTS, tail: TAIL };
const _: () = assert!(COLD.slots + COLD_SLOTS * SLOT <= PAGE);

/// Returns the fast box of a channel: from the second page on.
pub(crate) const fn fast(size: usize) -> Layout {
    Layout { slots: PAGE, count: size / SLOT, tail: TAIL }
}

/// Returns the length of a channel's memory file.
pub(crate) const fn memory_len(fastbox: usize) -> usize {
    PAGE + fastbox.next_multiple_of(PAGE)
}

/// The kinds of slots.
pub(crate) mod kind {
    /// A message with its payload in the slot.
    pub(crate) const INLINE: u8 = 1;
    /// A message with its payload in the pool: words 1 and 2 are {segment, length}, offset.
    pub(crate) const POOLED: u8 = 2;
    /// From here on the sender rings the doorbell.
    pub(crate) const BELL_ON: u8 = 3;
    /// The sender requests a fast box; the header is the number of the request.
    pub(crate) const WANT_FAST: u8 = 4;
    /// The sender continues in the fast box.
    pub(crate) const SWITCH: u8 = 5;
    /// A put was written before this; the header is its word.
    pub(crate) const NOTIFIED: u8 = 6;
}

/// The answers in a verdict, which is `request << 2 | answer`.
pub(crate) const GRANTED: u64 = 1;
/// Refused for now.
pub(crate) const REFUSED: u64 = 2;

/// Returns a word of the control page, which every channel mapping holds.
#[inline(always)]
pub(crate) fn word(map: &Mapping, offset: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    map.word(offset).unwrap_or(&NOWHERE)
}
