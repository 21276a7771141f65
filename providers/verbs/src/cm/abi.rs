//! The librdmacm records that this module uses, written by hand from `rdma/rdma_cma.h` (rdma-core). `layout_tests.rs` compares them
//! with the installed headers. A record that only the library allocates is declared without the unused fields at its end.

#![allow(non_camel_case_types)]

use crate::abi::{ibv_context, numbers};
use core::ffi::{c_int, c_uint, c_void};

/// A buffer for an address of any family, with the alignment of `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct sockaddr_room {
    pub(crate) bytes: [u8; 128],
}

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

/// The part of `struct rdma_cm_id` up to and including `port_num`, with the fields of its `route` inline.
#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut c_void,
    pub(crate) src_addr: sockaddr_room,
    pub(crate) dst_addr: sockaddr_room,
    /// `route.addr.addr.ibaddr`: two GIDs and a partition key.
    pub(crate) ib_addr: [u64; 5],
    pub(crate) path_rec: *mut c_void,
    pub(crate) num_paths: c_int,
    /// The padding that ends `route`, which is a record of its own and ends aligned.
    pub(crate) route_end: u32,
    pub(crate) ps: c_uint,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `struct rdma_cm_event`, with the connection variant of its union.
#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: c_uint,
    pub(crate) status: c_int,
    pub(crate) conn: rdma_conn_param,
}

numbers! {
    RDMA_PS_TCP = 0x0106;
    RDMA_CM_EVENT_ADDR_RESOLVED = 0;
    RDMA_CM_EVENT_ADDR_ERROR = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2;
    RDMA_CM_EVENT_ROUTE_ERROR = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST = 4;
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5;
    RDMA_CM_EVENT_CONNECT_ERROR = 6;
    RDMA_CM_EVENT_UNREACHABLE = 7;
    RDMA_CM_EVENT_REJECTED = 8;
    RDMA_CM_EVENT_DISCONNECTED = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11;
    RDMA_OPTION_ID = 0;
    RDMA_OPTION_ID_TOS = 0;
}
