//! Memory that the application registers by address.

#![allow(unsafe_code)]

use super::closing::Own;
use std::sync::atomic::AtomicU8;
use tieline::{
    Access, Completion, Context, Descriptor, Endpoint, Error, Outcome, PostError, Region, RemoteKey,
};

/// Makes memory with these bytes, and a region of it, which is registered unless the memory is used by address. The memory is never
/// freed, so that it can be checked after the region is gone.
pub(super) fn register(
    context: &Context,
    bytes: &[u8],
    by_address: bool,
) -> Result<(&'static [AtomicU8], Region), Error> {
    let memory: Box<[AtomicU8]> = bytes.iter().map(|byte| AtomicU8::new(*byte)).collect();
    let memory: &'static [AtomicU8] = Box::leak(memory);
    let base = memory.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the memory is never freed, its cells may be written although they are shared, and there is no plain reference to its
    // bytes.
    let region = unsafe {
        match by_address {
            true => context.register_transient_raw(base, memory.len()),
            false => context.register_raw(base, memory.len(), Access::ALL),
        }
    };
    Ok((memory, region?))
}

/// Puts memory of an operation by its address. The memory is never freed.
pub(super) fn put_raw(
    to: &Endpoint,
    own: &Own,
    len: usize,
    key: &RemoteKey,
    offset: u64,
    told: Option<u32>,
) -> Result<Outcome, PostError> {
    let (from, remote) = (own.region.as_ptr().cast_const(), Completion::Remote);
    // SAFETY: the memory is never freed, and is written only after the operation has ended.
    unsafe {
        match told {
            Some(word) => to.put_raw_notify(from, len, key, offset, word, remote),
            None => to.put_raw(from, len, key, offset),
        }
    }
}

/// Gets into memory of an operation, from byte 8 on, by its address. The memory is never freed.
pub(super) fn get_raw(
    to: &Endpoint,
    own: &Own,
    len: usize,
    key: &RemoteKey,
    offset: u64,
) -> Result<Outcome, PostError> {
    // SAFETY: the memory is never freed, has these bytes, and is accessed only after the operation has ended.
    unsafe { to.get_raw(own.region.as_ptr().add(8), len, key, offset) }
}

/// Makes the descriptors of a list from the pieces of an operation's memory. With `raw`, every other one is by address.
pub(super) fn descriptors<'a>(
    own: &'a Own,
    (from, len): (usize, usize),
    keys: &'a [RemoteKey; 2],
    offset: u64,
    raw: bool,
) -> Vec<Descriptor<'a>> {
    let one = |(number, (region, range)): (usize, (&'a Region, std::ops::Range<usize>))| {
        let (key, offset) = (&keys[number % 2], offset + (range.start - from) as u64);
        if raw && number % 2 == 0 {
            // SAFETY: the memory is never freed, and is accessed only after the operation has ended.
            return unsafe {
                Descriptor::raw(region.as_ptr().add(range.start), range.len(), key, offset)
            };
        }
        Descriptor::new(region, range, key, offset)
    };
    own.pieces(from, len).into_iter().enumerate().map(one).collect()
}
