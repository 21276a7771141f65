//! Put, get and atomics, each with its fast path: one call of a module that completes within the call. The key has no better lane
//! to wait for. Other cases are in `short_put.rs`, `direct.rs`, `post.rs` and `atomic.rs`.

use super::at_once::{AtOnce, Tried};
use super::post::{Local, Transfer};
use super::record::{AtomicOp, Completion, Width, rma_op};
use super::{Endpoint, RemoteKey};
use crate::PostError;
use crate::proto::emulate::AtomicCall;
use crate::region::Region;
use crate::request::Outcome;
use std::ops::Range;
use std::rc::Rc;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, atomic_op};

impl Endpoint {
    /// Writes a range of a local region to the peer's region at `offset`. The put is complete when the bytes are visible at the
    /// target.
    ///
    /// # Errors
    /// [`PostError::Correct`]: a range is outside its region, or the key does not grant the access. [`PostError::Retry`]: the
    /// endpoint has its maximum number of open operations. [`PostError::Reconnect`]: the endpoint has ended, with the reason.
    #[inline]
    pub fn put(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        self.put_with(local, range, key, offset, Completion::Remote)
    }

    /// Puts like [`Endpoint::put`], with a choice of the completion.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[inline]
    pub fn put_with(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, PostError> {
        self.between_regions(true, local, range, key, offset, completion)
    }

    /// Writes bytes from any memory to the peer's region. The caller may reuse the local bytes when the call returns.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`]. [`PostError::Retry`] also if the bytes would have to be queued and the queue is full.
    #[inline]
    pub fn put_bytes(
        &self,
        data: &[u8],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        let tried = match self.has(key) {
            true => key.put_bytes_at_once(data, offset),
            false => AtOnce::NotTried,
        };
        let mut code = match tried {
            AtOnce::Done => return Ok(Outcome::Done(0)),
            AtOnce::NotTried => OK,
            AtOnce::Refused(Tried(code), _) => code,
        };
        if key.inner.fast.is_short(data.len()) {
            let from = data.as_ptr().cast_mut();
            match self.inner.post_short(key, from, data.len(), offset, Completion::Remote) {
                Ok(outcome) => return Ok(outcome),
                Err(said) => code = said,
            }
        }
        self.inner.post_bytes(data, key, offset, code)
    }

    /// Reads the peer's region at `offset` into a range of a local region. The get is complete when the bytes are in the local
    /// region.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`].
    #[inline]
    pub fn get(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        self.between_regions(false, local, range, key, offset, Completion::Remote)
    }

    /// Puts or gets a range of a local region.
    #[inline(always)] // one function for put and get that costs neither a branch
    fn between_regions(
        &self,
        put: bool,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, PostError> {
        // For a range that ends before it begins, the length is larger than any region.
        let len = range.end.wrapping_sub(range.start);
        let base = local.inner.span.range(range.start, len);
        let base = base.map_err(|status| local.outside(status, range.start, len))?;
        let (fast, mut code) = (&key.inner.fast, OK);
        let below = if put { &fast.put_below } else { &fast.get_below };
        if len < below.get() && self.may_take_fast_path(key) {
            let iov = Iov::new(base, len);
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Remote);
            code = if put { fast.put(&op) } else { fast.get(&op) };
            if code == OK {
                return Ok(Outcome::Done(0));
            }
        } else if put && fast.is_short(len) {
            match self.inner.post_short(key, base, len, offset, completion) {
                Ok(outcome) => return Ok(outcome),
                Err(said) => code = said,
            }
        }
        let (at, local) = (range.start, Local::Region(local));
        let transfer = Transfer { put, local, at, len, key, offset, completion };
        self.inner.post_transfer(&transfer, code)
    }

    /// Posts an atomic that returns no value.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`]. [`PostError::Correct`] also if the offset is not a multiple of the width, or if no module
    /// executes the atomic where the region's owner requires it.
    #[inline]
    pub fn atomic(
        &self,
        op: AtomicOp,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        operand: u64,
    ) -> Result<Outcome, PostError> {
        let call = AtomicCall { op: op as u32, width: width as u32, operand, compare: 0 };
        self.atomic_call(&call, key, offset, false)
    }

    /// Posts an atomic that returns the previous value.
    ///
    /// # Errors
    /// The errors of [`Endpoint::atomic`].
    #[inline]
    pub fn fetch(
        &self,
        op: AtomicOp,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        operand: u64,
    ) -> Result<Outcome, PostError> {
        let call = AtomicCall { op: op as u32, width: width as u32, operand, compare: 0 };
        self.atomic_call(&call, key, offset, true)
    }

    /// Stores `new` if the word equals `expected`. Returns the previous value.
    ///
    /// # Errors
    /// The errors of [`Endpoint::atomic`].
    #[inline]
    pub fn compare_swap(
        &self,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<Outcome, PostError> {
        let op = atomic_op::COMPARE_SWAP;
        let call = AtomicCall { op, width: width as u32, operand: new, compare: expected };
        self.atomic_call(&call, key, offset, true)
    }

    /// Adds to a 64-bit word. Returns the previous value.
    ///
    /// # Errors
    /// The errors of [`Endpoint::atomic`].
    #[inline]
    pub fn fetch_add(
        &self,
        key: &RemoteKey,
        offset: u64,
        operand: u64,
    ) -> Result<Outcome, PostError> {
        self.fetch(AtomicOp::Add, Width::Bits64, key, offset, operand)
    }

    #[inline]
    pub(super) fn atomic_call(
        &self,
        call: &AtomicCall,
        key: &RemoteKey,
        offset: u64,
        fetch: bool,
    ) -> Result<Outcome, PostError> {
        let mut result = 0;
        let tried = match self.has(key) {
            true => key.atomic_at_once(call, offset, fetch, &mut result),
            false => AtOnce::NotTried,
        };
        match tried {
            AtOnce::Done => Ok(Outcome::Done(if fetch { result } else { 0 })),
            AtOnce::NotTried => self.inner.atomic_slow(call, key, offset, fetch, OK),
            AtOnce::Refused(Tried(code), _) => {
                self.inner.atomic_slow(call, key, offset, fetch, code)
            }
        }
    }

    /// Checks whether the fast path may be taken: the queue is empty, the key belongs to this usable endpoint, and the calling
    /// process made the endpoint. A fence needs no check, because earlier operations on this path are complete.
    #[inline]
    pub(super) fn may_take_fast_path(&self, key: &RemoteKey) -> bool {
        self.has(key) && self.inner.may_try_memory()
    }

    /// Checks whether a key was imported on this endpoint.
    #[inline]
    fn has(&self, key: &RemoteKey) -> bool {
        Rc::ptr_eq(&key.inner.endpoint, &self.inner)
    }
}
