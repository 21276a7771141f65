//! The connection-only module `rdmacm`: datagrams that form connections, over connections of the RDMA connection manager.
#![allow(dead_code)]

mod abi;
mod address;
mod book;
mod connector;
mod credits;
mod dial;
mod frame;
#[cfg(test)]
mod layout_tests;
mod load;
mod net;
mod places;
mod sys;
mod wire;

pub use connector::RdmaCm;

use tieline_plugin_api::abi::{Cost, ModuleAttr, fixed};
use tieline_plugin_api::{caps, connects, cost_class, role};

/// Name of the module.
pub const RDMACM: &str = "rdmacm";

/// The longest datagram.
const MAX_DATAGRAM: usize = 16 << 10;
/// Bytes of a buffer, and so of the longest frame.
const BUFFER: usize = 4 << 10;
/// Buffers that a connection receives into. Both sides have the same, so it belongs to the version of the address.
const WINDOW: u8 = 8;
/// Sends of one connection on the way.
const DEPTH: usize = 16;
/// What a dialler says it wants: to exchange datagrams. The payload is its own address.
const PURPOSE: u8 = 2;

/// What the module says of itself.
pub(crate) fn attributes() -> ModuleAttr {
    let mut attr = ModuleAttr {
        name: fixed(RDMACM),
        role: role::CONNECTION_ONLY,
        connects: connects::TO_INTERFACE,
        caps: caps::PEER_FAILURE | caps::EVENT_FD | caps::NEEDS_POLL | caps::SLOW_POLL,
        priority: 5,
        max_address_len: address::MAX_LEN as u32,
        max_datagram: MAX_DATAGRAM as u32,
        reliable: 1,
        ..ModuleAttr::empty()
    };
    attr.cost[cost_class::SMALL_MESSAGE] =
        Cost { overhead_ns: 2_000.0, latency_ns: 5_000.0, bytes_per_second: 1e9 };
    attr
}
