//! The memory of a provider that its device can access: areas, each registered as a whole, and pieces of them.
//!
//! Every registration, and every page of a registration, costs the kernel and the device work. So buffers share few registrations.
//! An area whose length is a multiple of a huge page's lies in huge pages if the system provides them.

mod free_list;
#[cfg(test)]
mod tests;

use crate::sys::Mapping;
use crate::{Device, Lender, PAGE};
use core::ptr::NonNull;
use free_list::FreeList;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tieline_plugin_api::{Failure, Status};

/// The size of which the starts and ends of pieces are multiples, so that two pieces share no cache line of 64 bytes.
const LINE: usize = 64;
/// The size of a huge page, in bytes.
pub(crate) const HUGE: usize = 2 << 20;
/// The maximum size of a new area, unless a single piece needs more.
const LARGEST: usize = 16 * HUGE;

/// Areas of registered memory. Any thread may use them; no system call is made under a lock.
pub struct Arena<D: Device> {
    lender: Arc<Lender<D>>,
    bytes: usize,
    areas: Mutex<Areas<D>>,
}

struct Areas<D: Device> {
    made: Vec<Weak<Area<D>>>,
    /// The number of bytes of the areas that are being created.
    coming: usize,
}

/// A mapping and its registration, which ends first. Both end with the last reference to the area: that of its last piece, or of a
/// concurrent [`Arena::take`].
struct Area<D: Device> {
    registration: D::Registration,
    memory: Mapping,
    free: Mutex<FreeList>,
}

/// An exclusive part of an area, which returns to its area on drop.
pub struct Piece<D: Device> {
    area: Arc<Area<D>>,
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

impl<D: Device> Arena<D> {
    /// Makes an arena without memory, which may grow to `bytes` bytes, rounded down to whole pages. Its areas are registered with
    /// the lender's device. If the device reports lack of memory, the lender evicts unused registrations.
    pub fn new(lender: Arc<Lender<D>>, bytes: usize) -> Arena<D> {
        let areas = Mutex::new(Areas { made: Vec::new(), coming: 0 });
        Arena { lender, bytes: bytes & !(PAGE as usize - 1), areas }
    }

    /// Returns a piece of at least `len` bytes that begins at a multiple of `align`, a power of two up to a page. The contents of
    /// the piece are zero, or those of an earlier owner.
    ///
    /// A new area, if one is needed, has about half the size of all others together, at most 32 MiB; it is never smaller than the
    /// piece. So there are few areas, and the reserve of a new area is at most half of the memory of the others. At the limit, or
    /// if the device refuses the area, the area is smaller. Concurrent threads that need an area create one each; all except the
    /// first create an area for the single piece.
    ///
    /// # Errors
    /// `Invalid` for a length of 0 or beyond the limit, or an invalid alignment; `NoMemory` at the limit; errors of the system or
    /// the device.
    pub fn take(&self, len: usize, align: usize) -> Result<Piece<D>, Failure> {
        if len == 0 || len > self.bytes || !align.is_power_of_two() || align > PAGE as usize {
            let text = format!("no piece of {len} bytes at a multiple of {align} is to be had");
            return Err(Failure::new(Status::Invalid, text));
        }
        let (len, align) = (len.next_multiple_of(LINE), align.max(LINE));
        // `live` is dropped after the lock is released, and before more is mapped: an area may have lost its last piece meanwhile.
        let live: Vec<Arc<Area<D>>>;
        let mut areas = self.areas();
        areas.made.retain(|area| area.strong_count() > 0);
        live = areas.made.iter().filter_map(Weak::upgrade).collect();
        if let Some(piece) = live.iter().find_map(|area| Area::cut(area, len, align)) {
            return Ok(piece);
        }
        let total = areas.coming + live.iter().map(|area| area.memory.len()).sum::<usize>();
        let least = len.next_multiple_of(PAGE as usize);
        let room = self.bytes.saturating_sub(total);
        if least > room {
            let text = format!("{total} of {} bytes of buffers are registered", self.bytes);
            return Err(Failure::new(Status::NoMemory, text));
        }
        // An area in creation has no piece yet and does not show the demand.
        let wanted = if areas.coming > 0 { least } else { area_len(least, total).min(room) };
        areas.coming += wanted;
        drop(areas);
        drop(live);
        // Other threads do not see the new area yet.
        let piece = self.make(wanted, least).map(Arc::new).and_then(|area| {
            let none = || Failure::new(Status::NoMemory, "a new area has no room");
            Area::cut(&area, len, align).ok_or_else(none)
        });
        let mut areas = self.areas();
        areas.coming -= wanted;
        areas.made.extend(piece.iter().map(|piece| Arc::downgrade(&piece.area)));
        piece
    }

    /// Returns an area of the wanted length or, if that fails, of the minimum length. For the latter the lender evicts unused
    /// registrations if necessary.
    fn make(&self, wanted: usize, least: usize) -> Result<Area<D>, Failure> {
        let new = |len| Area::new(self.lender.device(), len);
        let larger = (wanted > least).then(|| new(wanted).ok()).flatten();
        larger.map_or_else(|| self.lender.pressed(|| new(least)), Ok)
    }

    fn areas(&self) -> MutexGuard<'_, Areas<D>> {
        self.areas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the length of a new area for `least` bytes, next to areas of `total` bytes. The length is half of `total` and at most
/// `LARGEST`, in whole huge pages if it reaches the size of one, otherwise in whole pages. It is never below `least`.
fn area_len(least: usize, total: usize) -> usize {
    let wanted = (total / 2).min(LARGEST);
    let whole = if wanted >= HUGE { HUGE } else { PAGE as usize };
    least.max(wanted / whole * whole)
}

impl<D: Device> Area<D> {
    fn new(device: &D, len: usize) -> Result<Area<D>, Failure> {
        let over = |memory: Mapping| {
            let registration = device.register(memory.base().as_ptr(), len, true)?;
            Ok(Area { registration, memory, free: Mutex::new(FreeList::new(len)) })
        };
        // Reserved huge pages may not be available to this process; the registration shows whether they are.
        let huge = Mapping::with_huge_pages(len).map(over);
        match huge {
            Some(Ok(area)) => Ok(area),
            _ => over(Mapping::new(len)?),
        }
    }

    fn cut(area: &Arc<Area<D>>, len: usize, align: usize) -> Option<Piece<D>> {
        let at = area.free.lock().unwrap_or_else(PoisonError::into_inner).take(len, align)?;
        Some(Piece { area: area.clone(), base: area.memory.at(at, len), len })
    }
}

impl<D: Device> Piece<D> {
    /// Returns the registration of the area that contains the piece.
    pub fn registration(&self) -> &D::Registration {
        &self.area.registration
    }
}

impl<D: Device> Drop for Piece<D> {
    fn drop(&mut self) {
        let at = self.base.addr().get() - self.area.memory.base().addr().get();
        self.area.free.lock().unwrap_or_else(PoisonError::into_inner).give(at, self.len);
    }
}

impl<D: Device> fmt::Debug for Arena<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<D: Device> fmt::Debug for Piece<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("base", &self.base).field("len", &self.len).finish()
    }
}
