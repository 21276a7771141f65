//! The atomics of the simulated library.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::atomics::{Form, Native, applied};
use crate::double::messages::sys::pieces;
use crate::double::rma::sys::reached;
use crate::double::sys::{number, progress, table};
use crate::double::world::{Atomics, Entry, Way, World, world};
use core::ffi::{c_int, c_void};
use core::ptr;
use tieline_plugin_api::atomic_op;

pub(in crate::double) fn table_of() -> *mut fi_ops_atomic {
    if world(|world| world.manners.atomics == Atomics::None) {
        return ptr::null_mut();
    }
    table(fi_ops_atomic {
        size: size_of::<fi_ops_atomic>(),
        write: None,
        writev: None,
        writemsg,
        inject: None,
        readwrite: None,
        readwritev: None,
        readwritemsg,
        compwrite: None,
        compwritev: None,
        compwritemsg,
        writevalid: valid,
        readwritevalid: valid,
        compwritevalid: valid,
    })
}

unsafe extern "C" fn valid(_: *mut fid_ep, kind: c_int, _: c_int, count: *mut usize) -> c_int {
    // SAFETY: `count` has room for one number.
    unsafe { *count = if [FI_UINT32, FI_UINT64].contains(&kind) { 1 } else { 0 } };
    0
}

fn check(flags: u64) {
    assert!(flags & FI_DELIVERY_COMPLETE != 0, "an atomic completes at its target");
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, message: *const fi_msg_atomic, flags: u64) -> isize {
    check(flags);
    post(ep, message, Form::Post, &[])
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    result: *mut fi_ioc,
    desc: *mut *mut c_void,
    _: usize,
    flags: u64,
) -> isize {
    check(flags);
    if world(|world| world.manners.atomics == Atomics::FetchesRefused) {
        return -(libc::ENOSYS as isize);
    }
    post(ep, message, Form::Fetch, &[(result, desc)])
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    compare: *const fi_ioc,
    compare_desc: *mut *mut c_void,
    _: usize,
    result: *mut fi_ioc,
    desc: *mut *mut c_void,
    _: usize,
    flags: u64,
) -> isize {
    check(flags);
    if world(|world| world.manners.atomics == Atomics::SwapsRefused) {
        return -(libc::EOPNOTSUPP as isize);
    }
    post(ep, message, Form::Compare, &[(compare, compare_desc), (result, desc)])
}

/// Returns a local piece and its descriptor.
fn local(
    world: &mut World,
    ioc: *const fi_ioc,
    desc: *mut *mut c_void,
    width: usize,
) -> (usize, usize) {
    // SAFETY: the record is filled.
    let ioc = unsafe { &*ioc };
    assert_eq!(ioc.count, 1);
    let iov = libc::iovec { iov_base: ioc.addr, iov_len: width };
    pieces(world, &raw const iov, desc, 1)[0]
}

fn post(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    form: Form,
    others: &[(*const fi_ioc, *mut *mut c_void)],
) -> isize {
    let from = number(ep) as usize;
    world(|world| {
        // SAFETY: both records are filled.
        let (message, there) = unsafe { (&*message, &*(*message).rma_iov) };
        let (to, context) = (message.addr as usize, message.context.expose_provenance());
        if world.refuses(to) || !world.ends.get(to).is_some_and(|end| end.open) {
            return -(FI_EAGAIN as isize);
        }
        let width = if message.datatype == FI_UINT32 { 4 } else { 8 };
        let mut parts = vec![local(world, message.msg_iov, message.desc, width)];
        for &(ioc, desc) in others {
            parts.push(local(world, ioc, desc, width));
        }
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let place = reached(world, to, (there.addr, width, there.key), rights);
        let error = world.manners.fail_transfer.take().or(place.is_none().then_some(libc::EACCES));
        match (error, place) {
            (None, Some(remote)) => {
                let native = Native { form, datatype: message.datatype, op: message.op };
                let (atomic, context) = (Some(native), Some(context));
                let key = there.key;
                let way = Way { put: false, atomic, local: parts, remote, from, context, key };
                world.ends[to].ways.push_back(way);
                if !world.manners.manual {
                    progress(world, to);
                }
            }
            (error, _) => {
                let error = error.unwrap_or(libc::EIO);
                world.complete(from, Entry { context, flags: 0, at: 0, len: 0, error });
            }
        }
        0
    })
}

fn load(at: usize, width: u32) -> u64 {
    // SAFETY: the memory is posted or registered; its posting or registration was looked up.
    unsafe {
        match width {
            4 => u64::from(ptr::with_exposed_provenance::<u32>(at).read()),
            _ => ptr::with_exposed_provenance::<u64>(at).read(),
        }
    }
}

fn store(at: usize, width: u32, value: u64) {
    // SAFETY: the memory is posted or registered; its posting or registration was looked up.
    unsafe {
        match width {
            4 => ptr::with_exposed_provenance_mut::<u32>(at).write(value as u32),
            _ => ptr::with_exposed_provenance_mut::<u64>(at).write(value),
        }
    }
}

/// Executes the atomic in its target's memory.
pub(in crate::double) fn apply(
    manners: Atomics,
    native: Native,
    parts: &[(usize, usize)],
    remote: usize,
) {
    let width = if native.datatype == FI_UINT32 { 4 } else { 8 };
    let (old, operand) = (load(remote, width), load(parts[0].0, width));
    let (compare, result) = match native.form {
        Form::Post => (0, None),
        Form::Fetch => (0, Some(parts[1].0)),
        Form::Compare => (load(parts[1].0, width), Some(parts[2].0)),
    };
    let op = match native.op {
        FI_SUM => atomic_op::ADD,
        FI_BAND => atomic_op::AND,
        FI_BOR => atomic_op::OR,
        FI_BXOR => atomic_op::XOR,
        FI_ATOMIC_WRITE => atomic_op::SWAP,
        FI_CSWAP => atomic_op::COMPARE_SWAP,
        FI_MIN => atomic_op::MIN,
        FI_MAX => atomic_op::MAX,
        other => panic!("operation {other}"),
    };
    let written = if manners == Atomics::TooWide { 8 } else { width };
    let is_larger = |a: u64, b: u64| match width {
        4 => a as i32 > b as i32,
        _ => a as i64 > b as i64,
    };
    let new = match (manners, op) {
        (Atomics::Forgotten, _) | (Atomics::MaxForgotten, atomic_op::MAX) => old,
        (Atomics::Signed, atomic_op::MIN) if is_larger(old, operand) => operand,
        (Atomics::Signed, atomic_op::MAX) if is_larger(operand, old) => operand,
        (Atomics::Signed, atomic_op::MIN | atomic_op::MAX) => old,
        (Atomics::SwapsAlways, atomic_op::COMPARE_SWAP) => operand,
        _ => applied(op, width, old, operand, compare),
    };
    if new != old {
        store(remote, written, new);
    }
    let found = match (manners, op) {
        (Atomics::ReturnsCompared, atomic_op::COMPARE_SWAP) => Some(compare),
        (Atomics::KeepsResults, atomic_op::ADD) => None,
        _ => Some(old),
    };
    if let (Some(result), Some(found)) = (result, found) {
        store(result, width, found);
    }
}
