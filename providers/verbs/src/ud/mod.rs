//! Module `ud`: datagrams. The module connects to an interface and sends small messages, which this provider makes reliable.
//!
//! Every endpoint is a one-way channel of its own. `packet.rs` defines the wire format. `sender.rs` and `receiver.rs` are the two
//! ends of a channel. Neither uses a device, so tests connect them through a wire that loses, duplicates and reorders. `state.rs`
//! connects them to a queue pair.

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

/// Returns the longest message of one packet: the MTU less 40 bytes, which are reserved for the header.
pub(crate) fn max_message(mtu: u8) -> usize {
    mtu_bytes(mtu) - 40
}

/// The code of the largest MTU. The MTU of a peer may be larger than that of this side.
pub(crate) const WIDEST: u8 = 5;

/// The longest identity, in bytes. An identity travels in one or more parts, ahead of the first message.
pub(crate) const MAX_IDENTITY: usize = 4096;

// All parts of an identity or message fit into the window, so connecting never waits for room. An introduction fits into the
// smallest packet.
const _: () = assert!((mtu_bytes(WIDEST) - 40).div_ceil(256 - 40) < sender::WINDOW);
const _: () = assert!(MAX_IDENTITY.div_ceil(256 - 40) < sender::WINDOW);
const _: () = assert!(packet::HEADER_LEN + ADDRESS_LEN <= 256);
