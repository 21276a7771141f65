//! Heap memory to which peers may write.

#![allow(unsafe_code)]

use super::Span;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use tieline_plugin_api::Status;

/// A heap buffer to which peers may write. The buffer is held as an address, so that no Rust reference claims exclusive access. The
/// owner drops it only when nothing uses its span any more.
pub(crate) struct OwnedBuffer {
    span: Span,
    layout: Layout,
}

/// The alignment, sufficient for every atomic, and the greatest for which the allocator returns zeroed pages without touching them.
const ALIGN: usize = 16;

impl OwnedBuffer {
    pub(crate) fn new(buffer: Box<[u8]>) -> OwnedBuffer {
        let layout = Layout::for_value(&*buffer);
        let len = buffer.len();
        let base = Box::into_raw(buffer).cast::<u8>();
        // SAFETY: the buffer is this value's own until it is dropped.
        OwnedBuffer { span: unsafe { Span::new(base, len) }, layout }
    }

    /// Allocates zeroed memory. If the system supplies zeroed pages, the call touches none of them.
    ///
    /// # Errors
    /// `NoMemory` if the allocation fails.
    pub(crate) fn zeroed(len: usize) -> Result<OwnedBuffer, Status> {
        let layout = Layout::from_size_align(len, ALIGN).map_err(|_| Status::NoMemory)?;
        if len == 0 {
            // SAFETY: no bytes are accessed.
            let span = unsafe { Span::new(ALIGN as *mut u8, len) };
            return Ok(OwnedBuffer { span, layout });
        }
        // SAFETY: the size of the layout is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            Err(Status::NoMemory)
        } else {
            // SAFETY: the memory is this value's own until it is dropped.
            Ok(OwnedBuffer { span: unsafe { Span::new(base, len) }, layout })
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.span.len()
    }

    /// Returns the span of the buffer's bytes.
    ///
    /// # Safety
    /// The caller uses the span, and all addresses derived from it, only while the buffer exists.
    pub(crate) unsafe fn span(&self) -> Span {
        self.span
    }

    /// Checks whether the buffer was made from a box.
    pub(crate) fn is_box(&self) -> bool {
        self.layout.align() == 1
    }

    /// Returns the box from which the buffer was made, if it was made from one. The caller has ensured that nothing uses the
    /// buffer's span any more.
    pub(crate) fn into_box(self) -> Option<Box<[u8]>> {
        if !self.is_box() {
            return None;
        }
        let (base, len) = (self.span.base(), self.span.len());
        std::mem::forget(self);
        // SAFETY: `new` made the buffer from a box of this number of bytes, and the new box owns them from this line on, once.
        Some(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(base, len)) })
    }
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: the memory was allocated with this layout, by a box of this length or by `zeroed`, and is dropped once.
            unsafe { dealloc(self.span.base(), self.layout) };
        }
    }
}
