//! The ring of messages: single producer, single consumer, slots of one cache line.
//!
//! A slot is an 8-byte control word, an 8-byte header and 48 bytes of payload. The control word is written last, by one release
//! store, and is all that the consumer polls. The consumer never writes to a slot, so a message costs one cache line that crosses
//! once. The word contains the *lap*, the number of the producer's round. So a slot of an earlier lap or zeroed memory is not taken
//! for a new message. Once per quarter of the ring, or earlier, the consumer publishes its position in `tail`, a word on another
//! line. The producer reads `tail` when the ring looks full, or when it needs chunks back.
//!
//! The code trusts nothing that it reads: an impossible control word is [`Peek::Corrupt`], an impossible tail is
//! [`TailIsNonsense`].
//!
//! The same source runs under loom (`--cfg loom`), which checks the interleavings of the two sides in small tests.
#![allow(unsafe_code)] // the ring consists of slots in memory that two processes share
#![cfg_attr(loom, allow(dead_code))] // under loom only the ring and its tests are built

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

#[cfg(not(loom))]
mod alone;
mod places;

use std::cell::Cell;
use std::ptr::NonNull;

use crate::order;
pub(crate) use places::NEIGHBOURS;
use places::Places;
#[cfg(not(loom))]
pub(crate) use places::SPREAD;

/// The longest payload in the slot, in bytes.
pub(crate) const INLINE: usize = 48;
/// The size of a slot, in bytes: one cache line. Both sides of a channel agree on it. On the few processors with lines of 128 bytes
/// two slots share a line, which is correct and slower.
#[cfg(not(loom))]
pub(crate) const SLOT: usize = 64;

/// The rest of a slot. loom must see each access, while real memory is used directly.
#[cfg(loom)]
type Body = loom::cell::UnsafeCell<[u64; 7]>;
#[cfg(not(loom))]
struct Body(std::cell::UnsafeCell<[u64; 7]>);

#[cfg(not(loom))]
impl Body {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(*const [u64; 7]) -> R) -> R {
        f(self.0.get())
    }
    #[inline(always)]
    fn with_mut<R>(&self, f: impl FnOnce(*mut [u64; 7]) -> R) -> R {
        f(self.0.get())
    }
}

/// A slot of the ring: one cache line.
#[repr(C, align(64))]
pub(crate) struct Slot {
    control: AtomicU64,
    body: Body,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == SLOT);

/// Returns the low half of a control word: `id | len << 16 | kind << 24`.
#[inline(always)]
pub(crate) const fn head(kind: u8, len: usize, id: u16) -> u32 {
    id as u32 | (len as u32) << 16 | (kind as u32) << 24
}

/// The difference of the control words of two successive laps: the lap is the high half.
const NEXT_LAP: u64 = 1 << 32;

/// Returns the lap of a position, as the high half of a control word. The first lap is 1, so that zeroed memory is no lap.
fn lap(position: u64, count: u64) -> u64 {
    (position / count).wrapping_add(1) << 32
}

/// The error that the consumer's position went backwards, or beyond the produced slots.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TailIsNonsense;

/// The mapping that a ring keeps alive.
#[cfg(not(loom))]
type Keep = std::sync::Arc<crate::sys::Mapping>;
#[cfg(loom)]
type Keep = std::sync::Arc<tests::Memory>;

/// The producer's side of a ring.
pub(crate) struct SendRing {
    /// The number of the next slot to write. A switch to another ring skips numbers.
    position: Cell<u64>,
    /// The position at which the ring looks full; equal to `position` while the ring is shut.
    limit: Cell<u64>,
    /// The slot of `position`.
    next: Cell<NonNull<Slot>>,
    /// The lap of `position`, as the high half of a control word.
    lap: Cell<u64>,
    places: Cell<Places>,
    /// The position at which the current ring began.
    origin: Cell<u64>,
    /// The last tail that was read.
    seen: Cell<u64>,
    tail: NonNull<AtomicU64>,
    #[allow(dead_code)] // never read under loom
    keep: Keep,
}

impl SendRing {
    /// Makes the producer's side of an unused ring. It is shut until the first [`SendRing::refresh`].
    ///
    /// # Safety
    /// `keep` holds `count` slots, a power of two, from `slots` on, and the tail.
    unsafe fn at(
        slots: NonNull<Slot>,
        count: usize,
        tail: NonNull<AtomicU64>,
        keep: Keep,
    ) -> SendRing {
        SendRing {
            position: Cell::new(0),
            limit: Cell::new(0),
            next: Cell::new(slots),
            lap: Cell::new(lap(0, count as u64)),
            places: Cell::new(Places::of(slots, count, NEIGHBOURS)),
            origin: Cell::new(0),
            seen: Cell::new(0),
            tail,
            keep,
        }
    }

    /// Checks whether a slot is known to be free without reading the tail.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.position.get() != self.limit.get()
    }

    /// Returns the number of the next slot to write. A switch to another ring skips numbers.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position.get()
    }

    /// Writes and publishes one slot. Returns `false`, and sends nothing, if there is no free slot or `payload` does not fit.
    #[inline(always)]
    pub(crate) fn push(&self, head: u32, header: u64, payload: &[u8]) -> bool {
        let position = self.position.get();
        if position == self.limit.get() || payload.len() > INLINE {
            return false;
        }
        let at = self.next.get();
        // SAFETY: `next` lies in the ring, and `over` checked that `keep` contains the ring.
        let slot = unsafe { at.as_ref() };
        slot.body.with_mut(|body| {
            let body = body.cast::<u64>();
            // SAFETY: the body has seven words. This slot belongs to the producer alone until the control word is stored, because
            // the consumer has passed it (`limit` follows the tail that the consumer published).
            unsafe {
                body.write(header);
                copy_small(payload.as_ptr(), body.add(1).cast(), payload.len());
            }
        });
        #[cfg(feature = "test-hooks")]
        crate::hooks::between_write_and_publish();
        let control = self.lap.get() | u64::from(head);
        // First: a signal handler that calls `exit` may push, and must not write a published slot again. Little else is stored here,
        // because stores wait behind one whose line is at another processor.
        self.position.set(position + 1);
        let (following, begins) = self.places.get().after(at);
        self.next.set(following);
        if begins {
            self.lap.set(self.lap.get().wrapping_add(NEXT_LAP));
        }
        slot.control.store(control, order::PUBLISH_SLOT);
        true
    }

    /// Reads the consumer's position and frees the slots before it.
    pub(crate) fn refresh(&self) -> Result<u64, TailIsNonsense> {
        // SAFETY: `over` took the address from `keep`.
        let tail = unsafe { self.tail.as_ref() }.load(order::READ_TAIL);
        if tail < self.seen.get() || tail > self.position.get() {
            return Err(TailIsNonsense);
        }
        self.seen.set(tail);
        // If the consumer is still in the previous ring, it has not passed the first slot of this one.
        let limit = tail.max(self.origin.get()) + self.places.get().count();
        self.limit.set(limit);
        Ok(tail)
    }

    /// Returns the tail that [`SendRing::refresh`] read last.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// Returns the current tail, unchecked: only to detect whether it has moved.
    pub(crate) fn tail_now(&self) -> u64 {
        // SAFETY: `over` took the address from `keep`.
        unsafe { self.tail.as_ref() }.load(order::READ_TAIL)
    }

    /// Shuts the ring like [`SendRing::shut`], but temporarily: pass the result to [`SendRing::release`]. Nothing may be pushed
    /// meanwhile.
    #[cfg(not(loom))]
    pub(crate) fn hold(&self) -> u64 {
        self.limit.replace(self.position.get())
    }

    /// Returns the order of the slots.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn order(&self) -> u64 {
        self.places.get().order()
    }

    /// Ends a [`SendRing::hold`].
    #[cfg(not(loom))]
    pub(crate) fn release(&self, limit: u64) {
        self.limit.set(limit);
    }

    /// Shuts the ring: nothing can be pushed until the next [`SendRing::refresh`].
    pub(crate) fn shut(&self) {
        self.limit.set(self.position.get());
    }
}

/// The slot at the consumer's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peek {
    /// There is no new slot.
    Empty,
    /// A new slot: the low half of its control word.
    Slot(u32),
    /// The slot is neither new nor from an earlier lap: the producer is defective or malicious.
    Corrupt,
}

/// The consumer's side of a ring.
pub(crate) struct RecvRing {
    /// The slot of `position`.
    current: NonNull<Slot>,
    /// The lap of `position`, as the high half of a control word.
    expected: u64,
    position: u64,
    /// The position from which [`RecvRing::is_due`] holds.
    due: u64,
    places: Places,
    published: u64,
    tail: NonNull<AtomicU64>,
    #[allow(dead_code)] // never read under loom
    keep: Keep,
}

impl RecvRing {
    /// Makes the consumer's side of an unused ring.
    ///
    /// # Safety
    /// As [`SendRing::at`].
    unsafe fn at(
        slots: NonNull<Slot>,
        count: usize,
        tail: NonNull<AtomicU64>,
        keep: Keep,
    ) -> RecvRing {
        RecvRing {
            current: slots,
            expected: lap(0, count as u64),
            position: 0,
            due: count as u64 >> 2,
            places: Places::of(slots, count, NEIGHBOURS),
            published: 0,
            tail,
            keep,
        }
    }

    /// Returns the next slot's control word.
    #[inline(always)]
    fn control(&self) -> &AtomicU64 {
        // SAFETY: `current` lies in the ring that `keep` holds.
        &unsafe { self.current.as_ref() }.control
    }

    /// Reads the next slot's control word, once. Returns its low half if the slot is new.
    #[inline(always)]
    pub(crate) fn next_head(&self) -> Option<u32> {
        let ahead = self.control().load(order::TAKE_SLOT).wrapping_sub(self.expected);
        // The high half is the expected lap, and the low half is not 0.
        (ahead.wrapping_sub(1) < u64::from(u32::MAX)).then_some(ahead as u32)
    }

    /// Reads the next slot's control word, once.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Peek {
        self.classify(self.control().load(order::TAKE_SLOT))
    }

    /// Interprets a control word.
    #[inline(always)]
    fn classify(&self, word: u64) -> Peek {
        let ahead = word.wrapping_sub(self.expected);
        if ahead.wrapping_sub(1) < u64::from(u32::MAX) {
            Peek::Slot(ahead as u32)
        } else if word == 0 || (ahead >> 32) as u32 == u32::MAX {
            Peek::Empty
        } else {
            Peek::Corrupt
        }
    }

    /// Returns the word that changes when the next slot is published, and its present value. `None`: the slot is published, or
    /// corrupt.
    #[cfg(not(loom))]
    pub(crate) fn watch(&self) -> Option<(&AtomicU64, u64)> {
        let word = self.control().load(order::TAKE_SLOT);
        (self.classify(word) == Peek::Empty).then_some((self.control(), word))
    }

    /// Returns the header of the slot that [`RecvRing::peek`] returned.
    #[inline(always)]
    pub(crate) fn header(&self) -> u64 {
        self.word(0)
    }

    /// Returns a word of the slot's body: 0 is the header, 1 to 6 the payload.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> u64 {
        // SAFETY: the slot lies in the ring; a defective producer may write meanwhile, hence volatile.
        unsafe {
            self.current
                .as_ref()
                .body
                .with(|body| body.cast::<u64>().add(index.min(6)).read_volatile())
        }
    }

    /// Returns the start of the slot's payload: [`INLINE`] bytes, valid until the slot is published.
    #[inline(always)]
    pub(crate) fn payload(&self) -> *const u8 {
        // SAFETY: the slot lies in the ring, and its payload begins at the second of seven words.
        unsafe { self.current.as_ref().body.with(|body| body.cast::<u64>().add(1).cast()) }
    }

    /// Consumes the slot. Its memory is not reused until [`RecvRing::publish`].
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.position += 1;
        let (following, begins) = self.places.after(self.current);
        self.current = following;
        if begins {
            self.expected = self.expected.wrapping_add(NEXT_LAP);
        }
    }

    /// Returns the number of the next slot to consume. After a switch, the number is a multiple of the new ring's size.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of consumed slots that are not published yet.
    #[inline(always)]
    pub(crate) fn unpublished(&self) -> u64 {
        self.position - self.published
    }

    /// Returns a quarter of the ring: the number of consumed slots after which to publish.
    #[inline(always)]
    pub(crate) fn quarter(&self) -> u64 {
        self.places.count() >> 2
    }

    /// Checks whether the consumed position is to be published: a quarter of the ring is consumed, or [`RecvRing::hurry`] was called
    /// since.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.position >= self.due
    }

    /// Makes [`RecvRing::is_due`] hold until the consumed position is published.
    pub(crate) fn hurry(&mut self) {
        self.due = 0;
    }

    /// Publishes the consumed position. Payloads of the consumed slots become invalid.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.published = self.position;
        self.due = self.position + self.quarter();
        // SAFETY: `over` took the address from `keep`.
        unsafe { self.tail.as_ref() }.store(self.position, order::PUBLISH_TAIL);
    }
}

/// The position of a ring in its memory.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The offset of the slots: a multiple of [`SLOT`].
    pub(crate) slots: usize,
    /// The number of slots: a power of two.
    pub(crate) count: usize,
    /// The offset of the tail word.
    pub(crate) tail: usize,
    /// The order of the slots: [`NEIGHBOURS`] or [`SPREAD`].
    pub(crate) step: u64,
}

#[cfg(not(loom))]
fn locate(keep: &Keep, layout: Layout) -> Option<(NonNull<Slot>, NonNull<AtomicU64>)> {
    let fits = layout.slots % SLOT == 0
        && layout.count.is_power_of_two()
        && keep.holds(layout.slots as u64, (layout.count * SLOT) as u64)
        && keep.is_writable();
    let tail = NonNull::from(keep.word(layout.tail)?);
    let slots = keep.as_ptr().wrapping_add(layout.slots).cast::<Slot>();
    if fits { Some((NonNull::new(slots)?, tail)) } else { None }
}

/// Returns the first position at or after `position` that begins a lap of `count` slots.
#[cfg(not(loom))]
fn next_lap(position: u64, count: usize) -> u64 {
    position.next_multiple_of(count as u64)
}

#[cfg(not(loom))]
impl SendRing {
    /// Returns a ring over a part of the mapping; `None` if it does not fit.
    pub(crate) fn over(keep: Keep, layout: Layout) -> Option<SendRing> {
        let (slots, tail) = locate(&keep, layout)?;
        // SAFETY: `locate` found the slots and the tail in `keep`.
        Some(unsafe { SendRing::at(slots, layout.count, tail, keep) })
    }

    /// Continues in another ring of the same mapping and tail word. Positions continue from the next multiple of the new ring's
    /// size: the consumer does the same at the same slot.
    pub(crate) fn switch(&self, layout: Layout) -> bool {
        let Some((slots, _)) = locate(&self.keep, layout) else { return false };
        let origin = next_lap(self.position.get(), layout.count);
        self.places.set(Places::of(slots, layout.count, layout.step));
        self.next.set(slots);
        self.lap.set(lap(origin, layout.count as u64));
        self.position.set(origin);
        self.origin.set(origin);
        self.limit.set(origin + layout.count as u64);
        true
    }
}

#[cfg(not(loom))]
impl RecvRing {
    /// Returns a ring over a part of the mapping; `None` if it does not fit.
    pub(crate) fn over(keep: Keep, layout: Layout) -> Option<RecvRing> {
        let (slots, tail) = locate(&keep, layout)?;
        // SAFETY: `locate` found the slots and the tail in `keep`.
        Some(unsafe { RecvRing::at(slots, layout.count, tail, keep) })
    }

    /// Continues in another ring like [`SendRing::switch`].
    pub(crate) fn switch(&mut self, layout: Layout) -> bool {
        let Some((slots, _)) = locate(&self.keep, layout) else { return false };
        self.position = next_lap(self.position, layout.count);
        self.places = Places::of(slots, layout.count, layout.step);
        self.current = slots;
        self.expected = lap(self.position, layout.count as u64);
        // At the latest a quarter of the new ring after the last publication, whose position may lie in the ring before.
        self.due = self.published + self.quarter();
        true
    }
}

/// Copies up to [`INLINE`] bytes without a call, in pieces that may overlap each other.
///
/// # Safety
/// `from` is readable and `to` writable for `len <= INLINE` bytes, and the two ranges do not overlap.
#[inline(always)]
unsafe fn copy_small(from: *const u8, to: *mut u8, len: usize) {
    /// # Safety
    /// `from` is readable and `to` writable for `N` bytes at offset `at`, and the two ranges do not overlap.
    #[inline(always)]
    unsafe fn piece<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
        // SAFETY: the caller guarantees both ranges.
        unsafe { to.add(at).cast::<[u8; N]>().write(from.add(at).cast::<[u8; N]>().read()) }
    }
    // SAFETY: each piece ends at or before `len`.
    unsafe {
        if len == 8 {
            piece::<8>(from, to, 0);
        } else if len >= 16 {
            piece::<16>(from, to, 0);
            if len > 32 {
                piece::<16>(from, to, 16);
            }
            piece::<16>(from, to, len - 16);
        } else if len > 8 {
            piece::<8>(from, to, 0);
            piece::<8>(from, to, len - 8);
        } else if len >= 4 {
            piece::<4>(from, to, 0);
            piece::<4>(from, to, len - 4);
        } else {
            for at in 0..len {
                piece::<1>(from, to, at);
            }
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
