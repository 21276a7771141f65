//! Module `ud`: datagrams. Connects to an interface; small messages, made reliable by this provider.
//!
//! Every endpoint is a channel of its own, from sender to receiver. `packet.rs` is what travels, `sender.rs` and
//! `receiver.rs` are the two ends of a channel, both without any device, so that tests put them at the ends of a
//! wire that loses, doubles and reorders. `interface.rs` puts them on a queue pair.

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

/// The longest message: what is left of a packet. 40 bytes of it are ours, whether a header needs them or not.
pub(crate) fn max_message(mtu: u8) -> usize {
    mtu_bytes(mtu) - 40
}

/// The code of the widest MTU: a peer's may be wider than ours.
pub(crate) const WIDEST: u8 = 5;

/// The longest identity: it travels in pieces, ahead of the first message.
pub(crate) const MAX_IDENTITY: usize = 4096;

// All of them fit the window, so that connecting never waits; and an introduction fits the smallest packet.
const _: () = assert!((mtu_bytes(WIDEST) - 40).div_ceil(256 - 40) < sender::WINDOW);
const _: () = assert!(MAX_IDENTITY.div_ceil(256 - 40) < sender::WINDOW);
const _: () = assert!(packet::HEADER_LEN + ADDRESS_LEN <= 256);
