//! Provider tcp-connect: datagrams over TCP for forming connections. The provider never carries user data.
//!
//! One domain, `tcp-connect`, with one connection-only module, `stream`. All workers of a context share one listener
//! ([`tieline_net::Hub`]). The first datagram between two peers makes a connection, which serves both directions. A peer must prove
//! that it knows the listener's address and the job's secret, if there is one; any other peer is refused, and its connection is
//! closed.
//!
//! Reading order: `config` (the user's settings), `provider`, `domain`, `connector` (the contract with the core), `peers` (the
//! peers), `links` (their connections), `wire` (one connection), `frame` (datagrams in a stream).

mod config;
mod connector;
mod domain;
mod frame;
mod links;
mod peers;
mod provider;
mod wire;

pub use connector::Stream;
pub use domain::TcpConnectDomain;
pub use provider::TcpConnect;
