//! Atomics.

use super::buffer::Buffer;
use super::endpoint::of;
use super::enter::{code, enter};
use super::object::Table;
use crate::atomics::{AtomicCall, Form, supported, value_of, width_of};
use crate::offer::REFUSED;
use crate::ops::{End, Kind};
use crate::rma::Rma;
use core::ffi::{c_int, c_void};
use core::ptr::null;
use tieline_libfabric_abi::*;

pub(super) static OPS: Table<fi_ops_atomic> = Table(fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg,
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg,
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
});

/// The arguments that all calls share.
struct Call {
    form: Form,
    operand: *const c_void,
    compare: *const c_void,
    result: *mut c_void,
    count: usize,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    /// The flags of the call; `None`: those of the endpoint.
    flags: Option<u64>,
    /// The call never gets an entry.
    is_quiet: bool,
    context: *mut c_void,
}

/// Posts an atomic under the lock of the endpoint's domain.
///
/// # Safety
/// The record is an endpoint; each address is null or leads to one number of the type.
unsafe fn post(ep: *mut fid_ep, call: &Call) -> isize {
    // SAFETY: the caller's promise.
    let ep = unsafe { of(ep) };
    let Some((operation, width)) = supported(call.form, call.datatype, call.op) else {
        return -FI_EOPNOTSUPP as isize;
    };
    let flags = call.flags.unwrap_or_else(|| ep.tx_flags.get());
    if call.count != 1 || flags & REFUSED != 0 {
        return -FI_EOPNOTSUPP as isize;
    }
    let len = width as usize;
    // SAFETY: the caller's promise.
    let (operand, compare, result) = unsafe {
        (
            Buffer::new(call.operand, len),
            Buffer::new(call.compare, len),
            Buffer::new(call.result, len),
        )
    };
    let is_read = call.op == FI_ATOMIC_READ;
    let atomic = AtomicCall {
        form: call.form,
        code: operation,
        width,
        operand: if is_read { 0 } else { value_of(&operand, width) },
        compare: value_of(&compare, width),
        seen: None,
        result,
    };
    let kind = if call.form == Form::Update { Kind::Atomic } else { Kind::Fetch };
    let told = !call.is_quiet && ep.tells_tx(flags);
    let rma = Rma {
        atomic: Some(atomic),
        ..Rma::new(kind, call.peer, Buffer::default(), call.at, call.key)
    };
    let end = End { len, ..End::new(kind, told, call.context.expose_provenance(), 0) };
    enter(&ep.domain, || code(ep.transfer(rma, end)))
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    _: *mut c_void,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (form, flags, is_quiet) = (Form::Update, None, false);
    let (compare, result) = (null(), core::ptr::null_mut());
    let call = Call {
        form,
        operand,
        compare,
        result,
        count,
        peer,
        at,
        key,
        datatype,
        op,
        flags,
        is_quiet,
        context,
    };
    // SAFETY: the caller's arguments.
    unsafe { post(ep, &call) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    list: *const fi_ioc,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    if count != 1 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the caller's list has one piece.
    unsafe {
        let piece = &*list;
        write(ep, piece.addr, piece.count, desc.cast(), peer, at, key, datatype, op, context)
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    let (form, flags, is_quiet) = (Form::Update, Some(FI_INJECT), true);
    let (compare, result, context) = (null(), core::ptr::null_mut(), core::ptr::null_mut());
    let call = Call {
        form,
        operand,
        compare,
        result,
        count,
        peer,
        at,
        key,
        datatype,
        op,
        flags,
        is_quiet,
        context,
    };
    // SAFETY: the caller's arguments.
    unsafe { post(ep, &call) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (form, compare, flags, is_quiet) = (Form::Fetch, null(), None, false);
    let call = Call {
        form,
        operand,
        compare,
        result,
        count,
        peer,
        at,
        key,
        datatype,
        op,
        flags,
        is_quiet,
        context,
    };
    // SAFETY: the caller's arguments.
    unsafe { post(ep, &call) }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    list: *const fi_ioc,
    desc: *mut *mut c_void,
    count: usize,
    results: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    if count != 1 || result_count != 1 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the caller's lists have one piece each.
    unsafe {
        let (piece, result) = (&*list, (*results).addr);
        let (desc, result_desc) = (desc.cast(), result_desc.cast());
        readwrite(
            ep,
            piece.addr,
            piece.count,
            desc,
            result,
            result_desc,
            peer,
            at,
            key,
            datatype,
            op,
            context,
        )
    }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    _: *mut c_void,
    compare: *const c_void,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (form, flags, is_quiet) = (Form::Compare, None, false);
    let call = Call {
        form,
        operand,
        compare,
        result,
        count,
        peer,
        at,
        key,
        datatype,
        op,
        flags,
        is_quiet,
        context,
    };
    // SAFETY: the caller's arguments.
    unsafe { post(ep, &call) }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    list: *const fi_ioc,
    desc: *mut *mut c_void,
    count: usize,
    compares: *const fi_ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    at: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    if count != 1 || compare_count != 1 || result_count != 1 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the caller's lists have one piece each.
    unsafe {
        let (piece, compare, result) = (&*list, (*compares).addr, (*results).addr);
        let (desc, compare_desc, result_desc) =
            (desc.cast(), compare_desc.cast(), result_desc.cast());
        compwrite(
            ep,
            piece.addr,
            piece.count,
            desc,
            compare,
            compare_desc,
            result,
            result_desc,
            peer,
            at,
            key,
            datatype,
            op,
            context,
        )
    }
}

/// Posts an atomic that a record describes.
unsafe fn post_record(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    form: Form,
    compare: *const c_void,
    result: *mut c_void,
    flags: u64,
) -> isize {
    // SAFETY: the message is valid.
    let message = unsafe { &*message };
    let reads = form == Form::Fetch && message.op == FI_ATOMIC_READ;
    if message.rma_iov_count != 1 || (message.iov_count != 1 && !reads) {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the message's lists have these pieces.
    unsafe {
        let operand =
            if message.iov_count > 0 { (*message.msg_iov).addr.cast_const() } else { null() };
        let remote = &*message.rma_iov;
        let call = Call {
            form,
            operand,
            compare,
            result,
            count: remote.count,
            peer: message.addr,
            at: remote.addr,
            key: remote.key,
            datatype: message.datatype,
            op: message.op,
            flags: Some(flags),
            is_quiet: false,
            context: message.context,
        };
        post(ep, &call)
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, message: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: the caller's arguments.
    unsafe { post_record(ep, message, Form::Update, null(), core::ptr::null_mut(), flags) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    results: *mut fi_ioc,
    _: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    if result_count != 1 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the caller's arguments; the list has one piece.
    unsafe { post_record(ep, message, Form::Fetch, null(), (*results).addr, flags) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    compares: *const fi_ioc,
    _: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    if compare_count != 1 || result_count != 1 {
        return -FI_EOPNOTSUPP as isize;
    }
    // SAFETY: the caller's arguments; the lists have one piece each.
    unsafe { post_record(ep, message, Form::Compare, (*compares).addr, (*results).addr, flags) }
}

fn valid(form: Form, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    if supported(form, datatype, op).is_none() {
        return -FI_EOPNOTSUPP;
    }
    // SAFETY: the caller passes room for a number.
    unsafe { *count = 1 };
    0
}

unsafe extern "C" fn writevalid(
    _: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    valid(Form::Update, datatype, op, count)
}

unsafe extern "C" fn readwritevalid(
    _: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    valid(Form::Fetch, datatype, op, count)
}

unsafe extern "C" fn compwritevalid(
    _: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    valid(Form::Compare, datatype, op, count)
}

pub(super) unsafe extern "C" fn query(
    _: *mut fid_domain,
    datatype: c_int,
    op: c_int,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let form = if flags & FI_COMPARE_ATOMIC != 0 {
        Form::Compare
    } else if flags & FI_FETCH_ATOMIC != 0 {
        Form::Fetch
    } else {
        Form::Update
    };
    let Some(width) = supported(form, datatype, op).and(width_of(datatype)) else {
        return -FI_EOPNOTSUPP;
    };
    // SAFETY: the caller passes room for the record.
    unsafe {
        (*attr).count = 1;
        (*attr).size = width as usize;
    }
    0
}
