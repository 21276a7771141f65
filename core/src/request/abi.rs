//! The end of a request whose result was taken.

#![allow(unsafe_code)]

use super::Request;
use std::mem::ManuallyDrop;

impl Request {
    /// Drops a request whose result was taken, so that there is nothing to forget.
    #[inline(always)]
    pub(crate) fn end(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again and not dropped, so its field has one owner. The other field needs no drop.
        drop(unsafe { std::ptr::read(&this.shared) });
    }
}
