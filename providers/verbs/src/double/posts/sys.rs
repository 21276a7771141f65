//! The double's functions for posting.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::sys::bytes_at;
use crate::double::world::{Send, world};
use core::ffi::c_int;

/// # Safety
/// `wr` is a chain of filled records, and `bad` takes the first request that is not accepted.
unsafe fn post_receives(
    queue: usize,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    world(|world| {
        world.counts.receive_calls += 1;
        while !wr.is_null() {
            let refused = world.refuses_receive(queue);
            if refused != 0 {
                // SAFETY: the caller guarantees the out-pointer.
                unsafe { *bad = wr };
                return refused;
            }
            // SAFETY: by this function's contract; every receive of this provider has one piece.
            let (id, piece, next) = unsafe { ((*wr).wr_id, *(*wr).sg_list, (*wr).next) };
            world.receives.entry(queue).or_default().push_back((id, piece));
            world.counts.receives += 1;
            wr = next;
        }
        world.run();
        0
    })
}

pub(in crate::double) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller guarantees the chain.
    unsafe { post_receives(srq.addr(), wr, bad) }
}

pub(in crate::double) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller guarantees the chain.
    unsafe { post_receives(qp.addr(), wr, bad) }
}

pub(in crate::double) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    world(|world| world.counts.send_calls += 1);
    // SAFETY: `wr` is null or a filled record; the queue pair is live, and `bad` takes the first request that is not accepted.
    unsafe {
        while let Some(next) = wr.as_ref() {
            let code = post_one((*qp).qp_num, next);
            if code != 0 {
                *bad = wr;
                return code;
            }
            wr = next.next;
        }
    }
    0
}

fn post_one(qpn: u32, wr: &ibv_send_wr) -> c_int {
    let pieces: Vec<ibv_sge> = (0..wr.num_sge as usize)
        // SAFETY: the request has the stated number of pieces.
        .map(|at| unsafe { *wr.sg_list.add(at) })
        .collect();
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    let readable = |piece: &ibv_sge| world(|world| world.touchable(piece.addr, piece.length));
    assert!(!inline || pieces.iter().all(readable), "the processor reads a device's memory");
    let first = world(|world| world.nature.inlines_first);
    let copied = inline.then(|| {
        let taken = if first { &pieces[..pieces.len().min(1)] } else { &pieces[..] };
        taken.iter().flat_map(|piece| bytes_at(piece.addr, piece.length)).copied().collect()
    });
    world(|world| {
        if world.faults.refuses_send() {
            return world.faults.refuse_sends;
        }
        let Some(pair) = world.pairs.get_mut(&qpn) else { return libc::EINVAL };
        if matches!(pair.attr.qp_state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR) {
            return libc::EINVAL;
        }
        let reads = world.nature.pieces_read as usize;
        let too_many = wr.opcode == IBV_WR_RDMA_READ && reads > 0 && pieces.len() > reads;
        if too_many || pieces.len() > pair.pieces {
            return libc::EINVAL;
        }
        if pair.waiting.len() >= pair.depth {
            return libc::ENOMEM;
        }
        if inline && pieces.iter().map(|piece| piece.length).sum::<u32>() > pair.inline {
            return libc::EINVAL;
        }
        // SAFETY: the opcode selects the valid variant of the three, and all variants are plain numbers.
        let (target, operands) = unsafe {
            match wr.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let atomic = wr.wr.atomic;
                    ((atomic.remote_addr, atomic.rkey), (atomic.compare_add, atomic.swap))
                }
                _ if pair.datagrams => ((0, wr.wr.ud.remote_qpn), (0, 0)),
                _ => ((wr.wr.rdma.remote_addr, wr.wr.rdma.rkey), (0, 0)),
            }
        };
        pair.waiting.push_back(Send {
            id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm: wr.imm_data,
            pieces,
            copied,
            target,
            operands,
        });
        world.counts.sends += 1;
        world.counts.inline += usize::from(inline);
        world.counts.fenced += usize::from(wr.send_flags & IBV_SEND_FENCE != 0);
        world.counts.signalled += usize::from(wr.send_flags & IBV_SEND_SIGNALED != 0);
        world.run();
        0
    })
}
