//! Module `ud`: datagrams. It connects to an interface and sends small messages, which this provider makes reliable.
//!
//! Every endpoint is a one-way channel of its own. `packet.rs` defines the wire format. `sender.rs` and `receiver.rs` are the
//! two ends of a channel. Neither uses a device, so tests connect them through a wire that loses, duplicates and reorders.
//! `interface.rs` connects them to a queue pair.

mod address;
#[cfg(test)]
mod device_tests;
mod endpoint;
mod interface;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod lossy_tests;
mod packet;
mod receiver;
mod sender;
mod state;

pub(crate) use address::ADDRESS_LEN;
pub use endpoint::UdEndpoint;
pub use interface::UdInterface;

use crate::port::mtu_bytes;

/// Returns the longest message: a packet without 40 bytes. These are reserved even if a header needs fewer.
pub(crate) fn max_message(mtu: u8) -> usize {
    mtu_bytes(mtu) - 40
}

/// The code of the largest MTU; a peer's may be larger than ours.
pub(crate) const WIDEST: u8 = 5;

/// The longest identity. It travels in parts, ahead of the first message.
pub(crate) const MAX_IDENTITY: usize = 4096;

// All parts of an identity or message fit into the window, so connecting never waits for room. An introduction fits into the
// smallest packet.
const _: () = assert!((mtu_bytes(WIDEST) - 40).div_ceil(256 - 40) < sender::WINDOW);
const _: () = assert!(MAX_IDENTITY.div_ceil(256 - 40) < sender::WINDOW);
const _: () = assert!(packet::HEADER_LEN + ADDRESS_LEN <= 256);
