//! Memory that the application registers by address.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU8;
use tieline::{Access, Context, Error, Region};

/// Registers memory with these bytes. The memory is never freed, so that it can be checked after the region is gone.
pub(super) fn register(
    context: &Context,
    bytes: &[u8],
) -> Result<(&'static [AtomicU8], Region), Error> {
    let memory: Box<[AtomicU8]> = bytes.iter().map(|byte| AtomicU8::new(*byte)).collect();
    let memory: &'static [AtomicU8] = Box::leak(memory);
    let base = memory.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the memory is never freed, its cells may be written although they are shared, and there is no plain reference to its
    // bytes.
    let region = unsafe { context.register_raw(base, memory.len(), Access::ALL) }?;
    Ok((memory, region))
}
