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
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use std::cell::Cell;
use std::ptr::NonNull;

/// The longest payload in the slot, in bytes.
pub(crate) const INLINE: usize = 48;
/// The distance, in lines, at which the producer prefetches a line for writing.
#[cfg(not(loom))]
const AHEAD: u64 = 8;
/// The size of a slot, in bytes.
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

/// Returns the lap of a position. The first lap is 1, so that zeroed memory is no lap.
#[inline(always)]
fn lap(position: u64, shift: u32) -> u32 {
    ((position >> shift) as u32).wrapping_add(1)
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
    slots: Cell<NonNull<Slot>>,
    mask: Cell<u64>,
    shift: Cell<u32>,
    /// The number of the next slot to write. A switch to another ring skips numbers.
    position: Cell<u64>,
    /// The position at which the ring looks full; equal to `position` while the ring is shut.
    limit: Cell<u64>,
    /// The position at which the current ring began.
    origin: Cell<u64>,
    /// The last tail that was read.
    seen: Cell<u64>,
    tail: NonNull<AtomicU64>,
    #[allow(dead_code)] // never read under loom
    keep: Keep,
}

impl SendRing {
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

    /// Writes and publishes one slot.
    ///
    /// The caller must ensure that there is a free slot and that `payload` fits. Otherwise nothing is sent.
    #[inline(always)]
    pub(crate) fn push(&self, head: u32, header: u64, payload: &[u8]) {
        if !self.has_room() || payload.len() > INLINE {
            return;
        }
        let position = self.position.get();
        let index = (position & self.mask.get()) as usize;
        // SAFETY: `index <= mask`, and `over` checked that `keep` contains `mask + 1` slots.
        let slot = unsafe { self.slots.get().add(index).as_ref() };
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
        let lap = lap(position, self.shift.get());
        // First: a signal handler that calls `exit` may push, and must not write a published slot again.
        self.position.set(position + 1);
        slot.control.store(u64::from(lap) << 32 | u64::from(head), Ordering::Release);
    }

    /// Prefetches the line of the next slot for writing.
    #[inline(always)]
    pub(crate) fn prefetch_next(&self) {
        #[cfg(all(not(loom), target_arch = "x86_64"))]
        {
            let index = (self.position.get().wrapping_add(AHEAD) & self.mask.get()) as usize;
            // SAFETY: the address is inside the ring, and a prefetch reads nothing.
            unsafe {
                let at = self.slots.get().add(index).as_ptr();
                std::arch::asm!("prefetchw [{0}]", in(reg) at, options(nostack, preserves_flags));
            }
        }
    }

    /// Reads the consumer's position and frees the slots before it.
    pub(crate) fn refresh(&self) -> Result<u64, TailIsNonsense> {
        // SAFETY: `over` took the address from `keep`.
        let tail = unsafe { self.tail.as_ref() }.load(Ordering::Acquire);
        if tail < self.seen.get() || tail > self.position.get() {
            return Err(TailIsNonsense);
        }
        self.seen.set(tail);
        // If the consumer is still in the previous ring, it has not passed the first slot of this one.
        let limit = tail.max(self.origin.get()) + self.mask.get() + 1;
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
        unsafe { self.tail.as_ref() }.load(Ordering::Acquire)
    }

    /// Shuts the ring like [`SendRing::shut`], but temporarily: pass the result to [`SendRing::release`]. Nothing may be pushed
    /// meanwhile.
    #[cfg(not(loom))]
    pub(crate) fn hold(&self) -> u64 {
        self.limit.replace(self.position.get())
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
    current: NonNull<Slot>,
    expected: u32,
    shift: u32,
    slots: NonNull<Slot>,
    mask: u64,
    position: u64,
    published: u64,
    tail: NonNull<AtomicU64>,
    #[allow(dead_code)] // never read under loom
    keep: Keep,
}

impl RecvRing {
    /// Reads the next slot's control word, once.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Peek {
        // SAFETY: `current` always points into the ring that `keep` holds.
        let word = unsafe { self.current.as_ref() }.control.load(Ordering::Acquire);
        let lap = (word >> 32) as u32;
        if lap == self.expected && word as u32 != 0 {
            Peek::Slot(word as u32)
        } else if word == 0 || lap == self.expected.wrapping_sub(1) {
            Peek::Empty
        } else {
            Peek::Corrupt
        }
    }

    /// Returns the header of the slot that [`RecvRing::peek`] returned.
    #[inline(always)]
    pub(crate) fn header(&self) -> u64 {
        self.word(0)
    }

    /// Returns a word of the slot's body: 0 is the header, 1 to 6 the payload.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> u64 {
        // SAFETY: `current` points into the ring; a defective producer may write meanwhile, hence volatile.
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
        // SAFETY: `current` points into the ring, and the payload begins at the second of seven words.
        unsafe { self.current.as_ref().body.with(|body| body.cast::<u64>().add(1).cast()) }
    }

    /// Consumes the slot. Its memory is not reused until [`RecvRing::publish`].
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.position += 1;
        let index = self.position & self.mask;
        if index == 0 {
            self.expected = self.expected.wrapping_add(1);
        }
        // SAFETY: `index <= mask`.
        self.current = unsafe { self.slots.add(index as usize) };
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
        (self.mask + 1) >> 2
    }

    /// Publishes the consumed position. Payloads of the consumed slots become invalid.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.published = self.position;
        // SAFETY: `over` took the address from `keep`.
        unsafe { self.tail.as_ref() }.store(self.position, Ordering::Release);
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
        Some(SendRing {
            slots: Cell::new(slots),
            mask: Cell::new(layout.count as u64 - 1),
            shift: Cell::new(layout.count.trailing_zeros()),
            position: Cell::new(0),
            limit: Cell::new(0),
            origin: Cell::new(0),
            seen: Cell::new(0),
            tail,
            keep,
        })
    }

    /// Continues in another ring of the same mapping and tail word. Positions continue from the next multiple of the new ring's
    /// size: the consumer does the same at the same slot.
    pub(crate) fn switch(&self, layout: Layout) -> bool {
        let Some((slots, _)) = locate(&self.keep, layout) else { return false };
        let origin = next_lap(self.position.get(), layout.count);
        self.slots.set(slots);
        self.mask.set(layout.count as u64 - 1);
        self.shift.set(layout.count.trailing_zeros());
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
        Some(RecvRing {
            current: slots,
            expected: 1,
            shift: layout.count.trailing_zeros(),
            slots,
            mask: layout.count as u64 - 1,
            position: 0,
            published: 0,
            tail,
            keep,
        })
    }

    /// Continues in another ring like [`SendRing::switch`].
    pub(crate) fn switch(&mut self, layout: Layout) -> bool {
        let Some((slots, _)) = locate(&self.keep, layout) else { return false };
        self.position = next_lap(self.position, layout.count);
        self.slots = slots;
        self.current = slots;
        self.mask = layout.count as u64 - 1;
        self.shift = layout.count.trailing_zeros();
        self.expected = lap(self.position, self.shift);
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
