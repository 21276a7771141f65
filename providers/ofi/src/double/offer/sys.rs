//! The offers of the simulated library.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::sys::table;
use crate::double::world::{Atomics, world};
use core::ffi::{c_char, c_int};
use core::ptr;

pub(in crate::double) unsafe extern "C" fn dupinfo(_: *const fi_info) -> *mut fi_info {
    // SAFETY: the records consist of integers and pointers, for which zero is valid.
    unsafe {
        let mut info: fi_info = core::mem::zeroed();
        info.tx_attr = table(core::mem::zeroed());
        info.rx_attr = table(core::mem::zeroed());
        info.ep_attr = table(core::mem::zeroed());
        info.domain_attr = table(core::mem::zeroed());
        info.fabric_attr = table(core::mem::zeroed());
        let info: *mut fi_info = table(info);
        let _ = world(|world| world.lists.insert(info.addr()));
        info
    }
}

pub(in crate::double) unsafe extern "C" fn freeinfo(info: *mut fi_info) {
    world(|world| {
        if !world.lists.remove(&info.addr()) {
            world.complaints.push("a list was given back twice, or is none".into());
        }
    });
}

pub(in crate::double) unsafe extern "C" fn getinfo(
    version: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    let manners = world(|world| world.manners.clone());
    assert_eq!(version, manners.api);
    let mut wants = false;
    // SAFETY: `dupinfo` made the hints, and the other record is of the same kind.
    unsafe {
        if let Some(hints) = hints.as_ref() {
            let offered = (*hints.domain_attr).mr_mode;
            // This provider relies on these features: without them in the hints, the library may choose otherwise.
            assert_eq!(
                hints.caps & (FI_MSG | FI_RMA | FI_MULTI_RECV),
                FI_MSG | FI_RMA | FI_MULTI_RECV
            );
            assert_eq!(hints.mode, FI_CONTEXT | FI_CONTEXT2);
            assert_eq!((*hints.ep_attr).kind, FI_EP_RDM);
            let domain = &*hints.domain_attr;
            assert_eq!((domain.threading, domain.resource_mgmt), (FI_THREAD_SAFE, FI_RM_ENABLED));
            let orders = ((*hints.tx_attr).msg_order, (*hints.rx_attr).msg_order);
            assert_eq!(orders, (FI_ORDER_SAS, FI_ORDER_SAS));
            let delivery = (*hints.tx_attr).op_flags & FI_DELIVERY_COMPLETE != 0;
            wants = hints.caps & FI_ATOMIC != 0;
            if wants && manners.atomics == Atomics::None {
                return -libc::ENODATA;
            }
            if wants && manners.atomics == Atomics::Unanswered {
                return -libc::EIO;
            }
            if manners.mr_mode & !offered != 0 || delivery && !manners.delivery {
                return -libc::ENODATA;
            }
        }
        let info = dupinfo(ptr::null());
        (*info).caps = FI_MSG | FI_RMA | FI_MULTI_RECV | if wants { FI_ATOMIC } else { 0 };
        (*info).addr_format = manners.format;
        let (tx, ep) = (&mut *(*info).tx_attr, &mut *(*info).ep_attr);
        (tx.msg_order, (*(*info).rx_attr).msg_order) = manners.orders;
        (*(*info).rx_attr).size = manners.receives;
        (tx.size, tx.iov_limit, ep.max_msg_size, ep.protocol) = (64, 4, 1 << 20, 77);
        if wants && manners.atomics == Atomics::Dear {
            ep.max_msg_size /= 2;
        }
        if wants && manners.atomics == Atomics::Narrow {
            tx.size /= 2;
        }
        let (domain, fabric) = (&mut *(*info).domain_attr, &mut *(*info).fabric_attr);
        (domain.mr_mode, domain.mr_key_size) = (manners.mr_mode, manners.key_size);
        domain.name = manners.device.as_ptr().cast_mut();
        fabric.name = c"played-fabric".as_ptr().cast_mut();
        fabric.prov_name = manners.provider.as_ptr().cast_mut();
        ((*info).mode, domain.av_type) = (manners.mode, manners.av_type);
        *out = info;
    }
    0
}
