//! Compares `abi.rs` with the installed headers: a C program prints sizes, offsets and numbers. The file `records.c` has the same
//! comparison as static assertions, for other versions of the headers.

use crate::abi::*;
use std::process::Command;

/// Lists `C expression = value in Rust` for the given fields.
macro_rules! fields {
    ($out:ident; $( $record:ident { $( $field:ident $(as $c:literal)? ),* $(,)? } )*) => { $( $(
        $out.push((
            format!("offsetof(struct {}, {})", stringify!($record), fields!(@name $field $($c)?)),
            core::mem::offset_of!($record, $field) as u64,
        ));
    )* )* };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $c:literal) => { $c };
}
pub(crate) use fields;

/// Lists the records whose total size matters, because this code allocates them or the library fills them.
macro_rules! sizes {
    ($out:ident; $( $record:ident )*) => { $(
        $out.push((format!("sizeof(struct {})", stringify!($record)), size_of::<$record>() as u64));
    )* };
}
pub(crate) use sizes;

pub(crate) fn claims() -> Vec<(String, u64)> {
    let mut out: Vec<(String, u64)> = Vec::new();
    sizes!(out; ibv_device_attr ibv_async_event ibv_wc ibv_mr ibv_global_route ibv_ah_attr ibv_srq_init_attr
        ibv_qp_cap ibv_qp_init_attr ibv_qp_attr ibv_sge ibv_send_wr ibv_recv_wr ibv_comp_channel ibv_context_ops
        ibv_port_attr);
    out.push(("sizeof(union ibv_gid)".to_string(), size_of::<ibv_gid>() as u64));
    out.push(("_Alignof(union ibv_gid)".to_string(), align_of::<ibv_gid>() as u64));
    fields!(out;
        ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd,
            max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap,
            max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
            local_ca_ack_delay, phys_port_cnt }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply,
            active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        ibv_async_event { element, event_type }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid,
            sl, dlid_path_bits }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_srq_init_attr { srq_context, max_wr as "attr.max_wr", max_sge as "attr.max_sge",
            srq_limit as "attr.srq_limit" }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num,
            alt_timeout, rate_limit }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, rest as "qp_type" }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_srq { context }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe }
        ibv_ah { context }
        ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
    );
    let in_wr = |member: &str| {
        format!("offsetof(struct ibv_send_wr, wr.{member}) - offsetof(struct ibv_send_wr, wr)")
    };
    for (member, offset) in [
        ("rdma.remote_addr", core::mem::offset_of!(wr_rdma, remote_addr)),
        ("rdma.rkey", core::mem::offset_of!(wr_rdma, rkey)),
        ("atomic.remote_addr", core::mem::offset_of!(wr_atomic, remote_addr)),
        ("atomic.compare_add", core::mem::offset_of!(wr_atomic, compare_add)),
        ("atomic.swap", core::mem::offset_of!(wr_atomic, swap)),
        ("atomic.rkey", core::mem::offset_of!(wr_atomic, rkey)),
        ("ud.ah", core::mem::offset_of!(wr_ud, ah)),
        ("ud.remote_qpn", core::mem::offset_of!(wr_ud, remote_qpn)),
        ("ud.remote_qkey", core::mem::offset_of!(wr_ud, remote_qkey)),
    ] {
        out.push((in_wr(member), offset as u64));
    }
    out.extend(NUMBERS.iter().map(|&(name, value)| (name.to_string(), u64::from(value))));
    out
}

#[test]
fn records_and_numbers_match_installed_headers() {
    compare("infiniband/verbs.h", "libibverbs-dev", &claims());
}

#[test]
fn c_assertions_match_the_tables() {
    let mut text = String::from(
        "/* The records and numbers of src/abi.rs and src/cm/abi.rs as assertions, generated by a test. It compiles only if the\n \
         * installed headers of rdma-core agree: cc -fsyntax-only records.c */\n\
         #include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <stddef.h>\n\n",
    );
    for (expression, value) in claims().into_iter().chain(crate::cm::layout_claims()) {
        let about = expression.replace('"', "");
        text.push_str(&format!("_Static_assert(({expression}) == {value}u, \"{about}\");\n"));
    }
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("records.c");
    if std::fs::read_to_string(&file).unwrap_or_default() != text {
        let fresh = std::env::temp_dir().join(format!("tieline-records-{}.c", std::process::id()));
        std::fs::write(&fresh, text).unwrap();
        panic!("records.c is stale: mv {} {}", fresh.display(), file.display());
    }
}

/// Compares the values with those that a C program prints, which includes `header`. Skips the comparison without the header or a
/// compiler.
pub(crate) fn compare(header: &str, package: &str, claims: &[(String, u64)]) {
    if !std::path::Path::new("/usr/include").join(header).exists() {
        println!("skipped: /usr/include/{header} is not installed ({package})");
        return;
    }
    let name = format!("tieline-{package}-layout-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let mut text = format!(
        "#include <{header}>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n"
    );
    for (expression, _) in claims {
        text.push_str(&format!("  printf(\"%llu\\n\", (unsigned long long)({expression}));\n"));
    }
    text.push_str("  return 0;\n}\n");
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&source).output();
    let built = match built {
        Ok(built) => built,
        Err(error) => {
            let _ = std::fs::remove_dir_all(&folder);
            println!("skipped: cc cannot be run: {error}");
            return;
        }
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let numbers: Vec<u64> =
        String::from_utf8_lossy(&ran.stdout).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), claims.len());
    let wrong: Vec<String> = claims
        .iter()
        .zip(numbers)
        .filter(|((_, ours), theirs)| ours != theirs)
        .map(|((expression, ours), theirs)| format!("{expression}: abi.rs {ours}, header {theirs}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
