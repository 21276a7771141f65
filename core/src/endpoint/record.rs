//! Types for put, get and atomics: those of the public interface, and the records passed to providers.

use crate::proto::emulate::AtomicCall;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use tieline_plugin_api::abi::{Atomic, Iov, Rma, RmaList, RmaPart};
use tieline_plugin_api::{atomic_op, op_flags, rma_kind};

/// The operation of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AtomicOp {
    /// Addition, wrapping.
    Add = atomic_op::ADD,
    /// Bitwise and.
    And = atomic_op::AND,
    /// Bitwise or.
    Or = atomic_op::OR,
    /// Bitwise exclusive or.
    Xor = atomic_op::XOR,
    /// Exchange.
    Swap = atomic_op::SWAP,
    /// Unsigned minimum.
    Min = atomic_op::MIN,
    /// Unsigned maximum.
    Max = atomic_op::MAX,
}

/// The width of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Width {
    /// 32 bits.
    Bits32 = 4,
    /// 64 bits.
    Bits64 = 8,
}

/// The point in time at which an operation is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Completion as soon as the local buffer may be reused. A later `flush` completes when the data is visible at the target.
    Local,
    /// Completion when the data is visible at the target.
    Remote,
}

/// The record of a put or get. The record points to its pieces; the borrow keeps them in place.
pub(super) struct RmaRecord<'a> {
    raw: Rma,
    _pieces: PhantomData<&'a [Iov]>,
}

impl Deref for RmaRecord<'_> {
    type Target = Rma;
    #[inline]
    fn deref(&self) -> &Rma {
        &self.raw
    }
}

impl RmaRecord<'_> {
    /// Sets whether another operation on the same lane follows immediately, in which case the provider may delay the notification
    /// of the device.
    #[inline]
    pub(super) fn followed(mut self, more: bool) -> Self {
        self.raw.flags |= if more { op_flags::MORE } else { 0 };
        self
    }
}

#[inline]
pub(super) fn rma_op(
    iov: &Iov,
    key: *mut c_void,
    offset: u64,
    cookie: u64,
    completion: Completion,
) -> RmaRecord<'_> {
    rma_list_op(std::slice::from_ref(iov), iov.len, key, offset, cookie, completion)
}

/// Makes the record of a put or get of several pieces, of `len` bytes in total.
#[inline]
pub(super) fn rma_list_op(
    iov: &[Iov],
    len: usize,
    key: *mut c_void,
    offset: u64,
    cookie: u64,
    completion: Completion,
) -> RmaRecord<'_> {
    let raw = Rma {
        iov: iov.as_ptr(),
        iov_count: iov.len(),
        len,
        key,
        offset,
        cookie,
        flags: match completion {
            Completion::Local => 0,
            Completion::Remote => op_flags::REMOTE_COMPLETION,
        },
        reserved: 0,
    };
    RmaRecord { raw, _pieces: PhantomData }
}

/// The record of a list. The record points to its parts; the borrow keeps them in place.
pub(super) struct ListRecord<'a> {
    raw: RmaList,
    _parts: PhantomData<&'a [RmaPart]>,
}

impl Deref for ListRecord<'_> {
    type Target = RmaList;
    #[inline]
    fn deref(&self) -> &RmaList {
        &self.raw
    }
}

/// Makes the record of a list of puts or gets that complete at the target.
pub(super) fn list_op(put: bool, parts: &[RmaPart], cookie: u64) -> ListRecord<'_> {
    let raw = RmaList {
        parts: parts.as_ptr(),
        count: parts.len(),
        cookie,
        flags: op_flags::REMOTE_COMPLETION,
        kind: if put { rma_kind::PUT } else { rma_kind::GET },
        ..RmaList::empty()
    };
    ListRecord { raw, _parts: PhantomData }
}

pub(super) fn atomic_op_record(
    call: &AtomicCall,
    key: *mut c_void,
    offset: u64,
    fetch: bool,
    result: &mut u64,
    cookie: u64,
) -> Atomic {
    Atomic {
        op: call.op,
        width: call.width,
        key,
        offset,
        operand: call.operand,
        compare: call.compare,
        result: ptr::from_mut(result),
        cookie,
        flags: op_flags::REMOTE_COMPLETION | if fetch { op_flags::FETCH } else { 0 },
    }
}
