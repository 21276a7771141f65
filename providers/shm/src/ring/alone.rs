//! The consumer's short form for one message at a time.

use super::{RecvRing, Slot, order};
use std::ptr::NonNull;

/// A new slot, which [`RecvRing::take`] consumes. Usually there is no new slot behind it.
pub(crate) struct Alone {
    /// The low half of the control word.
    pub(crate) head: u32,
    slot: NonNull<Slot>,
    following: NonNull<Slot>,
}

impl RecvRing {
    /// Returns the next slot if it is new, the slot behind it is not, and the consumed position need not be published. The last slot
    /// of the ring is not returned here.
    #[inline(always)]
    pub(crate) fn alone(&self) -> Option<Alone> {
        let (slot, expected) = (self.current, self.expected);
        // SAFETY: the slot lies in the ring that `keep` holds.
        let ahead = unsafe { slot.as_ref() }.control.load(order::TAKE_SLOT).wrapping_sub(expected);
        let (following, begins) = self.places.after(slot);
        // The low half of a new slot's word is not 0, but no caller takes a slot with 0.
        if ahead > u64::from(u32::MAX) || self.is_due() || begins {
            return None;
        }
        // SAFETY: the slot lies in the ring that `keep` holds.
        let behind = unsafe { following.as_ref() }.control.load(order::TAKE_SLOT);
        if behind.wrapping_sub(expected) <= u64::from(u32::MAX) {
            return None;
        }
        Some(Alone { head: ahead as u32, slot, following })
    }

    /// Returns the next slot if it is new. Slots behind it may be new as well. The last slot of the ring is not returned here.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<Alone> {
        let slot = self.current;
        // SAFETY: the slot lies in the ring that `keep` holds.
        let control = unsafe { slot.as_ref() }.control.load(order::TAKE_SLOT);
        let ahead = control.wrapping_sub(self.expected);
        let (following, begins) = self.places.after(slot);
        let is_there = ahead <= u64::from(u32::MAX) && !begins;
        is_there.then_some(Alone { head: ahead as u32, slot, following })
    }

    /// Consumes the slot that [`RecvRing::alone`] or [`RecvRing::first`] has returned just before.
    #[inline(always)]
    pub(crate) fn take(&mut self, alone: &Alone) {
        self.current = alone.following;
        self.position += 1;
    }
}

impl Alone {
    /// Returns a word of the slot's body: 0 is the header, 1 to 6 the payload.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> u64 {
        // SAFETY: the slot lies in the ring, which its channel keeps; a defective producer may write meanwhile, hence volatile.
        unsafe {
            self.slot
                .as_ref()
                .body
                .with(|body| body.cast::<u64>().add(index.min(6)).read_volatile())
        }
    }

    /// Returns the start of the payload: [`super::INLINE`] bytes, valid until the position is published.
    #[inline(always)]
    pub(crate) fn payload(&self) -> *const u8 {
        // SAFETY: the slot lies in the ring, and its payload begins at the second of seven words.
        unsafe { self.slot.as_ref().body.with(|body| body.cast::<u64>().add(1).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SendRing, head};
    use super::*;
    use crate::channel;
    use crate::sys::{self, Mapping};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    fn pair() -> (SendRing, RecvRing, Arc<Mapping>) {
        let len = channel::memory_len(1024);
        let file = sys::memory_file(c"test", len).unwrap();
        let map = Arc::new(Mapping::new(file.as_fd(), len, true).unwrap());
        let sender = SendRing::over(map.clone(), channel::COLD).unwrap();
        let _ = sender.refresh().unwrap();
        (sender, RecvRing::over(map.clone(), channel::COLD).unwrap(), map)
    }

    /// Takes the next slot by the short form; otherwise by the long form. Returns its number and whether the form was the short one.
    fn take(ring: &mut RecvRing) -> Option<(u64, bool)> {
        if let Some(alone) = ring.alone() {
            // SAFETY: the payload stays valid until the position is published.
            let payload = unsafe { alone.payload().cast::<u64>().read() };
            assert_eq!((alone.head, payload), (head(1, 8, 5), alone.word(0) + 1));
            assert_eq!(alone.word(1), payload);
            ring.take(&alone);
            return Some((alone.word(0), true));
        }
        let found = ring.next_head()?;
        assert_eq!((found, ring.word(1)), (head(1, 8, 5), ring.header() + 1));
        if ring.is_due() {
            ring.publish();
        }
        let number = ring.header();
        ring.advance();
        Some((number, false))
    }

    #[test]
    fn single_messages_of_every_lap_are_taken_in_order() {
        let (sender, mut ring, _) = pair();
        let (count, mut short) = (8 * channel::COLD.count as u64, 0);
        for number in 0..count {
            assert!(take(&mut ring).is_none());
            if !sender.has_room() {
                let _ = sender.refresh().unwrap();
            }
            assert!(sender.push(head(1, 8, 5), number, &(number + 1).to_ne_bytes()));
            let (taken, by_short_form) = take(&mut ring).unwrap();
            assert_eq!(taken, number);
            short += u64::from(by_short_form);
        }
        // Slots at the end of a lap, and those at which the position is due, take the long form.
        assert!(short > count / 2 && short < count, "{short} of {count}");
    }

    #[test]
    fn message_with_another_behind_it_is_left_to_the_long_form() {
        let (sender, mut ring, _) = pair();
        for number in 0..2 {
            assert!(sender.push(head(1, 8, 5), number, &(number + 1).to_ne_bytes()));
        }
        assert_eq!(take(&mut ring), Some((0, false)));
        assert_eq!(take(&mut ring), Some((1, true)));
        assert_eq!(take(&mut ring), None);
    }

    #[test]
    fn nothing_is_returned_if_the_position_is_due_or_the_word_corrupt() {
        let (sender, mut ring, _map) = pair();
        assert!(ring.alone().is_none());
        assert!(sender.push(head(1, 8, 5), 0, &[]));
        assert!(ring.alone().is_some());
        ring.hurry();
        assert!(ring.alone().is_none());
        let (_, ring, _map) = pair();
        for lap in [2, 3, 1 << 31, u64::from(u32::MAX)] {
            // A word of a later lap.
            ring.control().store(lap << 32 | u64::from(head(1, 8, 5)), order::PUBLISH_SLOT);
            assert!(ring.alone().is_none(), "lap {lap}");
        }
    }
}
