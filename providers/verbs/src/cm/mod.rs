//! The connection-only module `rdmacm`: datagrams for wire-up, over connections of the RDMA connection manager, which finds a port
//! by its IP address.
//!
//! ```console
//! $ TIELINE_CONNECT=rdmacm TIELINE_MODULES='^*/ud' tieline info --why | grep rdmacm
//! ```
//!
//! A connector listens at the IP addresses of its port's network interfaces. Its address contains the listening ports, and random
//! bytes that only recipients of the address know. A datagram to an address without a connection makes one: an id of the connection
//! manager with a small reliable queue pair, set up in non-blocking steps. Datagrams travel as its sends, split into frames.
//! Each side has `WINDOW` buffers posted and returns credits when it has posted them again. A connection is closed after
//! `TIELINE_VERBS_CM_IDLE` without use. Beyond `TIELINE_VERBS_CM_CONNECTIONS`, the least recently used one is closed. Connections
//! are made again on demand.
//!
//! # Why connections
//!
//! The manager can carry datagrams without connections, too: a service resolution (SIDR) transports about 180 bytes to the peer and
//! 136 back, with a new id for each. That would be more complicated. `rc` addresses with the identity of a worker are longer, so
//! they would need fragmentation, ordering and retransmission. The death of a peer would go unnoticed, and every datagram would
//! cost the kernel an id on both hosts. A connection is reliable and ordered, and it stops a sender whose peer does not poll. If a
//! process is killed, its kernel ends the connection and notifies the other side.
//!
//! # Authentication
//!
//! The handshake is that of connections over TCP (`net/src/auth.rs`). The request's private data starts the handshake, and the
//! answer's private data contains the challenge. The first frame in each direction proves knowledge of the address's random bytes
//! and of `TIELINE_SECRET`. A request without a valid start is rejected before it gets a queue pair, and counted. The peer of a
//! valid request has ten seconds for its proof. At the limit of half-open connections (`half_open`) the time is one second: the
//! unproven connection that has been silent longest is dropped for a new one.
//!
//! # Queue pairs
//!
//! librdmacm opens devices of its own. Its ids are used without queue pairs. The queue pairs are made on the domain's device, with
//! the attributes from the manager. They use the same code for buffers, teardown and wake-ups as the other modules.
//!
//! # Structure
//!
//! `connector` is the interface to the core. [`tieline_net::datagrams`] selects the connection to each peer; `wires` and `dial`
//! drive the connections, `half_open` bounds the unproven ones, and `wire` is one connection. `frame`, `credits` and `address`
//! define the wire format. `listening` finds the IP addresses of a port. `sys`, `abi` and `load` bind librdmacm.

mod abi;
mod address;
#[cfg(test)]
mod connecting_tests;
mod connector;
mod credits;
mod dial;
#[cfg(test)]
mod double {
    //! A connection manager double in this process, beside the device double.
    pub(super) mod sys;
}
mod frame;
mod half_open;
#[cfg(test)]
mod layout_tests;
mod listening;
mod load;
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

/// The name of the module.
pub const RDMACM: &str = "rdmacm";

/// The longest datagram, in bytes.
const MAX_DATAGRAM: usize = 16 << 10;
const _: () = assert!(MAX_DATAGRAM <= tieline_net::datagrams::QUEUE);
/// The number of bytes of a buffer, and therefore of the longest frame.
const BUFFER: usize = 4 << 10;
/// The number of receive buffers of a connection. Both sides must have the same number, so the number is part of the address's
/// version.
const WINDOW: u8 = 8;
/// The maximum number of outstanding sends of one connection.
const DEPTH: usize = 16;
/// The maximum number of completions of one connection that may remain in the queue.
const COMPLETIONS: usize = DEPTH + WINDOW as usize;
/// The purpose in a dialler's hello: exchange of datagrams. The payload is the dialler's own address.
const PURPOSE: u8 = 2;

/// Returns the module's attributes.
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
