//! Memory that the library allocates, and memory of the caller's: registered for peers, or lent to operations.

use super::bytes::Room;
use super::context::{ContextHandle, ContextObject, keep, take, try_take};
use super::enter::{guarded, object};
use super::error::{Fault, done};
use super::numbers::{
    TIELINE_ALL, TIELINE_ATOMIC, TIELINE_COMMITTED_LATER, TIELINE_READ, TIELINE_RELAXED_ORDERING,
    TIELINE_WRITE,
};
use super::records::{null, out, out_handle};
use super::table::Object;
use std::ffi::c_void;
use std::ops::Range;
use tieline::region::NotClosed;
use tieline::{Access, Region, Status};

/// Memory that operations and peers use. It belongs to its context, and any thread may use it.
pub struct RegionHandle(());

/// A piece of a region.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    /// Whose.
    pub region: *const RegionHandle,
    /// From here.
    pub offset: usize,
    /// So many bytes.
    pub len: usize,
}

pub(crate) struct RegionObject {
    pub(crate) region: Region,
}

impl Object for RegionObject {
    const KIND: u8 = 4;
    const NAME: &'static str = "a region";
}

fn access(rights: u64) -> Result<Access, Fault> {
    if rights & !(TIELINE_ALL | TIELINE_RELAXED_ORDERING | TIELINE_COMMITTED_LATER) != 0 {
        let why = format!("{rights:#x} has bits that are not known here");
        return Err(Fault::new(
            Status::Invalid,
            "rights",
            why,
            "use TIELINE_READ, _WRITE, _ATOMIC, _RELAXED_ORDERING, _COMMITTED_LATER",
        ));
    }
    let each = [
        (TIELINE_READ, Access::READ),
        (TIELINE_WRITE, Access::WRITE),
        (TIELINE_ATOMIC, Access::ATOMIC),
        (TIELINE_RELAXED_ORDERING, Access::RELAXED_ORDERING),
        (TIELINE_COMMITTED_LATER, Access::COMMITTED_LATER),
    ];
    let granted = each.iter().filter(|(bit, _)| rights & bit != 0);
    Ok(granted.fold(Access::LOCAL, |all, (_, right)| all | *right))
}

/// From `offset` on, `len` bytes; where that is more than there can be, a range that no region has.
#[inline]
pub(crate) fn range(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len)
}

/// Pieces of the caller's list, while their handles are there.
pub(crate) fn pieces<'a>(
    piece: *const Piece,
    count: usize,
) -> Result<Vec<(&'a Region, Range<usize>)>, Fault> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if piece.is_null() || count > isize::MAX as usize / size_of::<Piece>() {
        return Err(null("the list of pieces"));
    }
    let mut all = Vec::new();
    for number in 0..count {
        // SAFETY: the caller's list has so many.
        let Piece { region, offset, len } = unsafe { piece.add(number).read() };
        all.push((&object::<RegionObject, _>(region)?.region, range(offset, len)));
    }
    Ok(all)
}

/// Allocates memory, zeroed and shared from birth: peers of this host load and store it. `rights` are TIELINE_READ and so on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_context_alloc(
    context: *const ContextHandle,
    len: usize,
    rights: u64,
    region: *mut *mut RegionHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(region)?;
        let context = &object::<ContextObject, _>(context)?.context;
        let region = context.alloc_with(len, access(rights)?)?;
        out.set(keep(RegionObject { region })?.to_c());
        Ok(())
    }))
}

/// Registers memory of the caller's, to be reached by peers. All of it has to be mapped with the rights that peers get
/// (TIELINE_PERMISSION), unless TIELINE_COMMITTED_LATER is among them. It stays as it is until tieline_region_close has returned TIELINE_OK:
/// dropping the region is not enough.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_context_register(
    context: *const ContextHandle,
    memory: *mut c_void,
    len: usize,
    rights: u64,
    region: *mut *mut RegionHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(region)?;
        let context = &object::<ContextObject, _>(context)?.context;
        let (memory, access) = (given(memory, len)?, access(rights)?);
        // SAFETY: the caller promises that the memory stays until the region is closed.
        let region = unsafe { context.register_raw(memory, len, access)? };
        out.set(keep(RegionObject { region })?.to_c());
        Ok(())
    }))
}

/// Lends memory of the caller's to operations as their local side: no key, and no registration but where a device needs one,
/// for as long as an operation lasts. When all of them have ended well the bytes may be used again; to free them, close the region first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_context_lend(
    context: *const ContextHandle,
    memory: *mut c_void,
    len: usize,
    region: *mut *mut RegionHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(region)?;
        let context = &object::<ContextObject, _>(context)?.context;
        let memory = given(memory, len)?;
        // SAFETY: the caller promises that the memory stays until the region is closed.
        let region = unsafe { context.lend_raw(memory, len)? };
        out.set(keep(RegionObject { region })?.to_c());
        Ok(())
    }))
}

fn given(memory: *mut c_void, len: usize) -> Result<*mut u8, Fault> {
    if len > isize::MAX as usize || memory.addr().checked_add(len).is_none() {
        let why = format!("no memory has {len} bytes from {memory:?} on");
        return Err(Fault::new(Status::Invalid, "memory of the caller's", why, "pass its length"));
    }
    match memory.is_null() {
        true if len > 0 => Err(null("the memory")),
        true => Ok(std::ptr::dangling_mut()),
        false => Ok(memory.cast()),
    }
}

/// Where a region lies, and how long it is. Either place may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_memory(
    region: *const RegionHandle,
    memory: *mut *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let places = (
            (!memory.is_null()).then(|| out_handle(memory)).transpose()?,
            (!len.is_null()).then(|| out(len, 0)).transpose()?,
        );
        let region = &object::<RegionObject, _>(region)?.region;
        if let Some(out) = places.0 {
            out.set(region.as_ptr().cast());
        }
        if let Some(out) = places.1 {
            out.set(region.len());
        }
        Ok(())
    }))
}

/// The bytes by which a peer reaches a region; `len` as for tieline_worker_address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_key(
    region: *const RegionHandle,
    key: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(key, len)?;
        room.fill(&object::<RegionObject, _>(region)?.region.remote_key()?)
    }))
}

/// Closes a region: TIELINE_OK says that nobody touches its memory any more. TIELINE_BUSY while an operation or a peer may, and
/// the handle stays: make progress, and close it again. With any other failure the memory has to stay as it is for the rest of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_close(region: *mut RegionHandle) -> i32 {
    done(guarded(|| close_by(region, |region| region.close())))
}

/// Tries to end a region; one that cannot be ended yet keeps its handle.
pub(crate) fn close_by(
    region: *mut RegionHandle,
    close: impl FnOnce(Region) -> Result<(), NotClosed>,
) -> Result<(), Fault> {
    try_take(region, |RegionObject { region }| {
        close(region).map_err(|NotClosed { region, error }| (RegionObject { region }, error.into()))
    })
}

/// Lets go of a region: what is pending goes on. Memory of the caller's may then be touched to the end of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_drop(region: *mut RegionHandle) -> i32 {
    done(guarded(|| take::<RegionObject, _>(region).map(drop)))
}
