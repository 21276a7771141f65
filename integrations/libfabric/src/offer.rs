//! The answer to `fi_getinfo`: one entry of type RDM, or nothing.

use crate::address::ADDRESS_LEN;
use tieline_libfabric_abi::*;

/// The largest message of `fi_inject` and its variants.
pub(crate) const INJECT: usize = 4096;
/// The most pieces of local memory of one operation.
pub(crate) const PIECES: usize = 8;
/// The longest message, put and get.
pub(crate) const LONGEST: usize = 1 << 40;

/// The flags of an operation that are not offered: the operation would not do what they say.
pub(crate) const REFUSED: u64 = FI_FENCE | FI_TRIGGER;

const BOTH: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
pub(crate) const TX: u64 = BOTH | FI_SEND | FI_READ | FI_WRITE;
pub(crate) const RX: u64 = BOTH
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_RMA_EVENT;
pub(crate) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const ALL: u64 = TX | RX | DOMAIN;
const TX_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;
const RX_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

/// The order that is kept: messages of an endpoint to a peer arrive in order, and so do atomics among each other.
pub(crate) const ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

/// The number of objects, and of operations in flight, that the answer states.
pub(crate) const MANY: usize = 1024;

/// The attributes of the transmit or the receive side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pub(crate) caps: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) inject: usize,
    pub(crate) buffered: usize,
    pub(crate) pieces: usize,
    pub(crate) remote_pieces: usize,
}

/// The attributes that an application asks for: 0 for those that it leaves open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    pub(crate) caps: u64,
    pub(crate) is_address_format_open: bool,
    pub(crate) has_foreign_address: bool,
    pub(crate) tx: Side,
    pub(crate) rx: Side,
    pub(crate) endpoint: i32,
    pub(crate) protocol: u32,
    pub(crate) longest: usize,
    pub(crate) contexts: usize,
    pub(crate) order_sizes: usize,
    pub(crate) auth_keys: usize,
    pub(crate) is_other_fabric: bool,
    pub(crate) threading: i32,
    pub(crate) control_progress: i32,
    pub(crate) data_progress: i32,
    pub(crate) av_type: i32,
    pub(crate) mr_mode: i32,
    pub(crate) key_size: usize,
    pub(crate) cq_data_size: usize,
    pub(crate) memory_pieces: usize,
    pub(crate) domain_caps: u64,
}

/// The attributes that depend on the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) caps: u64,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) threading: i32,
    pub(crate) control_progress: i32,
    pub(crate) data_progress: i32,
    pub(crate) av_type: i32,
    pub(crate) mr_mode: i32,
}

/// Adds the modifiers of capabilities that were requested without any: all of them.
fn with_modifiers(mut caps: u64) -> u64 {
    let accesses = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & accesses == 0 {
        caps |= accesses;
    }
    if caps & (FI_MSG | FI_TAGGED) != 0 && caps & (FI_SEND | FI_RECV) == 0 {
        caps |= FI_SEND | FI_RECV;
    }
    caps
}

fn fits_tx(tx: &Side) -> bool {
    tx.caps & !(TX | DOMAIN) == 0
        && tx.op_flags & !TX_FLAGS == 0
        && tx.msg_order & !ORDER == 0
        && tx.comp_order == 0
        && tx.inject <= INJECT
        && tx.pieces <= PIECES
        && tx.remote_pieces <= 1
}

fn fits_rx(rx: &Side) -> bool {
    rx.caps & !(RX | DOMAIN) == 0
        && rx.op_flags & !RX_FLAGS == 0
        && rx.msg_order & !ORDER == 0
        && rx.comp_order == 0
        && rx.buffered == 0
        && rx.pieces <= PIECES
}

/// Answers a question; `None` if the provider does not offer what it asks for. `version` is the version of the interface.
pub(crate) fn answer(hints: Option<&Hints>, api: u32) -> Option<Offer> {
    let none = Hints { is_address_format_open: true, ..Hints::default() };
    let asked = hints.unwrap_or(&none);
    // Layered providers ask for MSG and DGRAM endpoints for their own use, so these are refused first.
    if asked.endpoint != FI_EP_UNSPEC && asked.endpoint != FI_EP_RDM {
        return None;
    }
    let fits = asked.caps & !ALL == 0
        && asked.is_address_format_open
        && !asked.has_foreign_address
        && fits_tx(&asked.tx)
        && fits_rx(&asked.rx)
        && asked.protocol == FI_PROTO_UNSPEC
        && asked.longest <= LONGEST
        && asked.contexts <= 1
        && asked.order_sizes == 0
        && asked.auth_keys == 0
        && !asked.is_other_fabric
        && asked.key_size <= 8
        && asked.cq_data_size <= 8
        && asked.memory_pieces <= 1
        && asked.domain_caps & !DOMAIN == 0;
    if !fits {
        return None;
    }
    let open = |value: i32, else_: i32| if value == 0 { else_ } else { value };
    Some(Offer {
        caps: with_modifiers(if asked.caps == 0 { ALL } else { asked.caps }) | DOMAIN,
        tx_flags: asked.tx.op_flags,
        rx_flags: asked.rx.op_flags,
        threading: open(asked.threading, FI_THREAD_DOMAIN),
        control_progress: progress(asked.control_progress),
        data_progress: progress(asked.data_progress),
        av_type: asked.av_type,
        mr_mode: mr_mode(asked.mr_mode, api),
    })
}

fn progress(asked: i32) -> i32 {
    if asked == FI_PROGRESS_AUTO { FI_PROGRESS_AUTO } else { FI_PROGRESS_MANUAL }
}

/// Returns the demands on registered memory: none that the application has not offered. Remote addresses are offsets, and the keys
/// those of the application, except for the old basic mode, and in a domain that is opened with other bits. Some applications use
/// keys of the provider only together with virtual addresses, so one of these bits alone would be an answer that they do not expect.
fn mr_mode(offered: i32, api: u32) -> i32 {
    if offered & FI_MR_BASIC != 0 {
        return FI_MR_BASIC;
    }
    if offered & FI_MR_SCALABLE != 0 || (offered == 0 && api < version(1, 5)) {
        return FI_MR_SCALABLE;
    }
    offered & FI_MR_ALLOCATED
}

/// Checks whether a length is that of this provider's addresses.
pub(crate) fn is_address(len: usize) -> bool {
    len == ADDRESS_LEN
}

#[cfg(test)]
mod tests {
    use super::{ALL, Hints, answer};
    use tieline_libfabric_abi::*;

    fn hints() -> Hints {
        Hints { is_address_format_open: true, ..Hints::default() }
    }

    #[test]
    fn question_without_hints_gets_every_capability() {
        let offer = answer(None, API).unwrap();
        assert_eq!(offer.caps, ALL);
        assert_eq!((offer.threading, offer.data_progress), (FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL));
        assert_eq!(offer.mr_mode, 0);
    }

    #[test]
    fn message_and_datagram_endpoints_are_refused() {
        for endpoint in [1, 2, 4, 5] {
            assert_eq!(answer(Some(&Hints { endpoint, ..hints() }), API), None);
        }
        assert!(answer(Some(&Hints { endpoint: FI_EP_RDM, ..hints() }), API).is_some());
    }

    #[test]
    fn returned_memory_modes_are_among_the_offered_ones() {
        let of = |mr_mode, api| answer(Some(&Hints { mr_mode, ..hints() }), api).unwrap().mr_mode;
        let offered = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        assert_eq!(of(offered, API), FI_MR_ALLOCATED);
        assert_eq!(of(FI_MR_PROV_KEY, API), 0);
        assert_eq!(of(FI_MR_ENDPOINT, API), 0);
        assert_eq!(of(FI_MR_BASIC, API), FI_MR_BASIC);
        assert_eq!(of(0, version(1, 4)), FI_MR_SCALABLE);
        assert_eq!(of(FI_MR_BASIC | FI_MR_LOCAL, version(1, 4)), FI_MR_BASIC);
        assert_eq!(of(FI_MR_SCALABLE | FI_MR_LOCAL, API), FI_MR_SCALABLE);
    }

    #[test]
    fn each_capability_is_offered_or_refused() {
        // The bits of memory of devices, triggered operations, collectives and all others that no list of this module has.
        for bit in 0..64 {
            let caps = FI_MSG | 1 << bit;
            let offer = answer(Some(&Hints { caps, ..hints() }), API);
            assert_eq!(offer.is_some(), caps & !ALL == 0, "bit {bit}");
        }
        for refused in [FI_HMEM, FI_TRIGGER, FI_COLLECTIVE, FI_FENCE] {
            assert_eq!(answer(Some(&Hints { caps: FI_MSG | refused, ..hints() }), API), None);
        }
    }

    #[test]
    fn each_order_is_offered_or_refused() {
        let kept = [8, 36, 37, 38, 39];
        for bit in 0..64 {
            let (mut tx, mut rx) = (hints(), hints());
            (tx.tx.msg_order, rx.rx.msg_order) = (1 << bit, 1 << bit);
            for side in [tx, rx] {
                assert_eq!(answer(Some(&side), API).is_some(), kept.contains(&bit), "bit {bit}");
            }
        }
        let mut strict = hints();
        strict.tx.comp_order = 1;
        assert_eq!(answer(Some(&strict), API), None);
        let sizes = Hints { order_sizes: 1, ..hints() };
        assert_eq!(answer(Some(&sizes), API), None);
    }

    #[test]
    fn several_contexts_of_an_endpoint_are_refused() {
        assert_eq!(answer(Some(&Hints { contexts: 2, ..hints() }), API), None);
        assert_eq!(answer(Some(&Hints { contexts: usize::MAX, ..hints() }), API), None);
        assert!(answer(Some(&Hints { contexts: 1, ..hints() }), API).is_some());
    }

    #[test]
    fn modifiers_are_added_only_where_none_was_requested() {
        let of =
            |caps| answer(Some(&Hints { caps, ..hints() }), API).unwrap().caps & !super::DOMAIN;
        assert_eq!(of(FI_MSG), FI_MSG | FI_SEND | FI_RECV);
        assert_eq!(of(FI_MSG | FI_RECV), FI_MSG | FI_RECV);
        assert_eq!(of(FI_RMA | FI_WRITE), FI_RMA | FI_WRITE);
    }
}
