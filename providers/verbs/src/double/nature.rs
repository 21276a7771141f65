//! Driver differences: the switches of the device double, and the adapters made from them.
//!
//! Most switches name their source: rdma-core at 691953d8 (the user-space driver), or the kernel driver by file and function. If a
//! device reports a difference in its attributes, the double does, too. A call that the device does not support fails in the
//! double. The other differences change the double's behaviour.

use super::world::world;
use crate::abi::{IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND};
use core::ffi::c_int;

/// The properties of an adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nature {
    pub(crate) name: &'static str,
    /// The kernel driver of the parent device.
    pub(crate) driver: &'static str,
    /// Whether an inline send from several pieces copies only the first one: irdma before rdma-core 44 (providers/irdma/uk.c,
    /// irdma_uk_inline_send and irdma_uk_inline_rdma_write take one address and one length).
    pub(crate) inlines_first: bool,
    /// Whether a reset or destroyed queue pair loses its unread completions: mlx5 (providers/mlx5/verbs.c:3024 and 3358), mlx4
    /// (providers/mlx4/verbs.c:1188 and 1276), hns (providers/hns/hns_roce_u_hw_v2.c:1676), bnxt_re
    /// (providers/bnxt_re/verbs.c:2242), irdma (providers/irdma/uverbs.c:1765, which blanks them). Not: rxe, efa, mana, which have
    /// no such function.
    pub(crate) purges: bool,
    /// Whether a queue pair in ERR with shared receives reports its last receive: mlx5 (drivers/infiniband/hw/mlx5/qp.c,
    /// MLX5_EVENT_TYPE_SRQ_LAST_WQE), hns (hns_roce_qp.c, HNS_ROCE_EVENT_TYPE_SRQ_LAST_WQE_REACH), bnxt_re (main.c,
    /// bnxt_re_handle_qp_async_event). rxe of kernels before 6.5 never does (drivers/infiniband/sw/rxe/rxe_qp.c, rxe_qp_error).
    pub(crate) says_last: bool,
    /// The number of receives that a connection has prefetched from a shared queue when it ends. The connection flushes these
    /// receives.
    pub(crate) ahead: usize,
    /// Whether the device has shared receive queues. Not: efa, erdma, mana, ionic (no create_srq in providers/*/;
    /// libibverbs/dummy_ops.c:229 answers), irdma on E810 (drivers/infiniband/hw/irdma/verbs.c, irdma_create_srq needs a feature of
    /// the third generation).
    pub(crate) shares_receives: bool,
    /// Whether completion queues can be resized. Not: hns, qedr, cxgb4, siw, mana, erdma, efa, ionic (no resize_cq in providers/*/;
    /// libibverbs/dummy_ops.c:622 answers).
    pub(crate) resizes: bool,
    /// The maximum number of inline bytes; creating a queue pair with more fails. irdma: 101 on E810, 48 before
    /// (providers/irdma/uverbs.c:1553); erdma: 96 (providers/erdma/erdma_hw.h:74).
    pub(crate) inline: u32,
    /// The maximum number of pieces of a send, and of a read: irdma has 13, and as few as 2 on earlier devices
    /// (drivers/infiniband/hw/irdma/verbs.c, irdma_query_device: max_sge_rd); erdma 6 and 1 (providers/erdma/erdma_hw.h,
    /// ERDMA_MAX_SEND_SGE).
    pub(crate) pieces: c_int,
    pub(crate) pieces_read: c_int,
    pub(crate) link_layer: u32,
    /// Whether every packet needs a global routing header: InfiniBand ports with IBV_QPF_GRH_REQUIRED (libibverbs/verbs.h).
    pub(crate) needs_grh: bool,
    /// The port's MTU code.
    pub(crate) mtu: u32,
}

impl Default for Nature {
    fn default() -> Nature {
        MLX5
    }
}

/// The adapter that serves as the base for the descriptions of all others.
pub(crate) const MLX5: Nature = Nature {
    name: "mlx5",
    driver: "mlx5_core",
    inlines_first: false,
    purges: true,
    says_last: true,
    ahead: 0,
    shares_receives: true,
    resizes: true,
    inline: 256,
    pieces: 16,
    pieces_read: 0,
    link_layer: IBV_LINK_LAYER_ETHERNET,
    needs_grh: false,
    mtu: 5,
};

/// The adapters under test. They list only their differences from [`MLX5`].
pub(crate) const ADAPTERS: &[Nature] = &[
    Nature { ahead: 3, pieces_read: 30, ..MLX5 },
    Nature {
        name: "mlx5 on InfiniBand",
        ahead: 2,
        pieces_read: 30,
        link_layer: IBV_LINK_LAYER_INFINIBAND,
        ..MLX5
    },
    Nature {
        name: "InfiniBand that needs global headers",
        link_layer: IBV_LINK_LAYER_INFINIBAND,
        needs_grh: true,
        mtu: 4,
        ..MLX5
    },
    Nature { name: "mlx4", ahead: 1, inline: 1024, mtu: 4, ..MLX5 },
    Nature {
        name: "irdma, E810",
        driver: "ice",
        inlines_first: true,
        shares_receives: false,
        inline: 101,
        pieces: 13,
        pieces_read: 13,
        ..MLX5
    },
    Nature {
        // The limits of X722, although X722 itself supports only iWARP.
        name: "few pieces",
        driver: "i40e",
        inlines_first: true,
        shares_receives: false,
        inline: 48,
        pieces: 3,
        pieces_read: 1,
        ..MLX5
    },
    Nature { name: "bnxt_re", ahead: 2, inline: 96, pieces: 6, pieces_read: 6, ..MLX5 },
    Nature { name: "hns", resizes: false, inline: 64, pieces: 6, ..MLX5 },
    Nature { name: "qedr", resizes: false, purges: false, pieces: 4, pieces_read: 4, ..MLX5 },
    Nature {
        // The limits are those of mana, which the provider refuses for other reasons.
        name: "no shared receives, no resize, nothing inline",
        purges: false,
        shares_receives: false,
        resizes: false,
        inline: 0,
        pieces: 8,
        pieces_read: 8,
        ..MLX5
    },
    Nature { name: "rxe", purges: false, inline: 400, pieces: 32, pieces_read: 32, mtu: 3, ..MLX5 },
    Nature { name: "rxe before 6.5", purges: false, says_last: false, ahead: 1, mtu: 3, ..MLX5 },
    Nature { name: "no two things that others have", resizes: false, says_last: false, ..MLX5 },
];

/// Sets the adapter type of this thread's devices.
pub(crate) fn play(nature: Nature) {
    world(|world| world.nature = nature);
}
