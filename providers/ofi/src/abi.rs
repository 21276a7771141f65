//! The records of libfabric that this provider uses, in the layout of API 1.17.
//!
//! The records are written by hand from `rdma/*.h` of libfabric 1.17. With `layout_tests.rs` a C compiler compares every size,
//! offset and constant with the headers, if they are installed. Later versions only append to some records. Therefore the
//! attributes of queues and the records for their errors end with spare room (`spare`), which a newer library may use. This
//! provider reads only the declared fields of records that the library makes.

#![allow(non_camel_case_types)]

mod atomic;

pub(crate) use atomic::*;
use core::ffi::{c_char, c_int, c_void};

/// An unused slot of a table.
pub(crate) type unused = *const c_void;

#[repr(C)]
pub(crate) struct fi_tx_attr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) inject_size: usize,
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
    pub(crate) rma_iov_limit: usize,
    pub(crate) tclass: u32,
}

#[repr(C)]
pub(crate) struct fi_rx_attr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) total_buffered_recv: usize,
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
}

#[repr(C)]
pub(crate) struct fi_ep_attr {
    pub(crate) kind: c_int,
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    pub(crate) max_msg_size: usize,
    pub(crate) msg_prefix_size: usize,
    pub(crate) max_order_raw_size: usize,
    pub(crate) max_order_war_size: usize,
    pub(crate) max_order_waw_size: usize,
    pub(crate) mem_tag_format: u64,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
    pub(crate) auth_key_size: usize,
    pub(crate) auth_key: *mut u8,
}

#[repr(C)]
pub(crate) struct fi_domain_attr {
    pub(crate) domain: *mut fid_domain,
    pub(crate) name: *mut c_char,
    pub(crate) threading: c_int,
    pub(crate) control_progress: c_int,
    pub(crate) data_progress: c_int,
    pub(crate) resource_mgmt: c_int,
    pub(crate) av_type: c_int,
    pub(crate) mr_mode: c_int,
    pub(crate) mr_key_size: usize,
    pub(crate) cq_data_size: usize,
    pub(crate) cq_cnt: usize,
    pub(crate) ep_cnt: usize,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
    pub(crate) max_ep_tx_ctx: usize,
    pub(crate) max_ep_rx_ctx: usize,
    pub(crate) max_ep_stx_ctx: usize,
    pub(crate) max_ep_srx_ctx: usize,
    pub(crate) cntr_cnt: usize,
    pub(crate) mr_iov_limit: usize,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) auth_key: *mut u8,
    pub(crate) auth_key_size: usize,
    pub(crate) max_err_data: usize,
    pub(crate) mr_cnt: usize,
    pub(crate) tclass: u32,
}

#[repr(C)]
pub(crate) struct fi_fabric_attr {
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) name: *mut c_char,
    pub(crate) prov_name: *mut c_char,
    pub(crate) prov_version: u32,
    pub(crate) api_version: u32,
}

#[repr(C)]
pub(crate) struct fi_info {
    pub(crate) next: *mut fi_info,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    pub(crate) src_addrlen: usize,
    pub(crate) dest_addrlen: usize,
    pub(crate) src_addr: *mut c_void,
    pub(crate) dest_addr: *mut c_void,
    pub(crate) handle: *mut fid,
    pub(crate) tx_attr: *mut fi_tx_attr,
    pub(crate) rx_attr: *mut fi_rx_attr,
    pub(crate) ep_attr: *mut fi_ep_attr,
    pub(crate) domain_attr: *mut fi_domain_attr,
    pub(crate) fabric_attr: *mut fi_fabric_attr,
    pub(crate) nic: *mut c_void,
}

#[repr(C)]
pub(crate) struct fid {
    pub(crate) fclass: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *mut fi_ops,
}

#[repr(C)]
pub(crate) struct fi_ops {
    pub(crate) size: usize,
    pub(crate) close: unsafe extern "C" fn(*mut fid) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    pub(crate) control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub(crate) struct fid_fabric {
    pub(crate) fid: fid,
    pub(crate) ops: *mut fi_ops_fabric,
    pub(crate) api_version: u32,
}

#[repr(C)]
pub(crate) struct fi_ops_fabric {
    pub(crate) size: usize,
    pub(crate) domain: unsafe extern "C" fn(
        *mut fid_fabric,
        *mut fi_info,
        *mut *mut fid_domain,
        *mut c_void,
    ) -> c_int,
    pub(crate) passive_ep: unused,
    pub(crate) eq_open: Option<
        unsafe extern "C" fn(
            *mut fid_fabric,
            *mut fi_eq_attr,
            *mut *mut fid_eq,
            *mut c_void,
        ) -> c_int,
    >,
    pub(crate) wait_open: unused,
    pub(crate) trywait: unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
}

#[repr(C)]
pub(crate) struct fid_domain {
    pub(crate) fid: fid,
    pub(crate) ops: *mut fi_ops_domain,
    pub(crate) mr: *mut fi_ops_mr,
}

#[repr(C)]
pub(crate) struct fi_ops_domain {
    pub(crate) size: usize,
    pub(crate) av_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_av_attr,
        *mut *mut fid_av,
        *mut c_void,
    ) -> c_int,
    pub(crate) cq_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_cq_attr,
        *mut *mut fid_cq,
        *mut c_void,
    ) -> c_int,
    pub(crate) endpoint:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub(crate) struct fi_ops_mr {
    pub(crate) size: usize,
    pub(crate) reg: unsafe extern "C" fn(
        *mut fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut fid_mr,
        *mut c_void,
    ) -> c_int,
}

/// The record that `FI_GET_RAW_MR` fills.
#[repr(C)]
pub(crate) struct fi_mr_raw_attr {
    pub(crate) flags: u64,
    pub(crate) base_addr: *mut u64,
    pub(crate) raw_key: *mut u8,
    pub(crate) key_size: *mut usize,
}

/// The record that `FI_MAP_RAW_MR` reads; the key is not part of the record.
#[repr(C)]
pub(crate) struct fi_mr_map_raw {
    pub(crate) flags: u64,
    pub(crate) base_addr: u64,
    pub(crate) raw_key: *mut u8,
    pub(crate) key_size: usize,
    pub(crate) key: *mut u64,
}

#[repr(C)]
pub(crate) struct fid_mr {
    pub(crate) fid: fid,
    pub(crate) mem_desc: *mut c_void,
    pub(crate) key: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_av_attr {
    pub(crate) kind: c_int,
    pub(crate) rx_ctx_bits: c_int,
    pub(crate) count: usize,
    pub(crate) ep_per_node: usize,
    pub(crate) name: *const c_char,
    pub(crate) map_addr: *mut c_void,
    pub(crate) flags: u64,
}

#[repr(C)]
pub(crate) struct fid_av {
    pub(crate) fid: fid,
    pub(crate) ops: *mut fi_ops_av,
}

#[repr(C)]
pub(crate) struct fi_ops_av {
    pub(crate) size: usize,
    pub(crate) insert: unsafe extern "C" fn(
        *mut fid_av,
        *const c_void,
        usize,
        *mut u64,
        u64,
        *mut c_void,
    ) -> c_int,
    pub(crate) insertsvc: unused,
    pub(crate) insertsym: unused,
    pub(crate) remove: unsafe extern "C" fn(*mut fid_av, *mut u64, usize, u64) -> c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_cq_attr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) format: c_int,
    pub(crate) wait_obj: c_int,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_cond: c_int,
    pub(crate) wait_set: *mut c_void,
    /// Space that later versions read.
    pub(crate) spare: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_cq_data_entry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_cq_err_entry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) olen: usize,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
    /// Space that later versions write.
    pub(crate) spare: [u64; 8],
}

#[repr(C)]
pub(crate) struct fi_eq_attr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) wait_obj: c_int,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_set: *mut c_void,
    /// Space that later versions read.
    pub(crate) spare: [u64; 8],
}

#[repr(C)]
pub(crate) struct fi_eq_err_entry {
    pub(crate) fid: *mut fid,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
    /// Space that later versions write.
    pub(crate) spare: [u64; 8],
}

#[repr(C)]
pub(crate) struct fid_eq {
    pub(crate) fid: fid,
    pub(crate) ops: *mut fi_ops_eq,
}

#[repr(C)]
pub(crate) struct fi_ops_eq {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub(crate) readerr: unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize,
    pub(crate) write: unused,
    pub(crate) sread: unused,
    pub(crate) strerror: unsafe extern "C" fn(
        *mut fid_eq,
        c_int,
        *const c_void,
        *mut c_char,
        usize,
    ) -> *const c_char,
}

#[repr(C)]
pub(crate) struct fid_cq {
    pub(crate) fid: fid,
    pub(crate) ops: *mut fi_ops_cq,
}

#[repr(C)]
pub(crate) struct fi_ops_cq {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
    pub(crate) readfrom: unused,
    pub(crate) readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize,
    pub(crate) sread: unused,
    pub(crate) sreadfrom: unused,
    pub(crate) signal: unused,
    pub(crate) strerror: unsafe extern "C" fn(
        *mut fid_cq,
        c_int,
        *const c_void,
        *mut c_char,
        usize,
    ) -> *const c_char,
}

#[repr(C)]
pub(crate) struct fid_ep {
    pub(crate) fid: fid,
    pub(crate) ops: *mut fi_ops_ep,
    pub(crate) cm: *mut fi_ops_cm,
    pub(crate) msg: *mut fi_ops_msg,
    pub(crate) rma: *mut fi_ops_rma,
    pub(crate) tagged: unused,
    /// The table of atomics; null or unusable if atomics were not requested.
    pub(crate) atomic: *mut fi_ops_atomic,
}

#[repr(C)]
pub(crate) struct fi_ops_ep {
    pub(crate) size: usize,
    pub(crate) cancel: unused,
    pub(crate) getopt: unused,
    pub(crate) setopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *const c_void, usize) -> c_int,
}

#[repr(C)]
pub(crate) struct fi_ops_cm {
    pub(crate) size: usize,
    pub(crate) setname: unused,
    pub(crate) getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub(crate) struct fi_msg {
    pub(crate) msg_iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct fi_ops_msg {
    pub(crate) size: usize,
    pub(crate) recv: unused,
    pub(crate) recvv: unused,
    pub(crate) recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    pub(crate) send: unused,
    pub(crate) sendv: unused,
    pub(crate) sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
}

#[repr(C)]
pub(crate) struct fi_rma_iov {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_rma {
    pub(crate) msg_iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_iov: *const fi_rma_iov,
    pub(crate) rma_iov_count: usize,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct fi_ops_rma {
    pub(crate) size: usize,
    pub(crate) read: unused,
    pub(crate) readv: unused,
    pub(crate) readmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
    pub(crate) write: unused,
    pub(crate) writev: unused,
    pub(crate) writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
}

macro_rules! numbers {
    ($( $name:ident: $type:ty = $value:expr; )*) => {
        $( pub(crate) const $name: $type = $value; )*
        /// Every constant with its name in the headers, for `layout_tests.rs`.
        #[cfg(test)]
        pub(crate) const NUMBERS: &[(&str, u64)] = &[$( (stringify!($name), $name as u64), )*];
    };
}

numbers! {
    FI_MSG: u64 = 1 << 1;
    FI_RMA: u64 = 1 << 2;
    FI_ATOMIC: u64 = 1 << 4;
    FI_UINT32: c_int = 5;
    FI_UINT64: c_int = 7;
    FI_MIN: c_int = 0;
    FI_MAX: c_int = 1;
    FI_SUM: c_int = 2;
    FI_BOR: c_int = 6;
    FI_BAND: c_int = 7;
    FI_BXOR: c_int = 9;
    FI_ATOMIC_WRITE: c_int = 11;
    FI_CSWAP: c_int = 12;
    FI_READ: u64 = 1 << 8;
    FI_WRITE: u64 = 1 << 9;
    FI_RECV: u64 = 1 << 10;
    FI_SEND: u64 = 1 << 11;
    FI_REMOTE_READ: u64 = 1 << 12;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_MULTI_RECV: u64 = 1 << 16;
    FI_COMPLETION: u64 = 1 << 24;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_SOCKADDR: u32 = 1;
    FI_SOCKADDR_IN: u32 = 2;
    FI_SOCKADDR_IN6: u32 = 3;
    FI_SOCKADDR_IB: u32 = 4;
    FI_AV_MAP: c_int = 1;
    FI_AV_TABLE: c_int = 2;
    FI_MR_LOCAL: c_int = 1 << 2;
    FI_MR_RAW: c_int = 1 << 3;
    FI_MR_VIRT_ADDR: c_int = 1 << 4;
    FI_MR_ALLOCATED: c_int = 1 << 5;
    FI_MR_PROV_KEY: c_int = 1 << 6;
    FI_MR_MMU_NOTIFY: c_int = 1 << 7;
    FI_MR_RMA_EVENT: c_int = 1 << 8;
    FI_MR_ENDPOINT: c_int = 1 << 9;
    FI_MR_HMEM: c_int = 1 << 10;
    FI_MR_COLLECTIVE: c_int = 1 << 11;
    FI_MR_BASIC: c_int = 1;
    FI_MR_SCALABLE: c_int = 2;
    FI_PROGRESS_AUTO: c_int = 1;
    FI_PROGRESS_MANUAL: c_int = 2;
    FI_THREAD_SAFE: c_int = 1;
    FI_RM_ENABLED: c_int = 2;
    FI_ORDER_SAS: u64 = 1 << 8;
    FI_EP_RDM: c_int = 3;
    FI_CONTEXT: u64 = 1 << 59;
    FI_CONTEXT2: u64 = 1 << 52;
    FI_ASYNC_IOV: u64 = 1 << 57;
    FI_HMEM: u64 = 1 << 47;
    FI_GETWAIT: c_int = 5;
    FI_ENABLE: c_int = 6;
    FI_GET_RAW_MR: c_int = 8;
    FI_MAP_RAW_MR: c_int = 9;
    FI_UNMAP_KEY: c_int = 10;
    FI_WAIT_NONE: c_int = 0;
    FI_WAIT_FD: c_int = 3;
    FI_CQ_FORMAT_DATA: c_int = 3;
    FI_OPT_ENDPOINT: c_int = 0;
    FI_OPT_MIN_MULTI_RECV: c_int = 0;
    FI_EAGAIN: c_int = 11;
    FI_EAVAIL: c_int = 259;
    FI_ENOKEY: c_int = 266;
}

/// Encodes a version like `FI_VERSION(major, minor)`.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The API version of these layouts, and the oldest library that is used.
pub(crate) const API: u32 = version(1, 17);

/// The size of an operation's context, which the library may write to until the operation completes.
pub(crate) const CONTEXT_LEN: usize = 64;
