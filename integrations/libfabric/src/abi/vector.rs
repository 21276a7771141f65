//! Address vectors.

use super::domain;
use super::enter::enter;
use super::object::{Table, common, head, inner, make, no_control, release};
use crate::address::{ADDRESS_LEN, Target, Vector, decode, encode};
use crate::place::{decode_place, encode_place, find};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;
use tieline_libfabric_abi::*;

static COMMON: Table<fi_ops> = common(close, bind, no_control);
static OPS: Table<fi_ops_av> = Table(fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc: Some(insertsvc),
    insertsym: Some(no_insertsym),
    remove,
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(no_set),
});

pub(super) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the attributes are null or a valid record.
    if let Some(attr) = unsafe { attr.as_mut() } {
        // A named vector would be shared between processes, and FI_EVENT would insert in the background.
        if !attr.name.is_null() || attr.flags != 0 {
            return -FI_ENOSYS;
        }
        if attr.kind == FI_AV_UNSPEC {
            attr.kind = FI_AV_TABLE;
        }
    }
    // SAFETY: the record is a domain.
    unsafe {
        domain::within(domain, |domain| {
            domain.used();
            let record = fid_av { fid: head(FI_CLASS_AV, context, &COMMON), ops: OPS.at() };
            *out = make(record, Rc::new(Vector::new(domain.clone())));
            0
        })
    }
}

/// Returns the vector of a record.
///
/// # Safety
/// The record is one of this provider's vectors.
pub(super) unsafe fn of<'a>(av: *mut fid_av) -> &'a Rc<Vector> {
    // SAFETY: the caller's promise.
    unsafe { inner::<fid_av, Rc<Vector>>(av) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let av: *mut fid_av = fid.cast();
    // SAFETY: the record is a vector.
    let vector = unsafe { of(av) };
    // The domain stays open while it has objects.
    let domain = &*vector.domain;
    enter(domain, || {
        if vector.users.get() > 0 {
            return -FI_EBUSY;
        }
        domain.unused();
        // SAFETY: the caller gives the object up.
        unsafe { release::<fid_av, Rc<Vector>>(av) };
        0
    })
}

unsafe extern "C" fn bind(_: *mut fid, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the other object is valid.
    if unsafe { (*other).fclass } == FI_CLASS_EQ { 0 } else { -FI_EINVAL }
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the record is a vector.
    let vector = unsafe { of(av) };
    let errors: *mut c_int =
        if flags & FI_SYNC_ERR != 0 { context.cast() } else { core::ptr::null_mut() };
    enter(&vector.domain, || {
        let mut good = 0;
        for at in 0..count {
            // SAFETY: the caller's list has `count` addresses of this provider, and the other lists as many entries.
            unsafe {
                let address = addresses.cast::<u8>().add(at * ADDRESS_LEN);
                let address = core::slice::from_raw_parts(address, ADDRESS_LEN);
                let (number, is_good) = vector.insert(address);
                if !numbers.is_null() {
                    *numbers.add(at) = if is_good { number } else { FI_ADDR_NOTAVAIL };
                }
                if !errors.is_null() {
                    *errors.add(at) = if is_good { 0 } else { FI_EADDRNOTAVAIL };
                }
                good += c_int::from(is_good);
            }
        }
        good
    })
}

/// Returns a text of the caller; `None` for null and for other bytes than text.
///
/// # Safety
/// The text is null or ends with a zero.
pub(super) unsafe fn text<'a>(at: *const c_char) -> Option<&'a str> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(at) }.to_str().ok()
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    number: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's texts end with a zero.
    let (Some(node), Some(service)) = (unsafe { (text(node), text(service)) }) else {
        return -FI_EINVAL;
    };
    let Some(place) = find(Some(node), Some(service), false) else { return -FI_ENODATA };
    let address = encode_place(&place);
    // SAFETY: the caller's arguments are those of the call with an address.
    unsafe { insert(av, address.as_ptr().cast(), 1, number, flags, context) }
}

unsafe extern "C" fn no_insertsym(
    _: *mut fid_av,
    _: *const c_char,
    _: usize,
    _: *const c_char,
    _: usize,
    _: *mut u64,
    _: u64,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn remove(av: *mut fid_av, numbers: *mut u64, count: usize, _: u64) -> c_int {
    // SAFETY: the record is a vector.
    let vector = unsafe { of(av) };
    enter(&vector.domain, || {
        let mut code = 0;
        for at in 0..count {
            // SAFETY: the caller's list has `count` entries.
            if !vector.remove(unsafe { *numbers.add(at) }) {
                code = -FI_EINVAL;
            }
        }
        code
    })
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    number: u64,
    address: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the record is a vector.
    let vector = unsafe { of(av) };
    enter(&vector.domain, || {
        let bytes = match vector.entry(number) {
            Some(Target::Name(name, _)) => encode(&name),
            Some(Target::Place(place)) => encode_place(&place),
            None => return -FI_EINVAL,
        };
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe {
            let count = (*len).min(ADDRESS_LEN);
            if count > 0 {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), count);
            }
            *len = ADDRESS_LEN;
        }
        0
    })
}

unsafe extern "C" fn straddr(
    _: *mut fid_av,
    address: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the caller's address is one of this provider's.
    let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), ADDRESS_LEN) };
    let hex = |name: &tieline::WorkerName| -> String {
        name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let text = match decode_place(bytes) {
        Some(place) => format!("tieline://{place}"),
        None => format!("tieline:{}", decode(bytes).as_ref().map(hex).unwrap_or_default()),
    };
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe {
        let _ = super::cq::write_text(&text, buf, *len);
        *len = text.len() + 1;
    }
    buf
}

unsafe extern "C" fn no_set(
    _: *mut fid_av,
    _: *mut c_void,
    _: *mut *mut fid,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
