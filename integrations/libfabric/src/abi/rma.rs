//! Puts and gets.

use super::buffer::Buffer;
use super::endpoint::of;
use super::enter::{code, enter};
use super::object::Table;
use crate::endpoint::Ep;
use crate::offer::{INJECT, LONGEST, PIECES, REFUSED};
use crate::ops::{End, Kind};
use crate::rma::Rma;
use core::ffi::c_void;
use tieline_libfabric_abi::*;

pub(super) static OPS: Table<fi_ops_rma> = Table(fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg,
    write: Some(write),
    writev: Some(writev),
    writemsg,
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
});

/// The target of a put or get.
#[derive(Clone, Copy)]
struct Target {
    peer: u64,
    at: u64,
    key: u64,
}

/// Posts a put or get under the lock of the endpoint's domain.
fn post(
    ep: &Ep,
    kind: Kind,
    buf: Buffer,
    target: Target,
    (flags, data): (u64, Option<u64>),
    context: *mut c_void,
) -> isize {
    let len = buf.len();
    if len > LONGEST || (flags & FI_INJECT != 0 && len > INJECT) {
        return -FI_EMSGSIZE as isize;
    }
    if flags & REFUSED != 0 {
        return -FI_EOPNOTSUPP as isize;
    }
    let told = ep.tells_tx(flags);
    let rma = Rma { flags, data, ..Rma::new(kind, target.peer, buf, target.at, target.key) };
    let end = End { len, ..End::new(kind, told, context.expose_provenance(), 0) };
    enter(&ep.domain, || code(ep.transfer(rma, end)))
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    peer: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let flags = ep.tx_flags.get() & !FI_INJECT;
    post(ep, Kind::Read, buf, Target { peer, at, key }, (flags, None), context)
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    list: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    if count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the record is an endpoint; the buffers are valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::gather(list, count)) };
    let flags = ep.tx_flags.get() & !FI_INJECT;
    post(ep, Kind::Read, buf, Target { peer, at, key }, (flags, None), context)
}

/// Posts a put or get that a record describes.
unsafe fn post_record(
    ep: *mut fid_ep,
    kind: Kind,
    message: *const fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: the record is an endpoint, and the message is valid.
    let (ep, message) = unsafe { (of(ep), &*message) };
    if message.iov_count > PIECES || message.rma_iov_count != 1 {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the buffers are valid until the completion; the target is one record.
    let (buf, remote) =
        unsafe { (Buffer::gather(message.msg_iov, message.iov_count), &*message.rma_iov) };
    if buf.len() != remote.len {
        return -FI_EINVAL as isize;
    }
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    let target = Target { peer: message.addr, at: remote.addr, key: remote.key };
    post(ep, kind, buf, target, (flags, data), message.context)
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { post_record(ep, Kind::Read, message, flags & !(FI_INJECT | FI_REMOTE_CQ_DATA)) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    peer: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    post(ep, Kind::Write, buf, Target { peer, at, key }, (ep.tx_flags.get(), None), context)
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    list: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    if count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the record is an endpoint; the buffers are valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::gather(list, count)) };
    post(ep, Kind::Write, buf, Target { peer, at, key }, (ep.tx_flags.get(), None), context)
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { post_record(ep, Kind::Write, message, flags) }
}

/// Posts a put whose bytes the caller may reuse at once.
unsafe fn post_inject(
    ep: *mut fid_ep,
    (buf, len): (*const c_void, usize),
    data: Option<u64>,
    target: Target,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid for the call, which copies it.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    if len > INJECT {
        return -FI_EMSGSIZE as isize;
    }
    let rma = Rma {
        flags: FI_INJECT,
        data,
        ..Rma::new(Kind::Write, target.peer, buf, target.at, target.key)
    };
    let end = End { len, ..End::new(Kind::Write, false, 0, 0) };
    enter(&ep.domain, || code(ep.transfer(rma, end)))
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: u64,
    at: u64,
    key: u64,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { post_inject(ep, (buf, len), None, Target { peer, at, key }) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let flags = ep.tx_flags.get();
    post(ep, Kind::Write, buf, Target { peer, at, key }, (flags, Some(data)), context)
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: u64,
    at: u64,
    key: u64,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { post_inject(ep, (buf, len), Some(data), Target { peer, at, key }) }
}
