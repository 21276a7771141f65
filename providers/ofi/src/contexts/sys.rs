//! What the library holds of an operation while it goes on.

#![allow(unsafe_code)]

use crate::abi::CONTEXT_LEN;
use core::ffi::c_void;
use core::ptr;

/// What operations hand to the library: memory that stays where it is, and says which of them it belongs to.
#[repr(C)]
struct Context {
    of_the_library: [u64; CONTEXT_LEN / 8],
    index: u32,
}

/// Contexts, many in one allocation.
#[derive(Default)]
pub(crate) struct Contexts(Vec<Box<[Context]>>);

const PER_CHUNK: usize = 64;

impl Contexts {
    /// Makes more; the number of those that there are then.
    pub(crate) fn grow(&mut self) -> u32 {
        let first = (self.0.len() * PER_CHUNK) as u32;
        let chunk = (0..PER_CHUNK as u32)
            .map(|n| Context { of_the_library: [0; CONTEXT_LEN / 8], index: first + n });
        self.0.push(chunk.collect());
        first + PER_CHUNK as u32
    }

    pub(crate) fn pointer(&mut self, index: u32) -> *mut c_void {
        let at = index as usize;
        ptr::from_mut(&mut self.0[at / PER_CHUNK][at % PER_CHUNK]).cast()
    }

    /// Which one it is.
    #[inline]
    pub(crate) fn index(&self, context: *mut c_void) -> Option<u32> {
        if context.is_null() {
            return None;
        }
        // SAFETY: what the library gives back is what an operation gave to it: one of these, which live as long as the
        // endpoint. Only the part behind the library's is read.
        Some(unsafe { (*context.cast::<Context>()).index })
    }
}
