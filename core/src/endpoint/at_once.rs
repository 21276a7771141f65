//! Operations that complete within the call (inline). The C library tries them before it prepares for a panic. For an operation
//! that did not complete, it then calls the function named `_further`.
//!
//! The functions named `_at_once` run no code of the application. They borrow cells only where that cannot fail, and a provider's
//! functions do not unwind. For an operation that did not complete, [`Tried`] tells the caller where to continue.

use super::record::{Completion, atomic_op_record, rma_op};
use super::{Endpoint, MAX_MESSAGE_ID, RemoteKey, State};
use crate::proto::emulate::AtomicCall;
use crate::request::Outcome;
use crate::{PostError, Status};
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{OK, atomic_op};

/// The status that a provider returned for an operation not completed inline; `OK` if no provider was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried(pub(super) i32);

impl Tried {
    /// No provider was called.
    pub const NOT: Tried = Tried(OK);
}

/// The result of trying an operation inline. A refused operation is returned as the provider received it, so that the caller need
/// not keep a copy.
#[derive(Clone, Copy, Debug)]
pub enum AtOnce<T> {
    /// The operation is complete.
    Done,
    /// No provider was called.
    NotTried,
    /// A provider was called and did not complete the operation, which is returned.
    Refused(Tried, T),
}

/// The bytes of a put, and their destination in the region.
#[derive(Clone, Copy, Debug)]
pub struct BytesThere {
    /// The address of the first byte.
    pub start: *const u8,
    /// The number of bytes.
    pub len: usize,
    /// The offset in the region.
    pub offset: u64,
}

/// An atomic, in the ABI's numbers.
#[derive(Clone, Copy, Debug)]
pub struct AtomicNumbers {
    /// A value of `atomic_op`.
    pub op: u32,
    /// The width in bytes.
    pub width: u32,
    /// The offset in the region.
    pub offset: u64,
    /// The operand: the value to add, store and so on.
    pub operand: u64,
    /// The expected value of a compare-and-swap.
    pub compare: u64,
}

impl Endpoint {
    /// Sends like [`Endpoint::send`], if the lane accepts the message inline; otherwise returns without sending.
    #[doc(hidden)]
    #[inline(always)]
    pub fn send_at_once(&self, id: u16, header: u64, payload: &[u8]) -> AtOnce<()> {
        let ep = &*self.inner;
        if ep.state.get() == State::Ready
            && payload.len() <= ep.message.max_short()
            && id <= MAX_MESSAGE_ID
            && ep.shared.same_process()
        {
            return match ep.message.raw().am_short(u32::from(id), header, payload) {
                OK => AtOnce::Done,
                code => AtOnce::Refused(Tried(code), ()),
            };
        }
        AtOnce::NotTried
    }

    /// Sends a message that [`Endpoint::send_at_once`] did not send, like [`Endpoint::send`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`].
    #[doc(hidden)]
    pub fn send_further(
        &self,
        tried: Tried,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<Outcome, PostError> {
        match tried {
            Tried::NOT => self.send(id, header, payload),
            Tried(code) => self.inner.send_refused(code, id, header, payload),
        }
    }

    /// Sends a message that [`Endpoint::send_at_once`] did not send, without the queue: when the call returns, the transport has the
    /// message, and the message needs no further progress of this side.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`]. [`PostError::Retry`] if the transport does not accept the message now, and
    /// [`PostError::Correct`] if the message is longer than [`Endpoint::max_message`].
    #[doc(hidden)]
    pub fn send_further_now(
        &self,
        tried: Tried,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<(), PostError> {
        let sent = match tried {
            Tried::NOT => self.inner.send_or_queue(id, header, payload, false),
            Tried(code) => self.inner.refused_or_queued(code, id, header, payload, false),
        };
        sent.map(drop)
    }

    /// Sends like [`Endpoint::send_packed`], without the queue, as [`Endpoint::send_further_now`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send_packed`].
    #[doc(hidden)]
    pub fn send_packed_now(
        &self,
        id: u16,
        header: u64,
        max_len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), PostError> {
        self.pack_or_queue(id, header, max_len, pack, false).map(drop)
    }

    /// Checks whether the module of the message lane may keep sent messages until its next poll, to write several of them with one
    /// system call. [`Worker::progress_everywhere`](crate::Worker::progress_everywhere) writes them.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn may_keep_until_poll(&self) -> bool {
        self.inner.message.keeps_until_poll()
    }

    /// Puts bytes that [`RemoteKey::put_bytes_at_once`] did not put, like [`Endpoint::put_bytes`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_bytes`].
    #[doc(hidden)]
    pub fn put_bytes_further(
        &self,
        tried: Tried,
        data: &[u8],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        match tried {
            Tried::NOT => self.put_bytes(data, key, offset),
            Tried(code) => self.inner.post_bytes(data, key, offset, code),
        }
    }

    /// Posts a fetching atomic that [`RemoteKey::fetch_at_once`] did not complete, like [`Endpoint::fetch`] and
    /// [`Endpoint::compare_swap`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::fetch`]; [`PostError::Correct`] also for an unknown operation or width.
    #[doc(hidden)]
    pub fn fetch_further(
        &self,
        tried: Tried,
        call: AtomicNumbers,
        key: &RemoteKey,
    ) -> Result<Outcome, PostError> {
        let AtomicNumbers { op, width, offset, operand, compare } = call;
        if op > atomic_op::MAX || !matches!(width, 4 | 8) {
            return Err(Status::Invalid.into());
        }
        let call = AtomicCall { op, width, operand, compare };
        match tried {
            Tried::NOT => self.atomic_call(&call, key, offset, true),
            Tried(code) => self.inner.atomic_slow(&call, key, offset, true, code),
        }
    }
}

impl RemoteKey {
    /// Puts like [`Endpoint::put_bytes`] on the endpoint that imported the key, if a lane completes the put inline.
    #[doc(hidden)]
    #[inline(always)]
    pub fn put_bytes_at_once(&self, data: &[u8], offset: u64) -> AtOnce<BytesThere> {
        let fast = &self.inner.fast;
        if data.len() < fast.put_below.get() && self.inner.endpoint.may_try_memory() {
            let iov = Iov::new(data.as_ptr().cast_mut(), data.len());
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Remote);
            return match fast.put(&op) {
                OK => AtOnce::Done,
                code => AtOnce::Refused(
                    Tried(code),
                    BytesThere { start: iov.base, len: iov.len, offset: op.offset },
                ),
            };
        }
        AtOnce::NotTried
    }

    /// Executes a fetching atomic on the endpoint that imported the key, if a lane completes the atomic inline.
    #[doc(hidden)]
    #[inline(always)]
    pub fn fetch_at_once(&self, call: AtomicNumbers, result: &mut u64) -> AtOnce<AtomicNumbers> {
        let AtomicNumbers { op, width, offset, operand, compare } = call;
        self.atomic_at_once(&AtomicCall { op, width, operand, compare }, offset, true, result)
    }

    #[inline(always)]
    pub(super) fn atomic_at_once(
        &self,
        call: &AtomicCall,
        offset: u64,
        fetch: bool,
        result: &mut u64,
    ) -> AtOnce<AtomicNumbers> {
        let fast = &self.inner.fast;
        let [narrow, wide] = if fetch { fast.fetch.get() } else { fast.post.get() };
        let does = match call.width {
            8 => wide,
            4 => narrow,
            _ => 0,
        };
        let is_done_here = call.op <= atomic_op::MAX && does & 1 << (call.op & 31) != 0;
        if is_done_here && self.inner.endpoint.may_try_memory() {
            let record = atomic_op_record(call, fast.key.get(), offset, fetch, result, 0);
            let code = fast.atomic(&record);
            if code == OK {
                return AtOnce::Done;
            }
            let Atomic { op, width, offset, operand, compare, .. } = record;
            let call = AtomicNumbers { op, width, offset, operand, compare };
            return AtOnce::Refused(Tried(code), call);
        }
        AtOnce::NotTried
    }
}
