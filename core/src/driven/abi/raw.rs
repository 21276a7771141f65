//! Calls of a driven worker's endpoints that take memory by its address.

use super::super::endpoint::{DrivenEndpoint, DrivenKey};
use super::super::list::DrivenDescriptor;
use super::super::request::DrivenOutcome;
use crate::PostError;
use crate::endpoint::{AtomicOp, Completion, Width};
use crate::sys::Span;

impl<'a> DrivenDescriptor<'a> {
    /// Describes a transfer between ordinary memory and the peer's region at `offset`; see
    /// [`Descriptor::raw`](crate::Descriptor::raw).
    ///
    /// # Safety
    /// As for [`Descriptor::raw`](crate::Descriptor::raw). The memory may be accessed on any thread until the operation has ended.
    #[must_use]
    pub unsafe fn raw(
        base: *mut u8,
        len: usize,
        key: &'a DrivenKey,
        offset: u64,
    ) -> DrivenDescriptor<'a> {
        // SAFETY: the caller upholds this function's contract.
        DrivenDescriptor::with_memory(unsafe { Span::new(base, len) }, key, offset)
    }
}

impl DrivenEndpoint {
    /// Writes ordinary memory to the peer's region, as [`Endpoint::put_raw_with`](crate::Endpoint::put_raw_with) does.
    ///
    /// # Safety
    /// As for [`Endpoint::put_raw`](crate::Endpoint::put_raw).
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put`].
    pub unsafe fn put_raw(
        &self,
        from: *const u8,
        len: usize,
        key: &DrivenKey,
        offset: u64,
        completion: Completion,
    ) -> Result<DrivenOutcome, PostError> {
        // SAFETY: the caller upholds this function's contract.
        self.post_with(key, |endpoint, key| unsafe {
            endpoint.put_raw_with(from, len, key, offset, completion)
        })
    }

    /// Puts like [`DrivenEndpoint::put_raw`], and then notifies the peer like [`DrivenEndpoint::put_notify`].
    ///
    /// # Safety
    /// As for [`Endpoint::put_raw`](crate::Endpoint::put_raw).
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put_notify`].
    pub unsafe fn put_raw_notify(
        &self,
        from: *const u8,
        len: usize,
        key: &DrivenKey,
        offset: u64,
        word: u32,
        completion: Completion,
    ) -> Result<DrivenOutcome, PostError> {
        // SAFETY: the caller upholds this function's contract.
        self.post_with(key, |endpoint, key| unsafe {
            endpoint.put_raw_notify(from, len, key, offset, word, completion)
        })
    }

    /// Reads the peer's region into ordinary memory, as [`Endpoint::get_raw`](crate::Endpoint::get_raw) does.
    ///
    /// # Safety
    /// As for [`Endpoint::get_raw`](crate::Endpoint::get_raw).
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put`].
    pub unsafe fn get_raw(
        &self,
        to: *mut u8,
        len: usize,
        key: &DrivenKey,
        offset: u64,
    ) -> Result<DrivenOutcome, PostError> {
        // SAFETY: the caller upholds this function's contract.
        self.post_with(key, |endpoint, key| unsafe { endpoint.get_raw(to, len, key, offset) })
    }

    /// Posts a fetching atomic and stores the previous value at `result`, as [`Endpoint::fetch_raw`](crate::Endpoint::fetch_raw)
    /// does. The thread that makes progress stores it.
    ///
    /// # Safety
    /// As for [`Endpoint::fetch_raw`](crate::Endpoint::fetch_raw).
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::fetch`].
    pub unsafe fn fetch_raw(
        &self,
        op: AtomicOp,
        width: Width,
        key: &DrivenKey,
        offset: u64,
        operand: u64,
        result: *mut u8,
    ) -> Result<DrivenOutcome, PostError> {
        // SAFETY: the caller upholds this function's contract.
        self.post_with(key, |endpoint, key| unsafe {
            endpoint.fetch_raw(op, width, key, offset, operand, result)
        })
    }

    /// Posts a compare-and-swap and stores the previous value at `result`, as
    /// [`Endpoint::compare_swap_raw`](crate::Endpoint::compare_swap_raw) does.
    ///
    /// # Safety
    /// As for [`Endpoint::fetch_raw`](crate::Endpoint::fetch_raw).
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::compare_swap`].
    pub unsafe fn compare_swap_raw(
        &self,
        width: Width,
        key: &DrivenKey,
        offset: u64,
        expected: u64,
        new: u64,
        result: *mut u8,
    ) -> Result<DrivenOutcome, PostError> {
        // SAFETY: the caller upholds this function's contract.
        self.post_with(key, |endpoint, key| unsafe {
            endpoint.compare_swap_raw(width, key, offset, expected, new, result)
        })
    }
}
