//! Endpoints.

use super::enter::enter;
use super::object::{Table, common, head, inner, make, release};
use super::{atomic, cm, collective, counter, cq, domain, library, message, rma, tagged, vector};
use crate::address::ADDRESS_LEN;
use crate::endpoint::{Ep, Wanted};
use crate::place::decode_place;
use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::rc::Rc;
use tieline_libfabric_abi::*;

static COMMON: Table<fi_ops> = common(close, bind, control);
pub(super) static OPS: Table<fi_ops_ep> = Table(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt,
    tx_ctx: Some(no_tx),
    rx_ctx: Some(no_rx),
    rx_size_left: Some(no_size),
    tx_size_left: Some(no_size),
});

pub(super) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's record is valid, with all of its parts.
    let (kind, wanted) = unsafe {
        let info = &*info;
        let kind = info.ep_attr.as_ref().map_or(FI_EP_RDM, |ep| ep.kind);
        let tx_flags = info.tx_attr.as_ref().map_or(0, |tx| tx.op_flags);
        let rx_flags = info.rx_attr.as_ref().map_or(0, |rx| rx.op_flags);
        let own: *const u8 = info.src_addr.cast_const().cast();
        let own = (!own.is_null() && info.src_addrlen == ADDRESS_LEN)
            .then(|| core::slice::from_raw_parts(own, ADDRESS_LEN));
        let place = own.and_then(decode_place);
        (kind, Wanted { caps: info.caps, tx_flags, rx_flags, place })
    };
    if kind != FI_EP_RDM && kind != FI_EP_UNSPEC {
        return -FI_EOPNOTSUPP;
    }
    // SAFETY: the record is a domain.
    unsafe {
        domain::within(domain, |domain| {
            let ep = match Ep::open(domain, wanted) {
                Ok(ep) => ep,
                Err((failed, text)) => {
                    library::warn(&text);
                    return -failed.error;
                }
            };
            let record = fid_ep {
                fid: head(FI_CLASS_EP, context, &COMMON),
                ops: OPS.at(),
                cm: cm::OPS.at(),
                msg: message::OPS.at(),
                rma: rma::OPS.at(),
                tagged: tagged::OPS.at(),
                atomic: atomic::OPS.at(),
                collective: collective::OPS.at(),
            };
            *out = make(record, ep);
            0
        })
    }
}

/// Returns the endpoint of a record.
///
/// # Safety
/// The record is one of this provider's endpoints.
#[inline]
pub(super) unsafe fn of<'a>(ep: *mut fid_ep) -> &'a Rc<Ep> {
    // SAFETY: the caller's promise.
    unsafe { inner::<fid_ep, Rc<Ep>>(ep) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let at: *mut fid_ep = fid.cast();
    // SAFETY: the record is an endpoint.
    let ep = unsafe { of(at) };
    // The domain stays open while it has objects.
    let domain = &*ep.domain;
    enter(domain, || {
        // SAFETY: the caller gives the object up.
        unsafe {
            of(at).close();
            release::<fid_ep, Rc<Ep>>(at);
        }
        0
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the record is an endpoint, and the other object is valid.
    let (ep, class) = unsafe { (of(fid.cast()), (*other).fclass) };
    enter(&ep.domain, || {
        // SAFETY: the class says what the other object is.
        unsafe {
            match class {
                FI_CLASS_AV => {
                    let av = vector::of(other.cast());
                    if ep.av.set(av.clone()).is_err() {
                        return -FI_EINVAL;
                    }
                    av.users.set(av.users.get() + 1);
                    0
                }
                FI_CLASS_CQ => bind_queue(ep, other.cast(), flags),
                FI_CLASS_CNTR => {
                    if ep.bind_counter(counter::of(other.cast()), flags) {
                        0
                    } else {
                        -FI_EINVAL
                    }
                }
                FI_CLASS_EQ => 0,
                _ => -FI_ENOSYS,
            }
        }
    })
}

unsafe fn bind_queue(ep: &Rc<Ep>, other: *mut fid_cq, flags: u64) -> c_int {
    // SAFETY: the caller has checked the class.
    let queue = unsafe { cq::of(other) };
    if flags & (FI_SEND | FI_RECV) == 0 {
        return -FI_EINVAL;
    }
    if let Some(waiter) = queue.waiter.get() {
        let fd: RawFd = ep.worker.fd();
        if let Err(error) = waiter.add(fd) {
            return -error.raw_os_error().unwrap_or(FI_EOTHER);
        }
    }
    for (flag, place, selective) in
        [(FI_SEND, &ep.tx, &ep.tx_selective), (FI_RECV, &ep.rx, &ep.rx_selective)]
    {
        if flags & flag != 0 {
            if place.set(queue.clone()).is_err() {
                return -FI_EINVAL;
            }
            selective.set(flags & FI_SELECTIVE_COMPLETION != 0);
            queue.users.set(queue.users.get() + 1);
        }
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the record is an endpoint.
    let ep = unsafe { of(fid.cast()) };
    enter(&ep.domain, || {
        // SAFETY: the argument of these commands is a number.
        let flags: *mut u64 = arg.cast();
        match command {
            FI_ENABLE => {
                if ep.av.get().is_none() {
                    return -FI_EOPBADSTATE;
                }
                ep.enabled.set(true);
            }
            // SAFETY: as above.
            FI_GETOPSFLAG => unsafe {
                let side = *flags;
                *flags = if side & FI_RECV != 0 { ep.rx_flags.get() } else { ep.tx_flags.get() };
            },
            // SAFETY: as above.
            FI_SETOPSFLAG => unsafe {
                let (side, value) = (*flags, *flags & !(FI_SEND | FI_RECV));
                if side & FI_RECV != 0 { ep.rx_flags.set(value) } else { ep.tx_flags.set(value) }
            },
            _ => return -FI_ENOSYS,
        }
        0
    })
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: the record is an endpoint.
    let ep = unsafe { of(fid.cast()) };
    let context = context.addr();
    enter(&ep.domain, || {
        if ep.cancel_tagged(context) || ep.cancel_plain(context) { 0 } else { -FI_ENOENT as isize }
    })
}

unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT {
        return -FI_ENOPROTOOPT;
    }
    // SAFETY: the record is an endpoint.
    let ep = unsafe { of(fid.cast()) };
    let number = match name {
        FI_OPT_MIN_MULTI_RECV => ep.least_room.get(),
        FI_OPT_CM_DATA_SIZE => 0,
        _ => return -FI_ENOPROTOOPT,
    };
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe {
        if *len < size_of::<usize>() {
            return -FI_ETOOSMALL;
        }
        *value.cast::<usize>() = number;
        *len = size_of::<usize>();
    }
    0
}

unsafe extern "C" fn setopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV {
        return -FI_ENOPROTOOPT;
    }
    if len < size_of::<usize>() {
        return -FI_EINVAL;
    }
    // SAFETY: the record is an endpoint, and the option is a number.
    unsafe { of(fid.cast()).least_room.set(*value.cast::<usize>()) };
    0
}

unsafe extern "C" fn no_tx(
    _: *mut fid_ep,
    _: c_int,
    _: *mut fi_tx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_rx(
    _: *mut fid_ep,
    _: c_int,
    _: *mut fi_rx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_size(_: *mut fid_ep) -> isize {
    -FI_ENOSYS as isize
}
