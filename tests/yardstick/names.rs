//! The differences in names between the declarations of the providers and those of the crates.

/// The names of one provider's declarations in the crate with which they are compared.
pub(crate) struct Names {
    /// The modules in the test, and their files below `providers/`.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// The records that have another name in the crate.
    pub(crate) records: &'static [(&'static str, &'static str)],
    /// The records of which the provider declares only the head, because it never makes one.
    pub(crate) heads: &'static [&'static str],
    /// The fields, as `record.field`, that have another name or place in the crate.
    pub(crate) fields: &'static [(&'static str, Field<'static>)],
    /// The paths of constants in the crate, by the beginning of the constant's name; `*` represents the name. The first match
    /// applies.
    pub(crate) constants: &'static [(&'static str, &'static str)],
    pub(crate) absent: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub(crate) enum Field<'n> {
    Is(&'n str),
    /// The first of several fields, which the provider declares as one: only the offset is compared.
    BeginsAt(&'n str),
    /// No field: padding, or space after the crate's record.
    Padding,
}

impl Names {
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static str> {
        let records = self.records.iter().map(|(name, _)| *name);
        let fields = self.fields.iter().map(|(name, _)| *name);
        records.chain(fields).chain(self.heads.iter().copied()).chain(self.absent.iter().copied())
    }
}

use Field::{BeginsAt, Is, Padding};

pub(crate) const VERBS: Names = Names {
    files: &[("abi", "verbs/src/abi.rs"), ("cm::abi", "verbs/src/cm/abi.rs")],
    records: &[
        ("wr_rdma", "rdma_t"),
        ("wr_atomic", "atomic_t"),
        ("wr_ud", "ud_t"),
        ("wr_target", "wr_t"),
        ("sockaddr_room", "src_addr_union_t"),
    ],
    heads: &[
        "ibv_ah",
        "ibv_context",
        "ibv_cq",
        "ibv_device",
        "ibv_qp",
        "ibv_srq",
        "rdma_cm_event",
        "rdma_cm_id",
    ],
    fields: &[
        ("ibv_context_ops.unused_0", BeginsAt("_compat_query_device")),
        ("ibv_context_ops.unused_13", BeginsAt("_compat_cq_event")),
        ("ibv_context_ops.unused_21", BeginsAt("_compat_create_qp")),
        ("ibv_context_ops.unused_27", BeginsAt("_compat_create_ah")),
        ("ibv_send_wr.imm_data", Is("imm_data_invalidated_rkey_union")),
        ("ibv_send_wr.rest", BeginsAt("qp_type")),
        ("ibv_srq_init_attr.max_sge", Is("attr.max_sge")),
        ("ibv_srq_init_attr.max_wr", Is("attr.max_wr")),
        ("ibv_srq_init_attr.srq_limit", Is("attr.srq_limit")),
        ("ibv_wc.imm_data", Is("imm_data_invalidated_rkey_union")),
        ("rdma_cm_event.conn", Is("param.conn")),
        ("rdma_cm_id.dst_addr", Is("route.addr.dst_addr_union")),
        ("rdma_cm_id.ib_addr", Is("route.addr.addr")),
        ("rdma_cm_id.num_paths", Is("route.num_paths")),
        ("rdma_cm_id.path_rec", Is("route.path_rec")),
        ("rdma_cm_id.route_end", Padding),
        ("rdma_cm_id.src_addr", Is("route.addr.src_addr_union")),
        ("sockaddr_room.bytes", Is("src_storage")),
    ],
    constants: &[
        ("IBV_ACCESS_", "ibv_access_flags::*.0"),
        ("IBV_ATOMIC_", "ibv_atomic_cap::*"),
        ("IBV_EVENT_", "ibv_event_type::*"),
        ("IBV_QPS_", "ibv_qp_state::*"),
        ("IBV_QPT_", "ibv_qp_type::*"),
        ("IBV_QP_", "ibv_qp_attr_mask::*.0"),
        ("IBV_SEND_", "ibv_send_flags::*.0"),
        ("IBV_WC_RECV_", "ibv_wc_opcode::*"),
        ("IBV_WC_WITH_", "ibv_wc_flags::*.0"),
        ("IBV_WC_", "ibv_wc_status::*"),
        ("IBV_WR_", "ibv_wr_opcode::*"),
        ("RDMA_CM_EVENT_", "rdma_cm_event_type::*"),
        ("RDMA_PS_", "rdma_port_space::*"),
    ],
    // The constants belong to enumerations without a name.
    absent: &[
        "IBV_LINK_LAYER_INFINIBAND",
        "IBV_LINK_LAYER_ETHERNET",
        "IBV_QPF_GRH_REQUIRED",
        "RDMA_OPTION_ID",
        "RDMA_OPTION_ID_TOS",
    ],
};

pub(crate) const LIBFABRIC: Names = Names {
    files: &[
        ("abi", "../integrations/libfabric-abi/src/atomic.rs"),
        ("abi", "../integrations/libfabric-abi/src/attributes.rs"),
        ("abi", "../integrations/libfabric-abi/src/endpoint.rs"),
        ("abi", "../integrations/libfabric-abi/src/numbers.rs"),
        ("abi", "../integrations/libfabric-abi/src/objects.rs"),
        ("abi", "../integrations/libfabric-abi/src/tables.rs"),
    ],
    records: &[],
    heads: &[
        "fi_domain_attr",
        "fi_mr_attr",
        "fi_ops",
        "fi_ops_av",
        "fi_ops_cm",
        "fi_ops_domain",
        "fi_ops_ep",
        "fi_ops_fabric",
        "fi_ops_mr",
        "fi_ops_msg",
        "fi_ops_rma",
        "fid_ep",
    ],
    fields: &[
        ("fi_av_attr.kind", Is("type_")),
        ("fi_cq_attr.spare", Padding),
        ("fi_cq_err_entry.spare", Padding),
        ("fi_domain_attr.data_progress", Is("__bindgen_anon_1.data_progress")),
        ("fi_ep_attr.kind", Is("type_")),
        ("fi_eq_attr.spare", Padding),
        ("fi_eq_err_entry.spare", Padding),
        ("fi_mr_attr.device", BeginsAt("device")),
        ("fi_mr_attr.mr_iov", Is("__bindgen_anon_1.mr_iov")),
    ],
    constants: &[
        ("FI_ATOMIC_READ", "fi_op_*"),
        ("FI_ATOMIC_WRITE", "fi_op_*"),
        ("FI_AV_", "fi_av_type_*"),
        ("FI_BAND", "fi_op_*"),
        ("FI_BOR", "fi_op_*"),
        ("FI_BXOR", "fi_op_*"),
        ("FI_CQ_COND_", "fi_cq_wait_cond_*"),
        ("FI_CQ_FORMAT_", "fi_cq_format_*"),
        ("FI_CSWAP", "fi_op_*"),
        ("FI_DOUBLE", "fi_datatype_*"),
        ("FI_EP_", "fi_ep_type_*"),
        ("FI_FLOAT", "fi_datatype_*"),
        ("FI_INT32", "fi_datatype_*"),
        ("FI_INT64", "fi_datatype_*"),
        ("FI_MAX", "fi_op_*"),
        ("FI_MIN", "fi_op_*"),
        ("FI_MSWAP", "fi_op_*"),
        ("FI_PROGRESS_", "fi_progress_*"),
        ("FI_RM_", "fi_resource_mgmt_*"),
        ("FI_SUM", "fi_op_*"),
        ("FI_THREAD_", "fi_threading_*"),
        ("FI_UINT", "fi_datatype_*"),
        ("FI_WAIT_", "fi_wait_obj_*"),
        ("FI_", "*"),
    ],
    // The first two constants contain a cast, and the others a pragma. bindgen evaluates neither within a macro.
    absent: &["FI_ADDR_UNSPEC", "FI_ADDR_NOTAVAIL", "FI_MR_BASIC", "FI_MR_SCALABLE"],
};
