//! A channel's memory, and the codes that both ends use.

use std::sync::atomic::AtomicU64;

use crate::ring::{Layout, NEIGHBOURS, SLOT, SPREAD};
use crate::sys::{Mapping, PAGE};

/// The offset of the number of consumed slots, which the receiver writes.
pub(crate) const TAIL: usize = 128;
/// The offset of the receiver's answer to the last request for a fast box, next to the tail.
pub(crate) const VERDICT: usize = 136;
/// The offset of the sleep flag, which the receiver sets before it sleeps, and the sender that wakes the receiver clears.
pub(crate) const SLEEPING: usize = 256;
/// The offset of the flag that the sender sets before it sleeps for lack of room, and the receiver that wakes the sender clears.
pub(crate) const WAITING: usize = 0;
/// The number of slots of the cold ring.
const COLD_SLOTS: usize = 32;
/// The layout of the cold ring, which shares one page with the words above.
pub(crate) const COLD: Layout =
    Layout { slots: 512, count: COLD_SLOTS, tail: TAIL, step: NEIGHBOURS };
const _: () = assert!(COLD.slots + COLD_SLOTS * SLOT <= PAGE);

/// Returns the layout of a channel's fast box, which begins at the second page. `spread`: both sides know the order [`SPREAD`].
pub(crate) const fn fast(size: usize, spread: bool) -> Layout {
    let step = if spread { SPREAD } else { NEIGHBOURS };
    Layout { slots: PAGE, count: size / SLOT, tail: TAIL, step }
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
    /// A note that the sender rings the doorbell from here on.
    pub(crate) const BELL_ON: u8 = 3;
    /// The sender's request for a fast box; the header is the number of the request, with [`super::KNOWS_SPREAD`] if so.
    pub(crate) const WANT_FAST: u8 = 4;
    /// A note that the sender continues in the fast box; the header is 1 if its slots have the order of
    /// [`SPREAD`](crate::ring::SPREAD), otherwise 0.
    pub(crate) const SWITCH: u8 = 5;
    /// The notification of a put that was written before; the header is its word.
    pub(crate) const NOTIFIED: u8 = 6;
}

/// The answer that a fast box is granted. A verdict is `request << 2 | answer`.
pub(crate) const GRANTED: u64 = 1;
/// The answer that the request is refused for the time being.
pub(crate) const REFUSED: u64 = 2;
/// The answer that a fast box is granted whose slots have the order of [`SPREAD`], to a request with [`KNOWS_SPREAD`].
pub(crate) const GRANTED_SPREAD: u64 = 3;
/// The bit in the number of a request which says that the sender knows [`SPREAD`]. A receiver of version 0.1 loses this bit when
/// it shifts the number, and answers the rest.
pub(crate) const KNOWS_SPREAD: u64 = 1 << 63;

/// Returns a word of the control page, which every channel mapping holds.
#[inline(always)]
pub(crate) fn word(map: &Mapping, offset: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    map.word(offset).unwrap_or(&NOWHERE)
}
