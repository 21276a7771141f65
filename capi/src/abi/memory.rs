//! Regions: memory that the library allocates, and memory of the caller that is registered for peers or for local operations.

use super::bytes::Room;
use super::context::{ContextHandle, ContextObject, keep, take, try_take};
use super::enter::{guarded, object};
use super::error::{Fault, Kind, done};
use super::numbers::{
    TIELINE_ALL, TIELINE_ATOMIC, TIELINE_COMMITTED_LATER, TIELINE_READ, TIELINE_RELAXED_ORDERING,
    TIELINE_WRITE,
};
use super::records::{null, out, out_handle};
use super::table::Object;
use std::ffi::c_void;
use std::ops::Range;
use tieline::region::NotClosed;
use tieline::{Access, Error, Region, Status};

/// A region: memory that operations and peers access. A region belongs to its context, and any thread may use it.
pub struct RegionHandle(());

/// A piece of a region.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    /// The region that contains the piece.
    pub region: *const RegionHandle,
    /// The offset of the piece's first byte in the region.
    pub offset: usize,
    /// The number of bytes in the piece.
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
        let why = format!("{rights:#x} has unknown bits");
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

/// Returns the range of `len` bytes from `offset` on. If the end overflows, returns a range that no region contains.
#[inline]
pub(crate) fn range(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len)
}

/// Reads the caller's list of pieces; the result borrows the regions of the handles.
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
        // SAFETY: the caller's list has `count` elements.
        let Piece { region, offset, len } = unsafe { piece.add(number).read() };
        all.push((&object::<RegionObject, _>(region)?.region, range(offset, len)));
    }
    Ok(all)
}

/// Allocates zeroed memory. Peers on this host map it if a provider supports shared memory. `rights` are TIELINE_READ and so on.
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

/// Registers memory of the caller for access by peers. The whole range must be mapped with the rights that peers get (otherwise
/// TIELINE_PERMISSION), unless `rights` contains TIELINE_COMMITTED_LATER. The memory must stay valid until tieline_region_close has
/// returned TIELINE_OK; dropping the region is not enough.
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

/// Makes a region of the caller's memory that serves only as the local side of operations (a transient registration). The region
/// has no key. If a device needs a registration, the library makes one for the duration of each operation. The bytes may be reused
/// when all operations have completed successfully. Close the region before you free the memory.
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
        let region = unsafe { context.register_transient_raw(memory, len)? };
        out.set(keep(RegionObject { region })?.to_c());
        Ok(())
    }))
}

pub(crate) fn given(memory: *mut c_void, len: usize) -> Result<*mut u8, Fault> {
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

/// Reports the address and the length of a region. Either output may be null.
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

/// Writes the key that a peer needs to access the region; `len` has the same meaning as for tieline_worker_address.
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

/// Writes a key like tieline_region_key that also contains the address of the region's first byte, for tieline_key_info at the peer.
/// The address reveals the layout of this process's address space to everybody who has the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_key_with_address(
    region: *const RegionHandle,
    key: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(key, len)?;
        room.fill(&object::<RegionObject, _>(region)?.region.remote_key_with_address()?)
    }))
}

/// Closes a region. TIELINE_OK: neither peers nor the library access the memory any more. TIELINE_BUSY: an operation or a peer may
/// still access the memory; the handle stays valid, so make progress and close the region again. After any other failure of a valid
/// handle, the memory must stay valid for the rest of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_close(region: *mut RegionHandle) -> i32 {
    done(guarded(|| close_by(region, |region| region.close())))
}

/// Tries to end a region. If `close` fails, the handle stays valid.
pub(crate) fn close_by(
    region: *mut RegionHandle,
    close: impl FnOnce(Region) -> Result<(), NotClosed>,
) -> Result<(), Fault> {
    try_take(region, |RegionObject { region }| {
        close(region)
            .map_err(|NotClosed { region, error }| (RegionObject { region }, not_closed(error)))
    })
}

/// Makes the failure of a close. If the region is still in use, the caller may retry.
fn not_closed(error: Error) -> Fault {
    let is_busy = error.status() == Status::Busy;
    let fault = Fault::from(error);
    if is_busy { fault.of(Kind::Retry) } else { fault }
}

/// Releases a region; pending operations continue. The caller's memory may be accessed until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_drop(region: *mut RegionHandle) -> i32 {
    done(guarded(|| take::<RegionObject, _>(region).map(drop)))
}
