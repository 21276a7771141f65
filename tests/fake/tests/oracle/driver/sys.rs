//! Memory that the application registers by address.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU8;
use tieline::{Access, Context, Error, Region};

/// Memory with these bytes, and its region. It is never freed, so that it can be checked after the region is gone.
pub(super) fn register(
    context: &Context,
    bytes: &[u8],
) -> Result<(&'static [AtomicU8], Region), Error> {
    let memory: Box<[AtomicU8]> = bytes.iter().map(|byte| AtomicU8::new(*byte)).collect();
    let memory: &'static [AtomicU8] = Box::leak(memory);
    let base = memory.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: never freed, may be written although it is shared, and there is no plain reference to its bytes.
    let region = unsafe { context.register_raw(base, memory.len(), Access::ALL) }?;
    Ok((memory, region))
}
