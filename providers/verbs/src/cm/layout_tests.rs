//! Compares the records of librdmacm with the installed headers.

use super::abi::*;
use crate::layout_tests::{compare, fields, sizes};

pub(crate) fn claims() -> Vec<(String, u64)> {
    let mut claims: Vec<(String, u64)> = Vec::new();
    sizes!(claims; rdma_event_channel rdma_conn_param);
    claims.push(("sizeof(struct sockaddr_storage)".into(), size_of::<sockaddr_room>() as u64));
    claims.push(("_Alignof(struct sockaddr_storage)".into(), align_of::<sockaddr_room>() as u64));
    fields!(claims;
        rdma_event_channel { fd }
        rdma_cm_id { verbs, channel, context, qp, src_addr as "route.addr.src_addr", dst_addr as "route.addr.dst_addr",
            ib_addr as "route.addr.addr", path_rec as "route.path_rec", num_paths as "route.num_paths", ps, port_num }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num }
        rdma_cm_event { id, listen_id, event, status, conn as "param.conn" }
    );
    claims.extend(NUMBERS.iter().map(|&(name, value)| (name.to_string(), u64::from(value))));
    claims
}

#[test]
fn connection_manager_records_match_installed_headers() {
    compare("rdma/rdma_cma.h", "librdmacm-dev", &claims());
}
