//! Messages without a tag.

use super::buffer::Buffer;
use super::endpoint::of;
use super::enter::{code, enter, enter_inline};
use super::object::Table;
use crate::endpoint::Ep;
use crate::offer::{INJECT, LONGEST, PIECES, REFUSED};
use crate::receive::Receive;
use crate::send::Outgoing;
use core::ffi::c_void;
use tieline_libfabric_abi::*;

pub(super) static OPS: Table<fi_ops_msg> = Table(fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg,
    send: Some(send),
    sendv: Some(sendv),
    sendmsg,
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
});

/// Checks the length and the flags of a message.
#[inline(always)]
pub(super) fn check(message: &Outgoing) -> Result<(), i32> {
    let (len, flags) = (message.buf.len(), message.flags);
    if len > LONGEST || (flags & FI_INJECT != 0 && len > INJECT) {
        return Err(FI_EMSGSIZE);
    }
    if flags & REFUSED != 0 {
        return Err(FI_EOPNOTSUPP);
    }
    Ok(())
}

/// Posts a message under the lock of the endpoint's domain. A macro gives each caller its own copy of the code, in which most
/// attributes of the message are constants.
macro_rules! post {
    ($ep:expr, $message:expr $(,)?) => {{
        let (ep, message): (&Ep, &Outgoing) = ($ep, $message);
        match check(message) {
            Ok(()) => enter_inline(&ep.domain, || code(ep.send(message))),
            Err(error) => -error as isize,
        }
    }};
}
pub(super) use post;

/// Makes a receive; `src` is the only accepted sender if the endpoint has `FI_DIRECTED_RECV`.
#[inline(always)] // a receive that is passed on is copied once more
pub(super) fn make_receive(
    ep: &Ep,
    buf: Buffer,
    src: u64,
    context: *mut c_void,
    flags: u64,
) -> Result<Receive, i32> {
    let is_directed = ep.is_directed && src != FI_ADDR_UNSPEC;
    let source = if is_directed { ep.only_source(src)? } else { None };
    let context = context.expose_provenance();
    Ok(Receive { buf, context, told: ep.tells_rx(flags), source })
}

/// Posts a receive under the lock of the endpoint's domain.
fn receive(ep: &Ep, buf: Buffer, src: u64, context: *mut c_void, flags: u64) -> isize {
    enter(&ep.domain, || {
        let receive = match make_receive(ep, buf, src, context, flags) {
            Ok(receive) => receive,
            Err(error) => return -error as isize,
        };
        match flags & FI_MULTI_RECV != 0 {
            true => ep.receive_several(receive),
            false => ep.receive(receive),
        }
        0
    })
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    src: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    receive(ep, buf, src, context, ep.rx_flags.get())
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    list: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    src: u64,
    context: *mut c_void,
) -> isize {
    if count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the record is an endpoint; the buffers are valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::gather(list, count)) };
    receive(ep, buf, src, context, ep.rx_flags.get())
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the record is an endpoint, and the message is valid.
    let (ep, message) = unsafe { (of(ep), &*message) };
    let is_several = flags & FI_MULTI_RECV != 0;
    if message.iov_count > PIECES || (is_several && message.iov_count != 1) {
        return -FI_EINVAL as isize;
    }
    if flags & (FI_PEEK | FI_CLAIM | FI_DISCARD | REFUSED) != 0 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the buffers are valid until the completion.
    let buf = unsafe { Buffer::gather(message.msg_iov, message.iov_count) };
    receive(ep, buf, message.addr, message.context, flags)
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let (flags, context) = (ep.tx_flags.get(), context.expose_provenance());
    let told = ep.tells_tx(flags);
    post!(ep, &Outgoing { to, tag: None, data: None, buf, flags, told, context })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    list: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    if count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the record is an endpoint; the buffers are valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::gather(list, count)) };
    let (flags, context) = (ep.tx_flags.get(), context.expose_provenance());
    let told = ep.tells_tx(flags);
    post!(ep, &Outgoing { to, tag: None, data: None, buf, flags, told, context })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the record is an endpoint, and the message is valid.
    let (ep, message) = unsafe { (of(ep), &*message) };
    if message.iov_count > PIECES {
        return -FI_EINVAL as isize;
    }
    // SAFETY: the buffers are valid until the completion.
    let buf = unsafe { Buffer::gather(message.msg_iov, message.iov_count) };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    let (to, context) = (message.addr, message.context.expose_provenance());
    post!(ep, &Outgoing { to, tag: None, data, buf, flags, told: ep.tells_tx(flags), context })
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, to: u64) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid for the call.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    post!(
        ep,
        &Outgoing { to, tag: None, data: None, buf, flags: FI_INJECT, told: false, context: 0 }
    )
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid until the completion.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let (flags, context) = (ep.tx_flags.get(), context.expose_provenance());
    let told = ep.tells_tx(flags);
    post!(ep, &Outgoing { to, tag: None, data: Some(data), buf, flags, told, context })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
) -> isize {
    // SAFETY: the record is an endpoint; the buffer is valid for the call.
    let (ep, buf) = unsafe { (of(ep), Buffer::new(buf, len)) };
    let data = Some(data);
    post!(ep, &Outgoing { to, tag: None, data, buf, flags: FI_INJECT, told: false, context: 0 })
}
