//! Strided blocks, and the limits of endpoints and keys.

use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{answer, done};
use super::how::{self, How};
use super::memory::{RegionHandle, RegionObject};
use super::put::{KeyHandle, KeyObject};
use super::records::{self, Params, null};
use tieline::Blocks;

/// A set of blocks of a region at equal distances.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CBlocks {
    /// The size of this record in bytes.
    pub size: usize,
    /// The offset of the first block in its region.
    pub offset: u64,
    /// The length of each block.
    pub block: usize,
    /// The distance between the beginnings of two adjacent blocks.
    pub stride: usize,
    /// The number of blocks.
    pub count: usize,
}

// SAFETY: `CBlocks` consists of numbers only.
unsafe impl Params for CBlocks {}

fn blocks(given: *const CBlocks) -> Result<Blocks, super::error::Fault> {
    if given.is_null() {
        return Err(null("the blocks"));
    }
    let CBlocks { offset, block, stride, count, .. } = records::read(given)?;
    Ok(Blocks { offset, block, stride, count })
}

/// Writes blocks of a region, in order, to blocks of the peer's region. TIELINE_AGAIN: not all blocks were posted, and those that
/// were posted continue; post all of the blocks again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_put_strided(
    key: *const KeyHandle,
    to: *const CBlocks,
    local: *const RegionHandle,
    from: *const CBlocks,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object_| {
        let (told, from, to) =
            (how::read(how, 0, &object_.endpoint.worker)?, blocks(from)?, blocks(to)?);
        let local = &object::<RegionObject, _>(local)?.region;
        object_.post(request, &told, |endpoint| endpoint.put_strided(local, from, &object_.key, to))
    }))
}

/// Reads blocks of the peer's region into blocks of a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_get_strided(
    key: *const KeyHandle,
    from: *const CBlocks,
    local: *const RegionHandle,
    to: *const CBlocks,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object_| {
        let (told, from, to) =
            (how::read(how, 0, &object_.endpoint.worker)?, blocks(from)?, blocks(to)?);
        let local = &object::<RegionObject, _>(local)?.region;
        object_.post(request, &told, |endpoint| endpoint.get_strided(local, to, &object_.key, from))
    }))
}

/// The limits of an endpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    /// The size of this record in bytes. Set this field before the call.
    pub size: usize,
    /// The length of the longest eager message. Longer messages are rendezvous messages.
    pub max_message: usize,
    /// The length of the longest message that the transport copies within the call.
    pub max_short: usize,
    /// The length of the longest message that tieline_send_pieces sends without a copy; 0: all messages are copied.
    pub max_gathered: usize,
    /// The maximum number of pending operations of the endpoint.
    pub max_pending: usize,
    /// The maximum number of bytes that pending operations occupy. A call that would exceed it returns TIELINE_AGAIN, unless no
    /// operation is pending.
    pub max_queued_bytes: usize,
    /// The length up to which an eager message is the faster one, if the receiver copies its payload. A longer message is faster with
    /// TIELINE_SEND_RENDEZVOUS.
    pub eager_limit: usize,
}

/// Reports the limits of an endpoint. The call opens the connection for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_limits(
    endpoint: *const EndpointHandle,
    limits: *mut Limits,
) -> i32 {
    done(guarded(|| {
        let state = object::<EndpointState, _>(endpoint)?;
        let found = state.worker.mark.post(|| Ok(state.get()?.limits()?))?;
        let found = Limits {
            size: 0,
            max_message: found.max_message,
            max_short: found.max_short,
            max_gathered: found.max_gathered,
            max_pending: found.max_pending,
            max_queued_bytes: found.max_queued_bytes,
            eager_limit: found.eager_limit,
        };
        // SAFETY: the caller guarantees that its record is null or valid during this call.
        unsafe { records::write(limits, &found) }
    }))
}

/// The properties of a key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KeyInfo {
    /// The size of this record in bytes. Set this field before the call.
    pub size: usize,
    /// The region's length.
    pub len: u64,
    /// Not 0: puts and gets complete while the target computes. Final when `is_settling` is 0.
    pub reaches_passive_target: u32,
    /// Not 0: a better path may still become available.
    pub is_settling: u32,
    /// The length of the longest put in one operation. A longer put is split, and its parts complete as one operation. 0: all puts
    /// are emulated by messages.
    pub max_put: usize,
    /// The length of the longest get in one operation.
    pub max_get: usize,
    /// The maximum number of local pieces in one operation.
    pub max_pieces: usize,
    /// The address of the region's first byte in its owner's address space, if `has_address` is not 0; otherwise 0.
    pub address: u64,
    /// Not 0: the key contains the region's address.
    pub has_address: u32,
    /// A reserved field.
    pub reserved: u32,
}

/// Reports the properties of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_key_info(key: *const KeyHandle, info: *mut KeyInfo) -> i32 {
    done(guarded(|| {
        let object = object::<KeyObject, _>(key)?;
        let found = object.endpoint.worker.mark.post(|| {
            let key = &object.key;
            let limits = key.limits()?;
            Ok(KeyInfo {
                size: 0,
                len: key.len(),
                reaches_passive_target: key.reaches_passive_target().into(),
                is_settling: key.is_settling().into(),
                max_put: limits.max_put,
                max_get: limits.max_get,
                max_pieces: limits.max_pieces,
                address: key.address().unwrap_or(0),
                has_address: key.address().is_some().into(),
                reserved: 0,
            })
        })?;
        // SAFETY: the caller guarantees that its record is null or valid during this call.
        unsafe { records::write(info, &found) }
    }))
}
