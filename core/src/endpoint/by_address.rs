//! Puts, gets and fetching atomics whose local memory is an address and a length, in no region.
//!
//! A module that completes within the call takes the memory as it is. Another module copies short memory, or registers longer
//! memory while the operation runs: its cache of registrations shares a registration only among operations in flight
//! (docs/rdma.md). The core registers nothing.

use super::at_once::{AtOnce, BytesThere, Tried};
use super::post::{Local, Transfer};
use super::record::{AtomicOp, Completion, Width, rma_op};
use super::{Endpoint, EndpointState, RemoteKey};
use crate::PostError;
use crate::mem::local::{LocalBuffer, Memory, store};
use crate::mem::region::Backing;
use crate::region::Region;
use crate::request::Outcome;
use crate::sys::Span;
use std::rc::Rc;
use tieline_plugin_api::OK;
use tieline_plugin_api::abi::Iov;

impl Endpoint {
    /// Writes `len` bytes of ordinary memory to the peer's region at `offset`. The put is complete when the bytes are visible at the
    /// target. The memory needs no region, and nothing has to be closed.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let there = context.alloc(64)?;
    /// # let me = worker.connect(&worker.address()?)?;
    /// # let key = me.import_key(&there.remote_key()?)?;
    /// let numbers = [1u64, 2, 3];
    /// // SAFETY: `numbers` lives, and nothing writes it, until `finish` has returned.
    /// let put = unsafe { me.put_raw(numbers.as_ptr().cast(), 24, &key, 8)? };
    /// worker.finish(put)?;
    /// # assert_eq!(there.to_vec(8..16)?, 1u64.to_ne_bytes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, and nothing writes these bytes, until the operation has ended: the call has returned
    /// `Done` or an error, or the result is known. If the operation ends as [`Unknown`](crate::CompletionError::Unknown), or with its
    /// endpoint, a device or the peer may still read the memory. It then belongs to the operation until the endpoint is closed: the
    /// last of its clones and keys is dropped. The rule is the same if the request is dropped or the worker closed.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[inline]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn put_raw(
        &self,
        from: *const u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.put_raw_with(from, len, key, offset, Completion::Remote) }
    }

    /// Puts like [`Endpoint::put_raw`], with a choice of the completion. After a local completion the memory is free.
    ///
    /// # Safety
    /// As for [`Endpoint::put_raw`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[inline]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn put_raw_with(
        &self,
        from: *const u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, PostError> {
        let (from, fast, mut code) = (from.cast_mut(), &key.inner.fast, OK);
        if len < fast.put_below.get() && self.may_take_fast_path(key) {
            let iov = Iov::new(from, len);
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Remote);
            code = fast.put(&op);
            if code == OK {
                return Ok(Outcome::Done(0));
            }
        } else if fast.is_short(len) {
            match self.inner.post_short(key, from, len, offset, completion) {
                Ok(outcome) => return Ok(outcome),
                Err(said) => code = said,
            }
        }
        // SAFETY: the caller keeps the memory until the operation has ended, and a put only reads it.
        let memory = unsafe { Span::new(from, len) };
        self.inner.post_raw(true, memory, key, offset, completion, code)
    }

    /// Puts like [`Endpoint::put_raw`], and then notifies the peer like [`Endpoint::put_notify`].
    ///
    /// # Safety
    /// As for [`Endpoint::put_raw`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_notify`].
    #[inline]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn put_raw_notify(
        &self,
        from: *const u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        word: u32,
        completion: Completion,
    ) -> Result<Outcome, PostError> {
        let code = self.put_notify_now(from.cast_mut(), len, key, offset, word);
        if code == OK {
            return Ok(Outcome::Done(0));
        }
        // SAFETY: the caller keeps the memory until the operation has ended, and a put only reads it.
        let local = Local::Raw(unsafe { Span::new(from.cast_mut(), len) });
        let transfer = Transfer { put: true, local, at: 0, len, key, offset, completion };
        self.inner.post_notify(&transfer, word, code)
    }

    /// Reads the peer's region at `offset` into `len` bytes of ordinary memory. The get is complete when the bytes are in the
    /// memory. The memory needs no region, and nothing has to be closed.
    ///
    /// # Safety
    /// `to` is valid for reads and writes of `len` bytes, and nothing else accesses these bytes, until the operation has ended: see
    /// [`Endpoint::put_raw`]. If the operation ends as [`Unknown`](crate::CompletionError::Unknown), or with its endpoint, a device
    /// or the peer may still write the memory until the endpoint is closed.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[inline]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn get_raw(
        &self,
        to: *mut u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        let (fast, mut code) = (&key.inner.fast, OK);
        if len < fast.get_below.get() && self.may_take_fast_path(key) {
            let iov = Iov::new(to, len);
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Remote);
            code = fast.get(&op);
            if code == OK {
                return Ok(Outcome::Done(0));
            }
        }
        // SAFETY: the caller keeps the memory until the operation has ended.
        let memory = unsafe { Span::new(to, len) };
        self.inner.post_raw(false, memory, key, offset, Completion::Remote, code)
    }

    /// Posts an atomic like [`Endpoint::fetch`], and stores the previous value at `result` when the operation has succeeded: 4 or 8
    /// bytes, by the width, of any alignment. The result of the operation carries the value as well. The place serves operations
    /// that are [counted](crate::Worker::count), or whose request is dropped.
    ///
    /// # Safety
    /// `result` is valid for writes of the width, and nothing else accesses these bytes, until the operation has ended. A failed
    /// operation stores nothing. After the endpoint's end nothing is stored.
    ///
    /// # Errors
    /// The errors of [`Endpoint::fetch`].
    #[inline]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn fetch_raw(
        &self,
        op: AtomicOp,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        operand: u64,
        result: *mut u8,
    ) -> Result<Outcome, PostError> {
        let outcome = self.fetch(op, width, key, offset, operand)?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.inner.store_at_end(&outcome, result, width) };
        Ok(outcome)
    }

    /// Posts a compare-and-swap like [`Endpoint::compare_swap`], and stores the previous value like [`Endpoint::fetch_raw`].
    ///
    /// # Safety
    /// As for [`Endpoint::fetch_raw`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::fetch`].
    #[inline]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn compare_swap_raw(
        &self,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        expected: u64,
        new: u64,
        result: *mut u8,
    ) -> Result<Outcome, PostError> {
        let outcome = self.compare_swap(width, key, offset, expected, new)?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.inner.store_at_end(&outcome, result, width) };
        Ok(outcome)
    }
}

/// The C library tries these first; see `at_once.rs`.
impl Endpoint {
    /// Puts what [`RemoteKey::put_bytes_at_once`] did not put, like [`Endpoint::put_raw`].
    ///
    /// # Safety
    /// As for [`Endpoint::put_raw`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[doc(hidden)]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn put_raw_further(
        &self,
        tried: Tried,
        from: *const u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        if tried == Tried::NOT {
            // SAFETY: the caller upholds this function's contract.
            return unsafe { self.put_raw(from, len, key, offset) };
        }
        // SAFETY: the caller keeps the memory until the operation has ended.
        let memory = unsafe { Span::new(from.cast_mut(), len) };
        self.inner.post_raw(true, memory, key, offset, Completion::Remote, tried.0)
    }

    /// Gets what [`RemoteKey::get_raw_at_once`] did not get, like [`Endpoint::get_raw`].
    ///
    /// # Safety
    /// As for [`Endpoint::get_raw`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[doc(hidden)]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn get_raw_further(
        &self,
        tried: Tried,
        to: *mut u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        if tried == Tried::NOT {
            // SAFETY: the caller upholds this function's contract.
            return unsafe { self.get_raw(to, len, key, offset) };
        }
        // SAFETY: the caller keeps the memory until the operation has ended.
        let memory = unsafe { Span::new(to, len) };
        self.inner.post_raw(false, memory, key, offset, Completion::Remote, tried.0)
    }
}

impl RemoteKey {
    /// Gets like [`Endpoint::get_raw`] on the endpoint that imported the key, if a lane completes the get inline.
    ///
    /// # Safety
    /// As for [`Endpoint::get_raw`].
    #[doc(hidden)]
    #[inline(always)]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn get_raw_at_once(
        &self,
        to: *mut u8,
        len: usize,
        offset: u64,
    ) -> AtOnce<BytesThere> {
        let fast = &self.inner.fast;
        if len < fast.get_below.get() && self.inner.endpoint.may_try_memory() {
            let iov = Iov::new(to, len);
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Remote);
            return match fast.get(&op) {
                OK => AtOnce::Done,
                code => {
                    let there = BytesThere { start: iov.base, len: iov.len, offset: op.offset };
                    AtOnce::Refused(Tried(code), there)
                }
            };
        }
        AtOnce::NotTried
    }
}

impl EndpointState {
    /// Posts a put or get of memory in no region that did not take the fast path, or failed there with `code`.
    #[cold]
    #[inline(never)]
    pub(super) fn post_raw(
        self: &Rc<Self>,
        put: bool,
        memory: Span,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
        code: i32,
    ) -> Result<Outcome, PostError> {
        let (local, len) = (Local::Raw(memory), memory.len());
        self.post_transfer(&Transfer { put, local, at: 0, len, key, offset, completion }, code)
    }

    /// Makes a region of memory in no region, for a transfer that is shared with the peer. A peer that helps gets a key of a part of
    /// a region.
    pub(super) fn lend_to_share(&self, local: Local<'_>) -> Option<Region> {
        match local {
            Local::Raw(memory) => self.shared.core.memory.lend(memory, Backing::Borrowed).ok(),
            _ => None,
        }
    }

    /// Stores the value of an operation in the caller's memory, now or when the operation has succeeded.
    ///
    /// # Safety
    /// The contract is that of [`Endpoint::fetch_raw`].
    #[allow(unsafe_code)] // the caller upholds the contract
    unsafe fn store_at_end(&self, outcome: &Outcome, result: *mut u8, width: Width) {
        // SAFETY: the caller keeps the place until the operation has ended.
        let place = unsafe { Span::new(result, width as usize) };
        match outcome {
            Outcome::Done(value) => store(&place, *value),
            // The operation is open: no progress was made since it was posted.
            Outcome::Pending(request) => {
                let place = LocalBuffer::held(Memory::Value(place), 0, width as usize);
                self.shared.ops.borrow_mut().set_local_buffer(request.id, place);
            }
        }
    }
}
