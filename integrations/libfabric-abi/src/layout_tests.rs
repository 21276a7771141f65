//! Compares the declarations with the installed headers. The static assertions in C are generated from the tables below.

use super::numbers::NUMBERS;
use super::*;
use std::process::Command;

/// Lists `C expression = Rust value` for every field; `as` if C has another name for it.
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

/// Lists the records whose total size matters, because this provider makes them or reads arrays of them.
macro_rules! sizes {
    ($out:ident; $( $record:ident )*) => { $(
        $out.push((format!("sizeof(struct {})", stringify!($record)), size_of::<$record>() as u64));
    )* };
}

fn claims() -> Vec<(String, u64)> {
    let mut out: Vec<(String, u64)> = Vec::new();
    sizes!(out; fi_info fi_tx_attr fi_rx_attr fi_ep_attr fi_domain_attr fi_fabric_attr fi_av_attr fi_cq_data_entry fi_msg
        fi_rma_iov fi_msg_rma fi_ioc fi_rma_ioc fi_msg_atomic fi_mr_raw_attr fi_mr_map_raw fid fid_mr fid_av fid_cq fid_domain
        fi_msg_tagged fi_cntr_attr fid_cntr fi_cq_tagged_entry fi_mr_attr fi_atomic_attr fid_ep fi_provider fi_ops fi_ops_fabric
        fi_ops_domain fi_ops_mr fi_ops_av fi_ops_eq fi_ops_cq fi_ops_cntr fi_ops_ep fi_ops_cm fi_ops_msg fi_ops_tagged fi_ops_rma
        fi_ops_atomic fi_ops_collective);
    out.push(("sizeof(struct fi_context2)".into(), CONTEXT_LEN as u64));
    // The spare room is after the fields of the headers.
    let spare = core::mem::offset_of!(fi_cq_attr, spare) as u64;
    out.push(("sizeof(struct fi_cq_attr)".into(), spare));
    let spare = core::mem::offset_of!(fi_cq_err_entry, spare) as u64;
    out.push(("sizeof(struct fi_cq_err_entry)".into(), spare));
    let spare = core::mem::offset_of!(fi_eq_attr, spare) as u64;
    out.push(("sizeof(struct fi_eq_attr)".into(), spare));
    let spare = core::mem::offset_of!(fi_eq_err_entry, spare) as u64;
    out.push(("sizeof(struct fi_eq_err_entry)".into(), spare));
    fields!(out;
        fi_eq_attr { size, flags, wait_obj, signaling_vector, wait_set }
        fi_eq_err_entry { fid, context, data, err, prov_errno, err_data, err_data_size }
        fid_eq { fid, ops }
        fi_ops_eq { size, read, readerr, write, sread, strerror }
        fi_tx_attr { caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit, rma_iov_limit, tclass }
        fi_rx_attr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
        fi_ep_attr { kind as "type", protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
            max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key }
        fi_domain_attr { domain, name, threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode,
            mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx,
            max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key, auth_key_size, max_err_data,
            mr_cnt, tclass }
        fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
        fi_info { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle, tx_attr, rx_attr,
            ep_attr, domain_attr, fabric_attr, nic }
        fid { fclass, context, ops }
        fi_ops { size, close, bind, control, ops_open, tostr, ops_set }
        fid_fabric { fid, ops, api_version }
        fi_ops_fabric { size, domain, passive_ep, eq_open, wait_open, trywait, domain2 }
        fid_domain { fid, ops, mr }
        fi_ops_domain { size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx, query_atomic,
            query_collective, endpoint2 }
        fi_ops_mr { size, reg, regv, regattr }
        fi_mr_raw_attr { flags, base_addr, raw_key, key_size }
        fi_mr_map_raw { flags, base_addr, raw_key, key_size, key }
        fid_mr { fid, mem_desc, key }
        fi_av_attr { kind as "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        fid_av { fid, ops }
        fi_ops_av { size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set }
        fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        fi_cq_data_entry { op_context, flags, len, buf, data }
        fi_cq_err_entry { op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size }
        fid_cq { fid, ops }
        fi_ops_cq { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        fid_ep { fid, ops, cm, msg, rma, tagged, atomic, collective }
        fi_ops_ep { size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
        fi_ops_cm { size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join }
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
        fi_ops_msg { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        fi_rma_iov { addr, len, key }
        fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        fi_ops_rma { size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata }
        fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
        fi_ops_tagged { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        fi_cntr_attr { events, wait_obj, wait_set, flags }
        fid_cntr { fid, ops }
        fid_poll { fid, ops }
        fi_ops_poll { size, poll, poll_add, poll_del }
        fi_ops_cntr { size, read, readerr, add, set, wait, adderr, seterr }
        fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
        fi_mr_attr { mr_iov, iov_count, access, offset, requested_key, context, auth_key_size, auth_key, iface, device }
        fi_ops_collective { size, barrier, broadcast, alltoall, allreduce, allgather, reduce_scatter, reduce, scatter, gather,
            msg, barrier2 }
        fi_provider { version, fi_version, context, name, getinfo, fabric, cleanup }
        fi_atomic_attr { count, size }
        fi_ioc { addr, count }
        fi_rma_ioc { addr, count, key }
        fi_msg_atomic { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data }
        fi_ops_atomic { size, write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite, compwritev,
            compwritemsg, writevalid, readwritevalid, compwritevalid }
    );
    out.extend(NUMBERS.iter().map(|&(name, value)| (name.to_string(), value)));
    out.push(("FI_VERSION(1, 17)".into(), u64::from(API)));
    out
}

#[test]
fn records_and_numbers_are_those_of_the_installed_headers() {
    if !std::path::Path::new("/usr/include/rdma/fabric.h").exists() {
        println!("skipped: /usr/include/rdma/fabric.h is not installed (libfabric-dev)");
        return;
    }
    let folder =
        std::env::temp_dir().join(format!("tieline-libfabric-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut text = String::from("#include <stddef.h>\n");
    for header in [
        "fabric",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_rma",
        "fi_atomic",
        "fi_cm",
        "fi_errno",
        "fi_tagged",
        "fi_collective",
        "providers/fi_prov",
    ] {
        text.push_str(&format!("#include <rdma/{header}.h>\n"));
    }
    // The headers of 2.x have longer records; the earlier fields keep their offsets.
    for (expression, ours) in claims() {
        let relation = if expression.starts_with("sizeof") { ">=" } else { "==" };
        let exact = format!(
            "_Static_assert((unsigned long long)({expression}) {relation} {ours}ULL, \
             \"the declaration says {ours}\");\n"
        );
        text.push_str(&exact);
        if relation == ">=" {
            text.push_str(&format!(
                "#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION <= 17\n_Static_assert(({expression}) == {ours}ULL, \
                 \"the declaration says {ours}\");\n#endif\n"
            ));
        }
    }
    let source = folder.join("layout.c");
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-std=c11", "-w", "-fsyntax-only"]).arg(&source).output();
    let _ = std::fs::remove_dir_all(&folder);
    match built {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => println!("skipped: cc cannot be run: {error}"),
    }
}
