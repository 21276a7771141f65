//! Messages with a tag.

use super::buffer::Buffer;
use super::endpoint::of;
use super::enter::{code, enter_inline};
use super::message::{check, make_receive, post};
use super::object::Table;
use crate::endpoint::Ep;
use crate::offer::{PIECES, REFUSED};
use crate::send::Outgoing;
use crate::tagged::TaggedCall;
use core::ffi::c_void;
use tieline_libfabric_abi::*;

pub(super) static OPS: Table<fi_ops_tagged> = Table(fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
});

/// Posts a receive under the lock of the endpoint's domain. A macro gives each caller its own copy of the code, as [`post`] does.
macro_rules! receive {
    ($ep:expr, $buf:expr, $src:expr, ($tag:expr, $ignore:expr), $context:expr, $flags:expr) => {{
        let (ep, flags): (&Ep, u64) = ($ep, $flags);
        enter_inline(&ep.domain, || {
            let receive = match make_receive(ep, $buf, $src, $context, flags) {
                Ok(receive) => receive,
                Err(error) => return -error as isize,
            };
            code(ep.receive_tagged(TaggedCall { receive, tag: $tag, ignore: $ignore, flags }))
        })
    }};
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    src: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let flags = ep.rx_flags.get() & FI_COMPLETION;
    receive!(ep, buf, src, (tag, ignore), context, flags)
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    list: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    src: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    if count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the record is an endpoint; the buffers are valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::gather(list, count)) };
    let flags = ep.rx_flags.get() & FI_COMPLETION;
    receive!(ep, buf, src, (tag, ignore), context, flags)
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the record is an endpoint, and the message is valid.
    let (ep, message) = unsafe { (of(ep), &*message) };
    if message.iov_count > PIECES {
        return -FI_EINVAL as isize;
    }
    if flags & REFUSED != 0 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the buffers are valid until the completion.
    let buf = unsafe { Buffer::gather(message.msg_iov, message.iov_count) };
    let (tag, ignore) = (message.tag, message.ignore);
    receive!(ep, buf, message.addr, (tag, ignore), message.context, flags)
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let (flags, context) = (ep.tx_flags.get(), context.expose_provenance());
    let told = ep.tells_tx(flags);
    post!(ep, &Outgoing { to, tag: Some(tag), data: None, buf, flags, told, context })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    list: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    if count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the record is an endpoint; the buffers are valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::gather(list, count)) };
    let (flags, context) = (ep.tx_flags.get(), context.expose_provenance());
    let told = ep.tells_tx(flags);
    post!(ep, &Outgoing { to, tag: Some(tag), data: None, buf, flags, told, context })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the record is an endpoint, and the message is valid.
    let (ep, message) = unsafe { (of(ep), &*message) };
    if message.iov_count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the buffers are valid until the completion.
    let buf = unsafe { Buffer::gather(message.msg_iov, message.iov_count) };
    let (tag, data) = (Some(message.tag), (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data));
    let (to, context) = (message.addr, message.context.expose_provenance());
    post!(ep, &Outgoing { to, tag, data, buf, flags, told: ep.tells_tx(flags), context })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: u64,
    tag: u64,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid for the call.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let tag = Some(tag);
    post!(ep, &Outgoing { to, tag, data: None, buf, flags: FI_INJECT, told: false, context: 0 })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let (flags, context) = (ep.tx_flags.get(), context.expose_provenance());
    let told = ep.tells_tx(flags);
    post!(ep, &Outgoing { to, tag: Some(tag), data: Some(data), buf, flags, told, context })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid for the call.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let (tag, data) = (Some(tag), Some(data));
    post!(ep, &Outgoing { to, tag, data, buf, flags: FI_INJECT, told: false, context: 0 })
}
