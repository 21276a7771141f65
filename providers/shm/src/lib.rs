//! Provider shm.

#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod hello;
#[cfg(all(feature = "test-hooks", not(loom)))]
mod hooks;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod interface;
#[cfg(not(loom))]
mod keys;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod provider;
#[cfg(not(loom))]
mod receiver;
mod ring;
#[cfg(not(loom))]
mod sender;
#[cfg(not(loom))]
mod sys;

#[cfg(not(loom))]
pub use provider::Shm;
