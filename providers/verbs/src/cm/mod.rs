//! The connection-only module `rdmacm`: datagrams that form connections, over connections of the RDMA connection manager,
//! which finds a port by its IP address.
//!
//! ```console
//! $ TIELINE_CONNECT=rdmacm TIELINE_MODULES='^*/ud' tieline info --why | grep rdmacm
//! ```
//!
//! A connector listens at the IP addresses of its port's network interfaces, and its address says where, with random bytes
//! that only who was given it knows. The first datagram to an address makes a connection: an id of the connection manager
//! with a small reliable queue pair, in steps that wait for nothing. Datagrams go over it as sends, cut into frames; each
//! side has `WINDOW` buffers posted and tells with credits when it has posted them again. Connections are closed after
//! `TIELINE_VERBS_CM_IDLE`, and the longest unused one beyond `TIELINE_VERBS_CM_CONNECTIONS`; they are made again on demand.
//!
//! # Why connections
//!
//! The manager could carry datagrams without any: a service resolution (SIDR) brings about 180 bytes there and 136 back,
//! each for an id of its own. That looks simpler and is not: addresses of `rc` with the identity of a worker are longer, so
//! that they would have to be cut, put in order and sent again; nothing would tell that a peer has died; and every datagram
//! would cost the kernel an id on both hosts. A connection is reliable and in order, stops a sender whose peer does not
//! poll, and the kernel of a process that is killed ends it, which the other side hears at once.
//!
//! # Who may connect
//!
//! The handshake is that of connections over TCP (`net/src/auth.rs`): the private data of the request begins it,
//! that of the answer challenges, and the first frame each way proves the address's random bytes and `TIELINE_SECRET`. A
//! request that does not begin so is rejected before it gets a queue pair, and counted; one that does has ten seconds, and
//! one when others wait: of those that have proven nothing the longest silent one makes room (`half_open`).
//!
//! # Whose queue pairs
//!
//! librdmacm opens devices of its own. Its ids are used without queue pairs: those are made of the domain's device, with the
//! attributes that the manager says, so that buffers, completion queue and failures are those of the other modules.
//!
//! # Rooms
//!
//! `peers` decides who is reached over which connection, `wires` and `dial` move it along, `wire` is one connection;
//! `frame`, `credits` and `address` are what travels; `listening` knows which IP addresses lead to a port.

mod abi;
mod address;
#[cfg(test)]
mod connecting_tests;
mod connector;
mod credits;
mod dial;
#[cfg(test)]
mod double {
    //! A connection manager that is played by this process, beside the device that is.
    pub(super) mod sys;
}
mod frame;
mod half_open;
#[cfg(test)]
mod layout_tests;
mod listening;
mod load;
mod peers;
mod sys;
mod wire;
mod wires;
#[cfg(test)]
mod wires_tests;

#[cfg(test)]
pub(crate) use layout_tests::claims as layout_claims;

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
/// Completions that one connection may leave in the queue.
const COMPLETIONS: usize = DEPTH + WINDOW as usize;
/// What a dialler says it wants: to exchange datagrams. The payload is its own address.
const PURPOSE: u8 = 2;

/// What the module says of itself.
pub(crate) fn attributes() -> ModuleAttr {
    let mut attr = ModuleAttr {
        name: fixed(RDMACM),
        role: role::CONNECTION_ONLY,
        connects: connects::TO_INTERFACE,
        caps: caps::PEER_FAILURE
            | caps::EVENT_FD
            | caps::NEEDS_POLL
            | caps::SLOW_POLL
            | caps::ANY_THREAD,
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
