//! `fi_getinfo`. It opens nothing, because libfabric calls it in every process that queries its providers.

use super::enter::guard;
use super::vector::text;
use super::{VERSION, library};
use crate::address::ADDRESS_LEN;
use crate::offer::{self, Hints, Offer, Side};
use crate::place::{decode_place, encode_place, find};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use tieline_libfabric_abi::*;

/// The name of the only fabric and the only domain.
const NAME: &CStr = c"tieline";

pub(super) unsafe extern "C" fn getinfo(
    api: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric passes room for one address.
        unsafe { *out = core::ptr::null_mut() };
        let (has_node, is_number) = (!node.is_null(), flags & FI_NUMERICHOST != 0);
        // SAFETY: the caller's texts are null or end with a zero.
        let (node, service) = unsafe { (text(node), text(service)) };
        let Some(place) = find(node, service, is_number) else { return -FI_ENODATA };
        if has_node && node.is_none() {
            return -FI_ENODATA;
        }
        // Without a node, a service is that of this side.
        let is_source = flags & FI_SOURCE != 0 || !has_node;
        let own = if is_source { place } else { SocketAddr::from(([0, 0, 0, 0], 0)) };
        let places = Places { own: encode_place(&own), peer: encode_place(&place), is_source };
        // SAFETY: the hints are null or a record of libfabric's making.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: as above.
        let asked = hints.map(|hints| unsafe { read(hints) });
        let Some(offer) = offer::answer(asked.as_ref(), api) else { return -FI_ENODATA };
        let info = library::allocate_info();
        if info.is_null() {
            return -FI_ENOMEM;
        }
        // SAFETY: libfabric has just made the record with all of its parts, and nobody else has it.
        if unsafe { fill(&mut *info, &offer, hints, &places) } {
            // SAFETY: as above.
            unsafe { *out = info };
            return 0;
        }
        library::free_info(info);
        -FI_ENOMEM
    })
}

/// Reads the hints.
///
/// # Safety
/// The record and its parts are valid.
unsafe fn read(info: &fi_info) -> Hints {
    // SAFETY: the caller's promise.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            info.tx_attr.as_ref(),
            info.rx_attr.as_ref(),
            info.ep_attr.as_ref(),
            info.domain_attr.as_ref(),
            info.fabric_attr.as_ref(),
        )
    };
    let mut hints = Hints {
        caps: info.caps,
        is_address_format_open: info.addr_format == FI_FORMAT_UNSPEC,
        has_foreign_address: (!info.dest_addr.is_null() && !offer::is_address(info.dest_addrlen))
            || (!info.src_addr.is_null() && !offer::is_address(info.src_addrlen)),
        ..Hints::default()
    };
    if let Some(tx) = tx {
        hints.tx = Side {
            caps: tx.caps,
            op_flags: tx.op_flags,
            msg_order: tx.msg_order,
            comp_order: tx.comp_order,
            inject: tx.inject_size,
            buffered: 0,
            pieces: tx.iov_limit,
            remote_pieces: tx.rma_iov_limit,
        };
    }
    if let Some(rx) = rx {
        hints.rx = Side {
            caps: rx.caps,
            op_flags: rx.op_flags,
            msg_order: rx.msg_order,
            comp_order: rx.comp_order,
            inject: 0,
            buffered: rx.total_buffered_recv,
            pieces: rx.iov_limit,
            remote_pieces: 0,
        };
    }
    if let Some(ep) = ep {
        hints.endpoint = ep.kind;
        hints.protocol = ep.protocol;
        hints.longest = ep.max_msg_size;
        hints.contexts = ep.tx_ctx_cnt.max(ep.rx_ctx_cnt);
        hints.order_sizes =
            ep.max_order_raw_size.max(ep.max_order_war_size).max(ep.max_order_waw_size);
        hints.auth_keys = ep.auth_key_size;
    }
    if let Some(domain) = domain {
        // SAFETY: a name ends with a zero.
        hints.is_other_fabric |=
            !domain.name.is_null() && unsafe { CStr::from_ptr(domain.name) } != NAME;
        hints.threading = domain.threading;
        hints.control_progress = domain.control_progress;
        hints.data_progress = domain.data_progress;
        hints.av_type = domain.av_type;
        hints.mr_mode = domain.mr_mode;
        hints.key_size = domain.mr_key_size;
        hints.cq_data_size = domain.cq_data_size;
        hints.memory_pieces = domain.mr_iov_limit;
        hints.domain_caps = domain.caps;
        hints.auth_keys |= domain.auth_key_size;
    }
    if let Some(fabric) = fabric {
        // SAFETY: a name ends with a zero.
        hints.is_other_fabric |=
            !fabric.name.is_null() && unsafe { CStr::from_ptr(fabric.name) } != NAME;
    }
    hints
}

/// Copies memory with libfabric's allocator, which frees it; null if there is no memory.
unsafe fn copy(from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's memory has `len` bytes, and so has the copy.
    unsafe {
        let to = libc::malloc(len.max(1));
        if !to.is_null() {
            core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), len);
        }
        to
    }
}

/// The addresses of an answer, if the hints have none.
struct Places {
    own: [u8; ADDRESS_LEN],
    peer: [u8; ADDRESS_LEN],
    /// The question was about the own address only.
    is_source: bool,
}

/// Fills an answer. Returns `false` if memory is missing.
///
/// # Safety
/// The record has all of its parts; the addresses of the hints are valid.
unsafe fn fill(
    info: &mut fi_info,
    offer: &Offer,
    hints: Option<&fi_info>,
    places: &Places,
) -> bool {
    // SAFETY: the caller's promise: libfabric makes the record with all of its parts.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            &mut *info.tx_attr,
            &mut *info.rx_attr,
            &mut *info.ep_attr,
            &mut *info.domain_attr,
            &mut *info.fabric_attr,
        )
    };
    info.caps = offer.caps;
    info.addr_format = FI_FORMAT_UNSPEC;
    tx.caps = offer.caps & offer::TX;
    tx.op_flags = offer.tx_flags;
    tx.msg_order = offer::ORDER;
    tx.inject_size = offer::INJECT;
    tx.size = offer::MANY;
    tx.iov_limit = offer::PIECES;
    tx.rma_iov_limit = 1;
    rx.caps = offer.caps & offer::RX;
    rx.op_flags = offer.rx_flags;
    rx.msg_order = offer::ORDER;
    rx.size = offer::MANY;
    rx.iov_limit = offer::PIECES;

    ep.kind = FI_EP_RDM;
    ep.protocol = FI_PROTO_UNSPEC;
    ep.protocol_version = 1;
    ep.max_msg_size = offer::LONGEST;
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = 1;
    if offer.caps & FI_TAGGED != 0 {
        ep.mem_tag_format = u64::MAX;
    }

    domain.threading = offer.threading;
    domain.control_progress = offer.control_progress;
    domain.data_progress = offer.data_progress;
    domain.resource_mgmt = FI_RM_ENABLED;
    domain.av_type = offer.av_type;
    domain.mr_mode = offer.mr_mode;
    domain.mr_key_size = 8;
    domain.cq_data_size = 8;
    domain.cq_cnt = offer::MANY;
    domain.ep_cnt = offer::MANY;
    domain.tx_ctx_cnt = offer::MANY;
    domain.rx_ctx_cnt = offer::MANY;
    // Applications would open scalable endpoints if there were more contexts, and shared contexts if there were any.
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.max_ep_stx_ctx = 0;
    domain.max_ep_srx_ctx = 0;
    domain.cntr_cnt = offer::MANY;
    domain.mr_iov_limit = 1;
    domain.caps = offer::DOMAIN;
    domain.mr_cnt = 1 << 16;

    fabric.prov_version = VERSION;
    // SAFETY: the name has as many bytes and a zero. libfabric frees the copies, and it writes the name of the provider itself.
    unsafe {
        domain.name = copy(NAME.as_ptr().cast(), NAME.count_bytes() + 1).cast();
        fabric.name = copy(NAME.as_ptr().cast(), NAME.count_bytes() + 1).cast();
    }
    if domain.name.is_null() || fabric.name.is_null() {
        return false;
    }
    let mut own: *const c_void = places.own.as_ptr().cast();
    let mut peer =
        if places.is_source { core::ptr::null() } else { places.peer.as_ptr().cast::<c_void>() };
    if let Some(hints) = hints {
        // An address of the call takes precedence over that of the hints.
        let is_open = decode_place(&places.own).is_none_or(|place| place.port() == 0);
        if is_open && !hints.src_addr.is_null() {
            own = hints.src_addr;
        }
        if places.is_source && !hints.dest_addr.is_null() {
            peer = hints.dest_addr;
        }
    }
    // SAFETY: the length of the addresses in the hints was checked when the hints were read.
    unsafe {
        info.src_addr = copy(own, ADDRESS_LEN);
        info.src_addrlen = ADDRESS_LEN;
        if !peer.is_null() {
            info.dest_addr = copy(peer, ADDRESS_LEN);
            info.dest_addrlen = ADDRESS_LEN;
        }
    }
    !info.src_addr.is_null() && (peer.is_null() || !info.dest_addr.is_null())
}
