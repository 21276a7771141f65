//! Provider tcp-connect: datagrams over TCP for those who form connections. It never carries user data.
//!
//! One domain, `tcp-connect`, with one connection-only module, `stream`. All workers of a process share one
//! listener ([`tieline_net::Hub`]); a connection to a peer is made by the first datagram to it, and serves both
//! directions. Who does not know the job's secret and the listener's address gets a closed socket.
//!
//! Reading order: `config` (what a user can set), `provider`, `domain`, `connector` (the contract with the core),
//! `peers` (who is reached over which connection), `wire` (one connection), `frame` (datagrams in a stream).

mod config;
mod connector;
mod domain;
mod frame;
mod peers;
mod provider;
mod wire;

pub use connector::Stream;
pub use domain::TcpConnectDomain;
pub use provider::TcpConnect;
