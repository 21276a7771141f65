//! Features that are not offered are refused at once, with the right error.

use super::{cm, domain, endpoint, fabric, memory};
use core::ptr::null_mut;
use tieline_libfabric_abi::*;

#[test]
fn message_and_datagram_endpoints_cannot_be_opened() {
    for kind in [1, 2, 4, 5] {
        // SAFETY: zeros are a valid record of numbers and null addresses.
        let (mut attr, mut info): (fi_ep_attr, fi_info) = unsafe { core::mem::zeroed() };
        attr.kind = kind;
        info.ep_attr = &raw mut attr;
        // SAFETY: an endpoint of another type is refused before the domain is used.
        let said = unsafe { endpoint::open(null_mut(), &raw mut info, null_mut(), null_mut()) };
        assert_eq!(said, -FI_EOPNOTSUPP);
    }
    let passive = fabric::OPS.0.passive_ep.unwrap();
    // SAFETY: the function refuses without a look at its arguments, and so do the functions below.
    let said = unsafe { passive(null_mut(), null_mut(), null_mut(), null_mut()) };
    assert_eq!(said, -FI_ENOSYS);
    // SAFETY: as above.
    unsafe {
        assert_eq!(cm::OPS.0.connect.unwrap()(null_mut(), null_mut(), null_mut(), 0), -FI_ENOSYS);
        assert_eq!(cm::OPS.0.listen.unwrap()(null_mut()), -FI_ENOSYS);
        assert_eq!(cm::OPS.0.accept.unwrap()(null_mut(), null_mut(), 0), -FI_ENOSYS);
    }
}

#[test]
fn scalable_endpoints_and_shared_contexts_are_refused() {
    let (ops, ep) = (&domain::OPS.0, &endpoint::OPS.0);
    // SAFETY: the functions refuse without a look at their arguments.
    unsafe {
        let scalable = ops.scalable_ep.unwrap();
        assert_eq!(scalable(null_mut(), null_mut(), null_mut(), null_mut()), -FI_ENOSYS);
        let shared = ops.stx_ctx.unwrap();
        assert_eq!(shared(null_mut(), null_mut(), null_mut(), null_mut()), -FI_ENOSYS);
        let shared = ops.srx_ctx.unwrap();
        assert_eq!(shared(null_mut(), null_mut(), null_mut(), null_mut()), -FI_ENOSYS);
        assert_eq!(
            ep.tx_ctx.unwrap()(null_mut(), 0, null_mut(), null_mut(), null_mut()),
            -FI_ENOSYS
        );
        assert_eq!(
            ep.rx_ctx.unwrap()(null_mut(), 0, null_mut(), null_mut(), null_mut()),
            -FI_ENOSYS
        );
    }
}

#[test]
fn memory_of_devices_and_deferred_work_are_refused() {
    // SAFETY: zeros are a valid record of numbers and null addresses.
    let mut attr: fi_mr_attr = unsafe { core::mem::zeroed() };
    attr.iface = 1;
    // SAFETY: memory of a device is refused before the domain is used.
    let said =
        unsafe { memory::OPS.0.regattr.unwrap()(null_mut(), &raw const attr, 0, null_mut()) };
    assert_eq!(said, -FI_ENOSYS);
    // SAFETY: the functions refuse without a look at their arguments.
    unsafe {
        assert_eq!((domain::COMMON.0.control)(null_mut(), 0, null_mut()), -FI_ENOSYS);
        let collective = domain::OPS.0.query_collective.unwrap();
        assert_eq!(collective(null_mut(), 0, null_mut(), 0), -FI_ENOSYS);
    }
}
