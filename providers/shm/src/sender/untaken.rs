//! The messages of a channel that the peer has never admitted. No process has read them, so the sender can recover them from its
//! own ring. It does so if the host supports returned messages, and if there is no notification of a put among them.

use super::SendChannel;
use crate::channel::{self, kind};
use crate::pool::MAX_CHUNK;
use crate::ring::{INLINE, Peek, RecvRing};
use crate::shared::Returned;
use crate::sys::Mapping;

/// Returns the bytes of a mapping, from an offset that is a multiple of 8.
fn bytes(map: &Mapping, at: usize, len: usize) -> Option<Box<[u8]>> {
    let mut out = Vec::with_capacity(len.next_multiple_of(8));
    for offset in (0..len).step_by(8) {
        // The memory is not written any more, so a relaxed load suffices.
        let word = map.word(at + offset)?.load(std::sync::atomic::Ordering::Relaxed);
        out.extend(word.to_ne_bytes());
    }
    out.truncate(len);
    Some(out.into())
}

impl SendChannel {
    /// Returns all sent messages, in order. Returns `None` if the peer may have received some of them, or if they cannot be
    /// returned.
    #[cold]
    pub(super) fn untaken(&self) -> Option<Vec<Returned>> {
        let taken = self.admitted.get() || self.fast.get() || self.ring.tail_now() != 0;
        if taken || !self.shared.domain.takes_messages_back() {
            return None;
        }
        let mut ring = RecvRing::over(self.map.clone(), channel::COLD)?;
        let mut messages = Vec::new();
        while ring.position() < self.ring.position() {
            let Peek::Slot(head) = ring.peek() else { return None };
            let (id, header) = (head & 0xffff, ring.header());
            match (head >> 24) as u8 {
                kind::INLINE => {
                    let len = (head >> 16 & 0xff) as usize;
                    let words: Vec<u8> = (1..=6).flat_map(|n| ring.word(n).to_ne_bytes()).collect();
                    let data = words.get(..len.min(INLINE))?.into();
                    messages.push(Returned { id, header, data });
                }
                kind::POOLED => {
                    let len = (ring.word(1) >> 32) as usize;
                    let chunk = self.chunk_of(ring.position()).filter(|_| len <= MAX_CHUNK)?;
                    let (map, at) = self.shared.pool.place(chunk).ok()?;
                    let data = bytes(&map, usize::try_from(at).ok()?, len)?;
                    messages.push(Returned { id, header, data });
                }
                // The slot is a request about the channel itself.
                kind::WANT_FAST => {}
                // The put may have landed, and its word cannot be delivered by another route.
                _ => return None,
            }
            ring.advance();
        }
        Some(messages)
    }

    /// Returns the memory of the message in this slot.
    fn chunk_of(&self, slot: u64) -> Option<crate::pool::Chunk> {
        let flight = self.flight.borrow();
        flight.iter().find(|(position, _)| *position == slot).map(|(_, chunk)| *chunk)
    }
}
